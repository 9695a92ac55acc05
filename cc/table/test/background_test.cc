// Demotion in the background: it keeps the bound, comes back by itself after a failure, and leaves an idle process alone.

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "cc/base/blocked_test_util.h"
#include "cc/base/hash.h"
#include "cc/table/api/demotion_pool.h"
#include "cc/table/test/table_test_util.h"

namespace multitier::background_test {
namespace {

constexpr int kDim = 4;
constexpr int64_t kBudgetRows = 80000;  // more than the 64 Ki rows from which on the pool demotes

void TrainKeys(EmbeddingTable* table, int64_t begin, int64_t end) {
  std::vector<int64_t> keys(static_cast<size_t>(end - begin));
  std::iota(keys.begin(), keys.end(), begin);
  const std::vector<float> grads(keys.size() * kDim, 1.0f);
  ApplyRequest request;
  request.keys = keys;
  request.grads = grads.data();
  request.rule = *FindUpdateRule("sgd");
  request.hyper = {1.0f};
  MT_ASSERT_OK(table->Apply(request));
}

TEST(Background, DrainLeavesRowsBelowTheWatermarkAndEveryOperationAtTheBudget) {
  auto table = *EmbeddingTable::Create(TieredOptions(kDim, kBudgetRows, std::make_shared<MemoryTier>()));
  for (int64_t from = 0; from < 4 * kBudgetRows; from += 5000) {
    TrainKeys(table.get(), from, from + 5000);
    EXPECT_LE(table->Stats().tiers[0].rows, kBudgetRows);
  }
  MT_ASSERT_OK(table->Drain());
  const TableStats stats = table->Stats();
  EXPECT_LE(stats.tiers[0].rows, kBudgetRows * 97 / 100);
  EXPECT_GE(stats.tiers[0].rows, kBudgetRows * 94 / 100);
  EXPECT_EQ(stats.rows, 4 * kBudgetRows);
}

// Under training that the pool can keep up with it leaves the machine alone half of the time.
TEST(Background, DemotionPausesWhileRowsComeSlowly) {
  using Clock = std::chrono::steady_clock;
  constexpr int64_t kBudget = 1000000;
  auto lower = std::make_shared<MemoryTier>();
  auto table = *EmbeddingTable::Create(TieredOptions(kDim, kBudget, lower));
  constexpr std::chrono::milliseconds kWrite{2};
  std::mutex mutex;
  std::vector<Clock::time_point> begun;  // writes
  lower->SetHook([&](MemoryTier::Point point) {
    if (point != MemoryTier::Point::kBeforeWrite) return;
    const auto now = Clock::now();
    {
      std::lock_guard<std::mutex> lock(mutex);
      begun.push_back(now);
    }
    while (Clock::now() < now + kWrite) std::this_thread::yield();
  });
  TrainKeys(table.get(), 0, kBudget * 965 / 1000);
  TrainKeys(table.get(), kBudget * 965 / 1000, kBudget * 985 / 1000);  // above 97 %, below 99 %
  while (table->Stats().tiers[0].rows > kBudget * 951 / 1000) std::this_thread::yield();
  lower->SetHook(nullptr);
  std::lock_guard<std::mutex> lock(mutex);
  ASSERT_GT(begun.size(), 20u);
  // One thread writes. On a busy machine a write takes longer, and the pause after it, too.
  const auto least = kWrite * static_cast<int64_t>(begun.size() - 1);
  EXPECT_LT(Clock::duration(least).count(), (begun.back() - begun.front()).count() * 6 / 10);
}

// With room for few rows operations demote, with room for many the pool: both come back.
TEST(Background, FailedDemotionIsTriedAgainWithoutAnOperation) {
  for (const int64_t budget : {int64_t{16}, kBudgetRows}) {
    auto lower = std::make_shared<MemoryTier>();
    auto table = *EmbeddingTable::Create(TieredOptions(kDim, budget, lower));
    lower->FailWrite(1, ResourceExhaustedError("disk full"), 1 << 30);
    TrainKeys(table.get(), 0, 2 * budget);
    while (table->Stats().sticky_error.ok()) std::this_thread::yield();
    EXPECT_EQ(table->Stats().sticky_error.code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(table->Stats().tiers[0].rows, 2 * budget) << "they stay in memory";
    lower->FailWrite(1, OkStatus(), 0);
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!table->Stats().sticky_error.ok() && std::chrono::steady_clock::now() < give_up) std::this_thread::yield();
    MT_EXPECT_OK(table->Stats().sticky_error);
    EXPECT_LE(table->Stats().tiers[0].rows, budget);
  }
}

// Calls back after a write.
class StagedTier : public RelocatingTier {
 public:
  using RelocatingTier::RelocatingTier;
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override {
    const Status status = RelocatingTier::Write(records, locations);
    if (after_write != nullptr) after_write(records);
    return status;
  }
  std::function<void(Span<const WriteRecord>)> after_write;
};

// The retry of what failed first does what that was of, no more.
TEST(Background, ErrorOfAnotherOperationOutlivesARetryThatSucceeds) {
  constexpr int64_t kKeys = 64;
  auto lower = std::make_shared<StagedTier>(5);
  TableOptions options = TieredOptions(kDim, 16, lower);
  options.num_shards = 2;
  auto table = MakeTable(std::move(options));
  const auto shard_of = [](int64_t key) { return HashKey(key) >> 63; };
  TrainKeys(table.get(), 0, kKeys);
  int64_t removed = 0;  // its row is below, in the shard that is trimmed first
  std::vector<int32_t> tier(1);
  for (;; ++removed) {
    MT_ASSERT_OK(table->LookupTier(std::vector<int64_t>{removed}, tier.data()));
    if (tier[0] == 1 && shard_of(removed) == 0) break;
  }
  lower->memory()->FailWrite(1, ResourceExhaustedError("disk full"));
  std::atomic<bool> refused{false};
  lower->after_write = [&](Span<const WriteRecord> records) {
    if (shard_of(records[0].header.key) == 0 || refused.exchange(true)) return;
    lower->FailRemove(1, UnavailableError("cable"), 1 << 30);
    std::thread([&] { MT_EXPECT_OK(table->Remove(std::vector<int64_t>{removed}, nullptr)); }).join();
    lower->memory()->FailRead(1, UnavailableError("cable"));
  };
  TrainKeys(table.get(), kKeys, 2 * kKeys);  // fails to demote
  Training training;                         // retries that, and fails to read: nothing is trimmed at its end
  training.rule = *FindUpdateRule("sgd");
  training.hyper = {1.0f};
  for (int64_t key = 0; key < kKeys; ++key) training.keys.push_back(key);
  training.grads.assign(kKeys * kDim, 1.0f);
  EXPECT_EQ(training.Run(table.get()).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(refused);
  EXPECT_EQ(table->Stats().sticky_error.code(), StatusCode::kUnavailable) << table->Stats().sticky_error.ToString();
  EXPECT_EQ(lower->RecoverableKeys().count(removed), 1u);
  lower->FailRemove(1, OkStatus(), 0);
  MT_EXPECT_OK(table->Drain());
  MT_EXPECT_OK(table->Stats().sticky_error);
  EXPECT_EQ(lower->RecoverableKeys().count(removed), 0u);
}

// One step is a slice: others have their turn between two of them.
TEST(Background, RetryOfALargeTrimLeavesThePoolToOthersBetweenItsSlices) {
  constexpr int64_t kRows = 50000;
  auto lower = std::make_shared<MemoryTier>();
  auto table = *EmbeddingTable::Create(TieredOptions(kDim, 16, lower));
  lower->FailWrite(1, ResourceExhaustedError("disk full"), 1 << 30);
  TrainKeys(table.get(), 0, kRows);
  ASSERT_EQ(table->Stats().tiers[0].rows, kRows);
  DemotionPool* const pool = *DemotionPool::Get();
  ASSERT_EQ(pool->threads(), 1);
  int64_t left = 0;
  DemotionPool::Job other([&] {
    left = table->Stats().tiers[0].rows;
    return DemotionPool::kDone;
  });
  std::atomic<bool> asked{false};
  lower->SetHook([&](MemoryTier::Point point) {
    if (point == MemoryTier::Point::kAfterWrite && lower->counters().records_written > 0 && !asked.exchange(true)) {
      pool->Schedule(&other);
    }
  });
  lower->FailWrite(1, OkStatus(), 0);
  while (!table->Stats().sticky_error.ok()) std::this_thread::yield();
  pool->Wait(&other);
  EXPECT_EQ(table->Stats().tiers[0].rows, 16);
  EXPECT_GT(left, kRows / 2);
  lower->SetHook(nullptr);
  pool->Cancel(&other);
}

// While a table is saved the pool goes on with other tables.
TEST(Background, OtherTablesAreDemotedWhileOneIsSaved) {
  auto lower = std::make_shared<MemoryTier>();
  auto saved = *EmbeddingTable::Create(TieredOptions(kDim, 16, lower));
  auto other = *EmbeddingTable::Create(TieredOptions(kDim, kBudgetRows, std::make_shared<MemoryTier>()));
  lower->FailWrite(1, ResourceExhaustedError("disk full"), 1 << 30);
  TrainKeys(saved.get(), 0, 100);
  ASSERT_FALSE(saved->Stats().sticky_error.ok());
  std::future<void> drained;
  bool in_time = false;
  std::promise<void> retried;
  DemotionPool::Job after_the_retry([&] {
    retried.set_value();
    return DemotionPool::kDone;
  });
  DemotionPool* const pool = *DemotionPool::Get();
  MT_ASSERT_OK(saved->TakeSnapshot(true, 1000, [&](Rows*) {
    pool->Schedule(&after_the_retry, 1000000);  // the retry was scheduled before, with the same pause
    retried.get_future().wait();
    drained = std::async(std::launch::async, [&] {
      TrainKeys(other.get(), 0, 2 * kBudgetRows);
      MT_EXPECT_OK(other->Drain());
    });
    in_time = drained.wait_for(std::chrono::seconds(60)) == std::future_status::ready;
    return OkStatus();
  }));
  EXPECT_TRUE(in_time);
  drained.wait();
  EXPECT_LE(other->Stats().tiers[0].rows, kBudgetRows * 97 / 100);
  lower->FailWrite(1, OkStatus(), 0);
  while (!saved->Stats().sticky_error.ok()) std::this_thread::yield();  // it is tried again afterwards
  pool->Cancel(&after_the_retry);
}

uint64_t BytesOf(int64_t rows) { return static_cast<uint64_t>(rows) * kDim * sizeof(float); }

// From many rows and from few: no operation pays for it, the pool brings it about, and operations hold what it has reached.
TEST(Background, ASmallerBudgetIsReachedDuringTraining) {
  for (const int64_t budget : {int64_t{20000}, kBudgetRows}) {
    auto lower = std::make_shared<MemoryTier>();
    auto table = *EmbeddingTable::Create(TieredOptions(kDim, budget, lower));
    TrainKeys(table.get(), 0, budget * 96 / 100);
    const int64_t held = table->Stats().tiers[0].rows;
    std::atomic<bool> hold{true};
    const std::thread::id here = std::this_thread::get_id();
    std::atomic<int64_t> here_written{0};
    lower->SetHook([&](MemoryTier::Point point) {
      if (point != MemoryTier::Point::kBeforeWrite) return;
      if (std::this_thread::get_id() == here) ++here_written;
      while (hold && std::this_thread::get_id() != here) std::this_thread::yield();
    });
    MT_ASSERT_OK(table->SetDramBudget(Budget::Bytes(BytesOf(budget / 10))));
    EXPECT_EQ(table->Stats().tiers[0].budget_bytes, static_cast<int64_t>(BytesOf(budget / 10)));
    EXPECT_EQ(table->Stats().tiers[0].rows, held) << "the pool waits, and nothing is demoted here";
    TrainKeys(table.get(), 0, 100);  // all in memory
    EXPECT_EQ(here_written, 0);
    hold = false;
    while (table->Stats().tiers[0].rows > budget / 10) std::this_thread::yield();  // by itself
    MT_ASSERT_OK(table->Drain());
    EXPECT_GE(table->Stats().tiers[0].rows, budget / 10 * 94 / 100);
    EXPECT_EQ(table->Stats().rows, budget * 96 / 100);
    TrainKeys(table.get(), budget, budget + 5000);
    EXPECT_LE(table->Stats().tiers[0].rows, budget / 10);
    MT_ASSERT_OK(table->SetDramBudget(Budget::Bytes(BytesOf(2 * budget))));
    TrainKeys(table.get(), 0, budget);
    EXPECT_GE(table->Stats().tiers[0].rows, budget) << "larger at once";
    lower->SetHook(nullptr);
  }
}

TEST(Background, ASmallerBudgetOnAFullDiskIsAnErrorUntilThereIsRoom) {
  for (const int64_t budget : {int64_t{20000}, kBudgetRows}) {
    auto lower = std::make_shared<MemoryTier>();
    auto table = *EmbeddingTable::Create(TieredOptions(kDim, budget, lower));
    TrainKeys(table.get(), 0, budget * 9 / 10);
    lower->FailWrite(1, ResourceExhaustedError("disk full"), 1 << 30);
    MT_ASSERT_OK(table->SetDramBudget(Budget::Bytes(BytesOf(budget / 10))));
    EXPECT_EQ(table->Drain().code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(table->Stats().tiers[0].rows, budget * 9 / 10) << "they stay in memory";
    lower->FailWrite(1, OkStatus(), 0);
    MT_ASSERT_OK(table->Drain());
    EXPECT_LE(table->Stats().tiers[0].rows, budget / 10);
    EXPECT_EQ(table->Stats().rows, budget * 9 / 10);
  }
}

TEST(Background, ABudgetThatCannotBeIsRefusedAndChangesNothing) {
  const auto refused = [](EmbeddingTable* table, uint64_t bytes, StatusCode code, const char* message) {
    const int64_t before = table->Stats().tiers[0].budget_bytes;
    const Status status = table->SetDramBudget(Budget::Bytes(bytes));
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.ToString();
    EXPECT_EQ(table->Stats().tiers[0].budget_bytes, before);
  };
  auto unbounded = MakeTable(BasicOptions(kDim));
  refused(unbounded.get(), 1 << 20, StatusCode::kFailedPrecondition, "found an unbounded one");
  TableOptions options = TieredOptions(kDim, 100, std::make_shared<MemoryTier>());
  options.lower_tiers[0].budget_bytes = BytesOf(100);
  auto bounded = MakeTable(options);
  TrainKeys(bounded.get(), 0, 150);
  refused(bounded.get(), 0, StatusCode::kInvalidArgument, "at least one row (16 bytes), found 0");
  refused(bounded.get(), 15, StatusCode::kInvalidArgument, "at least one row (16 bytes), found 15");
  refused(bounded.get(), BytesOf(49), StatusCode::kResourceExhausted, "one shard holds 150");
  MT_ASSERT_OK(bounded->SetDramBudget(Budget::Bytes(BytesOf(50))));
  MT_ASSERT_OK(bounded->Drain());
  EXPECT_EQ(bounded->Stats().tiers[0].rows, 50);
  options = BasicOptions(kDim);
  options.dram_budget_bytes = BytesOf(100);
  auto alone = MakeTable(options);
  TrainKeys(alone.get(), 0, 80);
  refused(alone.get(), BytesOf(79), StatusCode::kResourceExhausted, "expected room for 80 rows");
  MT_ASSERT_OK(alone->SetDramBudget(Budget::Bytes(BytesOf(200))));
  TrainKeys(alone.get(), 0, 200);
  EXPECT_EQ(alone->Stats().rows, 200);
}

TEST(Background, DestroyedWhileARetryIsDue) {
  auto lower = std::make_shared<MemoryTier>();
  auto table = *EmbeddingTable::Create(TieredOptions(kDim, 16, lower));
  lower->FailWrite(1, ResourceExhaustedError("disk full"), 1 << 30);
  TrainKeys(table.get(), 0, 100);
  EXPECT_FALSE(table->Stats().sticky_error.ok());
}

// No thread wakes up by itself.
TEST(Background, IdleProcessUsesNoCpu) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own";
#endif
  auto table = *EmbeddingTable::Create(TieredOptions(kDim, kBudgetRows, std::make_shared<MemoryTier>()));
  TrainKeys(table.get(), 0, 2 * kBudgetRows);
  MT_ASSERT_OK(table->Drain());
  EXPECT_TRUE(AwaitAllOthersBlocked());
}

}  // namespace
}  // namespace multitier::background_test
