#include "cc/group_lookup/sparse_lookup.h"

#include <limits>
#include <memory>
#include <vector>

#include "cc/base/can_allocate.h"
#include "cc/base/new_array.h"
#include "cc/partition/partition.h"
#include "cc/partition/partition_keys.h"

namespace multitier {
namespace {

constexpr size_t kScratchBytesOfKey = 64;  // of PartitionedKeys and places

// The values of all entries, and where each is.
struct Gathered {
  ArrayPtr<float> data;         // [nnz, dim]
  std::vector<int32_t> places;  // [nnz]; empty: in the order of the entries

  EntryValues values() const { return EntryValues{data.get(), places.empty() ? nullptr : places.data()}; }
};

Status Validate(const SparseLookup& lookup) {
  const size_t num_partitions = lookup.partitions.size();
  if (num_partitions < 1 || num_partitions > kPartitionBuckets) {
    return InvalidArgumentError("sparse lookup: expected 1 to ", kPartitionBuckets, " partitions, found ", num_partitions);
  }
  for (const EmbeddingTable* table : lookup.partitions) {
    if (table->dim() != lookup.batch.dim) {
      return InvalidArgumentError("sparse lookup in '", table->options().name, "': expected dim ", lookup.batch.dim, ", found ",
                                  table->dim());
    }
  }
  if (lookup.keys.size() != lookup.batch.indices.size()) {
    return InvalidArgumentError("sparse lookup: expected one row index for each of ", lookup.keys.size(), " keys, found ",
                                lookup.batch.indices.size());
  }
  if (lookup.keys.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgumentError("sparse lookup: expected fewer than 2^31 keys, found ", lookup.keys.size());
  }
  return ValidateSparseBatch(lookup.batch);
}

Status Gather(const SparseLookup& lookup, Executor* executor, Gathered* out) {
  const size_t bytes = lookup.partitions.size() == 1 ? 0 : lookup.keys.size() * kScratchBytesOfKey;
  if (!CanAllocate(bytes)) return ResourceExhaustedError("sparse lookup: no memory for ", bytes, " bytes");
  const size_t dim = lookup.batch.dim;
  const size_t elements = lookup.keys.size() * dim;
  out->data = NewArray<float>(elements);
  if (out->data == nullptr) {
    return ResourceExhaustedError("sparse lookup: no memory for the values of ", lookup.keys.size(), " keys of dim ", dim);
  }
  if (lookup.partitions.size() == 1)
    return lookup.partitions[0]->Lookup(lookup.keys, out->data.get(), executor, nullptr, 0, lookup.reason);
  const PartitionedKeys routed = PartitionKeys(lookup.keys, static_cast<int>(lookup.partitions.size()));
  for (size_t p = 0; p < lookup.partitions.size(); ++p) {
    const Span<const int64_t> keys = routed.keys_of(static_cast<int>(p));
    if (keys.empty()) continue;
    MT_RETURN_IF_ERROR(
        lookup.partitions[p]->Lookup(keys, out->data.get() + routed.begins[p] * dim, executor, nullptr, 0, lookup.reason));
  }
  out->places.resize(lookup.keys.size());
  for (size_t place = 0; place < routed.positions.size(); ++place) {
    out->places[routed.positions[place]] = static_cast<int32_t>(place);
  }
  return OkStatus();
}

// Whether row i has exactly the entry i, so that pooling without weights copies. REQUIRES: a valid batch
bool OneEntryPerRow(const SparseBatch& batch) {
  if (static_cast<int64_t>(batch.indices.size()) != batch.batch || !batch.weights.empty()) return false;
  for (size_t i = 0; i < batch.indices.size(); ++i) {
    if (batch.indices[i] != static_cast<int64_t>(i)) return false;
  }
  return true;
}

}  // namespace

Status LookupSparse(const SparseLookup& lookup, float* out, Executor* executor) {
  MT_RETURN_IF_ERROR(Validate(lookup));
  const int64_t n = static_cast<int64_t>(lookup.keys.size());
  if (lookup.partitions.size() == 1 && OneEntryPerRow(lookup.batch)) {
    MT_RETURN_IF_ERROR(lookup.partitions[0]->Lookup(lookup.keys, out, executor, nullptr, 0, lookup.reason));
    if (lookup.max_norm >= 0.0f) ClipByNorm(out, n, lookup.batch.dim, lookup.max_norm, executor);
    return OkStatus();
  }
  Gathered gathered;
  MT_RETURN_IF_ERROR(Gather(lookup, executor, &gathered));
  if (lookup.max_norm >= 0.0f) ClipByNorm(gathered.data.get(), n, lookup.batch.dim, lookup.max_norm, executor);
  Pool(lookup.batch, gathered.values(), out, executor);
  return OkStatus();
}

Status LookupSparseGradient(const SparseLookup& lookup, const float* grad, float* entry_grads, float* weight_grads,
                            Executor* executor) {
  MT_RETURN_IF_ERROR(Validate(lookup));
  if (weight_grads != nullptr && lookup.batch.weights.size() != lookup.keys.size()) {
    return InvalidArgumentError("gradient of sparse lookup weights: expected ", lookup.keys.size(), " weights, found ",
                                lookup.batch.weights.size());
  }
  PoolGradient(lookup.batch, grad, entry_grads, executor);
  const bool clips = lookup.max_norm >= 0.0f;
  if (!clips && weight_grads == nullptr) return OkStatus();
  Gathered gathered;
  MT_RETURN_IF_ERROR(Gather(lookup, executor, &gathered));
  if (clips) {
    const int64_t n = static_cast<int64_t>(lookup.keys.size());
    ClipByNormGradient(gathered.values(), n, lookup.batch.dim, lookup.max_norm, entry_grads, executor);
    if (weight_grads != nullptr) ClipByNorm(gathered.data.get(), n, lookup.batch.dim, lookup.max_norm, executor);
  }
  if (weight_grads != nullptr) PoolWeightsGradient(lookup.batch, gathered.values(), grad, weight_grads, executor);
  return OkStatus();
}

}  // namespace multitier
