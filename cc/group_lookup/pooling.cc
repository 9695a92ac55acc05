// Each task takes a range of rows and finds their entries by binary search, so tasks share nothing. The loops over the
// elements of a value are compiled for several instruction sets (base/multiversion.h).

#include "cc/group_lookup/pooling.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cc/base/ieee.h"
#include "cc/base/multiversion.h"
#include "cc/base/prefetch.h"

namespace multitier {
namespace pooling_internal {

// Elements that are worth a task of their own: some tens of microseconds.
constexpr int64_t kElementsPerTask = 1 << 15;
constexpr int kMaxTasks = 32;

int NumTasks(int64_t elements, int64_t rows) {
  return static_cast<int>(std::max<int64_t>(1, std::min({elements / kElementsPerTask, rows, static_cast<int64_t>(kMaxTasks)})));
}

// Calls body(row_begin, row_end, first_entry) for ranges that cover the batch.
template <typename Body>
void ForRowRanges(const SparseBatch& batch, Executor* executor, const Body& body) {
  const int64_t elements = (static_cast<int64_t>(batch.indices.size()) + batch.batch) * batch.dim;
  const int tasks = NumTasks(elements, batch.batch);
  ParallelFor(executor, tasks, [&](int task) {
    const int64_t begin = batch.batch * task / tasks;
    const int64_t end = batch.batch * (task + 1) / tasks;
    const ScopedIeeeArithmetic ieee;
    const int64_t* first = std::lower_bound(batch.indices.begin(), batch.indices.end(), begin);
    body(begin, end, static_cast<size_t>(first - batch.indices.begin()));
  });
}

MT_ALWAYS_INLINE size_t EntriesEnd(const SparseBatch& batch, int64_t row, size_t begin) {
  size_t end = begin;
  while (end < batch.indices.size() && batch.indices[end] == row) ++end;
  return end;
}

MT_ALWAYS_INLINE const float* Value(const EntryValues& values, size_t entry, int dim) {
  return values.data + static_cast<int64_t>(values.places != nullptr ? values.places[entry] : entry) * dim;
}

// What the sum of a row with entries [begin, end) is divided by: sum of weights, root of the sum of their squares.
MT_ALWAYS_INLINE float Divisor(const SparseBatch& batch, size_t begin, size_t end) {
  if (batch.combiner == Combiner::kSum) return 1.0f;
  if (batch.weights.empty()) {
    const float n = static_cast<float>(end - begin);
    return batch.combiner == Combiner::kMean ? n : std::sqrt(n);
  }
  float sum = 0.0f;
  for (size_t i = begin; i < end; ++i) {
    const float w = batch.weights[i];
    sum += batch.combiner == Combiner::kMean ? w : w * w;
  }
  return batch.combiner == Combiner::kMean ? sum : std::sqrt(sum);
}

MT_ALWAYS_INLINE void Divide(float* row, int dim, float divisor) {
  if (divisor == 1.0f) return;
  if (divisor == 0.0f) {
    std::memset(row, 0, sizeof(float) * dim);
    return;
  }
  for (int d = 0; d < dim; ++d) row[d] /= divisor;
}

MT_ALWAYS_INLINE float Dot(const float* a, const float* b, int dim) {
  float sum = 0.0f;
  for (int d = 0; d < dim; ++d) sum += a[d] * b[d];
  return sum;
}

// The rows of a batch without weights whose dim is known: a sum stays in registers until it is whole.
template <int kDim>
MT_ALWAYS_INLINE void PoolRowsOf(const SparseBatch& batch, const EntryValues& values, float* out, int64_t row_begin,
                                 int64_t row_end, size_t entry) {
  constexpr size_t kAhead = 8;  // values may come from beyond the cache
  const size_t n = batch.indices.size();
  const int64_t stride = batch.row_stride();
  for (int64_t row = row_begin; row < row_end; ++row) {
    const size_t begin = entry;
    float sum[kDim] = {};
    for (; entry < n && batch.indices[entry] == row; ++entry) {
      if (entry + kAhead < n) PrefetchLine(Value(values, entry + kAhead, kDim));
      const float* const value = Value(values, entry, kDim);
      if (entry == begin) {
        for (int d = 0; d < kDim; ++d) sum[d] = value[d];
      } else {
        for (int d = 0; d < kDim; ++d) sum[d] += value[d];
      }
    }
    if (entry != begin) Divide(sum, kDim, Divisor(batch, begin, entry));
    std::memcpy(out + row * stride, sum, sizeof(sum));
  }
}

MT_MULTIVERSION void PoolRows(const SparseBatch& batch, const EntryValues& values, float* out, int64_t row_begin,
                              int64_t row_end, size_t entry) {
  const int dim = batch.dim;
  const bool weighted = !batch.weights.empty();
  if (!weighted && dim == 8) return PoolRowsOf<8>(batch, values, out, row_begin, row_end, entry);
  if (!weighted && dim == 16) return PoolRowsOf<16>(batch, values, out, row_begin, row_end, entry);
  if (!weighted && dim == 32) return PoolRowsOf<32>(batch, values, out, row_begin, row_end, entry);
  if (!weighted && dim == 64) return PoolRowsOf<64>(batch, values, out, row_begin, row_end, entry);
  if (!weighted && dim == 128) return PoolRowsOf<128>(batch, values, out, row_begin, row_end, entry);
  const int64_t stride = batch.row_stride();
  for (int64_t row = row_begin; row < row_end; ++row) {
    float* sum = out + row * stride;
    const size_t end = EntriesEnd(batch, row, entry);
    if (entry == end) {
      std::memset(sum, 0, sizeof(float) * dim);
      continue;
    }
    for (size_t i = entry; i < end; ++i) {
      const float* value = Value(values, i, dim);
      if (weighted) {
        const float w = batch.weights[i];
        if (i == entry) {
          for (int d = 0; d < dim; ++d) sum[d] = value[d] * w;
        } else {
          for (int d = 0; d < dim; ++d) sum[d] += value[d] * w;
        }
      } else if (i == entry) {
        std::memcpy(sum, value, sizeof(float) * dim);
      } else {
        for (int d = 0; d < dim; ++d) sum[d] += value[d];
      }
    }
    Divide(sum, dim, Divisor(batch, entry, end));
    entry = end;
  }
}

MT_MULTIVERSION void GradientRows(const SparseBatch& batch, const float* grad, float* out, int64_t row_begin, int64_t row_end,
                                  size_t entry) {
  const int dim = batch.dim;
  const int64_t stride = batch.row_stride();
  for (int64_t row = row_begin; row < row_end; ++row) {
    const size_t end = EntriesEnd(batch, row, entry);
    const float* g = grad + row * stride;
    if (batch.weights.empty()) {
      // TensorFlow multiplies by the reciprocal, rounded from double.
      const double n = static_cast<double>(end - entry);
      const double factor = batch.combiner == Combiner::kSum    ? 1.0
                            : batch.combiner == Combiner::kMean ? 1.0 / n
                                                                : 1.0 / std::sqrt(n);
      const float scale = static_cast<float>(factor);
      for (size_t i = entry; i < end; ++i) {
        for (int d = 0; d < dim; ++d) out[i * dim + d] = g[d] * scale;
      }
    } else {
      const float divisor = Divisor(batch, entry, end);
      for (size_t i = entry; i < end; ++i) {
        std::memcpy(out + i * dim, g, sizeof(float) * dim);
        Divide(out + i * dim, dim, divisor);
        const float w = batch.weights[i];
        for (int d = 0; d < dim; ++d) out[i * dim + d] *= w;
      }
    }
    entry = end;
  }
}

// With s the weighted sum of a row, q its divisor and g the gradient of s / q:
//   d/dw = g.v / q - (g.s / q^2) dq/dw,   dq/dw = 1 (mean), w / q (sqrtn)
void WeightsGradientRows(const SparseBatch& batch, const EntryValues& values, const float* grad, float* out, int64_t row_begin,
                         int64_t row_end, size_t entry) {
  const int dim = batch.dim;
  const int64_t stride = batch.row_stride();
  for (int64_t row = row_begin; row < row_end; ++row) {
    const size_t end = EntriesEnd(batch, row, entry);
    const float* g = grad + row * stride;
    const float divisor = Divisor(batch, entry, end);
    float dot_sum = 0.0f;  // g.s
    for (size_t i = entry; i < end; ++i) {
      out[i] = Dot(g, Value(values, i, dim), dim);
      dot_sum += batch.weights[i] * out[i];
    }
    for (size_t i = entry; i < end && batch.combiner != Combiner::kSum; ++i) {
      if (divisor == 0.0f) {
        out[i] = 0.0f;
        continue;
      }
      const float slope = batch.combiner == Combiner::kMean ? 1.0f : batch.weights[i] / divisor;
      out[i] = (out[i] - dot_sum / divisor * slope) / divisor;
    }
    entry = end;
  }
}

MT_MULTIVERSION void ClipRows(float* values, int64_t begin, int64_t end, int dim, float max_norm) {
  for (int64_t i = begin; i < end; ++i) {
    float* value = values + i * dim;
    const float divisor = std::max(std::sqrt(Dot(value, value, dim)), max_norm);
    if (divisor == 0.0f) continue;
    for (int d = 0; d < dim; ++d) value[d] = value[d] * max_norm / divisor;
  }
}

// c = v m / max(|v|, m), so that where |v| >= m   dc = (g - v (v.g) / |v|^2) m / |v|
MT_MULTIVERSION void ClipGradientRows(const EntryValues& values, int64_t begin, int64_t end, int dim, float max_norm,
                                      float* grads) {
  for (int64_t i = begin; i < end; ++i) {
    const float* v = Value(values, static_cast<size_t>(i), dim);
    float* g = grads + i * dim;
    float squares = 0.0f, dot = 0.0f;
    for (int d = 0; d < dim; ++d) {
      squares += v[d] * v[d];
      dot += v[d] * g[d];
    }
    const float norm = std::sqrt(squares);
    if (norm < max_norm || norm == 0.0f) continue;
    const float scale = max_norm / norm, along = dot / squares;
    for (int d = 0; d < dim; ++d) g[d] = (g[d] - v[d] * along) * scale;
  }
}

}  // namespace pooling_internal

Result<Combiner> ParseCombiner(const std::string& name) {
  if (name == "sum") return Combiner::kSum;
  if (name == "mean") return Combiner::kMean;
  if (name == "sqrtn") return Combiner::kSqrtN;
  return InvalidArgumentError("combiner: expected sum, mean or sqrtn, found '", name, "'");
}

Status ValidateSparseBatch(const SparseBatch& batch) {
  if (batch.dim < 1) return InvalidArgumentError("sparse batch: dim: expected at least 1, found ", batch.dim);
  if (batch.batch < 0) return InvalidArgumentError("sparse batch: batch: expected at least 0, found ", batch.batch);
  if (!batch.weights.empty() && batch.weights.size() != batch.indices.size()) {
    return InvalidArgumentError("sparse batch: expected ", batch.indices.size(), " weights (one per entry) or none, found ",
                                batch.weights.size());
  }
  int64_t previous = 0;
  for (size_t i = 0; i < batch.indices.size(); ++i) {
    const int64_t row = batch.indices[i];
    if (row < 0 || row >= batch.batch) {
      return InvalidArgumentError("sparse batch: expected rows in [0, ", batch.batch, "), found indices[", i, "] = ", row);
    }
    if (row < previous) {
      return InvalidArgumentError("sparse batch: expected rows in nondecreasing order, found indices[", i, "] = ", row,
                                  " after ", previous);
    }
    previous = row;
  }
  return OkStatus();
}

void Pool(const SparseBatch& batch, const EntryValues& values, float* out, Executor* executor) {
  pooling_internal::ForRowRanges(batch, executor, [&](int64_t begin, int64_t end, size_t entry) {
    pooling_internal::PoolRows(batch, values, out, begin, end, entry);
  });
}

void PoolRange(const SparseBatch& batch, const EntryValues& values, int64_t row_begin, int64_t row_end, size_t entry,
               float* out) {
  const ScopedIeeeArithmetic ieee;
  pooling_internal::PoolRows(batch, values, out, row_begin, row_end, entry);
}

void PoolGradient(const SparseBatch& batch, const float* grad, float* out, Executor* executor) {
  pooling_internal::ForRowRanges(batch, executor, [&](int64_t begin, int64_t end, size_t entry) {
    pooling_internal::GradientRows(batch, grad, out, begin, end, entry);
  });
}

void PoolWeightsGradient(const SparseBatch& batch, const EntryValues& values, const float* grad, float* out,
                         Executor* executor) {
  pooling_internal::ForRowRanges(batch, executor, [&](int64_t begin, int64_t end, size_t entry) {
    pooling_internal::WeightsGradientRows(batch, values, grad, out, begin, end, entry);
  });
}

void ClipByNorm(float* values, int64_t n, int dim, float max_norm, Executor* executor) {
  const int tasks = pooling_internal::NumTasks(n * dim, n);
  ParallelFor(executor, tasks, [&](int task) {
    const ScopedIeeeArithmetic ieee;
    pooling_internal::ClipRows(values, n * task / tasks, n * (task + 1) / tasks, dim, max_norm);
  });
}

void ClipByNormGradient(const EntryValues& values, int64_t n, int dim, float max_norm, float* grads, Executor* executor) {
  const int tasks = pooling_internal::NumTasks(n * dim, n);
  ParallelFor(executor, tasks, [&](int task) {
    const ScopedIeeeArithmetic ieee;
    pooling_internal::ClipGradientRows(values, n * task / tasks, n * (task + 1) / tasks, dim, max_norm, grads);
  });
}

}  // namespace multitier
