// What every table has in common, made of its other methods.

#include "cc/table/api/embedding_table.h"

#include <algorithm>

namespace multitier {

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
