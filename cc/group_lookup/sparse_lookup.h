// Sparse lookup: reads the values of a sparse batch from a table, or from the partitions of a variable, and pools them.
//
//   keys -> (by partition) -> one EmbeddingTable::Lookup per partition -> values [nnz, dim] -> (clip) -> pool -> [batch, dim]
//
// It changes no row. While it runs, it needs nnz x dim floats in addition to the output.
//
// Thread-safe: plain functions over thread-safe tables.

#ifndef CC_GROUP_LOOKUP_SPARSE_LOOKUP_H_
#define CC_GROUP_LOOKUP_SPARSE_LOOKUP_H_

#include <cstdint>

#include "cc/base/executor.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/group_lookup/pooling.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {

struct SparseLookup {
  Span<EmbeddingTable* const> partitions;  // [P], in order; P = 1: the whole table
  Span<const int64_t> keys;                // [nnz]
  SparseBatch batch;
  float max_norm = -1.0f;  // >= 0: values are clipped to this norm before pooling
  ReadFor reason = ReadFor::kTraining;
};

// out: [batch, dim]. InvalidArgument, before any table is read: sizes differ, rows are out of order or range, or a table has
// another dim. Other errors are those of EmbeddingTable::Lookup.
Status LookupSparse(const SparseLookup& lookup, float* out, Executor* executor = nullptr);

// The gradients of LookupSparse with respect to the value of each entry, before clipping, and to its weight. Reads the tables
// again if there is a max_norm or weight_grads is wanted.
// grad: [batch, dim]. entry_grads: out [nnz, dim]. weight_grads: out [nnz], or null.
// InvalidArgument: see LookupSparse; also if weight_grads is wanted and there are no weights.
Status LookupSparseGradient(const SparseLookup& lookup, const float* grad, float* entry_grads, float* weight_grads,
                            Executor* executor = nullptr);

}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_SPARSE_LOOKUP_H_
