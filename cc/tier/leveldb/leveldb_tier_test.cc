#include "cc/tier/leveldb/leveldb_tier.h"

#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"
#include "cc/tier/leveldb/leveldb_test_util.h"

namespace multitier::leveldb_tier_test {
namespace {

namespace fs = std::filesystem;

INSTANTIATE_TEST_SUITE_P(LevelDb, TierConformanceTest,
                         testing::Values(TierTestCase{"LevelDb",
                                                      [](std::shared_ptr<const RowLayout>) { return OpenTier(SmallOptions()); },
                                                      [](std::shared_ptr<const RowLayout>, int64_t max_rows) {
                                                        LevelDbOptions options = SmallOptions();
                                                        options.max_rows = max_rows;
                                                        return OpenTier(options);
                                                      }}),
                         TierTestName);

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
}

TEST_F(LevelDbTierTest, KeysAreInTheOrderOfNumbers) {
  Open(SmallOptions());
  for (const int64_t key : {int64_t{5}, INT64_MIN, int64_t{-1}, INT64_MAX, int64_t{0}}) ASSERT_TRUE(Write(key, 1, 1).ok());
  std::vector<int64_t> scanned;
  ASSERT_TRUE(tier_
                  ->Scan([&](const RecordHeader& header, uint32_t) {
                    scanned.push_back(header.key);
                    return OkStatus();
                  })
                  .ok());
  EXPECT_EQ(scanned, (std::vector<int64_t>{INT64_MIN, -1, 0, 5, INT64_MAX}));
}

TEST_F(LevelDbTierTest, ScanGoesThroughManySlicesOnce) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, 9000, 1).ok());
  ASSERT_TRUE(Write(100, 50, 2).ok());
  std::map<int64_t, int> seen;
  ASSERT_TRUE(tier_
                  ->Scan([&](const RecordHeader& header, uint32_t) {
                    ++seen[header.key];
                    return OkStatus();
                  })
                  .ok());
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
}  // namespace multitier::leveldb_tier_test
