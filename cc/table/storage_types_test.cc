// The tier oracle (tier_oracle.h) over every storage type that has no GPU: the real tiers, in files.

#include <unistd.h>

#include <filesystem>

#include "cc/table/tier_oracle.h"
#include "cc/tier/leveldb/leveldb_tier.h"
#include "cc/tier/pmem/pmem_tier.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {
namespace {

template <typename T>
std::shared_ptr<Tier> Must(Result<std::unique_ptr<T>> tier) {
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  return tier.ok() ? std::shared_ptr<Tier>(*std::move(tier)) : nullptr;
}

struct StorageCase {
  const char* name;
  bool dram;
  std::vector<std::string> lower;
};

class StorageTypes : public testing::TestWithParam<StorageCase> {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/storage_types_" + std::to_string(getpid());
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  std::shared_ptr<Tier> NewTier(const std::string& type) {
    const std::string directory = root_ + "/" + std::to_string(made_++ % 8);  // the tables before are gone by then
    std::filesystem::remove_all(directory);
    std::filesystem::create_directories(directory);
    if (type == "ssdhash") {
      SsdHashOptions options;
      options.directory = directory;
      options.min_segment_bytes = 64 << 10;
      options.async_compaction = made_ % 2 == 0;
      return Must(SsdHashTier::Open(options));
    }
    if (type == "leveldb") {
      LevelDbOptions options;
      options.directory = directory;
      options.write_buffer_bytes = 64 << 10;
      return Must(LevelDbTier::Open(options));
    }
    PmemOptions options;
    options.directory = directory;
    return Must(PmemTier::Open(options));
  }

  std::string root_;
  int made_ = 0;
};

TEST_P(StorageTypes, GivesTheBitsOfDramAlone) {
  const StorageCase storage = GetParam();
  AdmissionSpec counter;
  counter.kind = AdmissionKind::kCounter;
  counter.filter_freq = 2;
  for (const AdmissionSpec& admission : {AdmissionSpec(), counter}) {
    RunOracle(
        [&](uint64_t row_bytes, uint64_t, TableOptions* options) {
          options->dram_named = storage.dram;
          if (!storage.dram) options->dram_budget_bytes = 0;
          options->lower_tiers.clear();
          for (const std::string& type : storage.lower) options->lower_tiers.push_back({NewTier(type), 0});
          if (storage.lower.size() > 1) options->lower_tiers[0].budget_bytes = 3 * row_bytes;
        },
        admission, 15);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, StorageTypes,
    testing::Values(StorageCase{"PMEM", false, {"pmem"}}, StorageCase{"LEVELDB", false, {"leveldb"}},
                    StorageCase{"SSDHASH", false, {"ssdhash"}}, StorageCase{"DRAM_PMEM", true, {"pmem"}},
                    StorageCase{"DRAM_LEVELDB", true, {"leveldb"}}, StorageCase{"DRAM_SSDHASH", true, {"ssdhash"}},
                    StorageCase{"DRAM_PMEM_LEVELDB", true, {"pmem", "leveldb"}},
                    StorageCase{"DRAM_PMEM_SSDHASH", true, {"pmem", "ssdhash"}}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier
