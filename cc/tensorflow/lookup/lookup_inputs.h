// What the kernels of single lookups on the CPU and on GPUs have in common: attrs, and checks of inputs.

#ifndef CC_TENSORFLOW_LOOKUP_LOOKUP_INPUTS_H_
#define CC_TENSORFLOW_LOOKUP_LOOKUP_INPUTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/group_lookup/pooling.h"
#include "cc/table/api/absent_values.h"
#include "cc/table/api/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {

// Attr `training`.
absl::Status ReadForAttr(tensorflow::OpKernelConstruction* context, ReadFor* reason);
// The attrs of a pooled lookup and of its gradient, in one table or in several parts.
struct PooledAttrs {
  absl::Status Init(tensorflow::OpKernelConstruction* context);

  int dim = 0;
  bool has_weights = false;
  float max_norm = -1.0f;
  ReadFor reason = ReadFor::kTraining;
  Combiner combiner = Combiner::kSum;
};

// The table numbers of keys. variable: begins messages. InvalidArgument: another shape than the keys', or a number that is
// neither below `count` nor -1, not known, where `may_be_unknown`.
absl::Status ParseTables(const std::string& variable, int64_t count, const tensorflow::Tensor& given,
                         const tensorflow::TensorShape& keys, bool may_be_unknown, std::vector<uint16_t>* tables);

// The last input, if the op's attr T says that there is one: the tables of the keys, in host memory. See ParseTables.
absl::Status TakeTables(tensorflow::OpKernelContext* context, const EmbeddingTable& table, int inputs_before,
                        const tensorflow::TensorShape& keys, bool may_be_unknown, std::vector<uint16_t>* tables);

// If the op's attr states that it has weights, the tensor has one weight for each of `entries`; else the tensor is empty.
absl::Status CheckWeights(tensorflow::OpKernelContext* context, const tensorflow::Tensor& weights, bool has_weights,
                          int64_t entries);

// A kernel for GPUs takes one handle. op: its name
absl::Status CheckOneHandle(tensorflow::OpKernelConstruction* context, const char* op);

// Checks the sizes of a pooled lookup in one table. Does not read the tensors.
absl::Status CheckPooledInputs(tensorflow::OpKernelContext* context, const EmbeddingTable& table,
                               const tensorflow::Tensor& keys, const tensorflow::Tensor& indices,
                               const tensorflow::Tensor& weights, bool has_weights, int dim);

// Allocates output 0 of a pooled lookup: [batch, dim]. batch: a scalar in host memory.
absl::Status AllocatePooled(tensorflow::OpKernelContext* context, const tensorflow::Tensor& batch, int dim,
                            tensorflow::Tensor** out);

// Allocates the outputs of the gradient of a pooled lookup of n entries: *entries [n, dim], and *weights [n], or null if they
// are not wanted.
absl::Status AllocateEntryGradients(tensorflow::OpKernelContext* context, const PooledAttrs& attrs, int64_t n, float** entries,
                                    float** weights);

// Input `input` is the gradient of pooled values: [batch, dim].
absl::Status CheckPooledGrad(tensorflow::OpKernelContext* context, int input, int dim);

// The op's last inputs are values to clip and, if `gradient`, their gradients of the same shape. *dim: their last dimension.
absl::Status CheckClipped(tensorflow::OpKernelContext* context, bool gradient, int* dim);

}  // namespace multitier

#endif  // CC_TENSORFLOW_LOOKUP_LOOKUP_INPUTS_H_
