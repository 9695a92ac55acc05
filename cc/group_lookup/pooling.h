// Pooling: combines the values of a sparse batch to one vector per row. Also the gradients.
//
//   entries   0    1    2    3    4          indices = 0 0 2 2 2, batch = 4
//   row       \_ 0_/    \____ 2 ____/        rows 1 and 3 have no entry: zeros
//
//   sum     s = w0 v0 + w1 v1 + ...          added in the order of the entries
//   mean    s / (w0 + w1 + ...)
//   sqrtn   s / sqrt(w0^2 + w1^2 + ...)
//
// Without weights every w is 1. If a divisor is zero, the row is zeros. The arithmetic is that of
// tf.nn.embedding_lookup_sparse: float32, product before sum, IEEE division. Only the order of additions is our own. Results do
// not depend on the executor, or on whether the caller's thread flushes subnormals.
//
// Thread-safe: plain functions.

#ifndef CC_GROUP_LOOKUP_POOLING_H_
#define CC_GROUP_LOOKUP_POOLING_H_

#include <cstdint>
#include <string>

#include "cc/base/executor.h"
#include "cc/base/span.h"
#include "cc/base/status.h"

namespace multitier {

enum class Combiner : int { kSum = 0, kMean = 1, kSqrtN = 2 };

// "sum", "mean", "sqrtn"; InvalidArgument for others.
Result<Combiner> ParseCombiner(const std::string& name);

// Which entries belong to which row of a batch.
struct SparseBatch {
  Span<const int64_t> indices;  // [nnz] the row of each entry, nondecreasing, in [0, batch)
  Span<const float> weights;    // [nnz], or empty: all weights are 1
  int64_t batch = 0;            // rows
  int dim = 0;                  // elements of a value
  Combiner combiner = Combiner::kSum;
  int64_t stride = 0;  // row stride of pooled rows and of their gradients, in elements: >= dim; 0: dim

  int64_t row_stride() const { return stride != 0 ? stride : dim; }
};

// InvalidArgument, with the first entry that is out of order or range, or with the sizes that differ. All functions below
// REQUIRE that this is OK.
Status ValidateSparseBatch(const SparseBatch& batch);

// The values of the entries. Entry i is at data + dim * (places ? places[i] : i).
struct EntryValues {
  const float* data = nullptr;      // [nnz, dim]
  const int32_t* places = nullptr;  // [nnz], or null: in the order of the entries
};

// out: [batch, dim], with the row stride of the batch. Every element is written.
void Pool(const SparseBatch& batch, const EntryValues& values, float* out, Executor* executor = nullptr);
// Pool for rows [row_begin, row_end) only. entry: the first entry of these rows, or of later rows if they have none. out:
// [batch, dim]; only these rows are written.
void PoolRange(const SparseBatch& batch, const EntryValues& values, int64_t row_begin, int64_t row_end, size_t entry,
               float* out);

// The gradient with respect to the value of each entry. grad: [batch, dim] of the pooled rows. out: [nnz, dim].
void PoolGradient(const SparseBatch& batch, const float* grad, float* out, Executor* executor = nullptr);

// The gradient with respect to the weight of each entry. out: [nnz]. REQUIRES: weights are given.
void PoolWeightsGradient(const SparseBatch& batch, const EntryValues& values, const float* grad, float* out,
                         Executor* executor = nullptr);

// Scales each of n values whose Euclidean norm is above max_norm to that norm. The arithmetic is that of tf.clip_by_norm, which
// also multiplies and divides the other values by max_norm.
// values: [n, dim]; REQUIRES: max_norm >= 0
void ClipByNorm(float* values, int64_t n, int dim, float max_norm, Executor* executor = nullptr);

// In place: makes the gradients of n clipped values the gradients of the values before clipping.
// grads: [n, dim]; REQUIRES: max_norm >= 0
void ClipByNormGradient(const EntryValues& values, int64_t n, int dim, float max_norm, float* grads,
                        Executor* executor = nullptr);

}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_POOLING_H_
