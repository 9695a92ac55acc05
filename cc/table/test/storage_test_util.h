// Real tiers in files for the table's tests.

#ifndef CC_TABLE_TEST_STORAGE_TEST_UTIL_H_
#define CC_TABLE_TEST_STORAGE_TEST_UTIL_H_

#include <unistd.h>

#include <filesystem>

#include "cc/table/test/table_test_util.h"
#include "cc/tier/leveldb/leveldb_tier.h"
#include "cc/tier/pmem/pmem_row_memory.h"
#include "cc/tier/pmem/pmem_tier.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {

template <typename T>
std::shared_ptr<Tier> Must(Result<std::unique_ptr<T>> tier) {
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  return tier.ok() ? std::shared_ptr<Tier>(*std::move(tier)) : nullptr;
}

// A directory of its own, emptied before and after.
class StorageDirectory {
 public:
  explicit StorageDirectory(const std::string& name) : root_(testing::TempDir() + "/" + name + "_" + std::to_string(getpid())) {
    std::filesystem::remove_all(root_);
  }
  ~StorageDirectory() { std::filesystem::remove_all(root_); }

  const std::string& path() const { return root_; }

  // A tier of that type ("ssdhash", "leveldb", "pmem"): new, or an SSDHASH that an earlier one left in the directory.
  std::shared_ptr<Tier> Open(const std::string& type, const std::string& name, bool recover, bool async_compaction = false) {
    const std::string directory = root_ + "/" + name;
    if (!recover) std::filesystem::remove_all(directory);
    std::filesystem::create_directories(directory);
    if (type == "ssdhash") {
      SsdHashOptions options;
      options.directory = directory;
      options.min_segment_bytes = 64 << 10;
      options.async_compaction = async_compaction;
      options.keep = true;
      options.recover = recover;
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

  // The memory of PMEM alone.
  std::shared_ptr<RowMemory> OpenRowMemory(const std::string& name) {
    std::filesystem::remove_all(root_ + "/" + name);
    std::filesystem::create_directories(root_ + "/" + name);
    auto memory = PmemRowMemory::Open(root_ + "/" + name);
    EXPECT_TRUE(memory.ok()) << memory.status().ToString();
    return memory.ok() ? std::shared_ptr<RowMemory>(*std::move(memory)) : nullptr;
  }

 private:
  const std::string root_;
};

}  // namespace multitier

#endif  // CC_TABLE_TEST_STORAGE_TEST_UTIL_H_
