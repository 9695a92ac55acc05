// Pooling: the values of a sparse batch combined to one vector a row, and the gradients of that.
//
//   entries   0    1    2    3    4          indices = 0 0 2 2 2, batch = 4
//   row       \_ 0_/    \____ 2 ____/        rows 1 and 3 have no entry: zeros
//
//   sum     s = w0 v0 + w1 v1 + ...          added in the order of the entries
//   mean    s / (w0 + w1 + ...)
//   sqrtn   s / sqrt(w0^2 + w1^2 + ...)
//
// Without weights every w is 1. Where a divisor is zero the row is zeros. The arithmetic is that of
// tf.nn.embedding_lookup_sparse: float32, product before sum, IEEE division; only the order of addition is ours. Results do
// not depend on the executor, nor on whether the caller's thread flushes subnormals.
//
// Thread-safe: plain functions.

#ifndef CC_LOOKUP_POOLING_H_
#define CC_LOOKUP_POOLING_H_

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
  Span<const float> weights;    // [nnz], or empty: all one
  int64_t batch = 0;            // rows
  int dim = 0;                  // elements of a value
  Combiner combiner = Combiner::kSum;
  int64_t stride = 0;  // elements from one pooled row, or gradient of one, to the next: >= dim; 0: dim

  int64_t row_stride() const { return stride != 0 ? stride : dim; }
};

// InvalidArgument naming the first entry that is out of order or range, or the sizes that differ. Everything below
// REQUIRES that it is OK.
Status ValidateSparseBatch(const SparseBatch& batch);

// Where the values of the entries are: entry i at data + dim * (places ? places[i] : i).
struct EntryValues {
  const float* data = nullptr;      // [nnz, dim]
  const int32_t* places = nullptr;  // [nnz], or null: in the order of the entries
};

// out: [batch, dim], every element written; rows as far apart as the batch says.
void Pool(const SparseBatch& batch, const EntryValues& values, float* out, Executor* executor = nullptr);
// The same for the rows [row_begin, row_end) alone; `entry`: the first entry that belongs to them or comes after them.
// out: [batch, dim], of which those rows are written.
void PoolRange(const SparseBatch& batch, const EntryValues& values, int64_t row_begin, int64_t row_end, size_t entry,
               float* out);

// Gradient with respect to the value of each entry. grad: [batch, dim] of the pooled rows; out: [nnz, dim].
void PoolGradient(const SparseBatch& batch, const float* grad, float* out, Executor* executor = nullptr);

// Gradient with respect to the weight of each entry. out: [nnz]. REQUIRES: weights are given.
void PoolWeightsGradient(const SparseBatch& batch, const EntryValues& values, const float* grad, float* out,
                         Executor* executor = nullptr);

// Scales each of n values whose Euclidean norm is above max_norm to that norm, with the arithmetic of tf.clip_by_norm
// (which multiplies and divides the others by max_norm too).
// values: [n, dim]; REQUIRES: max_norm >= 0
void ClipByNorm(float* values, int64_t n, int dim, float max_norm, Executor* executor = nullptr);

}  // namespace multitier

#endif  // CC_LOOKUP_POOLING_H_
