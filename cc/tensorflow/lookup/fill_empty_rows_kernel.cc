// The kernel of MultitierFillEmptyRows.

#include "cc/group_lookup/fill_empty_rows.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

class FillEmptyRowsKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckRank(context, "indices", context->input(0), 1));
    OP_REQUIRES_OK(context, CheckRank(context, "batch", context->input(1), 0));
    const Span<const int64_t> indices = Elements<int64_t>(context->input(0));
    const int64_t batch = context->input(1).scalar<int64_t>()();
    const Result<int64_t> size = FilledSize(indices, batch);
    OP_REQUIRES_OK(context, ToAbsl(size.status()));
    TensorShape shape;
    OP_REQUIRES_OK(context, TensorShape::BuildTensorShape({*size}, &shape));
    Tensor *rows = nullptr, *entries = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &rows));
    OP_REQUIRES_OK(context, context->allocate_output(1, shape, &entries));
    FillEmptyRows(indices, batch, rows->flat<int64_t>().data(), entries->flat<int64_t>().data());
  }
};

REGISTER_KERNEL_BUILDER(Name("MultitierFillEmptyRows").Device(tensorflow::DEVICE_CPU), FillEmptyRowsKernel);

}  // namespace
}  // namespace multitier
