// LevelDB tiers in separate directories, and a tier with the rows that it must hold. Test only.

#ifndef CC_TIER_LEVELDB_LEVELDB_TEST_UTIL_H_
#define CC_TIER_LEVELDB_LEVELDB_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cc/env/instance_dir.h"
#include "cc/tier/leveldb/leveldb_tier.h"
#include "cc/tier/tier_conformance.h"

namespace multitier {

// The directories of all tests of this process, which are removed at its end.
class Directories : public testing::Environment {
 public:
  static std::string New() {
    static int number = 0;
    const std::string path = StrCat(root(), "/", ::getpid(), "-", number++);  // a child's are its own
    std::filesystem::create_directories(path);
    return path;
  }
  void TearDown() override { EXPECT_TRUE(RemoveDirectoryTree(root()).ok()); }

 private:
  static const std::string& root() {
    static const std::string path = [] {
      std::string pattern = testing::TempDir() + "/leveldb_XXXXXX";
      return std::string(::mkdtemp(pattern.data()));
    }();
    return path;
  }
};
[[maybe_unused]] inline testing::Environment* const kDirectories = testing::AddGlobalTestEnvironment(new Directories);

// Small enough that a few thousand rows go through flushes and compactions.
inline LevelDbOptions SmallOptions() {
  LevelDbOptions options;
  options.directory = Directories::New();
  options.write_buffer_bytes = 64 << 10;
  options.table_file_bytes = 1 << 20;
  options.block_cache_bytes = 64 << 10;
  options.max_open_files = 100;
  options.reserve_bytes = 0;
  options.retry_us = 0;
  return options;
}

inline std::unique_ptr<LevelDbTier> OpenTier(const LevelDbOptions& options) {
  Result<std::unique_ptr<LevelDbTier>> tier = LevelDbTier::Open(options);
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  return tier.ok() ? *std::move(tier) : nullptr;
}

class LevelDbTierTest : public testing::Test {
 protected:
  void Open(const LevelDbOptions& options) {
    tier_ = OpenTier(options);
    directory_ = options.directory;
    ASSERT_NE(tier_, nullptr);
    ASSERT_TRUE(tier_->SetLayout(TierTestLayout(2)).ok());
  }
  // Keys [first, first + n), all of one generation of test data.
  Status Write(int64_t first, int64_t n, uint64_t data_generation) {
    std::vector<TestRecord> records;
    std::vector<WriteRecord> batch;
    for (int64_t i = 0; i < n; ++i) records.emplace_back(first + i, data_generation, 2);
    for (const TestRecord& record : records) batch.push_back(record.write());
    std::vector<uint32_t> locations(batch.size());
    MT_RETURN_IF_ERROR(tier_->Write(batch, locations.data()));
    for (int64_t i = 0; i < n; ++i) {
      const auto old = held_.find(first + i);
      const KeyLocation freed{first + i, old == held_.end() ? 0 : old->second.location};
      if (old != held_.end()) tier_->Free(Span<const KeyLocation>(&freed, 1));
      held_[first + i] = Held{locations[static_cast<size_t>(i)], data_generation};
    }
    return OkStatus();
  }
  Status Read(int64_t key, std::vector<uint8_t>* row_data = nullptr) {
    std::vector<uint8_t> unused(TierTestLayout(2)->row_bytes());
    ReadRecord read;
    read.key = key;
    read.location = held_.at(key).location;
    read.row_data = row_data == nullptr ? unused.data() : row_data->data();
    MT_RETURN_IF_ERROR(tier_->Read(Span<ReadRecord>(&read, 1)));
    return read.status;
  }
  void ExpectAllHeld() {
    for (const auto& [key, held] : held_) {
      std::vector<uint8_t> row_data(TierTestLayout(2)->row_bytes());
      const Status status = Read(key, &row_data);
      ASSERT_TRUE(status.ok()) << status.ToString();
      ASSERT_EQ(row_data, TestRecord(key, held.data_generation, 2).row_data) << "key " << key;
    }
    EXPECT_EQ(tier_->stats().rows, static_cast<int64_t>(held_.size()));
  }
  // Moves all entries from memory to table files.
  void Flush() { tier_->database()->CompactRange(nullptr, nullptr); }

  struct Held {
    uint32_t location;
    uint64_t data_generation;
  };
  std::map<int64_t, Held> held_;
  std::string directory_;
  std::unique_ptr<LevelDbTier> tier_;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_TEST_UTIL_H_
