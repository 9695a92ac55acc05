// TableParts: what an EmbeddingTable is made of, over a MemoryTier, for tests of the parts alone. One shard; nothing runs in
// the background unless a test starts it.

#ifndef CC_TABLE_TEST_TABLE_PARTS_TEST_UTIL_H_
#define CC_TABLE_TEST_TABLE_PARTS_TEST_UTIL_H_

#include <memory>
#include <utility>

#include "cc/table/tiering/tier_reader.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier {

struct TableParts {
  // lower_rows: the size of the tier below; 0: it has no bound. has_lower: there is one. has_last: there is another below it.
  TableParts(TableOptions options, InitializerSpec initial_value, bool has_lower = true, uint64_t lower_rows = 0,
             bool has_last = false)
      : base(WithTiers(std::move(options), has_lower, lower_rows, has_last)) {
    const int dim = base.options.dim;
    const auto layout = std::make_shared<const RowLayout>(*RowLayout::Create(dim, DType::kFloat32));
    base.SetLayout(layout);
    TableOptions with_value;
    with_value.dim = dim;
    with_value.initializer = initial_value;
    base.absent = *AbsentValues::Of(with_value);
    base.common.initializer = &base.absent.initial();
    base.common.evicts = has_lower || base.options.drop_coldest;
    base.common.exact = true;
    if (has_lower) base.tiers.Add(tier.get(), lower_rows != 0);
    if (has_last) base.tiers.Add(last.get(), /*bounded=*/false);
    base.shards.Make(0, &base.common, layout, nullptr);
    MT_CHECK(base.tiers.SetLayout(layout).ok());
  }

  // A row that changes, as an apply leaves it; it is made where the key has none.
  void Train(int64_t key) {
    KeyBatch batch;
    batch.SortByShard(Span<const int64_t>(&key, 1), 0);
    Shard::Locked lock(base.shards[0]);
    std::vector<RowHeader*> rows{lock->Find(key, HashKey(key)).row};
    if (rows[0] == nullptr) {
      MT_CHECK(lock->ReserveWords(1).ok() && lock->ReserveRows(1).ok());
      ++base.common.dram_rows;
      size_t created = 0;
      MT_CHECK(lock->CreateUncommitted(batch, {0}, base.common.accesses++, rows.data(), &created).ok());
    } else {
      lock->Pin(rows[0]);
    }
    FreedRecords freed;
    lock->BeginChange(rows[0], HashKey(key));
    lock->Commit(rows[0]);
    lock->FinishChange(rows[0], base.common.accesses++, 1, &freed);
    base.tiers.Free(&freed);
  }

  const std::shared_ptr<MemoryTier> tier = std::make_shared<MemoryTier>();
  const std::shared_ptr<MemoryTier> last = std::make_shared<MemoryTier>();
  TableBase base;
  Demoter demoter{&base};
  TierReader reader{&base, &demoter};

 private:
  TableOptions WithTiers(TableOptions options, bool has_lower, uint64_t rows, bool has_last) const {
    if (has_lower) options.lower_tiers.push_back({tier, rows * static_cast<uint64_t>(options.dim) * sizeof(float)});
    if (has_last) options.lower_tiers.push_back({last, 0});
    return options;
  }
};

}  // namespace multitier

#endif  // CC_TABLE_TEST_TABLE_PARTS_TEST_UTIL_H_
