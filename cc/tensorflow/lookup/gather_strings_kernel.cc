// The kernel of MultitierGatherStrings.

#include "absl/strings/str_cat.h"
#include "cc/base/span.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/platform/tstring.h"

namespace multitier {
namespace {

using tensorflow::tstring;

class GatherStringsKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckRank(context, "offsets", context->input(0), 1));
    OP_REQUIRES_OK(context, CheckRank(context, "bytes", context->input(1), 1));
    Tensor* strings = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, context->input(2).shape(), &strings));
    OP_REQUIRES_OK(context, Gather(context, strings->flat<tstring>().data()));
  }

 private:
  static absl::Status Gather(OpKernelContext* context, tstring* strings) {
    const Span<const int64_t> offsets = Elements<int64_t>(context->input(0));
    const int64_t count = offsets.empty() ? 0 : static_cast<int64_t>(offsets.size()) - 1;
    const auto bytes = context->input(1).flat<uint8_t>();
    const char* const data = reinterpret_cast<const char*>(bytes.data());
    for (const int32_t position : Elements<int32_t>(context->input(2))) {
      if (position < 0 || position >= count) {
        return absl::InvalidArgumentError(
            absl::StrCat("MultitierGatherStrings: expected positions in [0, ", count, "), found ", position));
      }
      const int64_t begin = offsets[static_cast<size_t>(position)];
      const int64_t end = offsets[static_cast<size_t>(position) + 1];
      if (begin < 0 || end < begin || end > bytes.size()) {
        return absl::InvalidArgumentError(absl::StrCat("MultitierGatherStrings: expected ascending offsets in [0, ",
                                                       bytes.size(), "], found ", begin, " and ", end, " of string ",
                                                       position));
      }
      (strings++)->assign(data + begin, static_cast<size_t>(end - begin));
    }
    return absl::OkStatus();
  }
};

REGISTER_KERNEL_BUILDER(Name("MultitierGatherStrings").Device(tensorflow::DEVICE_CPU), GatherStringsKernel);

}  // namespace
}  // namespace multitier
