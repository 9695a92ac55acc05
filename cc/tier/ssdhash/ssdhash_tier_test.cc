#include "cc/tier/ssdhash/ssdhash_tier.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/env/file_cache.h"
#include "cc/env/memory_env.h"
#include "cc/tier/ssdhash/io_worker.h"
#include "cc/tier/ssdhash/log_owner.h"
#include "cc/tier/tier_conformance.h"

namespace multitier {
namespace {

constexpr size_t kSmallSegment = 16 << 10;

std::string NewDirectory() {
  static int made = 0;
  return StrCat(testing::TempDir(), "/ssdhash_tier_test_", static_cast<int>(::getpid()), "/", ++made);
}

std::unique_ptr<SsdHashTier> Make(SsdHashOptions options) {
  if (options.directory.empty()) options.directory = NewDirectory();
  EXPECT_TRUE(options.env->CreateDir(options.directory).ok());
  Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  return *std::move(tier);
}

TierTestCase Case(const char* name, SsdHashOptions options) {
  return TierTestCase{name, [options](std::shared_ptr<const RowLayout>) { return Make(options); },
                      [options](std::shared_ptr<const RowLayout>, int64_t max_rows) {
                        SsdHashOptions bounded = options;
                        bounded.max_rows = max_rows;
                        return Make(bounded);
                      }};
}

// Small segments in memory: on a disk the syncs of so many would be all the time these tests take.
SsdHashOptions Small() {
  static auto* const memory = new InMemoryEnv;
  SsdHashOptions options;
  options.env = memory;
  options.min_segment_bytes = kSmallSegment;
  return options;
}

// On the disk, through the ring or the helpers.
SsdHashOptions OnDisk(BatchReader::Kind reader) {
  SsdHashOptions options;
  options.reader = reader;
  options.min_segment_bytes = 512 << 10;
  return options;
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
  return {Case("Default", SsdHashOptions()), Case("PreadAsync", threads),  Case("BufferedOnDisk", buffered_on_disk),
          Case("SmallSegments", Small()),    Case("SmallAsync", async),    Case("SmallBuffered", buffered)};
}

INSTANTIATE_TEST_SUITE_P(SsdHash, TierConformanceTest, testing::ValuesIn(Cases()), TierTestName);

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

int64_t SpaceBound(const SsdHashTier& tier, int64_t bytes_per_row, int64_t segment_bytes) {
  return tier.stats().rows * bytes_per_row * 3 / 2 + 4 * segment_bytes;
}

// Rounds of random overwrites of `keys` keys.
void Overwrite(LogOwner* owner, int64_t keys, int rounds, size_t batch_keys, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    std::map<int64_t, bool> batch;
    while (batch.size() < batch_keys) batch[static_cast<int64_t>(random() % static_cast<uint64_t>(keys))] = true;
    std::vector<int64_t> list;
    for (const auto& [key, unused] : batch) list.push_back(key);
    const Status put = owner->Put(list, random() >> 2 | 1);
    ASSERT_TRUE(put.ok()) << put.ToString();
  }
}

class CompactionTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Modes, CompactionTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) { return info.param ? "Async" : "Inline"; });

TEST_P(CompactionTest, RandomOverwriteStaysWithinTheSpaceBoundAndLosesNothing) {
  SsdHashOptions options = Small();
  options.async_compaction = GetParam();
  options.min_segment_bytes = 64 << 10;
  auto tier = Make(options);
  LogOwner owner;
  owner.Attach(tier.get());
  owner.UseEvery(101);
  constexpr int64_t kKeys = 40000;
  for (int64_t from = 0; from < kKeys; from += 1000) ASSERT_TRUE(owner.Put(Range(from, from + 1000), 1).ok());
  const int64_t bytes_per_row = (tier->stats().stored_bytes + kKeys - 1) / kKeys;
  for (int part = 0; part < 400; ++part) {
    Overwrite(&owner, kKeys, 1, 500, static_cast<uint64_t>(part));
    const TierStats stats = tier->stats();
    EXPECT_LE(stats.stored_bytes, SpaceBound(*tier, bytes_per_row, 68 << 10)) << part;
  }
  ASSERT_TRUE(tier->Compact().ok());
  const TierStats stats = tier->stats();
  EXPECT_LE(stats.stored_bytes, SpaceBound(*tier, bytes_per_row, 68 << 10));
  EXPECT_EQ(stats.rows, kKeys);
  EXPECT_GT(stats.relocated_rows, kKeys);
  EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
  std::printf("write amplification %.2f, space %.2f\n",
              static_cast<double>(stats.device_written_bytes) / static_cast<double>(stats.appended_bytes),
              static_cast<double>(stats.stored_bytes) / static_cast<double>(bytes_per_row * kKeys));
  owner.Detach();
}

// Garbage that the thresholds leave alone goes on request.
TEST_P(CompactionTest, OnRequestGivesBackWhatTheThresholdsLeave) {
  SsdHashOptions options = Small();
  options.async_compaction = GetParam();
  options.min_segment_bytes = 64 << 10;
  auto tier = Make(options);
  LogOwner owner;
  owner.Attach(tier.get());
  constexpr int64_t kKeys = 40000;
  for (int64_t from = 0; from < kKeys; from += 1000) ASSERT_TRUE(owner.Put(Range(from, from + 1000), 1).ok());
  const int64_t full = tier->stats().stored_bytes;
  for (int64_t from = 0; from < kKeys; from += 1000) {  // three of ten records of each segment
    std::vector<int64_t> keys;
    for (int64_t key = from; key < from + 1000; ++key) {
      if (key % 10 < 3) keys.push_back(key);
    }
    ASSERT_TRUE(owner.Put(keys, 2).ok());
  }
  const TierStats before = tier->stats();
  EXPECT_GT(before.stored_bytes, full * 6 / 5);
  EXPECT_GT(before.dead_bytes, full / 5);
  ASSERT_TRUE(tier->Compact().ok());
  const TierStats after = tier->stats();
  EXPECT_LE(after.stored_bytes, full * 17 / 16 + 4 * (68 << 10));
  EXPECT_LE(after.dead_bytes, full / 16 + (68 << 10));
  EXPECT_LE(after.device_read_bytes - before.device_read_bytes, before.stored_bytes);
  EXPECT_EQ(after.rows, kKeys);
  EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
  ASSERT_TRUE(tier->Compact().ok());
  EXPECT_LE(tier->stats().device_written_bytes, after.device_written_bytes + (68 << 10)) << "nothing is left that is worth it";
  owner.Detach();
}

TEST_P(CompactionTest, ScansFindWhatMovesWhileItsFileIsClosed) {
  const size_t capacity = CachedFile::capacity();
  CachedFile::SetCapacity(1);
  SsdHashOptions options = Small();
  options.async_compaction = GetParam();
  options.min_segment_bytes = 64 << 10;
  auto tier = Make(options);
  LogOwner owner;
  owner.Attach(tier.get());
  constexpr int64_t kKeys = 20000;
  for (int64_t from = 0; from < kKeys; from += 1000) ASSERT_TRUE(owner.Put(Range(from, from + 1000), 1).ok());
  std::vector<int64_t> most;
  for (int64_t key = 0; key < kKeys; ++key) {
    if (key % 8 != 0) most.push_back(key);
  }
  std::vector<bool> seen(kKeys);
  bool first = true;
  const Status scanned = tier->Scan([&](const RecordHeader& header, uint32_t) {
    seen[static_cast<size_t>(header.key)] = true;
    if (!std::exchange(first, false)) return OkStatus();
    EXPECT_TRUE(owner.Remove(most).ok());
    EXPECT_TRUE(tier->Compact().ok());
    return OkStatus();
  });
  EXPECT_TRUE(scanned.ok()) << scanned.ToString();
  EXPECT_GT(tier->stats().relocated_rows, 0);
  for (int64_t key = 0; key < kKeys; key += 8) ASSERT_TRUE(seen[static_cast<size_t>(key)]) << key;
  owner.Detach();
  CachedFile::SetCapacity(capacity);
}

TEST_P(CompactionTest, RemovedKeysLeaveNoTombstonesBehindForever) {
  SsdHashOptions options = Small();
  options.async_compaction = GetParam();
  auto tier = Make(options);
  LogOwner owner;
  owner.Attach(tier.get());
  ASSERT_TRUE(owner.Put(Range(0, 5000), 1).ok());  // cold, never changed
  const int64_t before = tier->stats().stored_bytes;
  for (int64_t round = 0; round < 60; ++round) {
    ASSERT_TRUE(owner.Put(Range(100000 + round * 500, 100500 + round * 500), 2).ok());
    ASSERT_TRUE(owner.Remove(Range(100000 + round * 500, 100500 + round * 500)).ok());
  }
  ASSERT_TRUE(tier->Compact().ok());
  EXPECT_EQ(tier->stats().rows, 5000);
  EXPECT_LE(tier->stats().stored_bytes, 2 * before);
  EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
  owner.Detach();
}

TEST_P(CompactionTest, OwnersReadersAndRelocationRaceWithoutAWrongRow) {
  SsdHashOptions options = OnDisk(BatchReader::Kind::kAuto);
  options.min_segment_bytes = 128 << 10;
  options.async_compaction = GetParam();
  auto tier = Make(options);
  LogOwner owner;
  owner.Attach(tier.get());
  owner.UseEvery(7);
  std::atomic<int> running{2};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      for (uint64_t round = 1; round <= 300; ++round) {
        const int64_t from = t * 2000 + static_cast<int64_t>(random() % 1900);
        EXPECT_TRUE(random() % 5 == 0 ? owner.Remove(Range(from, from + 20)).ok() : owner.Put(Range(from, from + 80), round).ok());
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
      EXPECT_TRUE(tier->Read(Span<ReadRecord>(batch)).ok());
      for (const ReadRecord& read : batch) {
        if (read.status.code() == StatusCode::kNotFound) continue;
        ASSERT_TRUE(read.status.ok()) << read.status.ToString();
        const TestRecord expected(read.header.key, static_cast<uint64_t>(read.header.version), 2);
        EXPECT_EQ(std::vector<uint8_t>(read.row_data, read.row_data + expected.row_data.size()), expected.row_data);
        ++whole;
      }
      EXPECT_TRUE(tier->Scan([](const RecordHeader&, uint32_t) { return OkStatus(); }).ok());
      (void)tier->stats();
    }
    EXPECT_GT(whole, 0);
  });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(tier->Compact().ok());
  EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
  EXPECT_EQ(tier->stats().rows, static_cast<int64_t>(owner.size()));
  owner.Detach();
}

TEST(SsdHashTierTest, WideAndHugeRowsAreWrittenAndRead) {
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

TEST(SsdHashTierTest, EmptyTierCostsLittleAndDeletesItsFiles) {
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

TEST(SsdHashTierTest, HundredsOfSmallTiersCostLittleAndNoThreadEach) {
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

TEST(SsdHashTierTest, WriteBuffersOfAllTiersTogetherAreBounded) {
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

TEST(SsdHashTierTest, TiersOfMoreSegmentsThanDescriptorsWork) {
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

TEST(SsdHashTierTest, LatenciesAreCountedAndAnIdleTierUsesNoTime) {
  SsdHashOptions options;
  options.async_compaction = true;
  auto tier = Make(options);
  LogOwner owner;
  owner.Attach(tier.get());
  for (uint64_t generation = 1; generation <= 30; ++generation) ASSERT_TRUE(owner.Put(Range(0, 3000), generation).ok());
  EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
  const TierStats stats = tier->stats();
  int64_t writes = 0, reads = 0;
  for (size_t i = 0; i < stats.write_latency.size(); ++i) {
    writes += stats.write_latency[i];
    reads += stats.read_latency[i];
  }
  EXPECT_EQ(writes, 30);
  EXPECT_EQ(reads, 1);
  ASSERT_TRUE(tier->Compact().ok());
  ASSERT_TRUE(tier->Sync().ok());
  struct rusage begin, end;
  ::getrusage(RUSAGE_SELF, &begin);
  ::usleep(300000);  // what is measured is the rest, not something that is waited for
  ::getrusage(RUSAGE_SELF, &end);
  const auto micros = [](const struct rusage& usage) {
    return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
  };
  EXPECT_LT(micros(end) - micros(begin), 10000);
  owner.Detach();
}

TEST(SsdHashTierTest, ImpossibleOptionsAreRefused) {
  EXPECT_EQ(SsdHashTier::Open(SsdHashOptions()).status().code(), StatusCode::kInvalidArgument);
  SsdHashOptions options = Small();
  options.directory = NewDirectory();
  EXPECT_EQ(SsdHashTier::Open(options).status().code(), StatusCode::kNotFound);
  options.min_segment_bytes = 0;
  EXPECT_EQ(SsdHashTier::Open(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(SsdHashTierTest, ForkedChildIsRefusedAndLeavesTheFilesAlone) {
  SsdHashOptions options = OnDisk(BatchReader::Kind::kAuto);
  options.async_compaction = true;
  auto tier = Make(options);
  LogOwner owner;
  owner.Attach(tier.get());
  ASSERT_TRUE(owner.Put(Range(0, 1000), 1).ok());
  const pid_t child = ::fork();
  if (child == 0) {
    ReadRecord read;
    read.location = 0;
    const bool refused = tier->Read(Span<ReadRecord>(&read, 1)).code() == StatusCode::kFailedPrecondition &&
                         tier->Sync().code() == StatusCode::kFailedPrecondition && tier->stats().rows == 0;
    tier.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
  ASSERT_TRUE(owner.Put(Range(0, 1000), 2).ok());
  EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
  owner.Detach();
}

TEST(SsdHashTierTest, ReadsOfNeighboursAreCoalesced) {
  auto tier = Make(SsdHashOptions());
  LogOwner owner;
  owner.Attach(tier.get());
  ASSERT_TRUE(owner.Put(Range(0, 2000), 1).ok());
  ASSERT_TRUE(tier->Sync().ok());
  EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
  const TierStats stats = tier->stats();
  EXPECT_LE(stats.device_reads, stats.device_read_bytes / (15 << 10) + 1);
  EXPECT_STRNE(stats.read_backend, "");
  owner.Detach();
}

}  // namespace
}  // namespace multitier
