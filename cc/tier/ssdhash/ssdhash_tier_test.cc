#include "cc/tier/ssdhash/ssdhash_tier.h"

#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>

#include "cc/base/blocked_test_util.h"
#include "cc/env/file_cache.h"
#include "cc/tier/ssdhash/io_worker.h"
#include "cc/tier/ssdhash/ssdhash_test_util.h"
#include "cc/tier/tier_conformance.h"

namespace multitier::ssdhash_tier_test {
namespace {

using SsdHashTierTest = SsdHashTest;

TierTestCase Case(const char* name, SsdHashOptions options) {
  return TierTestCase{name, [options](std::shared_ptr<const RowLayout>) { return Make(options); },
                      [options](std::shared_ptr<const RowLayout>, int64_t max_rows) {
                        SsdHashOptions bounded = options;
                        bounded.max_rows = max_rows;
                        return Make(bounded);
                      }};
}

std::vector<TierTestCase> Cases() {
  SsdHashOptions threads = OnDisk(BatchReader::Kind::kThreads);
  threads.async_compaction = true;
  SsdHashOptions async = Small();
  async.async_compaction = true;
  SsdHashOptions buffered = Small();
  buffered.direct_io = false;
  SsdHashOptions buffered_on_disk = OnDisk(BatchReader::Kind::kAuto);
  buffered_on_disk.direct_io = false;
  return {Case("Default", SsdHashOptions()), Case("PreadAsync", threads), Case("BufferedOnDisk", buffered_on_disk),
          Case("SmallSegments", Small()),    Case("SmallAsync", async),   Case("SmallBuffered", buffered)};
}

INSTANTIATE_TEST_SUITE_P(SsdHash, TierConformanceTest, testing::ValuesIn(Cases()), TierTestName);

TEST_F(SsdHashTierTest, WideAndHugeRowsAreWrittenAndRead) {
  for (const int dim : {1, 900, 1100, 70000, 1 << 20}) {
    auto tier = Make(Small());
    auto layout = std::make_shared<const RowLayout>(*RowLayout::Create(dim, DType::kFloat32));
    ASSERT_TRUE(tier->SetLayout(layout).ok());
    std::vector<uint8_t> row(layout->row_bytes()), out(layout->row_bytes());
    std::vector<uint32_t> locations(6);
    for (size_t i = 0; i < locations.size(); ++i) {
      row.assign(row.size(), static_cast<uint8_t>(i + 1));
      WriteRecord write;
      write.header = RecordHeader{static_cast<int64_t>(i), 1, 1, 1};
      write.row_data = row.data();
      ASSERT_TRUE(tier->Write(Span<const WriteRecord>(&write, 1), &locations[i]).ok()) << dim;
      if (i == 3) {
        ASSERT_TRUE(tier->Sync().ok());
      }
    }
    for (size_t i = 0; i < locations.size(); ++i) {
      ReadRecord read;
      read.key = static_cast<int64_t>(i);
      read.location = locations[i];
      read.row_data = out.data();
      ASSERT_TRUE(tier->Read(Span<ReadRecord>(&read, 1)).ok());
      ASSERT_TRUE(read.status.ok()) << dim << " " << read.status.ToString();
      EXPECT_EQ(out, std::vector<uint8_t>(row.size(), static_cast<uint8_t>(i + 1))) << dim;
    }
  }
}

TEST_F(SsdHashTierTest, EmptyTierCostsLittleAndDeletesItsFiles) {
  const std::string directory = NewDirectory();
  SsdHashOptions options;
  options.directory = directory;
  {
    auto tier = Make(options);
    EXPECT_LT(tier->stats().resident_bytes, 64 << 10);
    EXPECT_EQ(tier->stats().stored_bytes, 0);
    LogOwner owner;
    owner.Attach(tier.get());
    ASSERT_TRUE(owner.Put({1, 2, 3}, 1).ok());
    EXPECT_FALSE(Env::Posix()->ListDir(directory)->empty());
    owner.Detach();
  }
  EXPECT_TRUE(Env::Posix()->ListDir(directory)->empty());
}

int64_t ResidentBytes() {
  FILE* file = std::fopen("/proc/self/statm", "r");
  long total = 0, resident = 0;
  EXPECT_EQ(std::fscanf(file, "%ld %ld", &total, &resident), 2);
  std::fclose(file);
  return int64_t{resident} * ::sysconf(_SC_PAGESIZE);
}

int64_t CountEntries(const char* directory) { return static_cast<int64_t>(Env::Posix()->ListDir(directory)->size()); }

TEST_F(SsdHashTierTest, HundredsOfSmallTiersCostLittleAndNoThreadEach) {
  constexpr int kTiers = 200;
  const int64_t before = ResidentBytes();
  const int64_t threads = CountEntries("/proc/self/task");
  std::vector<std::unique_ptr<SsdHashTier>> tiers;
  std::vector<LogOwner> owners(kTiers);
  for (int i = 0; i < kTiers; ++i) {
    SsdHashOptions options;
    options.async_compaction = i % 2 == 0;
    tiers.push_back(Make(options));
    owners[static_cast<size_t>(i)].Attach(tiers.back().get());
  }
  EXPECT_LE(ResidentBytes() - before, int64_t{kTiers} * (64 << 10));
  for (LogOwner& owner : owners) ASSERT_TRUE(owner.Put(Range(0, 20), 1).ok());
  for (LogOwner& owner : owners) ASSERT_TRUE(owner.Put(Range(10, 30), 2).ok());
  EXPECT_LE(ResidentBytes() - before, int64_t{kTiers} * (1 << 20));
  EXPECT_LE(CountEntries("/proc/self/task"), threads + IoWorker::kThreads);
  for (LogOwner& owner : owners) {
    EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
    owner.Detach();
  }
}

TEST_F(SsdHashTierTest, WriteBuffersOfAllTiersTogetherAreBounded) {
  constexpr int kTiers = 100;
  const uint64_t before = IoWorker::Get()->buffer_bytes();
  {
    std::vector<std::unique_ptr<SsdHashTier>> tiers;
    std::vector<LogOwner> owners(kTiers);
    SsdHashOptions options = Small();
    options.min_segment_bytes = 1 << 20;
    for (LogOwner& owner : owners) {
      tiers.push_back(Make(options));
      owner.Attach(tiers.back().get());
    }
    uint64_t most = 0;
    for (int64_t from = 0; from < 12000; from += 2000) {
      for (LogOwner& owner : owners) {
        ASSERT_TRUE(owner.Put(Range(from, from + 2000), 1).ok());  // 136 KB
        most = std::max(most, IoWorker::Get()->buffer_bytes());
      }
    }
    EXPECT_GT(most, uint64_t{48} << 20);
    EXPECT_LE(most, IoWorker::kWriteBufferBytes);
    int64_t resident = 0;
    for (int i = 0; i < kTiers; ++i) {
      EXPECT_EQ(owners[static_cast<size_t>(i)].Wrong(), std::vector<int64_t>()) << i;
      resident += tiers[static_cast<size_t>(i)]->stats().resident_bytes;
      owners[static_cast<size_t>(i)].Detach();
    }
    EXPECT_LE(resident, int64_t{kTiers} * (600 << 10) + (64 << 20));
  }
  EXPECT_EQ(IoWorker::Get()->buffer_bytes(), before);
}

// Puts the limit back at the end of a scope.
struct LoweredLimit {
  explicit LoweredLimit(rlim_t files) : capacity(CachedFile::capacity()) {
    ::getrlimit(RLIMIT_NOFILE, &old);
    struct rlimit lowered = old;
    lowered.rlim_cur = files;
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &lowered), 0);
  }
  ~LoweredLimit() {
    ::setrlimit(RLIMIT_NOFILE, &old);
    CachedFile::SetCapacity(capacity);
  }
  struct rlimit old;
  const size_t capacity;
};

TEST_F(SsdHashTierTest, TiersOfMoreSegmentsThanDescriptorsWork) {
  for (const size_t capacity : {size_t{16}, size_t{1000}}) {  // the second: what the process may have runs out first
    SsdHashOptions options;
    options.min_segment_bytes = options.max_segment_bytes = 32 << 10;
    options.keep = true;
    options.directory = NewDirectory();
    auto tier = Make(options);
    SsdHashOptions other_options = options;
    other_options.directory = NewDirectory();
    auto other = Make(other_options);
    LoweredLimit lowered(static_cast<rlim_t>(CountEntries("/proc/self/fd")) + 48);
    CachedFile::SetCapacity(capacity);
    LogOwner owner, other_owner;
    owner.Attach(tier.get());
    other_owner.Attach(other.get());
    for (int64_t from = 0; from < 25000; from += 500) {
      ASSERT_TRUE(owner.Put(Range(from, from + 500), 1).ok());
      ASSERT_TRUE(other_owner.Put(Range(from / 4, from / 4 + 125), 1).ok());
    }
    EXPECT_GT(tier->stats().segments, 70);
    EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
    EXPECT_EQ(other_owner.Wrong(), std::vector<int64_t>());
    Overwrite(&owner, 25000, 40, 500, 3);
    const Status synced = tier->Sync();
    ASSERT_TRUE(synced.ok()) << synced.ToString();
    EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
    EXPECT_LE(CachedFile::open_files(), capacity);
    owner.Detach();
    other_owner.Detach();
    tier.reset();
    options.recover = true;
    options.keep = false;
    tier = Make(options);
    EXPECT_EQ(tier->recovery().rows, 25000);
  }
}

TEST_F(SsdHashTierTest, LatenciesAreCountedAndAnIdleTierUsesNoTime) {
  SsdHashOptions options;
  options.async_compaction = true;
  Start(options);
  for (uint64_t generation = 1; generation <= 30; ++generation) ASSERT_TRUE(owner_.Put(Range(0, 3000), generation).ok());
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
  const TierStats stats = tier_->stats();
  int64_t writes = 0, reads = 0;
  for (size_t i = 0; i < stats.write_latency.size(); ++i) {
    writes += stats.write_latency[i];
    reads += stats.read_latency[i];
  }
  EXPECT_EQ(writes, 30);
  EXPECT_EQ(reads, 1);
  ASSERT_TRUE(tier_->Compact().ok());
  ASSERT_TRUE(tier_->Sync().ok());
#ifndef __SANITIZE_THREAD__  // which has a thread of its own
  EXPECT_TRUE(AwaitAllOthersBlocked());
#endif
}

TEST_F(SsdHashTierTest, ImpossibleOptionsAreRefused) {
  EXPECT_EQ(SsdHashTier::Open(SsdHashOptions()).status().code(), StatusCode::kInvalidArgument);
  SsdHashOptions options = Small();
  options.directory = NewDirectory();
  EXPECT_EQ(SsdHashTier::Open(options).status().code(), StatusCode::kNotFound);
  options.min_segment_bytes = 0;
  EXPECT_EQ(SsdHashTier::Open(options).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(SsdHashTierTest, ForkedChildIsRefusedAndLeavesTheFilesAlone) {
  SsdHashOptions options = OnDisk(BatchReader::Kind::kAuto);
  options.async_compaction = true;
  Start(options);
  ASSERT_TRUE(owner_.Put(Range(0, 1000), 1).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ReadRecord read;
    read.location = 0;
    const bool refused = tier_->Read(Span<ReadRecord>(&read, 1)).code() == StatusCode::kFailedPrecondition &&
                         tier_->Sync().code() == StatusCode::kFailedPrecondition && tier_->stats().rows == 0;
    tier_.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
  ASSERT_TRUE(owner_.Put(Range(0, 1000), 2).ok());
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
}

TEST_F(SsdHashTierTest, ReadsOfNeighboursAreCoalesced) {
  Start(SsdHashOptions());
  ASSERT_TRUE(owner_.Put(Range(0, 2000), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
  const TierStats stats = tier_->stats();
  EXPECT_LE(stats.device_reads, stats.device_read_bytes / (15 << 10) + 1);
  EXPECT_STRNE(stats.read_backend, "");
}

}  // namespace
}  // namespace multitier::ssdhash_tier_test
