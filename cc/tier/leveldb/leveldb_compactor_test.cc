// Dead entries of a LevelDB: they go by themselves, while rows are written, and what is held stays.

#include "cc/tier/leveldb/leveldb_compactor.h"

#include <algorithm>
#include <cstring>
#include <thread>

#include "cc/tier/leveldb/leveldb_test_util.h"

namespace multitier::leveldb_compactor_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

// A database of which each round drops all dead bytes.
class LevelDbCompactorTest : public testing::Test {
 protected:
  LevelDbCompactorTest() {
    LevelDbCompactor::Database database;
    database.live_bytes = [this] { return live_.load(); };
    database.stored_bytes = [this] { return stored_.load(); };
    database.appended_bytes = [this] { return appended_.load(); };
    database.sample_keys = [](size_t n) {
      std::vector<int64_t> keys;
      for (size_t i = n; i > 0; --i) keys.push_back(static_cast<int64_t>(i));
      return keys;
    };
    database.compact_range = [this](const int64_t* first, const int64_t* last, int64_t) {
      EXPECT_EQ(first == nullptr, ranges_ == 0 || to_ == INT64_MAX);
      EXPECT_TRUE(first == nullptr || *first == to_);
      to_ = last == nullptr ? INT64_MAX : *last;
      ++ranges_;
      during_range_();
      if (good_ && last == nullptr) stored_ = kept_.load();
      return good_.load();
    };
    LevelDbCompactor::Options options;
    options.allowance_bytes = 1000;
    options.headroom_bytes = 300;
    options.range_bytes = 500;
    options.retry_us = retry_us_;
    compactor_ = std::make_unique<LevelDbCompactor>(std::move(database), options);
  }
  void AppendOnly(int64_t bytes) {
    compactor_->WaitIfBehind();
    stored_ += bytes;
    appended_ += bytes;
    compactor_->CompactIfDue();
  }
  void Append(int64_t bytes) {
    AppendOnly(bytes);
    compactor_->Wait();
  }
  // Appends 20,000 bytes while each range takes until the writer waits. Returns the largest size of the files.
  int64_t AppendDuringSlowRounds() {
    std::atomic<bool> written{false};
    during_range_ = [&] {
      while (!written && compactor_->waiting() == 0) std::this_thread::yield();
    };
    int64_t most = 0;
    for (int i = 0; i < 2000; ++i) {
      AppendOnly(10);
      most = std::max(most, stored_.load());
    }
    written = true;
    compactor_->Wait();
    during_range_ = [] {};
    return most;
  }

  const uint64_t retry_us_ = uint64_t{1} << 40;
  std::atomic<int64_t> live_{0}, stored_{0}, appended_{0}, kept_{0};
  std::atomic<bool> good_{true};
  std::atomic<int> ranges_{0};
  int64_t to_ = INT64_MAX;
  std::function<void()> during_range_ = [] {};
  std::unique_ptr<LevelDbCompactor> compactor_;
};

TEST_F(LevelDbCompactorTest, ARoundBeginsAboveTwiceTheLiveBytesAndTheAllowance) {
  live_ = kept_ = 300;
  Append(1600);
  EXPECT_EQ(compactor_->rounds(), 0);
  Append(1);
  EXPECT_EQ(compactor_->rounds(), 1);
  EXPECT_EQ(ranges_, 4) << "1601 bytes in ranges of 500";
  EXPECT_EQ(to_, INT64_MAX) << "all keys";
  EXPECT_EQ(stored_, 300);
}

TEST_F(LevelDbCompactorTest, WhatARoundCannotDropIsNotTriedAgainUntilItIsRemoved) {
  kept_ = 5000;
  Append(5000);
  EXPECT_EQ(compactor_->rounds(), 1);
  Append(6000);
  EXPECT_EQ(compactor_->rounds(), 1) << "twice what was left, and the allowance";
  compactor_->NoteRemoved(4000);
  kept_ = 1000;
  Append(1);
  EXPECT_EQ(compactor_->rounds(), 2);
  EXPECT_EQ(stored_, 1001) << "the round came first";
}

TEST_F(LevelDbCompactorTest, AFailedRoundEndsAtOnceAndIsNotRepeatedSoon) {
  good_ = false;
  Append(5000);
  EXPECT_EQ(ranges_, 1);
  Append(5000);
  EXPECT_EQ(ranges_, 1);
}

TEST_F(LevelDbCompactorTest, WritersWaitForARoundThatIsSlowerThanTheyAre) {
  live_ = kept_ = 1000;
  EXPECT_LE(AppendDuringSlowRounds(), 2 * 1000 + 1000 + 1000 / 2 + 300 + 10);
  EXPECT_GT(compactor_->rounds(), 3);
}

TEST_F(LevelDbCompactorTest, WritersDoNotWaitForARoundThatFailed) {
  good_ = false;
  Append(5000);
  EXPECT_EQ(compactor_->rounds(), 1);
  for (int i = 0; i < 2000; ++i) AppendOnly(10);
  EXPECT_EQ(stored_, 25000);
  EXPECT_EQ(compactor_->rounds(), 1);
}

// A window of rows that moves over the keys: its rows leave, others come. LevelDB alone keeps what left, because it moves
// the new rows to a level of their own, and no level is too large.
class LevelDbSpaceTest : public LevelDbTierTest {
 protected:
  static constexpr int64_t kWindow = 4000, kStep = kWindow, kOthers = 1000000;

  void Step() {
    std::vector<KeyLocation> removed;
    for (int64_t key = first_; key < first_ + kStep; ++key) removed.push_back({key, held_.at(key).location});
    ASSERT_TRUE(tier_->Remove(removed).ok());
    for (int64_t key = first_; key < first_ + kStep; ++key) held_.erase(key);
    ASSERT_TRUE(Write(first_ + kWindow, kStep, 1).ok());
    first_ += kStep;
  }
  // Begins a round.
  void RemoveManyRows() {
    const std::map<int64_t, Held> before = held_;
    ASSERT_TRUE(Write(kOthers, 40000, 1).ok());
    tier_->compactor()->Wait();
    std::vector<KeyLocation> removed;
    for (int64_t key = kOthers; key < kOthers + 40000; ++key) removed.push_back({key, held_.at(key).location});
    held_ = before;
    const int64_t rounds = tier_->compactor()->rounds();
    ASSERT_TRUE(tier_->Remove(removed).ok());
    while (tier_->compactor()->rounds() == rounds) std::this_thread::yield();
  }
  // As LevelDB does when its buffer is full.
  void FlushFullBuffer() {
    const leveldb::Slice beyond("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff");
    tier_->database()->CompactRange(&beyond, &beyond);
  }
  static int64_t Entries(int64_t rows) { return rows * static_cast<int64_t>(TierTestLayout(2)->row_bytes() + 48); }
  // See leveldb_compactor.h. `rows`: keys that have an entry.
  static int64_t Bound(int64_t rows) {
    const auto buffer = static_cast<int64_t>(options_.write_buffer_bytes);
    const auto file = static_cast<int64_t>(options_.table_file_bytes);
    return Entries(rows) * 5 / 2 + 2 * std::min(Entries(rows), 25 * file) + 4 * buffer + file;
  }
  // Samples the size of the files whenever one of them changes.
  void WatchFiles() {
    tier_->disk()->set_fault([this](const char*, const std::string&) {
      const int64_t now = tier_->disk()->stored_bytes();
      for (int64_t most = most_; now > most && !most_.compare_exchange_weak(most, now);) {
      }
      return 0;
    });
  }

  static inline const LevelDbOptions options_ = [] {
    LevelDbOptions options;
    options.write_buffer_bytes = 64 << 10;
    options.table_file_bytes = 1 << 20;
    return options;
  }();
  std::atomic<int64_t> most_{0};
  int64_t first_ = 0;
};

TEST_F(LevelDbSpaceTest, FilesOfADriftingWindowStayWithinTheirBound) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, kWindow, 1).ok());
  WatchFiles();
  for (int step = 0; step < 40; ++step) Step();
  tier_->compactor()->Wait();
  tier_->disk()->set_fault(nullptr);
  EXPECT_LE(most_, Bound(2 * kWindow));
  EXPECT_GT(tier_->compactor()->rounds(), 3);
  ExpectAllHeld();
  const TierStats stats = tier_->stats();
  std::printf("at most %lld bytes for a bound of %lld, write amplification %.2f\n", static_cast<long long>(most_),
              static_cast<long long>(Bound(2 * kWindow)),
              static_cast<double>(stats.device_written_bytes) / static_cast<double>(stats.appended_bytes));
}

TEST_F(LevelDbSpaceTest, RowsThatOnlyComeAreNotCompacted) {
  Open(SmallOptions());
  for (int64_t first = 0; first < 60000; first += 500) ASSERT_TRUE(Write(first, 500, 1).ok());
  tier_->compactor()->Wait();
  EXPECT_EQ(tier_->compactor()->rounds(), 0);
  EXPECT_GT(tier_->stats().stored_bytes, Bound(kWindow));
}

// Rows that are written again and again, and then no more. LevelDB writes a full buffer to a table file as it is, with all
// entries of a key. If the file overlaps no other one, no compaction of LevelDB's own touches it again.
TEST_F(LevelDbSpaceTest, OldEntriesOfRowsThatAreNotWrittenAnyMoreGo) {
  Open(SmallOptions());
  for (int64_t first = 0; first < 80 * 60; first += 60) {
    for (uint64_t generation = 0; generation < 10; ++generation) ASSERT_TRUE(Write(first, 60, generation).ok());
    FlushFullBuffer();
  }
  tier_->compactor()->Wait();
  EXPECT_GE(tier_->compactor()->rounds(), 1);
  EXPECT_LE(tier_->stats().stored_bytes,
            2 * Entries(80 * 60) + static_cast<int64_t>(2 * options_.write_buffer_bytes + options_.table_file_bytes));
  ExpectAllHeld();
}

// Rows of which newer values are in memory above: their entries are dead, and stay.
TEST_F(LevelDbSpaceTest, EntriesThatMustStayDoNotKeepItBusy) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, 40000, 1).ok());
  for (int64_t key = 100; key < 40000; ++key) {
    const KeyLocation freed{key, held_.at(key).location};
    tier_->Free(Span<const KeyLocation>(&freed, 1));
    held_.erase(key);
  }
  for (uint64_t generation = 2; generation < 500; ++generation) {
    ASSERT_TRUE(Write(0, 100, generation).ok());
    tier_->compactor()->Wait();
  }
  EXPECT_GE(tier_->compactor()->rounds(), 1);
  EXPECT_LE(tier_->compactor()->rounds(), 3);
  ExpectAllHeld();
}

TEST_F(LevelDbSpaceTest, ADiskThatFailsMeanwhileLosesNothingAndTheBoundHoldsAfterwards) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, kWindow, 1).ok());
  std::atomic<int> number{0};
  tier_->disk()->set_fault([&number](const char* call, const std::string& path) {
    const bool changes_table =
        std::strcmp(call, "read") != 0 && std::strcmp(call, "open") != 0 && path.find(".ldb") != std::string::npos;
    return changes_table && ++number % 5 == 0 ? EIO : 0;
  });
  int refused = 0;
  for (int64_t first = 0; first < 40000; first += 1000) {
    refused += !Write(first % 5000, 1000, static_cast<uint64_t>(first)).ok();
    tier_->compactor()->Wait();
    ExpectAllHeld();
  }
  EXPECT_GT(refused, 0);
  ExpectAllHeld();
  tier_->disk()->set_fault(nullptr);
  for (int step = 0; step < 10; ++step) {
    Step();
    tier_->compactor()->Wait();
  }
  EXPECT_LE(tier_->stats().stored_bytes, Bound(2 * kWindow));
  ExpectAllHeld();
}

TEST_F(LevelDbSpaceTest, ItClosesWhileARoundRuns) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, kWindow, 1).ok());
  RemoveManyRows();
  tier_.reset();
}

}  // namespace
}  // namespace multitier::leveldb_compactor_test
