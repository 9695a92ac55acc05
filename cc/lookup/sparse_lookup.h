// Sparse lookup: read the values of a sparse batch in one table, or in the partitions of one, and pool them.
//
//   keys -> (by partition) -> one EmbeddingTable::Lookup a partition -> values [nnz, dim] -> (clip) -> pool -> [batch, dim]
//
// Reads only. Needs nnz x dim floats beside the output while it runs.
//
// Thread-safe: plain functions over thread-safe tables.

#ifndef CC_LOOKUP_SPARSE_LOOKUP_H_
#define CC_LOOKUP_SPARSE_LOOKUP_H_

#include <cstdint>

#include "cc/base/executor.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/lookup/pooling.h"
#include "cc/table/embedding_table.h"

namespace multitier {

struct SparseLookup {
  Span<EmbeddingTable* const> partitions;  // [P], in order; P = 1: the whole table
  Span<const int64_t> keys;                // [nnz]
  SparseBatch batch;
  float max_norm = -1.0f;                  // >= 0: values are clipped to this norm before pooling
};

// out: [batch, dim]. InvalidArgument, before any table is read: sizes that differ, rows out of order or range, a table of
// another dim. Other errors are those of EmbeddingTable::Lookup.
Status LookupSparse(const SparseLookup& lookup, float* out, Executor* executor = nullptr);

// Gradient of LookupSparse with respect to the weights (max_norm is ignored). grad: [batch, dim]; out: [nnz].
// InvalidArgument as above, and without weights.
Status LookupSparseWeightsGradient(const SparseLookup& lookup, const float* grad, float* out,
                                   Executor* executor = nullptr);

}  // namespace multitier

#endif  // CC_LOOKUP_SPARSE_LOOKUP_H_
