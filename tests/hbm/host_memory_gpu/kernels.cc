// Kernels of two of TensorFlow's own ops that a build with GPUs has and the CPU's build has not, for the device of plugin.cc: its
// memory is the host's.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_op_registry.h"

namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class ZerosLikeVariant : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto& given = context->input(0).scalar<tensorflow::Variant>()();
    auto* const make = tensorflow::UnaryVariantOpRegistry::Global()->GetUnaryOpFn(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP,
                                                                                  tensorflow::DEVICE_GPU, given.TypeId());
    OP_REQUIRES(context, make != nullptr, absl::InternalError(absl::StrCat("no zeros like ", given.TypeName())));
    tensorflow::AllocatorAttributes on_host;
    on_host.set_on_host(true);
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out, on_host));
    OP_REQUIRES_OK(context, (*make)(context, given, &out->scalar<tensorflow::Variant>()()));
  }
};

template <typename Index>
class ResourceGather : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &variable));
    tensorflow::tf_shared_lock lock(*variable->mu());
    const Tensor& params = *variable->tensor();
    const Tensor& indices = context->input(1);
    tensorflow::TensorShape shape = indices.shape();
    for (int i = 1; i < params.dims(); ++i) {
      shape.AddDim(params.dim_size(i));
    }
    Tensor* out;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    const int64_t rows = params.dim_size(0);
    const int64_t row = params.NumElements() / std::max<int64_t>(1, rows);
    const auto index = indices.flat<Index>();
    for (int64_t i = 0; i < index.size(); ++i) {
      if (index(i) < 0 || index(i) >= rows) {  // as a GPU does: no error
        std::fill_n(out->flat<float>().data() + i * row, row, 0.0f);
        continue;
      }
      std::memcpy(out->flat<float>().data() + i * row, params.flat<float>().data() + index(i) * row, row * sizeof(float));
    }
  }
};

REGISTER_KERNEL_BUILDER(Name("ZerosLike").Device(tensorflow::DEVICE_GPU).TypeConstraint<tensorflow::Variant>("T"),
                        ZerosLikeVariant);
REGISTER_KERNEL_BUILDER(Name("ResourceGather")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("resource")
                            .TypeConstraint<float>("dtype")
                            .TypeConstraint<int32_t>("Tindices"),
                        ResourceGather<int32_t>);
REGISTER_KERNEL_BUILDER(Name("ResourceGather")
                            .Device(tensorflow::DEVICE_GPU)
                            .HostMemory("resource")
                            .TypeConstraint<float>("dtype")
                            .TypeConstraint<int64_t>("Tindices"),
                        ResourceGather<int64_t>);

}  // namespace
