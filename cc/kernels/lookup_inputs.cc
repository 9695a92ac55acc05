#include "cc/kernels/lookup_inputs.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "cc/kernels/embedding_variable.h"
#include "cc/kernels/op_kernel.h"
#include "cc/kernels/status_bridge.h"

namespace multitier {

absl::Status ReadForAttr(OpKernelConstruction* context, ReadFor* reason) {
  bool training;
  TF_RETURN_IF_ERROR(context->GetAttr("training", &training));
  *reason = training ? ReadFor::kTraining : ReadFor::kEvaluation;
  return absl::OkStatus();
}

absl::Status CombinerAttr(OpKernelConstruction* context, Combiner* combiner) {
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("combiner", &name));
  const Result<Combiner> parsed = ParseCombiner(name);
  if (parsed.ok()) *combiner = *parsed;
  return ToAbsl(parsed.status());
}

absl::Status CheckWeights(OpKernelContext* context, const Tensor& weights, bool has_weights, int64_t entries) {
  TF_RETURN_IF_ERROR(CheckRank(context, "weights", weights, 1));
  const int64_t expected = has_weights ? entries : 0;
  if (weights.NumElements() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sparse lookup: expected ", expected, " weights (",
                                                 has_weights ? "one for each key" : "has_weights is false", "), found ",
                                                 weights.NumElements()));
}

absl::Status AllocatePooled(OpKernelContext* context, const Tensor& batch, int dim, Tensor** out) {
  TF_RETURN_IF_ERROR(CheckRank(context, "batch", batch, 0));
  const int64_t rows = batch.scalar<int64_t>()();
  if (rows < 0) return absl::InvalidArgumentError(absl::StrCat("batch: expected at least 0, found ", rows));
  TensorShape shape;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape({rows, dim}, &shape));
  return context->allocate_output(0, shape, out);
}

}  // namespace multitier
