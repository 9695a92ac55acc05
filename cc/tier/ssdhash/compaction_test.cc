// Compaction: space within its bound, nothing lost, whatever runs at the same time.

#include <atomic>
#include <cstdio>
#include <thread>

#include "cc/env/file_cache.h"
#include "cc/tier/ssdhash/segment_format.h"
#include "cc/tier/ssdhash/ssdhash_test_util.h"

namespace multitier::compaction_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

// The bound that tf_multitier.memory states: 1.5 times the records with the largest footer entries, four segments, and a block
// for each segment. It is computed from the format. What is stored at a given moment is no measure of a record: it depends on
// which segments have been sealed already.
int64_t SpaceBound(const SsdHashTier& tier, int64_t segment_bytes) {
  constexpr int64_t kFooterEntryBytes = 31, kBlock = 4096;
  const SegmentHeader header =
      SegmentHeader::Make({}, 1, false, static_cast<uint64_t>(segment_bytes), *TierTestLayout(LogOwner::kColumns));
  const int64_t live = tier.stats().rows * (header.record_bytes() + kFooterEntryBytes);
  return live * 3 / 2 + 4 * segment_bytes + kBlock * (6 + live / segment_bytes);
}

class CompactionTest : public SsdHashTest, public testing::WithParamInterface<bool> {
 protected:
  static SsdHashOptions Options(size_t segment_bytes) {
    SsdHashOptions options = Small();
    options.async_compaction = GetParam();
    options.min_segment_bytes = segment_bytes;
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Modes, CompactionTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) { return info.param ? "Async" : "Inline"; });

TEST_P(CompactionTest, RandomOverwriteStaysWithinTheSpaceBoundAndLosesNothing) {
  Start(Options(64 << 10));
  owner_.UseEvery(101);
  constexpr int64_t kKeys = 40000;
  PutAll(kKeys);
  const int64_t stored_before = tier_->stats().stored_bytes;
  for (int part = 0; part < 400; ++part) {
    Overwrite(&owner_, kKeys, 1, 500, static_cast<uint64_t>(part));
    const TierStats stats = tier_->stats();
    EXPECT_LE(stats.stored_bytes, SpaceBound(*tier_, 64 << 10)) << part;
  }
  ASSERT_TRUE(tier_->Compact().ok());
  const TierStats stats = tier_->stats();
  EXPECT_LE(stats.stored_bytes, SpaceBound(*tier_, 64 << 10));
  EXPECT_EQ(stats.rows, kKeys);
  EXPECT_GT(stats.relocated_rows, kKeys);
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
  std::printf("write amplification %.2f, space %.2f\n",
              static_cast<double>(stats.device_written_bytes) / static_cast<double>(stats.appended_bytes),
              static_cast<double>(stats.stored_bytes) / static_cast<double>(stored_before));
}

// Garbage that the thresholds leave alone goes on request.
TEST_P(CompactionTest, OnRequestGivesBackWhatTheThresholdsLeave) {
  Start(Options(64 << 10));
  constexpr int64_t kKeys = 40000;
  PutAll(kKeys);
  const int64_t full = tier_->stats().stored_bytes;
  for (int64_t from = 0; from < kKeys; from += 1000) {  // three of ten records of each segment
    std::vector<int64_t> keys;
    for (int64_t key = from; key < from + 1000; ++key) {
      if (key % 10 < 3) keys.push_back(key);
    }
    ASSERT_TRUE(owner_.Put(keys, 2).ok());
  }
  const TierStats before = tier_->stats();
  EXPECT_GT(before.stored_bytes, full * 6 / 5);
  EXPECT_GT(before.dead_bytes, full / 5);
  ASSERT_TRUE(tier_->Compact().ok());
  const TierStats after = tier_->stats();
  EXPECT_LE(after.stored_bytes, full * 17 / 16 + 4 * (68 << 10));
  EXPECT_LE(after.dead_bytes, full / 16 + (68 << 10));
  EXPECT_LE(after.device_read_bytes - before.device_read_bytes, before.stored_bytes);
  EXPECT_EQ(after.rows, kKeys);
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
  ASSERT_TRUE(tier_->Compact().ok());
  EXPECT_LE(tier_->stats().device_written_bytes, after.device_written_bytes + (68 << 10)) << "nothing is left that is worth it";
}

TEST_P(CompactionTest, ScansFindWhatMovesWhileItsFileIsClosed) {
  const size_t capacity = CachedFile::capacity();
  CachedFile::SetCapacity(1);
  Start(Options(64 << 10));
  constexpr int64_t kKeys = 20000;
  PutAll(kKeys);
  std::vector<int64_t> most;
  for (int64_t key = 0; key < kKeys; ++key) {
    if (key % 8 != 0) most.push_back(key);
  }
  std::vector<bool> seen(kKeys);
  bool first = true;
  const Status scanned = tier_->Scan([&](const RecordHeader& header, uint32_t) {
    seen[static_cast<size_t>(header.key)] = true;
    if (!std::exchange(first, false)) return OkStatus();
    EXPECT_TRUE(owner_.Remove(most).ok());
    EXPECT_TRUE(tier_->Compact().ok());
    return OkStatus();
  });
  EXPECT_TRUE(scanned.ok()) << scanned.ToString();
  EXPECT_GT(tier_->stats().relocated_rows, 0);
  for (int64_t key = 0; key < kKeys; key += 8) ASSERT_TRUE(seen[static_cast<size_t>(key)]) << key;
  CachedFile::SetCapacity(capacity);
}

TEST_P(CompactionTest, RemovedKeysLeaveNoTombstonesBehindForever) {
  Start(Options(kSmallSegment));
  ASSERT_TRUE(owner_.Put(Range(0, 5000), 1).ok());  // cold, never changed
  const int64_t before = tier_->stats().stored_bytes;
  for (int64_t round = 0; round < 60; ++round) {
    ASSERT_TRUE(owner_.Put(Range(100000 + round * 500, 100500 + round * 500), 2).ok());
    ASSERT_TRUE(owner_.Remove(Range(100000 + round * 500, 100500 + round * 500)).ok());
  }
  ASSERT_TRUE(tier_->Compact().ok());
  EXPECT_EQ(tier_->stats().rows, 5000);
  EXPECT_LE(tier_->stats().stored_bytes, 2 * before);
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
}

TEST_P(CompactionTest, OwnersReadersAndRelocationRaceWithoutAWrongRow) {
  SsdHashOptions options = OnDisk(BatchReader::Kind::kAuto);
  options.min_segment_bytes = 128 << 10;
  options.async_compaction = GetParam();
  Start(options);
  owner_.UseEvery(7);
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (uint64_t round = 1; round <= 300; ++round) {
        const int64_t from = t * 2000 + static_cast<int64_t>(random() % 1900);
        const bool removes = random() % 5 == 0;
        const Status done = removes ? owner_.Remove(Range(from, from + 20)) : owner_.Put(Range(from, from + 80), round);
        EXPECT_TRUE(done.ok()) << done.ToString();
      }
      --running;
    });
  }
  threads.emplace_back([&] {
    int64_t whole = 0;
    while (running > 0) {
      // A location may be freed or moved while it is read; what is read is whole all the same.
      std::vector<ReadRecord> batch(200);
      std::vector<uint8_t> rows(200 * TierTestLayout(2)->row_bytes());
      for (size_t i = 0; i < batch.size(); ++i) {
        batch[i].location = static_cast<uint32_t>(i * 37 % 8000);
        batch[i].row_data = rows.data() + i * TierTestLayout(2)->row_bytes();
      }
      EXPECT_TRUE(tier_->Read(Span<ReadRecord>(batch)).ok());
      for (const ReadRecord& read : batch) {
        if (read.status.code() == StatusCode::kNotFound) continue;
        ASSERT_TRUE(read.status.ok()) << read.status.ToString();
        const TestRecord expected(read.header.key, static_cast<uint64_t>(read.header.version), 2);
        EXPECT_EQ(std::vector<uint8_t>(read.row_data, read.row_data + expected.row_data.size()), expected.row_data);
        ++whole;
      }
      EXPECT_TRUE(tier_->Scan([](const RecordHeader&, uint32_t) { return OkStatus(); }).ok());
      (void)tier_->stats();
    }
    EXPECT_GT(whole, 0);
  });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(tier_->Compact().ok());
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
  EXPECT_EQ(tier_->stats().rows, static_cast<int64_t>(owner_.size()));
}

}  // namespace
}  // namespace multitier::compaction_test
