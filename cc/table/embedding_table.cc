// What every table has in common, made of its other methods.

#include "cc/table/embedding_table.h"

#include <algorithm>
#include <utility>

namespace multitier {

Result<MemoryLease> EmbeddingTable::HoldMemory(size_t keys) const {
  MemoryLease lease(kScratchBytes + keys * kScratchBytesOfKey);
  if (!lease.ok()) return lease.Refusal(StrCat("table '", options().name, "'"));
  return lease;
}

Status EmbeddingTable::CheckTables(Span<const uint16_t> tables, size_t n) const {
  const size_t count = absent_values().initial().tables();
  if (tables.empty() && (count == 1 || n == 0)) return OkStatus();
  if (tables.size() != n) {
    return InvalidArgumentError("table '", options().name, "': tables: expected a table number for each of ", n,
                                " keys, because its initializers are a list of ", count, "; found ", tables.size(),
                                ": give the lookup tables");
  }
  for (size_t i = 0; i < n; ++i) {
    if (tables[i] >= count) {
      return InvalidArgumentError("table '", options().name, "': tables: expected 0 to ", count - 1, ", found tables[", i,
                                  "] = ", tables[i]);
    }
  }
  return OkStatus();
}

Status EmbeddingTable::ScoreOf(Span<const int64_t> keys, int64_t* out) {
  return options().score == Score::kFrequency ? Frequency(keys, out) : Version(keys, out);
}

Result<Rows> EmbeddingTable::Export(bool all_columns) {
  Rows all;
  MT_RETURN_IF_ERROR(TakeSnapshot(all_columns, INT64_MAX, [&](Rows* rows) {
    all = std::move(*rows);
    return OkStatus();
  }));
  return all;
}

Status EmbeddingTable::TakeSnapshot(bool all_columns, int64_t max_rows, const std::function<Status(Rows*)>& visit,
                                    const std::function<void()>& marked) {
  MT_ASSIGN_OR_RETURN(const MemoryLease memory, HoldMemory(0));
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<TableSnapshot> snapshot,
                      PrepareSnapshot(SnapshotRequest{all_columns, max_rows, visit, 0, 0, nullptr}));
  MT_RETURN_IF_ERROR(snapshot->Hold());
  snapshot->Mark();
  snapshot->Release();
  if (marked) marked();
  return snapshot->Run();
}

Status EmbeddingTable::DropPresent(std::vector<int64_t>* keys) {
  size_t without = 0;
  std::vector<int32_t> tiers;
  for (size_t from = 0; from < keys->size(); from += kChunkKeys) {
    const Span<const int64_t> some = Span<const int64_t>(*keys).subspan(from, std::min(kChunkKeys, keys->size() - from));
    tiers.resize(some.size());
    MT_RETURN_IF_ERROR(LookupTier(some, tiers.data()));
    for (size_t i = 0; i < some.size(); ++i) {
      if (tiers[i] < 0) (*keys)[without++] = some[i];
    }
  }
  keys->resize(without);
  return OkStatus();
}

}  // namespace multitier
