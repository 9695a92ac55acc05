// The tier oracle (tier_oracle.h) over every storage type that has no GPU: the real tiers, in files.

#include "cc/table/storage_test_util.h"
#include "cc/table/tier_oracle.h"

namespace multitier {
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
            // The last of the tables before is reopened; else they are gone by the time their directory comes again.
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

INSTANTIATE_TEST_SUITE_P(
    All, StorageTypes,
    testing::Values(StorageCase{"PMEM", true, {}, 0}, StorageCase{"PMEM_copied", false, {"pmem"}, 0},
                    StorageCase{"LEVELDB", false, {"leveldb"}, 0},
                    StorageCase{"SSDHASH", false, {"ssdhash"}, 0}, StorageCase{"DRAM_PMEM", true, {"pmem"}, 0},
                    StorageCase{"DRAM_LEVELDB", true, {"leveldb"}, 0}, StorageCase{"DRAM_SSDHASH", true, {"ssdhash"}, 0},
                    StorageCase{"DRAM_PMEM_LEVELDB", true, {"pmem", "leveldb"}, 0},
                    StorageCase{"DRAM_PMEM_SSDHASH", true, {"pmem", "ssdhash"}, 0},
                    StorageCase{"DRAM_SSDHASH_bounded", true, {"ssdhash"}, 100000},
                    StorageCase{"DRAM_LEVELDB_bounded", true, {"leveldb"}, 100000},
                    StorageCase{"DRAM_PMEM_SSDHASH_bounded", true, {"pmem", "ssdhash"}, 100000}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier
