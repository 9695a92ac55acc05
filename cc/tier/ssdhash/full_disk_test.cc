// A disk is full, for a while or for good, or the process lacks descriptors or memory. An update is refused or succeeds, no row
// is wrong, compaction makes room, and the tier works afterwards. Single faults are in fault_test.cc.

#include <errno.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/env/posix_error.h"
#include "cc/tier/ssdhash/fault_test_util.h"
#include "cc/tier/ssdhash/io_worker.h"

namespace multitier::full_disk_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

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
    EXPECT_EQ(compacted.message().find("expected room on the disk") != std::string::npos, full) << compacted.ToString();
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

// A full disk of the operating system. Skipped if the kernel refuses to mount it.
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

}  // namespace
}  // namespace multitier::full_disk_test
