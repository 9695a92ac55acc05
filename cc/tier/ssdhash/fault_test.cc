// Every call that can fail fails once, and the disk is full for a while: an error or a success, never a wrong row, nothing
// acknowledged lost, and the tier works on.

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/env/fault_env.h"
#include "cc/env/file_cache.h"
#include "cc/env/memory_env.h"
#include "cc/env/posix_error.h"
#include "cc/tier/ssdhash/io_worker.h"
#include "cc/tier/ssdhash/ssdhash_test_util.h"

namespace multitier {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

class FaultTest : public testing::Test {
 protected:
  void Start() {
    memory_ = std::make_unique<InMemoryEnv>();
    EXPECT_TRUE(memory_->CreateDir("d").ok());
    env_ = std::make_unique<FaultEnv>(memory_.get());
    Open();
  }
  void Open() {
    SsdHashOptions options;
    options.env = env_.get();
    options.directory = "d";
    options.recover = *memory_->FileExists("d/ssd.id");
    options.keep = keep_;
    options.min_segment_bytes = min_segment_bytes_;
    options.direct_io = direct_io_;
    Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    tier_ = *std::move(tier);
    owner_ = std::make_unique<LogOwner>();
    owner_->Attach(tier_.get());
  }

  // Puts, removes and syncs that fill segments and compact. Returns the number of operations that failed.
  int Work(const Status& fault) {
    int failed = 0;
    const auto check = [&](const Status& status) {
      if (status.ok()) return;
      // An allocation that fails has no Status of its own.
      EXPECT_TRUE(status.code() == fault.code() || status.code() == StatusCode::kResourceExhausted) << status.ToString();
      ++failed;
    };
    for (uint64_t generation = 2; generation < 14; ++generation) {
      const int64_t from = static_cast<int64_t>(generation * 37 % 300);
      check(owner_->Put(Range(from, from + 200), generation));
      if (generation % 3 == 0) check(owner_->Remove(Range(from, from + 20)));
      if (generation % 4 == 0) check(tier_->Sync());
    }
    check(tier_->Compact());
    return failed;
  }

  // REQUIRES: everything was synced
  void CrashAndExpectTheSame(uint64_t n) {
    std::map<int64_t, uint64_t> before, after;
    for (int64_t key = 0; key < 1000; ++key) before[key] = owner_->generation(key);
    ASSERT_TRUE(env_->DropUnsyncedData().ok());
    owner_->Detach();
    tier_.reset();
    Open();
    EXPECT_EQ(owner_->Adopt(), std::vector<int64_t>());
    for (int64_t key = 0; key < 1000; ++key) after[key] = owner_->generation(key);
    ASSERT_EQ(before, after) << "call " << n;
    ASSERT_EQ(owner_->Wrong(), std::vector<int64_t>()) << "call " << n;
  }

  bool direct_io_ = true, keep_ = true;
  uint64_t min_segment_bytes_ = 32 << 10;
  std::unique_ptr<InMemoryEnv> memory_;
  std::unique_ptr<FaultEnv> env_;
  std::unique_ptr<LogOwner> owner_;
  std::unique_ptr<SsdHashTier> tier_;
};

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
  // A file that somebody took away is not a record that was freed.
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

class LastingFaultTest : public FaultTest, public testing::WithParamInterface<FaultKind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, LastingFaultTest,
                         testing::Values(FaultKind::kCreate, FaultKind::kWrite, FaultKind::kSync, FaultKind::kExtend,
                                         FaultKind::kAllocate, FaultKind::kTruncate, FaultKind::kSyncDir, FaultKind::kDelete),
                         [](const testing::TestParamInfo<FaultKind>& info) {
                           return StrCat("Kind", static_cast<int>(info.param));
                         });

TEST_P(LastingFaultTest, DiskThatStaysFullKeepsItsRowsReadableAndWorksOnAfterwards) {
  const Status full = PosixError("write", "d", ENOSPC);
  for (uint64_t n = 1; n < 24; ++n) {
    direct_io_ = n % 2 == 0;
    Start();
    ASSERT_TRUE(owner_->Put(Range(0, 500), 1).ok());
    env_->FailFrom(GetParam(), (n + 1) / 2, full);
    (void)Work(full);
    ASSERT_EQ(owner_->Wrong(), std::vector<int64_t>()) << n;
    env_->Disarm();
    ASSERT_TRUE(owner_->Put(Range(0, 500), 99).ok()) << n;
    ASSERT_TRUE(tier_->Sync().ok());
    ASSERT_TRUE(tier_->Compact().ok());
    ASSERT_EQ(owner_->Wrong(), std::vector<int64_t>()) << n;
    owner_->Detach();
    tier_.reset();
  }
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

// The space that is left when the next segment does not fit: how much it is decides whether an emptied segment makes room for a
// new one, which is larger until it is sealed.
class LeftOverSpaceTest : public FaultTest, public testing::WithParamInterface<uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Bytes, LeftOverSpaceTest, testing::Range<uint64_t>(0, 24 << 10, 2 << 10));

TEST_P(LeftOverSpaceTest, FullDiskIsCompactedWithWhatIsInReserve) {
  Start();
  constexpr int64_t kKeys = 6000;
  for (int64_t from = 0; from < kKeys; from += 500) ASSERT_TRUE(owner_->Put(Range(from, from + 500), 1).ok());
  const auto full = static_cast<uint64_t>(tier_->stats().stored_bytes) * 23 / 20 + GetParam();
  env_->LimitSpace(full);
  std::mt19937_64 random(5);
  int refused = 0, accepted = 0;
  for (uint64_t generation = 2; generation < 400; ++generation) {
    std::set<int64_t> keys;
    while (keys.size() < 100) keys.insert(static_cast<int64_t>(random() % kKeys));
    const Status put = owner_->Put(std::vector<int64_t>(keys.begin(), keys.end()), generation);
    ASSERT_TRUE(put.ok() || put.code() == StatusCode::kResourceExhausted) << put.ToString();
    ++(put.ok() ? accepted : refused);
  }
  EXPECT_GT(accepted, 300) << "the log has room for 15 % of garbage";
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  EXPECT_GT(tier_->stats().relocated_rows, 0);
  // More rows than fit.
  Status put;
  int64_t next = kKeys;
  for (; put.ok(); next += 100) put = owner_->Put(Range(next, next + 100), 500);
  EXPECT_EQ(put.code(), StatusCode::kResourceExhausted) << put.ToString();
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  // Rows that the owner gives up make room, scattered as they are.
  std::vector<KeyLocation> freed;
  for (int64_t key = 0; key < kKeys; key += 3) owner_->Forget(key, &freed);
  tier_->Free(freed);
  for (int64_t key = next; key < next + 1000; key += 100) {
    put = owner_->Put(Range(key, key + 100), 501);
    ASSERT_TRUE(put.ok()) << put.ToString();
  }
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  ASSERT_TRUE(tier_->Sync().ok());
  env_->LimitSpace(0);
  ASSERT_TRUE(owner_->Put(Range(0, kKeys), 502).ok());
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  std::printf("%d of %d batches accepted\n", accepted, accepted + refused);
  owner_->Detach();
  tier_.reset();
}

// New segments become larger as the log grows. What was kept in reserve before is smaller than the segments that are compacted
// with it, and earlier segments free less than a new one needs.
class GrownLogTest : public FaultTest, public testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Keys, GrownLogTest, testing::Range<int64_t>(20000, 42000, 2000));

TEST_P(GrownLogTest, FullDiskIsCompacted) {
  min_segment_bytes_ = 8 << 10;
  Start();
  const int64_t keys = GetParam();
  for (int64_t from = 0; from < keys; from += 500) ASSERT_TRUE(owner_->Put(Range(from, from + 500), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  env_->LimitSpace(static_cast<uint64_t>(tier_->stats().stored_bytes) * 21 / 20);
  std::mt19937_64 random(5);
  int accepted = 0;
  for (uint64_t generation = 2; generation < 400; ++generation) {
    std::set<int64_t> batch;
    while (batch.size() < 200) batch.insert(static_cast<int64_t>(random() % static_cast<uint64_t>(keys)));
    const Status put = owner_->Put(std::vector<int64_t>(batch.begin(), batch.end()), generation);
    ASSERT_TRUE(put.ok() || put.code() == StatusCode::kResourceExhausted) << put.ToString();
    accepted += put.ok() ? 1 : 0;
  }
  EXPECT_GT(accepted, 300) << "the log has room for 5 % of garbage, and three segments";
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  env_->LimitSpace(0);
  ASSERT_TRUE(owner_->Put(Range(0, keys), 502).ok());
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  std::printf("%d of 398 batches accepted\n", accepted);
  owner_->Detach();
  tier_.reset();
}

// What compaction makes room on is a disk, not a table of descriptors: the error comes at once, nothing is read or moved.
TEST_F(FaultTest, WantOfDescriptorsOrMemoryIsNoFullDisk) {
  for (const int error : {EMFILE, ENFILE, ENOMEM, ENOSPC, EDQUOT}) {
    SCOPED_TRACE(std::strerror(error));
    const bool full = error == ENOSPC || error == EDQUOT;
    Start();
    constexpr int64_t kKeys = 6000;
    for (int64_t from = 0; from < kKeys; from += 500) ASSERT_TRUE(owner_->Put(Range(from, from + 500), 1).ok());
    std::vector<int64_t> scattered;  // a tenth, of every segment: garbage that only a full disk has compacted
    for (int64_t key = 0; key < kKeys; key += 10) scattered.push_back(key);
    ASSERT_TRUE(owner_->Put(scattered, 2).ok());
    ASSERT_TRUE(tier_->Sync().ok());
    ASSERT_EQ(tier_->stats().compaction_debt_bytes, 0);
    const int64_t relocated = tier_->stats().relocated_rows;
    const uint64_t reads = env_->calls(FaultKind::kRead);
    env_->FailFrom(FaultKind::kCreate, 1, PosixError("open for writing", "d/ssd", error));
    Status put;
    for (int64_t next = kKeys; put.ok() && next < 2 * kKeys; next += 100) put = owner_->Put(Range(next, next + 100), 1);
    EXPECT_EQ(put.code(), StatusCode::kResourceExhausted) << put.ToString();
    EXPECT_NE(put.message().find("new segment of "), std::string::npos) << put.ToString();
    EXPECT_NE(put.message().find(std::strerror(error)), std::string::npos) << put.ToString();
    EXPECT_EQ(tier_->stats().relocated_rows > relocated, full);
    EXPECT_EQ(env_->calls(FaultKind::kRead) > reads, full);
    const Status compacted = tier_->Compact();
    EXPECT_EQ(compacted.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(compacted.message().find("the disk has no room") != std::string::npos, full) << compacted.ToString();
    EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
    env_->Disarm();
    EXPECT_TRUE(owner_->Put(Range(kKeys, 2 * kKeys), 3).ok());
    EXPECT_TRUE(tier_->Compact().ok());
    EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
    owner_->Detach();
    tier_.reset();
  }
}

// Holds the process's I/O threads.
class HeldWorkers {
 public:
  HeldWorkers() {
    for (IoWorker::Job& job : jobs_) IoWorker::Get()->Schedule(&job);
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return held_ == IoWorker::kThreads; });
  }
  ~HeldWorkers() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
      changed_.notify_all();
    }
    for (IoWorker::Job& job : jobs_) IoWorker::Get()->Cancel(&job);
  }

 private:
  void Hold() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++held_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return over_; });
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int held_ = 0;
  bool over_ = false;
  IoWorker::Job jobs_[IoWorker::kThreads] = {IoWorker::Job([this] { Hold(); }), IoWorker::Job([this] { Hold(); })};
};

// Files are made as large as a segment may become: on a full disk sealing those that are full makes room.
TEST_F(FaultTest, FullSegmentsThatWaitToBeSealedAreRoomOnAFullDisk) {
  min_segment_bytes_ = 256 << 10;
  Start();
  ASSERT_TRUE(owner_->Put(Range(0, 100), 1).ok());
  env_->LimitSpace(12 * (256 << 10));
  const HeldWorkers held;
  Status put;
  int64_t next = 100;
  for (; put.ok(); next += 100) put = owner_->Put(Range(next, next + 100), 1);
  ASSERT_EQ(put.code(), StatusCode::kResourceExhausted) << put.ToString();
  EXPECT_GT(tier_->stats().segments, 11);
  EXPECT_EQ(owner_->Put(Range(next, next + 100), 1).code(), StatusCode::kResourceExhausted) << "there was room before, too";
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  env_->LimitSpace(0);
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

// The same on a real one, where the kernel lets us mount it.
TEST(FullDiskTest, SmallTmpfsIsFilledAndEmptied) {
  const std::string directory = StrCat(testing::TempDir(), "/ssdhash_full_disk_", static_cast<int>(::getpid()));
  ASSERT_TRUE(Env::Posix()->CreateDir(directory).ok());
  if (::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=16m") != 0) {
    const int error = errno;
    (void)Env::Posix()->DeleteDir(directory);
    GTEST_SKIP() << "mount of a tmpfs: " << std::strerror(error);
  }
  {
    SsdHashOptions options;
    options.directory = directory;
    Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    LogOwner owner;
    owner.Attach(tier->get());
    Status put;
    int64_t next = 0;
    for (; put.ok() && next < 400000; next += 500) put = owner.Put(Range(next, next + 500), 1);
    EXPECT_EQ(put.code(), StatusCode::kResourceExhausted) << put.ToString();
    EXPECT_GT(next, 60000);
    EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
    std::vector<KeyLocation> freed;
    for (int64_t key = 0; key < next; key += 2) owner.Forget(key, &freed);
    (*tier)->Free(freed);
    for (int64_t from = 0; from < 20000; from += 500) {
      put = owner.Put(Range(from, from + 500), 3);
      ASSERT_TRUE(put.ok()) << from << ": " << put.ToString();
    }
    EXPECT_TRUE((*tier)->Sync().ok());
    EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
    owner.Detach();
  }
  EXPECT_EQ(::umount(directory.c_str()), 0);
  (void)Env::Posix()->DeleteDir(directory);
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
}  // namespace multitier
