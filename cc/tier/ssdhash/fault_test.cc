// A call of the file system fails. The operation succeeds or returns the error, no row is wrong, no acknowledged row is lost,
// and the tier works afterwards. Full disks are in full_disk_test.cc.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/env/fault_env.h"
#include "cc/env/file_cache.h"
#include "cc/env/memory_env.h"
#include "cc/tier/ssdhash/fault_test_util.h"

namespace multitier::fault_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

// Calls back before its maker opens a file for reading, once; the tier's threads open files when they like.
class ReopenEnv : public FaultEnv {
 public:
  using FaultEnv::FaultEnv;
  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override {
    const bool ours = std::this_thread::get_id() == maker;
    if (mode == OpenMode::kRead && ours && before_read != nullptr) std::exchange(before_read, nullptr)();
    return FaultEnv::OpenPositionedFile(path, mode, direct);
  }
  const std::thread::id maker = std::this_thread::get_id();
  std::function<void()> before_read;
};

TEST_F(FaultTest, RecordIsReadFromTheFileThatReplacesTheOneWhereItWasLookedFor) {
  memory_ = std::make_unique<InMemoryEnv>();
  ASSERT_TRUE(memory_->CreateDir("d").ok());
  auto* const env = new ReopenEnv(memory_.get());
  env_.reset(env);
  Open();
  env_->FailFrom(FaultKind::kSync, 1, UnavailableError("cable"));
  ASSERT_TRUE(owner_->Put(Range(0, 3000), 1).ok());
  EXPECT_FALSE(tier_->Sync().ok());
  env_->Disarm();
  const size_t capacity = CachedFile::capacity();
  CachedFile::SetCapacity(1);  // every file is closed after its use
  bool repaired = false;
  env->before_read = [&] {
    EXPECT_TRUE(tier_->Sync().ok());  // rewrites what could not be synced, and deletes the old files
    repaired = true;
  };
  std::vector<ReadRecord> reads(3000);
  std::vector<uint8_t> row(TierTestLayout(LogOwner::kColumns)->row_bytes());
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].key = static_cast<int64_t>(i);
    reads[i].location = owner_->location(reads[i].key);
    reads[i].row_data = row.data();
  }
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(reads)).ok());
  EXPECT_TRUE(repaired);
  for (const ReadRecord& read : reads) ASSERT_TRUE(read.status.ok()) << read.status.ToString();
  // A file that another process deleted is not a record that was freed.
  const Result<std::vector<std::string>> names = memory_->ListDir("d");
  for (const std::string& name : *names) {
    if (name != "ssd.id") {
      ASSERT_TRUE(memory_->DeleteFile("d/" + name).ok());
    }
  }
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(reads)).ok());
  EXPECT_EQ(reads[0].status.code(), StatusCode::kDataLoss);
  EXPECT_NE(reads[0].status.message().find("the file is missing"), std::string::npos) << reads[0].status.ToString();
  CachedFile::SetCapacity(capacity);
  owner_->Detach();
  tier_.reset();
}

class EveryCallTest : public FaultTest, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Modes, EveryCallTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) { return info.param ? "Direct" : "Buffered"; });

TEST_P(EveryCallTest, FailingOnceLosesNothing) {
  direct_io_ = GetParam();
  const Status fault = UnavailableError("input/output error");
  int fired_total = 0, failed_total = 0;
  for (uint64_t n = 1;; n += n < 400 ? 1 : 7) {
    ASSERT_LT(n, 20000u);
    Start();
    ASSERT_TRUE(owner_->Put(Range(0, 500), 1).ok());
    env_->FailNth(FaultKind::kAny, n, fault);
    const int failed = Work(fault);
    const bool fired = env_->Disarm();
    EXPECT_LE(failed, 1) << n;
    ASSERT_EQ(owner_->Wrong(), std::vector<int64_t>()) << "call " << n;
    if (n % 2 == 0) {  // what was written before and around the fault is acknowledged by itself
      ASSERT_TRUE(tier_->Sync().ok());
      CrashAndExpectTheSame(n);
    }
    ASSERT_TRUE(owner_->Put(Range(0, 500), 99).ok()) << n;
    ASSERT_TRUE(owner_->Remove(Range(0, 10)).ok());
    ASSERT_TRUE(tier_->Sync().ok());
    ASSERT_EQ(owner_->Wrong(), std::vector<int64_t>()) << "call " << n;
    CrashAndExpectTheSame(n);
    EXPECT_EQ(owner_->generation(5), 0u);
    EXPECT_EQ(owner_->generation(15), 99u);
    owner_->Detach();
    tier_.reset();
    fired_total += fired;
    failed_total += failed;
    if (!fired) break;
  }
  std::printf("%d faults, %d of them seen by an operation\n", fired_total, failed_total);
  EXPECT_GT(failed_total, 0);
}

// A segment that recovery found is synced again, and where that fails once it is rewritten like any other: one that was open
// when its process died has no footer, and the names of earlier rewritings are taken.
TEST_F(FaultTest, RecoveredSegmentWhoseSyncFailsIsRewritten) {
  for (const bool direct : {true, false}) {
    direct_io_ = direct;
    for (uint64_t rewritten = 0; rewritten < 3; ++rewritten) {
      SCOPED_TRACE(StrCat(direct ? "direct" : "buffered", ", rewritten before ", rewritten, " times"));
      Start();
      ASSERT_TRUE(owner_->Put(Range(0, 100), 1).ok());
      for (uint64_t n = 0; n < rewritten; ++n) {
        env_->FailNth(FaultKind::kSync, 1, UnavailableError("cable"));
        ASSERT_TRUE(owner_->Put(Range(0, 10), n + 2).ok());
        ASSERT_TRUE(tier_->Sync().ok());
        ASSERT_TRUE(env_->Disarm());
      }
      ASSERT_TRUE(tier_->Sync().ok());
      CrashAndExpectTheSame(rewritten);
      ASSERT_GE(tier_->recovery().unsealed_files, 1);
      const int64_t stored = tier_->stats().stored_bytes;
      for (int again = 0; again < 2; ++again) {
        env_->FailNth(FaultKind::kSync, 1, UnavailableError("cable"));
        const Status synced = tier_->Sync();
        EXPECT_TRUE(synced.ok()) << synced.ToString();
        EXPECT_EQ(env_->Disarm(), again == 0) << "what is synced is not synced again";
      }
      EXPECT_LT(tier_->stats().stored_bytes, stored) << "what it was to grow to is not its own any more";
      EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
      CrashAndExpectTheSame(rewritten);
      EXPECT_EQ(tier_->stats().rows, 100);
      owner_->Detach();
      tier_.reset();
    }
  }
}

// Overwrites on a disk that is full: they succeed or are refused with ResourceExhausted, compaction goes on, and freeing rows
// is enough to go on.
TEST_F(FaultTest, BatchOfManyPiecesIsWrittenWholeOrNotAtAll) {
  constexpr int64_t kKeys = 5000;
  const Status fault = UnavailableError("input/output error");
  Start();
  ASSERT_TRUE(owner_->Put(Range(0, kKeys), 1).ok());
  int failed = 0;
  for (uint64_t n = 1; n < 40; ++n) {
    const bool last = n == 39;  // without a fault
    if (!last) env_->FailFrom(FaultKind::kWrite, n, fault);
    const Status put = owner_->Put(Range(0, kKeys), n + 1);
    env_->Disarm();
    failed += !put.ok();
    EXPECT_TRUE(put.ok() || put.code() == fault.code()) << put.ToString();
    EXPECT_EQ(tier_->stats().rows, kKeys) << n;
    EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>()) << n;
    EXPECT_TRUE(put.ok() || !last) << put.ToString();
  }
  EXPECT_GT(failed, 5);
  ASSERT_TRUE(tier_->Sync().ok());
  CrashAndExpectTheSame(0);
  owner_->Detach();
  tier_.reset();
}

// Without direct I/O each write of a file is synced: a tier that cannot keep its bound does not write its open segments for it.
TEST_F(FaultTest, WritesThatAreBehindSyncNoMoreThanFullBuffers) {
  direct_io_ = keep_ = false;
  Start();
  for (uint64_t generation = 1; generation < 20; ++generation) ASSERT_TRUE(owner_->Put(Range(0, 1000), generation).ok());
  ASSERT_TRUE(tier_->Compact().ok());
  tier_->SetRelocator(nullptr);  // nothing can be moved
  std::mt19937_64 random(3);
  uint64_t syncs = 0;
  int64_t segments = 0;
  constexpr int kWrites = 1000;
  for (uint64_t write = 0; write < 2 * kWrites; ++write) {
    if (write == kWrites) {
      EXPECT_GT(tier_->stats().compaction_debt_bytes, 0);
      syncs = env_->calls(FaultKind::kSync);
      segments = tier_->stats().segments;
    }
    const auto key = static_cast<int64_t>(random() % 1000);
    ASSERT_TRUE(owner_->Put({key, key + 1000}, 100 + write).ok());
  }
  EXPECT_LE(env_->calls(FaultKind::kSync) - syncs, kWrites / 10 + static_cast<uint64_t>(tier_->stats().segments - segments));
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  owner_->Detach();
  tier_.reset();
}

TEST_F(FaultTest, ReadErrorIsTheRecordsOwnAndNamesTheKey) {
  Start();
  ASSERT_TRUE(owner_->Put(Range(0, 2000), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  env_->FailNth(FaultKind::kRead, 1, UnavailableError("input/output error"));
  const std::vector<int64_t> wrong = owner_->Wrong();
  EXPECT_TRUE(env_->Disarm());
  EXPECT_GT(wrong.size(), 0u);
  EXPECT_LT(wrong.size(), 2000u);
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  env_->FailFrom(FaultKind::kRead, 1, UnavailableError("input/output error"));
  EXPECT_EQ(owner_->Wrong(StatusCode::kUnavailable), std::vector<int64_t>());
  env_->Disarm();
  owner_->Detach();
  tier_.reset();
}

}  // namespace
}  // namespace multitier::fault_test
