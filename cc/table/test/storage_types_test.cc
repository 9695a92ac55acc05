// The tier oracle (tier_oracle.h) over every storage type that has no GPU: the real tiers, in files.

#include "cc/table/test/storage_test_util.h"
#include "cc/table/test/tier_oracle.h"

namespace multitier::storage_types_test {
namespace {

struct StorageCase {
  const char* name;
  bool dram;
  std::vector<std::string> lower;
  int last_rows;  // budget of the last; 0: unbounded
};

class StorageTypes : public testing::TestWithParam<StorageCase> {
 protected:
  void Run(const AdmissionSpec& admission, int rounds) {
    const StorageCase storage = GetParam();
    StorageDirectory root(std::string("storage_types_") + storage.name);
    int made = 0;
    RunOracle(
        [&](uint64_t row_bytes, uint64_t, bool recover, TableOptions* options) {
          options->dram_named = storage.dram;
          if (!storage.dram) options->dram_budget_bytes = 0;
          options->lower_tiers.clear();
          if (storage.lower.empty()) {  // PMEM alone: rows in place
            options->dram_budget_bytes = 0;
            options->row_memory = root.OpenRowMemory("slab" + std::to_string(++made % 4));
            return;
          }
          for (const std::string& type : storage.lower) {
            // The last of the tables before is reopened; the others were destroyed before their directory is used again.
            const bool last = options->lower_tiers.size() + 1 == storage.lower.size();
            if (last && !recover) ++made;
            const std::string name = type + std::to_string(made % 4);
            options->lower_tiers.push_back({root.Open(type, name, last && recover, made % 2 == 0), 0});
          }
          if (storage.lower.size() > 1) options->lower_tiers[0].budget_bytes = 3 * row_bytes;
          options->lower_tiers.back().budget_bytes = static_cast<uint64_t>(storage.last_rows) * row_bytes;
        },
        admission, rounds);
  }
};

TEST_P(StorageTypes, GivesTheBitsOfDramAlone) { Run(AdmissionSpec(), 10); }
TEST_P(StorageTypes, GivesTheBitsOfDramAloneUnderEachFilter) {
  for (const AdmissionSpec& admission : AllFilters()) Run(admission, 3);
}

// The index names the rows of all tiers: at most 25 bytes for each, after every doubling.
TEST_P(StorageTypes, IndexCostsAtMost25BytesAKeyOverAllTiers) {
  constexpr int64_t kBatch = 512, kRows = 30000;
  const StorageCase storage = GetParam();
  StorageDirectory root(std::string("index_bytes_") + storage.name);
  for (const int shards : {1, 8}) {
    TableOptions options = BasicOptions(4);
    options.num_shards = shards;
    options.dram_named = storage.dram;
    if (storage.dram && !storage.lower.empty()) options.dram_budget_bytes = 16 * 2000;
    if (storage.lower.empty()) options.row_memory = root.OpenRowMemory("slab");
    for (const std::string& type : storage.lower) {
      options.lower_tiers.push_back({root.Open(type, type + StrCat(shards), false), 0});
    }
    if (storage.lower.size() > 1) options.lower_tiers[0].budget_bytes = 16 * 5000;
    auto table = MakeTable(options);
    const int64_t least = (storage.lower.empty() ? 64 : 1024) * 8 * 7 / 10 * shards;  // what the smallest index is for
    double worst = 0;
    for (int64_t from = 0; from < kRows * (shards == 1 ? 1 : 3); from += kBatch) {
      std::vector<int64_t> keys(kBatch);
      std::iota(keys.begin(), keys.end(), from);
      MT_ASSERT_OK(Sgd(keys, 1.0f, 4).Run(table.get()));
      const TableStats stats = table->Stats();
      if (stats.rows >= least) {
        worst = std::max(worst, static_cast<double>(stats.index_bytes) / static_cast<double>(stats.rows));
      }
    }
    EXPECT_LE(worst, 25.0) << shards << " shards";
    EXPECT_GE(worst, 10.0);
  }
}

// Rows change, go and move between the chunks of a snapshot, and it is what the table was when it began.
TEST_P(StorageTypes, SnapshotIsOfItsMomentWhileTheTableGoesOn) {
  const StorageCase storage = GetParam();
  StorageDirectory root(std::string("snapshot_") + storage.name);
  for (int round = 0; round < 3; ++round) {
    TableOptions options = BasicOptions(4);
    options.dram_named = storage.dram;
    if (storage.dram && !storage.lower.empty()) options.dram_budget_bytes = 16 * (round % 2 == 0 ? 30 : 700);
    if (storage.lower.empty()) options.row_memory = root.OpenRowMemory("slab");
    for (const std::string& type : storage.lower) {
      options.lower_tiers.push_back({root.Open(type, type + StrCat(round), false, round % 3 == 0), 0});
    }
    if (storage.lower.size() > 1) options.lower_tiers[0].budget_bytes = 16 * 50;
    if (!storage.lower.empty()) options.lower_tiers.back().budget_bytes = static_cast<uint64_t>(storage.last_rows) * 16;
    auto table = MakeTable(options);
    std::mt19937_64 random(static_cast<uint64_t>(round));
    const auto change = [&] {
      std::vector<int64_t> keys;
      for (int i = 0; i < 40; ++i) keys.push_back(static_cast<int64_t>(random() % 2000));
      if (random() % 8 == 0) {
        MT_ASSERT_OK(table->Remove(keys, nullptr));
      } else if (random() % 4 == 0) {
        LookupAll(table.get(), keys);
      } else {
        MT_ASSERT_OK(Sgd(keys, 1.0f, 4).Run(table.get()));
      }
    };
    for (int i = 0; i < Rounds(150); ++i) change();
    for (int again = 0; again < 2; ++again) {
      const Rows before = *table->Export(true);
      Rows found;
      MT_ASSERT_OK(table->TakeSnapshot(true, 64, [&](Rows* chunk) {
        const auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
        found.columns = chunk->columns;
        append(&found.keys, chunk->keys);
        append(&found.frequencies, chunk->frequencies);
        append(&found.versions, chunk->versions);
        append(&found.data, chunk->data);
        for (int i = 0; i < Rounds(5); ++i) change();
        return OkStatus();
      }));
      ExpectSameRows(found, before);
      if (HasFailure()) FAIL() << "round " << round;
    }
  }
}

TEST(PmemAlone, OfGivenSizeRefusesWhatDoesNotFitOrDropsTheColdest) {
  StorageDirectory root("pmem_alone");
  TableOptions options = BasicOptions(4);
  options.dram_budget_bytes = 10 * 16;
  for (const bool drop : {false, true}) {
    options.row_memory = root.OpenRowMemory("slab");
    options.drop_coldest = drop;
    auto table = MakeTable(options);
    std::vector<int64_t> keys(12);
    std::iota(keys.begin(), keys.end(), 0);
    const Status status = Sgd(keys, 1.0f, 4).Run(table.get());
    const TableStats stats = table->Stats();
    ASSERT_EQ(stats.tiers.size(), 1u);
    EXPECT_EQ(stats.tiers[0].name, "pmem");
    EXPECT_EQ(stats.rows, drop ? 10 : 0);
    EXPECT_EQ(status.code(), drop ? StatusCode::kOk : StatusCode::kResourceExhausted);
    EXPECT_EQ(status.message().find("tier pmem") != std::string::npos, !drop) << status.message();
    EXPECT_EQ(table->PopDropped(), drop ? (std::vector<int64_t>{0, 1}) : std::vector<int64_t>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, StorageTypes,
                         testing::Values(StorageCase{"PMEM", true, {}, 0}, StorageCase{"PMEM_copied", false, {"pmem"}, 0},
                                         StorageCase{"LEVELDB", false, {"leveldb"}, 0},
                                         StorageCase{"SSDHASH", false, {"ssdhash"}, 0},
                                         StorageCase{"DRAM_PMEM", true, {"pmem"}, 0},
                                         StorageCase{"DRAM_LEVELDB", true, {"leveldb"}, 0},
                                         StorageCase{"DRAM_SSDHASH", true, {"ssdhash"}, 0},
                                         StorageCase{"DRAM_PMEM_LEVELDB", true, {"pmem", "leveldb"}, 0},
                                         StorageCase{"DRAM_PMEM_SSDHASH", true, {"pmem", "ssdhash"}, 0},
                                         StorageCase{"DRAM_SSDHASH_bounded", true, {"ssdhash"}, 100000},
                                         StorageCase{"DRAM_LEVELDB_bounded", true, {"leveldb"}, 100000},
                                         StorageCase{"DRAM_PMEM_SSDHASH_bounded", true, {"pmem", "ssdhash"}, 100000}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier::storage_types_test
