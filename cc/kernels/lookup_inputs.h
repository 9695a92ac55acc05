// What the kernels of single lookups on the CPU and on GPUs have in common: attrs, and checks of inputs.

#ifndef CC_KERNELS_LOOKUP_INPUTS_H_
#define CC_KERNELS_LOOKUP_INPUTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "cc/lookup/pooling.h"
#include "cc/table/absent_values.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {

// Attr `training`.
absl::Status ReadForAttr(tensorflow::OpKernelConstruction* context, ReadFor* reason);
// Attr `combiner`.
absl::Status CombinerAttr(tensorflow::OpKernelConstruction* context, Combiner* combiner);

// If the op's attr states that it has weights, the tensor has one weight for each of `entries`; else the tensor is empty.
absl::Status CheckWeights(tensorflow::OpKernelContext* context, const tensorflow::Tensor& weights, bool has_weights,
                          int64_t entries);

// Allocates output 0 of a pooled lookup: [batch, dim]. batch: a scalar in host memory.
absl::Status AllocatePooled(tensorflow::OpKernelContext* context, const tensorflow::Tensor& batch, int dim,
                            tensorflow::Tensor** out);

}  // namespace multitier

#endif  // CC_KERNELS_LOOKUP_INPUTS_H_
