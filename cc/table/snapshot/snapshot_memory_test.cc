// The copies that a snapshot makes are bounded, however slow its visitor is: operations wait for the visitor, and the visitor
// never waits for one of them.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>
#include <vector>

#include "cc/base/blocked_test_util.h"
#include "cc/base/hash.h"
#include "cc/table/api/demotion_pool.h"
#include "cc/table/test/table_test_util.h"

namespace multitier {
namespace {

constexpr int kWide = 1024;  // rows of 4 KiB
constexpr int64_t kRowBytes = kWide * sizeof(float);
constexpr int64_t kRows = 24000;  // 98 MB
constexpr int64_t kMuch = 64 << 20;
constexpr int64_t kKeyBytes = 24;

// Who changes the table while a snapshot's visitor stays with its first chunk.
enum class Who {
  kOperation,  // it is blocked until the visitor goes on
  kPool,       // a job of the pool, which is asked again and again
};

// Returns once the pool has asked all jobs again that had said kNotNow.
void AwaitPool() {
  std::promise<void> asked;
  DemotionPool::Job job([&] {
    asked.set_value();
    return DemotionPool::kDone;
  });
  DemotionPool* const pool = *DemotionPool::Get();
  pool->Schedule(&job, 50000);  // kNotNow is a shorter pause
  asked.get_future().wait();
  pool->Cancel(&job);
}

// Runs `work` next to a snapshot whose visitor stays with its first chunk until `who` waits for it, and then runs `visitor`.
// Gives the bytes of copies by then; checks that the snapshot is of all keys and counted keys of its moment.
int64_t MostThatWaited(
    EmbeddingTable* table, const std::function<void()>& work, Who who = Who::kOperation,
    const std::function<void()>& visitor = [] {}) {
  const TableStats before = table->Stats();
  std::atomic<bool> done{false};
  std::atomic<pid_t> worker{0};
  std::thread thread;
  int64_t most = 0;
  int64_t rows = 0, counted = 0;
  MT_EXPECT_OK(table->TakeSnapshot(true, 64, [&](Rows* chunk) {
    if (rows + counted == 0) {
      thread = std::thread([&] {
        worker = ThisThread();
        work();
        done = true;
      });
      while (!done && table->Stats().snapshot_bytes <= kMuch) std::this_thread::yield();
      if (who == Who::kPool) {
        AwaitPool();
      } else {
        EXPECT_TRUE(AwaitBlocked(worker)) << "waits for the visitor";
      }
      most = table->Stats().snapshot_bytes;
      EXPECT_FALSE(done);
      visitor();
    }
    rows += static_cast<int64_t>(chunk->keys.size());
    counted += static_cast<int64_t>(chunk->counted_keys.size());
    for (const int64_t frequency : chunk->frequencies) EXPECT_EQ(frequency, 1);
    return OkStatus();
  }));
  thread.join();
  EXPECT_EQ(rows, before.rows);
  EXPECT_EQ(counted, before.counted_keys);
  EXPECT_EQ(table->Stats().snapshot_bytes, 0);
  EXPECT_GT(most, kMuch);
  return most;
}

TEST(SnapshotMemory, ExpiryOfManyRowsWaitsForTheVisitor) {
  for (const auto& [dim, rows] : {std::pair<int, int64_t>{kWide, kRows}, {1, 3000000}}) {  // more than 64 MiB of each
    SCOPED_TRACE(dim);
    TableOptions options = BasicOptions(dim);
    options.expiry.steps_to_live = 1;
    auto table = MakeTable(std::move(options));
    MT_ASSERT_OK(Sgd(Range(0, rows), 1.0f, dim).Run(table.get()));
    const int64_t slice = 4096 * (dim * static_cast<int64_t>(sizeof(float)) + kKeyBytes);
    EXPECT_LE(MostThatWaited(table.get(), [&] { MT_EXPECT_OK(table->Expire(table->NewestStep() + 100, nullptr)); }),
              kMuch + slice);
    EXPECT_EQ(table->TotalCount(), 0);
  }
}

TEST(SnapshotMemory, ExpiryOfManyRowsBelowWaitsForTheVisitor) {
  TableOptions options = TieredOptions(kWide, 16, std::make_shared<MemoryTier>());
  options.expiry.steps_to_live = 1;
  auto table = MakeTable(std::move(options));
  MT_ASSERT_OK(Sgd(Range(0, kRows), 1.0f, kWide).Run(table.get()));
  EXPECT_LE(MostThatWaited(table.get(), [&] { MT_EXPECT_OK(table->Expire(table->NewestStep() + 100, nullptr)); }),
            kMuch + (8 << 20) + 2048 * kKeyBytes);
  EXPECT_EQ(table->TotalCount(), 0);
}

TEST(SnapshotMemory, ExpiryAndImportOfManyCountedKeysWaitForTheVisitor) {
  constexpr int64_t kKeys = 4000000;
  TableOptions options = BasicOptions(1);
  options.expiry.steps_to_live = 1;
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 100;
  auto table = MakeTable(std::move(options));
  MT_ASSERT_OK(Sgd(Range(0, kKeys), 1.0f, 1).Run(table.get()));
  Rows counts;
  counts.columns.push_back(table->layout()->value());
  counts.counted_keys = Range(0, kKeys);
  counts.counted_frequencies.assign(kKeys, 7);
  counts.counted_versions.assign(kKeys, 1);
  EXPECT_LE(MostThatWaited(table.get(), [&] { MT_EXPECT_OK(table->Import(counts)); }), kMuch + 65536 * kKeyBytes);
  EXPECT_EQ(FrequencyOf(table.get(), {0, kKeys - 1}), (std::vector<int64_t>{7, 7}));
  EXPECT_LE(MostThatWaited(table.get(), [&] { MT_EXPECT_OK(table->Expire(table->NewestStep() + 100, nullptr)); }),
            kMuch + 4096 * kKeyBytes);
  EXPECT_EQ(table->Stats().counted_keys, 0);
}

TEST(SnapshotMemory, ImportOverManyRowsWaitsForTheVisitor) {
  auto table = MakeTable(BasicOptions(kWide));
  MT_ASSERT_OK(Sgd(Range(0, kRows), 1.0f, kWide).Run(table.get()));
  Rows rows;
  rows.columns.push_back(table->layout()->value());
  rows.keys = Range(0, kRows);
  rows.frequencies.assign(kRows, 9);
  rows.versions.assign(kRows, 1);
  rows.data.assign(kRows * kWide, 1.0f);
  EXPECT_LE(MostThatWaited(table.get(), [&] { MT_EXPECT_OK(table->Import(rows)); }), kMuch + (8 << 20) + 2048 * kKeyBytes);
  EXPECT_EQ(FrequencyOf(table.get(), {0, kRows - 1}), (std::vector<int64_t>{9, 9}));
}

// Calls call(batch) for all rows, 512 keys a batch.
void ForEachRowBatch(EmbeddingTable* table, const std::function<Status(const RowBatch&)>& call) {
  constexpr int64_t kBatch = 512;
  std::vector<RowFacts> facts(kBatch);
  std::vector<float> data(kBatch * kWide, 1.0f);
  for (int64_t from = 0; from < kRows; from += kBatch) {
    const std::vector<int64_t> keys = Range(from, std::min(kRows, from + kBatch));
    RowBatch batch;
    batch.keys = keys;
    batch.facts = facts.data();
    batch.data = reinterpret_cast<uint8_t*>(data.data());
    batch.stride = batch.row_bytes = table->layout()->row_bytes();
    MT_EXPECT_OK(call(batch));
  }
}

TEST(SnapshotMemory, PuttingBackManyRowsWaitsForTheVisitor) {
  auto table = MakeTableBelow(BasicOptions(kWide));
  MT_ASSERT_OK(Sgd(Range(0, kRows), 1.0f, kWide).Run(table.get()));
  const auto put_back = [&](const RowBatch& batch) { return table->PutBack(batch); };
  EXPECT_LE(MostThatWaited(table.get(), [&] { ForEachRowBatch(table.get(), put_back); }),
            kMuch + 512 * (kRowBytes + kKeyBytes));
}

TEST(SnapshotMemory, CopyingOutManyRowsThatLeaveTheirTierWaitsForTheVisitor) {
  TableOptions options = TieredOptions(kWide, 16, std::make_shared<MemoryTier>());
  options.lower_tiers[0].budget_bytes = kRows * kRowBytes;  // keeps no copies
  auto table = MakeTableBelow(std::move(options));
  MT_ASSERT_OK(Sgd(Range(0, kRows), 1.0f, kWide).Run(table.get()));
  const auto copy_out = [&](const RowBatch& batch) { return table->CopyOut(batch, CopyOutAs::kUse); };
  EXPECT_LE(MostThatWaited(table.get(), [&] { ForEachRowBatch(table.get(), copy_out); }),
            kMuch + 512 * (kRowBytes + kKeyBytes));
}

TEST(SnapshotMemory, ASmallerBudgetThatDropsRowsWaitsForTheVisitor) {
  TableOptions options = BasicOptions(kWide);
  options.dram_budget_bytes = kRows * kRowBytes;
  options.drop_coldest = true;
  auto table = MakeTable(std::move(options));
  MT_ASSERT_OK(Sgd(Range(0, kRows), 1.0f, kWide).Run(table.get()));
  EXPECT_LE(MostThatWaited(table.get(), [&] { MT_EXPECT_OK(table->SetDramBudget(Budget::Bytes(100 * kRowBytes))); }),
            kMuch + 4096 * (kRowBytes + kKeyBytes));
  EXPECT_EQ(table->TotalCount(), 100);
}

// Many rows stayed in memory because the disk was full, and go now: what is below makes room for them by dropping its own. An
// operation does it, or the pool; and the visitor may, while they wait for it.
class SnapshotMemoryOfDrops : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    TableOptions options = TieredOptions(kWide, 16, lower_);
    options.lower_tiers[0].budget_bytes = kBelow * kRowBytes;
    options.drop_coldest = true;
    table_ = MakeTable(std::move(options));
    lower_->FailWrite(1, ResourceExhaustedError("disk full"), 1 << 30);
    MT_ASSERT_OK(Sgd(Range(0, kRows), 1.0f, kWide).Run(table_.get()));
    ASSERT_EQ(table_->Stats().tiers[0].rows, kRows);
  }
  Who who() const { return GetParam() ? Who::kOperation : Who::kPool; }
  // What ends the trouble.
  void Go() {
    lower_->FailWrite(1, OkStatus(), 0);
    if (GetParam()) MT_EXPECT_OK(table_->Drain());
    while (!table_->Stats().sticky_error.ok()) std::this_thread::yield();
    MT_EXPECT_OK(table_->Drain());
  }

  static constexpr int64_t kBelow = 100;
  std::shared_ptr<MemoryTier> lower_ = std::make_shared<MemoryTier>();
  std::unique_ptr<EmbeddingTable> table_;
};
INSTANTIATE_TEST_SUITE_P(By, SnapshotMemoryOfDrops, testing::Bool(),
                         [](const auto& info) { return info.param ? "Drain" : "ThePool"; });

TEST_P(SnapshotMemoryOfDrops, WaitForTheVisitor) {
  EXPECT_LE(MostThatWaited(table_.get(), [&] { Go(); }, who()), kMuch + 2 * kBelow * (kRowBytes + kKeyBytes));
  EXPECT_EQ(table_->TotalCount(), kBelow + 16);
}

TEST_P(SnapshotMemoryOfDrops, VisitorTrainsAndDrainsMeanwhile) {
  MostThatWaited(
      table_.get(), [&] { Go(); }, who(),
      [&] {
        MT_EXPECT_OK(Sgd(Range(kRows, kRows + 10), 1.0f, kWide).Run(table_.get()));
        MT_EXPECT_OK(table_->Drain());
        EXPECT_EQ(table_->TotalCount(), kBelow + 16);
        EXPECT_GT(table_->Stats().snapshot_bytes, (kRows - 1000) * kRowBytes) << "its own changes cannot wait for it";
      });
}

// What the visitor itself changes cannot wait for the visitor.
TEST(SnapshotMemory, VisitorMayTrainMoreThanMayBeHandedOver) {
  constexpr int64_t kKeys = 20000;
  auto table = MakeTable(BasicOptions(kWide));
  const Training training = Sgd(Range(0, kKeys), 1.0f, kWide);
  MT_ASSERT_OK(training.Run(table.get()));
  size_t rows = 0;
  MT_EXPECT_OK(table->TakeSnapshot(false, 64, [&](Rows* chunk) {
    for (int i = 0; rows == 0 && i < 3; ++i) MT_EXPECT_OK(training.Run(table.get()));
    rows += chunk->keys.size();
    for (const int64_t frequency : chunk->frequencies) EXPECT_EQ(frequency, 1);
    return OkStatus();
  }));
  EXPECT_EQ(rows, static_cast<size_t>(kKeys));
}

// Copies of a shard whose rows of DRAM were all given do not wait for the other shards' rows of DRAM.
TEST(SnapshotMemory, CopiesOfAShardThatWasPassedAreTakenAlong) {
  constexpr size_t kKeys = 6000;  // 24 MB
  constexpr int64_t kFew = 2 << 20;
  std::vector<int64_t> kept, below;
  for (int64_t key = 0; kept.size() < kKeys || below.size() < kKeys; ++key) {
    std::vector<int64_t>& keys = HashKey(key) >> 63 == 0 ? kept : below;  // by shard
    if (keys.size() < kKeys) keys.push_back(key);
  }
  TableOptions options = TieredOptions(kWide, 16, std::make_shared<MemoryTier>());
  options.num_shards = 2;
  auto table = MakeTable(std::move(options));
  MT_ASSERT_OK(Sgd(below, 1.0f, kWide).Run(table.get()));
  MT_ASSERT_OK(table->Drain());
  MT_ASSERT_OK(table->SetDramBudget(Budget::Bytes(4 * kKeys * kRowBytes)));
  MT_ASSERT_OK(Sgd(kept, 1.0f, kWide).Run(table.get()));
  ASSERT_GE(table->Stats().tiers[1].rows, static_cast<int64_t>(kKeys) - 16);
  size_t rows = 0, given = 0;  // `given`: of `kept`
  size_t given_before = 0, given_when_few_wait = 0;
  MT_EXPECT_OK(table->TakeSnapshot(true, 64, [&](Rows* chunk) {
    const bool many_waited = given_before > 0;
    if (many_waited && given_when_few_wait == 0 && table->Stats().snapshot_bytes < kFew) given_when_few_wait = given;
    rows += chunk->keys.size();
    for (const int64_t key : chunk->keys) given += HashKey(key) >> 63 == 0 ? 1 : 0;
    for (const int64_t frequency : chunk->frequencies) EXPECT_EQ(frequency, 1);
    if (!many_waited && given > 500) {
      given_before = given;
      MT_EXPECT_OK(Sgd(below, 1.0f, kWide).Run(table.get()));
      EXPECT_GT(table->Stats().snapshot_bytes, 20 << 20);
    }
    return OkStatus();
  }));
  EXPECT_EQ(rows, 2 * kKeys);
  EXPECT_GT(given_before, 0u);
  EXPECT_GT(given_when_few_wait, 0u);
  EXPECT_LT(given_when_few_wait, given_before + 1000) << "they waited for rows of the other shard";
}

// Nor can it wait for the pool, which waits for it.
TEST(SnapshotMemory, VisitorMayDrainWhatItHasTrained) {
  constexpr int64_t kKeys = 20000;
  auto table = MakeTable(TieredOptions(kWide, kKeys, std::make_shared<MemoryTier>()));
  const Training training = Sgd(Range(0, kKeys), 1.0f, kWide);
  MT_ASSERT_OK(training.Run(table.get()));
  size_t rows = 0;
  MT_EXPECT_OK(table->TakeSnapshot(true, 64, [&](Rows* chunk) {
    if (rows == 0) {
      MT_EXPECT_OK(training.Run(table.get()));
      MT_EXPECT_OK(table->SetDramBudget(Budget::Bytes(kKeys / 2 * kRowBytes)));
      MT_EXPECT_OK(table->Drain());
      EXPECT_LE(table->Stats().tiers[0].rows, kKeys / 2);
    }
    rows += chunk->keys.size();
    for (const int64_t frequency : chunk->frequencies) EXPECT_EQ(frequency, 1);
    return OkStatus();
  }));
  EXPECT_EQ(rows, static_cast<size_t>(kKeys));
}

// Nor for an operation that closes the gate, while one inside waits for the snapshot.
TEST(SnapshotMemory, VisitorTrainsWhileAnExpiryAndAnImportOfCountersWait) {
  constexpr int64_t kKeys = 30000;
  TableOptions options = BasicOptions(kWide);
  options.expiry.steps_to_live = 1;
  options.filter.kind = AdmissionKind::kBloom;
  options.filter.filter_freq = 2;
  options.filter.max_element_size = 1000;
  auto table = MakeTable(std::move(options));
  Training training = Sgd(Range(0, kKeys), 1.0f, kWide);
  training.counts.assign(kKeys, 2);
  MT_ASSERT_OK(training.Run(table.get()));
  std::thread expiry, import;
  std::atomic<pid_t> expiring{0}, importing{0};
  size_t rows = 0;
  MT_EXPECT_OK(table->TakeSnapshot(true, 64, [&](Rows* chunk) {
    if (rows == 0) {
      expiry = std::thread([&] {
        expiring = ThisThread();
        MT_EXPECT_OK(table->Expire(table->NewestStep() + 100, nullptr));
      });
      while (table->TotalCount() > kKeys - 16384) std::this_thread::yield();  // 64 MiB are copied
      import = std::thread([&] {
        importing = ThisThread();
        Rows counters;
        counters.columns.push_back(table->layout()->value());
        counters.filter_counters.assign(1, 0);  // of another filter
        MT_EXPECT_OK(table->Import(counters));
      });
      while (importing == 0) std::this_thread::yield();
      EXPECT_TRUE(AwaitBlocked(expiring) && AwaitBlocked(importing)) << "both wait for the visitor";
      for (int i = 0; i < 50; ++i) MT_EXPECT_OK(Sgd({-1 - i}, 1.0f, kWide).Run(table.get()));
      EXPECT_TRUE(AwaitBlocked(expiring) && AwaitBlocked(importing)) << "and still do";
    }
    rows += chunk->keys.size();
    return OkStatus();
  }));
  expiry.join();
  import.join();
  EXPECT_EQ(rows, static_cast<size_t>(kKeys));
}

}  // namespace
}  // namespace multitier
