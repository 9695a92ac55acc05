// PlanInput: the plan of a grouped lookup that an op takes as a scalar variant. For sources of kernels.

#ifndef CC_TENSORFLOW_LOOKUP_PLAN_INPUT_H_
#define CC_TENSORFLOW_LOOKUP_PLAN_INPUT_H_

#include <memory>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"

namespace multitier {

// Gives what the Variant in input `input` keeps. InvalidArgument if it is another variant, or keeps nothing. expected: names it
template <typename Variant, typename Kept>
absl::Status PlanInput(tensorflow::OpKernelContext* context, int input, const char* expected, std::shared_ptr<Kept>* kept) {
  TF_RETURN_IF_ERROR(CheckRank(context, "plan", context->input(input), 0));
  const auto* found = context->input(input).scalar<tensorflow::Variant>()().get<Variant>();
  if (found == nullptr || found->kept() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(context->op_kernel().type_string(), ": expected ", expected, ", found another variant"));
  }
  *kept = found->kept();
  return absl::OkStatus();
}

}  // namespace multitier

#endif  // CC_TENSORFLOW_LOOKUP_PLAN_INPUT_H_
