// The kernel of MultitierCheckSideBySide: checks that values can be joined in one tensor. The error names those that cannot.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/base/span.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

// "batch size 3", or of values of more than two dimensions "shape [3,5,...]".
std::string BatchOf(Span<const int32_t> shape) {
  if (shape.size() == 2) return absl::StrCat("batch size ", shape[0]);
  if (shape.empty()) return "a scalar";
  return absl::StrCat("shape [", absl::StrJoin(shape.begin(), shape.end() - 1, ","), shape.size() > 1 ? "," : "", "...]");
}

class CheckSideBySideKernel : public OpKernel {
 public:
  explicit CheckSideBySideKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
  }

  void Compute(OpKernelContext* context) override {
    const Span<const int32_t> expected = Elements<int32_t>(context->input(0));
    for (int i = 0; i < context->num_inputs(); ++i) {
      const Span<const int32_t> found = Elements<int32_t>(context->input(i));
      bool fits = !found.empty() && found.size() == expected.size();
      for (size_t d = 0; fits && d + 1 < found.size(); ++d) fits = found[d] == expected[d];
      const std::string& name = names_[static_cast<size_t>(i)];
      OP_REQUIRES(context, fits,
                  absl::InvalidArgumentError(absl::StrCat(name, ": expected ", BatchOf(expected), " to match ", names_[0],
                                                          ", with which it is concatenated, found ", BatchOf(found))));
    }
  }

 private:
  std::vector<std::string> names_;
};

REGISTER_KERNEL_BUILDER(Name("MultitierCheckSideBySide").Device(tensorflow::DEVICE_CPU), CheckSideBySideKernel);

}  // namespace
}  // namespace multitier
