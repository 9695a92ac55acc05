#include "cc/tier/leveldb/leveldb_tier.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"
#include "cc/env/instance_dir.h"
#include "cc/tier/tier_conformance.h"

namespace multitier {
namespace {

namespace fs = std::filesystem;

// Directories of all tests of this process, removed at its end.
class Directories : public testing::Environment {
 public:
  static std::string New() {
    static int number = 0;
    const std::string path = StrCat(root(), "/", number++);
    fs::create_directories(path);
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
[[maybe_unused]] testing::Environment* const kDirectories = testing::AddGlobalTestEnvironment(new Directories);

// Small enough that a few thousand rows go through flushes and compactions.
LevelDbOptions SmallOptions() {
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

std::unique_ptr<LevelDbTier> OpenTier(const LevelDbOptions& options) {
  Result<std::unique_ptr<LevelDbTier>> tier = LevelDbTier::Open(options);
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  return tier.ok() ? *std::move(tier) : nullptr;
}

INSTANTIATE_TEST_SUITE_P(LevelDb, TierConformanceTest,
                         testing::Values(TierTestCase{
                             "LevelDb", [](std::shared_ptr<const RowLayout>) { return OpenTier(SmallOptions()); },
                             [](std::shared_ptr<const RowLayout>, int64_t max_rows) {
                               LevelDbOptions options = SmallOptions();
                               options.max_rows = max_rows;
                               return OpenTier(options);
                             }}),
                         TierTestName);

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
  // Expects exactly the held keys, which recovery has given new locations.
  void TakeOverLocations() {
    size_t n = 0;
    ASSERT_TRUE(tier_->Scan([&](const RecordHeader& header, uint32_t location) {
      held_.at(header.key).location = location;
      ++n;
      return OkStatus();
    }).ok());
    ASSERT_EQ(n, held_.size());
  }
  // Everything in table files, nothing in memory.
  void Flush() { tier_->database()->CompactRange(nullptr, nullptr); }

  struct Held {
    uint32_t location;
    uint64_t data_generation;
  };
  std::map<int64_t, Held> held_;
  std::string directory_;
  std::unique_ptr<LevelDbTier> tier_;
};

TEST_F(LevelDbTierTest, EntryIsAsTheFormatPageSays) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(-2, 1, 7).ok());
  const TestRecord record(-2, 7, 2);
  std::string value;
  const std::string key("\x7f\xff\xff\xff\xff\xff\xff\xfe", 8);
  ASSERT_TRUE(tier_->database()->Get(leveldb::ReadOptions(), key, &value).ok());
  const uint8_t* p = reinterpret_cast<const uint8_t*>(value.data());
  ASSERT_EQ(value.size(), 24 + record.row_data.size());
  EXPECT_EQ(DecodeFixed32(p), Crc32c((key + value.substr(4)).data(), 8 + value.size() - 4));
  EXPECT_EQ(DecodeFixed32(p + 4), 0u);  // the first ever written
  EXPECT_EQ(DecodeFixed64(p + 8), 7u);
  EXPECT_EQ(DecodeFixed32(p + 16), record.header.frequency);
  EXPECT_EQ(DecodeFixed32(p + 20), 2u);
  EXPECT_EQ(std::memcmp(p + 24, record.row_data.data(), record.row_data.size()), 0);
  ASSERT_TRUE(tier_->database()->Get(leveldb::ReadOptions(), "schema", &value).ok());
  EXPECT_EQ(value.rfind("{\"format_version\": 1, \"columns\": [{\"name\": \"value\", \"dtype\": \"float32\", \"dim\": 3", 0), 0u)
      << value;
}

TEST_F(LevelDbTierTest, KeysAreInTheOrderOfNumbers) {
  Open(SmallOptions());
  for (const int64_t key : {int64_t{5}, INT64_MIN, int64_t{-1}, INT64_MAX, int64_t{0}}) ASSERT_TRUE(Write(key, 1, 1).ok());
  std::vector<int64_t> scanned;
  ASSERT_TRUE(tier_->Scan([&](const RecordHeader& header, uint32_t) {
    scanned.push_back(header.key);
    return OkStatus();
  }).ok());
  EXPECT_EQ(scanned, (std::vector<int64_t>{INT64_MIN, -1, 0, 5, INT64_MAX}));
}

TEST_F(LevelDbTierTest, ScanGoesThroughManySlicesOnce) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, 9000, 1).ok());
  ASSERT_TRUE(Write(100, 50, 2).ok());
  std::map<int64_t, int> seen;
  ASSERT_TRUE(tier_->Scan([&](const RecordHeader& header, uint32_t) {
    ++seen[header.key];
    return OkStatus();
  }).ok());
  ASSERT_EQ(seen.size(), 9000u);
  for (const auto& [key, times] : seen) ASSERT_EQ(times, 1) << key;
}

TEST_F(LevelDbTierTest, FreedEntryStaysUnreadableAndRemovedOneGoes) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(1, 2, 1).ok());
  const KeyLocation freed{1, held_.at(1).location}, removed{2, held_.at(2).location};
  tier_->Free(Span<const KeyLocation>(&freed, 1));
  EXPECT_EQ(Read(1).code(), StatusCode::kNotFound);
  ASSERT_TRUE(tier_->Remove(Span<const KeyLocation>(&removed, 1)).ok());
  std::string value;
  const std::string prefix("\x80\0\0\0\0\0\0", 7);
  EXPECT_TRUE(tier_->database()->Get(leveldb::ReadOptions(), prefix + '\1', &value).ok());
  EXPECT_TRUE(tier_->database()->Get(leveldb::ReadOptions(), prefix + '\2', &value).IsNotFound());
}

TEST_F(LevelDbTierTest, RecordIsReadByItsLocationWhateverTheKeyAsked) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(41, 2, 1).ok());
  ReadRecord read;
  read.location = held_.at(42).location;
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
  ASSERT_TRUE(read.status.ok()) << read.status.ToString();
  EXPECT_EQ(read.header.key, 42);
}

TEST_F(LevelDbTierTest, OpeningClearsWhatIsThereAndRecoverTakesItOver) {
  LevelDbOptions options = SmallOptions();
  options.durable = true;
  Open(options);
  ASSERT_TRUE(Write(0, 3000, 1).ok());
  ASSERT_TRUE(Write(10, 20, 2).ok());
  const KeyLocation removed{7, held_.at(7).location};
  ASSERT_TRUE(tier_->Remove(Span<const KeyLocation>(&removed, 1)).ok());
  held_.erase(7);
  ASSERT_TRUE(tier_->Sync().ok());
  tier_.reset();
  options.recover = true;
  Open(options);
  EXPECT_TRUE(tier_->capabilities().durable);
  TakeOverLocations();
  ExpectAllHeld();
  ASSERT_TRUE(Write(2000, 2000, 3).ok());
  ExpectAllHeld();
  tier_.reset();
  options.recover = false;
  Open(options);
  EXPECT_EQ(tier_->stats().rows, 0);
  EXPECT_EQ(Read(10).code(), StatusCode::kNotFound);
}

TEST_F(LevelDbTierTest, FlippedBitIsDataLossNamingKeyFileAndLocationAndSparesOtherKeys) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, 2000, 1).ok());
  Flush();
  std::string table;
  for (const auto& file : fs::directory_iterator(directory_)) {
    if (file.path().extension() == ".ldb") table = file.path();
  }
  ASSERT_NE(table, "");
  std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(5000);
  const char byte = static_cast<char>(file.get() ^ 4);
  file.seekp(5000);
  file.put(byte);
  file.close();
  int lost = 0;
  for (int64_t key = 0; key < 2000; ++key) {
    const Status status = Read(key);
    if (status.ok()) continue;
    ++lost;
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    for (const std::string& part : {StrCat("key ", key, " "), StrCat("location ", held_.at(key).location), table}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
  }
  EXPECT_GE(lost, 1);
  EXPECT_LT(lost, 200);
  // A scan goes past it, and says at the end where it is.
  int seen = 0;
  const Status scanned = tier_->Scan([&](const RecordHeader& header, uint32_t location) {
    EXPECT_EQ(location, held_.at(header.key).location);
    ++seen;
    return OkStatus();
  });
  EXPECT_EQ(seen, 2000 - lost);
  EXPECT_EQ(scanned.code(), StatusCode::kDataLoss);
  EXPECT_NE(scanned.message().find(table), std::string::npos) << scanned.message();
}

TEST_F(LevelDbTierTest, EntryWithAWrongChecksumIsDataLoss) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(3, 1, 1).ok());
  std::string value;
  const std::string key("\x80\0\0\0\0\0\0\3", 8);
  ASSERT_TRUE(tier_->database()->Get(leveldb::ReadOptions(), key, &value).ok());
  value[30] ^= 1;
  ASSERT_TRUE(tier_->database()->Put(leveldb::WriteOptions(), key, value).ok());
  EXPECT_EQ(Read(3).code(), StatusCode::kDataLoss);
  ASSERT_TRUE(tier_->database()->Put(leveldb::WriteOptions(), key, "short").ok());
  EXPECT_EQ(Read(3).code(), StatusCode::kDataLoss);
}

TEST_F(LevelDbTierTest, FailedReadIsUnavailableForItsKeyAlone) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, 2000, 1).ok());
  Flush();
  tier_->env()->set_fault([](const char* call, const std::string&) { return std::strcmp(call, "read") == 0 ? EIO : 0; });
  const Status status = Read(5);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_NE(status.message().find("key 5 "), std::string::npos) << status.message();
  tier_->env()->set_fault(nullptr);
  ExpectAllHeld();
}

// The disk is full from the n-th call that changes a file on, or at that call only, for every n; then there is room again.
class LevelDbFullDiskTest : public LevelDbTierTest, public testing::WithParamInterface<bool> {};

TEST_P(LevelDbFullDiskTest, LosesNothingAcknowledgedAndPasses) {
  const bool lasting = GetParam();
  bool fired = true;
  int failures = 0;
  for (int n = 1; fired; n += n < 20 ? 1 : 7) {
    held_.clear();
    Open(SmallOptions());
    std::atomic<int> calls{0};
    std::atomic<bool> full{true}, hit{false};
    tier_->env()->set_fault([&](const char* call, const std::string&) {
      if (!full || std::strcmp(call, "read") == 0 || std::strcmp(call, "open") == 0) return 0;
      const int number = ++calls;
      if (number < n || (number > n && !lasting)) return 0;
      hit = true;
      return ENOSPC;
    });
    for (int round = 0; round < 12; ++round) {
      const Status status = Write(round * 300 % 2000, 400, static_cast<uint64_t>(round) + 1);
      if (status.ok()) continue;
      ++failures;
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << "n " << n << ": " << status.ToString();
    }
    // While opening again fails, reads are refused; they never give anything else.
    for (const auto& [key, held] : held_) {
      const Status status = Read(key);
      ASSERT_TRUE(status.ok() || status.code() == StatusCode::kUnavailable) << status.ToString();
    }
    full = false;
    ASSERT_TRUE(Write(5000, 100, 99).ok());
    ExpectAllHeld();
    fired = hit;
    tier_->env()->set_fault(nullptr);
    if (HasFailure()) FAIL() << "n " << n;
  }
  EXPECT_TRUE(!lasting || failures > 20) << failures;
}

INSTANTIATE_TEST_SUITE_P(Lasting, LevelDbFullDiskTest, testing::Bool());

TEST_F(LevelDbTierTest, FileSizeLimitIsResourceExhaustedUntilItIsRaised) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer stops a process that starts threads after a fork";
#endif
  // In a child, since the limit is the process's.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    Open(SmallOptions());
    struct rlimit limit;
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 40 << 10;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    Status status;
    for (int round = 0; round < 10 && status.ok(); ++round) status = Write(round * 200, 200, 1);
    const bool refused = status.code() == StatusCode::kResourceExhausted;
    const size_t before = held_.size();
    ExpectAllHeld();
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const bool resumed = Write(9000, 200, 1).ok();
    ExpectAllHeld();
    ::_exit(refused && resumed && before > 0 && !HasFailure() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// In a mount namespace of a child, so that nothing stays.
TEST_F(LevelDbTierTest, FullFileSystemIsResourceExhaustedUntilThereIsRoom) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer stops a process that starts threads after a fork";
#endif
  LevelDbOptions options = SmallOptions();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const char* directory = options.directory.c_str();
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory, "tmpfs", 0, "size=2m") != 0) {
      std::printf("no mount here: %s\n", std::strerror(errno));
      ::_exit(0);
    }
    Open(options);
    for (int size_mb = 4; size_mb <= 16 && !HasFailure(); size_mb *= 2) {
      Status status;
      while (status.ok() && held_.size() < 200000) status = Write(static_cast<int64_t>(held_.size()), 500, 1);
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
      EXPECT_NE(status.message().find(directory), std::string::npos) << status.message();
      ExpectAllHeld();
      EXPECT_EQ(::mount("tmpfs", directory, "tmpfs", MS_REMOUNT, StrCat("size=", size_mb, "m").c_str()), 0);
      EXPECT_TRUE(Write(static_cast<int64_t>(held_.size()), 500, 1).ok());
    }
    EXPECT_GT(held_.size(), 20000u);
    tier_.reset();
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(LevelDbTierTest, WhatWasSyncedIsThereAfterTheProcessWasKilled) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer stops a process that starts threads after a fork";
#endif
  LevelDbOptions options = SmallOptions();
  options.durable = true;
  const int64_t rounds = 5;
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Open(options);
    for (int64_t round = 0; round < rounds; ++round) {
      if (!Write(round * 300, 600, static_cast<uint64_t>(round) + 1).ok() || !tier_->Sync().ok()) ::_exit(1);
    }
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  options.recover = true;
  Open(options);
  ASSERT_TRUE(tier_->Scan([&](const RecordHeader& header, uint32_t location) {
    const int64_t last_round = std::min(header.key / 300, rounds - 1);
    held_[header.key] = Held{location, static_cast<uint64_t>(last_round) + 1};
    return OkStatus();
  }).ok());
  EXPECT_EQ(held_.size(), 300u * (rounds - 1) + 600);
  ExpectAllHeld();
}

// A disk that keeps of each file what was synced, and nothing else: several lives of random writes, removals and syncs.
TEST_F(LevelDbTierTest, PowerLossKeepsWhatWasSynced) {
  constexpr int64_t kKeys = 1500;
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  LevelDbOptions options = SmallOptions();
  options.durable = true;
  std::map<int64_t, uint64_t> synced;            // generation; 0: none
  std::map<int64_t, std::set<uint64_t>> later;   // generations since
  uint64_t generation = 0;
  for (int life = 0; life < 6; ++life) {
    held_.clear();
    Open(options);
    ASSERT_TRUE(tier_->Scan([&](const RecordHeader& header, uint32_t location) {
      held_[header.key] = Held{location, static_cast<uint64_t>(header.version)};
      return OkStatus();
    }).ok());
    ExpectAllHeld();
    for (int64_t key = 0; key < kKeys; ++key) {
      const uint64_t found = held_.count(key) > 0 ? held_[key].data_generation : 0;
      ASSERT_TRUE(found == synced[key] || later[key].count(found) > 0) << "life " << life << " key " << key << ": found " << found
                                                                       << ", synced " << synced[key];
      synced[key] = found;
    }
    later.clear();
    std::mutex mutex;
    std::map<std::string, uintmax_t> on_disk;
    for (const auto& file : fs::directory_iterator(directory_)) on_disk[file.path()] = file.file_size();
    tier_->env()->set_fault([&](const char* call, const std::string& path) {
      std::lock_guard<std::mutex> lock(mutex);  // not while the power goes
      if (std::strcmp(call, "sync") == 0) on_disk[path] = fs::file_size(path);
      return 0;
    });
    for (int64_t n = 10 + static_cast<int64_t>(random() % 40); n > 0; --n) {
      const int64_t first = static_cast<int64_t>(random() % (kKeys - 300)), count = 1 + static_cast<int64_t>(random() % 299);
      ++generation;
      if (random() % 4 == 0) {
        std::vector<KeyLocation> removed;
        for (int64_t key = first; key < first + count; ++key) {
          removed.push_back({key, held_.count(key) > 0 ? held_[key].location : kNoLocation});
          held_.erase(key);
          later[key].insert(0);
        }
        ASSERT_TRUE(tier_->Remove(removed).ok());
      } else {
        ASSERT_TRUE(Write(first, count, generation).ok());
        for (int64_t key = first; key < first + count; ++key) later[key].insert(generation);
      }
      if (random() % 8 != 0) continue;
      ASSERT_TRUE(tier_->Sync().ok());
      for (const auto& [key, unused] : later) synced[key] = held_.count(key) > 0 ? held_[key].data_generation : 0;
      later.clear();
    }
    options.directory = Directories::New();
    options.recover = true;
    {
      std::lock_guard<std::mutex> lock(mutex);
      for (const auto& file : fs::directory_iterator(directory_)) {
        const std::string name = file.path().filename();
        if (name == "LOCK" || (name != "CURRENT" && on_disk[file.path()] == 0)) continue;
        std::error_code gone;  // by the database's thread, which needs it no more
        fs::copy_file(file.path(), options.directory + "/" + name, gone);
        if (!gone && name != "CURRENT") fs::resize_file(options.directory + "/" + name, on_disk[file.path()]);
      }
    }
    tier_->env()->set_fault(nullptr);
  }
}

TEST_F(LevelDbTierTest, CompactGivesSpaceOfSupersededAndRemovedEntriesBack) {
  Open(SmallOptions());
  for (uint64_t generation = 1; generation <= 3; ++generation) ASSERT_TRUE(Write(0, 5000, generation).ok());
  Flush();
  const int64_t full = tier_->stats().stored_bytes;
  std::vector<KeyLocation> gone;
  for (int64_t key = 500; key < 5000; ++key) {
    gone.push_back(KeyLocation{key, held_.at(key).location});
    held_.erase(key);
  }
  ASSERT_TRUE(tier_->Remove(gone).ok());
  ASSERT_TRUE(tier_->Compact().ok());
  EXPECT_LT(tier_->stats().stored_bytes, full / 4);
  ExpectAllHeld();
}

TEST_F(LevelDbTierTest, ReserveIsKeptFree) {
  LevelDbOptions options = SmallOptions();
  options.reserve_bytes = int64_t{1} << 60;
  Open(options);
  const Status status = Write(1, 1, 1);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(options.directory), std::string::npos) << status.message();
}

TEST_F(LevelDbTierTest, ForkedChildIsRefusedAndLeavesTheDatabaseAlone) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer stops a process that starts threads after a fork";
#endif
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, 100, 1).ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = Read(1).code() == StatusCode::kFailedPrecondition &&
                         Write(1, 1, 2).code() == StatusCode::kFailedPrecondition &&
                         tier_->Sync().code() == StatusCode::kFailedPrecondition;
    tier_.reset();
    Open(SmallOptions());  // one of its own
    const bool own = Write(0, 3000, 2).ok();
    ::_exit(refused && own ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_TRUE(Write(50, 3000, 2).ok());
  ExpectAllHeld();
}

TEST_F(LevelDbTierTest, StoredBytesAreThoseOfTheDirectory) {
  Open(SmallOptions());
  for (int round = 0; round < 10; ++round) ASSERT_TRUE(Write(round * 500, 700, 1).ok());
  Flush();
  int64_t bytes = 0;
  for (const auto& file : fs::directory_iterator(directory_)) bytes += static_cast<int64_t>(file.file_size());
  EXPECT_EQ(tier_->stats().stored_bytes, bytes);
  EXPECT_GT(tier_->stats().appended_bytes, 7000 * (8 + 24 + 32));
  EXPECT_GT(tier_->stats().device_written_bytes, tier_->stats().appended_bytes);
  const int64_t reads = tier_->stats().device_reads;
  ExpectAllHeld();
  EXPECT_GT(tier_->stats().device_reads, reads);
  EXPECT_LT(tier_->stats().resident_bytes, 1 << 20);
}

TEST(LevelDbTierOpenTest, MissingDirectoryIsOneClearError) {
  LevelDbOptions options = SmallOptions();
  options.directory += "/no/such";
  const Status status = LevelDbTier::Open(options).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(options.directory), std::string::npos) << status.message();
}

}  // namespace
}  // namespace multitier
