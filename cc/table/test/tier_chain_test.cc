// A table over a tier or two: which row is where after an operation, sizes, failures.

#include <atomic>
#include <set>
#include <thread>

#include "cc/table/test/table_test_util.h"

namespace multitier::tier_chain_test {
namespace {

constexpr uint64_t kRowBytes = 16;  // dim 4

TEST(TierChain, LeastRecentlyUsedRowsGoBelowAndComeBack) {
  auto table = MakeTable(TieredOptions(4, 2, std::make_shared<MemoryTier>()));
  MT_ASSERT_OK(Sgd({1, 2}, 1.0f, 4).Run(table.get()));
  LookupAll(table.get(), {1});
  MT_ASSERT_OK(Sgd({3}, 1.0f, 4).Run(table.get()));
  EXPECT_EQ(TierOf(table.get(), {1, 2, 3, 4}), (std::vector<int32_t>{0, 1, 0, -1}));
  LookupAll(table.get(), {2});  // no room: answered from below
  EXPECT_EQ(table->TotalCount(), 3);
  MT_ASSERT_OK(Sgd({2}, 1.0f, 4).Run(table.get()));
  EXPECT_EQ(TierOf(table.get(), {2}), std::vector<int32_t>{0});
  EXPECT_EQ(table->Stats().tiers[1].promotions, 1);
}

TEST(TierChain, CleanRowIsDemotedWithoutAWrite) {
  auto lower = std::make_shared<MemoryTier>();
  auto table = MakeTable(TieredOptions(4, 2, lower));
  MT_ASSERT_OK(Sgd({1, 2, 3}, 1.0f, 4).Run(table.get()));
  MT_ASSERT_OK(table->Remove(std::vector<int64_t>{2, 3}, nullptr));
  const int64_t written = lower->counters().records_written;
  LookupAll(table.get(), {1});  // installed: there is room
  EXPECT_EQ(TierOf(table.get(), {1}), std::vector<int32_t>{0});
  MT_ASSERT_OK(Sgd({4}, 1.0f, 4).Run(table.get()));
  MT_ASSERT_OK(Sgd({4, 5}, 1.0f, 4).Run(table.get()));
  EXPECT_EQ(TierOf(table.get(), {1}), std::vector<int32_t>{1});
  EXPECT_EQ(lower->counters().records_written, written);
}

TEST(TierChain, BatchLargerThanEveryBudgetWorks) {
  auto table = MakeTable(TieredOptions(3, 8, std::make_shared<MemoryTier>()));
  auto plain = MakeTable(BasicOptions(3));
  for (auto* t : {table.get(), plain.get()}) MT_ASSERT_OK(Sgd(Range(0, 65536), 1.0f, 3).Run(t));
  EXPECT_EQ(table->Stats().tiers[0].rows, 8);
  EXPECT_TRUE(SameBits(LookupAll(table.get(), Range(0, 65536)), LookupAll(plain.get(), Range(0, 65536))));
}

TEST(TierChain, FailedDemotionKeepsRowsAndRefusesTheNextThatNeedsRoom) {
  auto lower = std::make_shared<MemoryTier>();
  auto table = MakeTable(TieredOptions(4, 2, lower));
  lower->FailWrite(1, ResourceExhaustedError("disk full"), 1000);
  MT_ASSERT_OK(Sgd({1, 2, 3}, 1.0f, 4).Run(table.get()));
  EXPECT_EQ(table->Stats().tiers[0].rows, 3);
  EXPECT_FALSE(table->Stats().sticky_error.ok());
  MT_ASSERT_OK(Sgd({1, 2, 3}, 1.0f, 4).Run(table.get()));  // rows in DRAM train on
  EXPECT_EQ(Sgd({4}, 1.0f, 4).Run(table.get()).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(table->Drain().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(FrequencyOf(table.get(), {1, 2, 3, 4}), (std::vector<int64_t>{2, 2, 2, 0}));
  lower->FailWrite(1, OkStatus(), 0);
  MT_ASSERT_OK(Sgd({4}, 1.0f, 4).Run(table.get()));
  MT_ASSERT_OK(table->Drain());
  EXPECT_EQ(table->Stats().tiers[0].rows, 2);
}

TEST(TierChain, FailedReadChangesNothingAndNamesTheKey) {
  auto lower = std::make_shared<MemoryTier>();
  auto table = MakeTable(TieredOptions(4, 2, lower));
  MT_ASSERT_OK(Sgd(Range(1, 10), 1.0f, 4).Run(table.get()));
  const std::vector<float> before = LookupAll(table.get(), Range(1, 12));
  lower->FailRead(1, UnavailableError("cable"), 1);
  const Status failed = Sgd(Range(1, 12), 1.0f, 4).Run(table.get());
  EXPECT_EQ(failed.code(), StatusCode::kUnavailable);
  EXPECT_NE(failed.message().find("key"), std::string::npos) << failed.message();
  EXPECT_TRUE(SameBits(before, LookupAll(table.get(), Range(1, 12))));
  EXPECT_EQ(table->TotalCount(), 9);
  MT_ASSERT_OK(Sgd(Range(1, 12), 1.0f, 4).Run(table.get()));
  EXPECT_EQ(table->TotalCount(), 11);
}

// A tier of which removals can be refused.
class RefusingTier : public MemoryTier {
 public:
  std::atomic<bool> refuses{false};
  TierCapabilities capabilities() const override {
    TierCapabilities can = MemoryTier::capabilities();
    can.durable = true;  // so that removals are due
    return can;
  }
  Status Remove(Span<const KeyLocation> records) override {
    return refuses ? ResourceExhaustedError("no room for removals") : MemoryTier::Remove(records);
  }
};

TEST(TierChain, ARemovalThatTheLastTierRefusesDoesNotStopDemotionToTheTierAboveIt) {
  TableOptions options = TieredOptions(4, 2, std::make_shared<MemoryTier>());
  options.cache_strategy = Replacement::kLru;
  options.lower_tiers[0].budget_bytes = 3 * kRowBytes;
  auto last = std::make_shared<RefusingTier>();
  options.lower_tiers.push_back({last, 0});
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 8), 1.0f, 4).Run(table.get()));
  MT_ASSERT_OK(table->Drain());
  ASSERT_EQ(TierOf(table.get(), Range(0, 8)), (std::vector<int32_t>{2, 2, 2, 1, 1, 1, 0, 0}));
  MT_ASSERT_OK(table->Remove(std::vector<int64_t>{3, 4}, nullptr));  // room for two rows in the middle
  last->refuses = true;
  (void)table->Remove(std::vector<int64_t>{0}, nullptr);
  for (const int64_t key : {10, 11}) {
    MT_ASSERT_OK(Sgd({key}, 1.0f, 4).Run(table.get()));
    EXPECT_EQ(table->Stats().tiers[0].rows, 2) << key;
  }
  EXPECT_EQ(TierOf(table.get(), {0, 6, 7, 10, 11}), (std::vector<int32_t>{-1, 1, 1, 0, 0}));
  EXPECT_EQ(table->Drain().code(), StatusCode::kResourceExhausted) << "the removal is still due";
  // The next row would need room in the last tier, and nothing is written there before the removal.
  MT_ASSERT_OK(Sgd({12}, 1.0f, 4).Run(table.get()));
  EXPECT_EQ(table->Stats().tiers[0].rows, 3);
  last->refuses = false;
  MT_ASSERT_OK(table->Drain());
  EXPECT_EQ(table->Stats().tiers[0].rows, 2);
  EXPECT_EQ(table->TotalCount(), 8);
}

// A tier of files by key, which is not durable, and what stays in its files.
class KeyedTier : public MemoryTier {
 public:
  std::set<int64_t> in_files;
  TierCapabilities capabilities() const override {
    TierCapabilities can = MemoryTier::capabilities();
    can.durable = false;
    can.keyed = true;
    return can;
  }
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override {
    for (const WriteRecord& record : records) in_files.insert(record.header.key);
    return MemoryTier::Write(records, locations);
  }
  Status Remove(Span<const KeyLocation> records) override {
    for (const KeyLocation& record : records) in_files.erase(record.key);
    return MemoryTier::Remove(records);
  }
};

TEST(TierChain, ATierOfFilesByKeyHearsOfEachKeyThatGoes) {
  for (const bool clears : {false, true}) {
    auto last = std::make_shared<KeyedTier>();
    auto table = MakeTable(TieredOptions(4, 4, last));
    for (int i = 0; i < 3; ++i) MT_ASSERT_OK(Sgd(Range(0, 32), 1.0f, 4).Run(table.get()));
    MT_ASSERT_OK(Sgd({1, 2, 3}, 1.0f, 4).Run(table.get()));  // changed in memory: their records were freed
    EXPECT_EQ(last->in_files.count(2), 1u);
    if (clears) {
      MT_ASSERT_OK(table->Clear());
    } else {
      MT_ASSERT_OK(table->Remove(Range(0, 32), nullptr));
    }
    MT_ASSERT_OK(table->Drain());
    EXPECT_EQ(last->in_files, std::set<int64_t>());
  }
}

TEST(TierChain, LruKeepsTheMostRecentInEveryTierOfAChain) {
  TableOptions options = TieredOptions(4, 2, std::make_shared<MemoryTier>());
  options.cache_strategy = Replacement::kLru;
  options.lower_tiers[0].budget_bytes = 3 * kRowBytes;
  options.lower_tiers.push_back({std::make_shared<MemoryTier>(), 0});
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 8), 1.0f, 4).Run(table.get()));  // within a batch the last is the most recent
  MT_ASSERT_OK(table->Drain());
  EXPECT_EQ(TierOf(table.get(), Range(0, 8)), (std::vector<int32_t>{2, 2, 2, 1, 1, 1, 0, 0}));
  LookupAll(table.get(), {0, 4, 4});  // up come 0 and 4; out go 6 and 7 to the middle, and from there 3
  EXPECT_EQ(TierOf(table.get(), Range(0, 8)), (std::vector<int32_t>{0, 2, 2, 2, 0, 1, 1, 1}));
  LookupAll(table.get(), {4, 5, 4});
  EXPECT_EQ(TierOf(table.get(), Range(0, 8)), (std::vector<int32_t>{1, 2, 2, 2, 0, 0, 1, 1}));
  ExpectTiersInOrder(table.get());
}

TEST(TierChain, LfuKeepsTheMostFrequentAndOfEqualsTheMostRecent) {
  TableOptions options = TieredOptions(4, 2, std::make_shared<MemoryTier>());
  options.cache_strategy = Replacement::kLfu;
  options.lower_tiers[0].budget_bytes = 2 * kRowBytes;
  options.lower_tiers.push_back({std::make_shared<MemoryTier>(), 0});
  auto table = MakeTable(options);
  Training training = Sgd({1, 2, 3, 4, 5}, 1.0f, 4);
  training.counts = {5, 1, 3, 3, 2};
  MT_ASSERT_OK(training.Run(table.get()));
  MT_ASSERT_OK(table->Drain());
  EXPECT_EQ(TierOf(table.get(), Range(1, 6)), (std::vector<int32_t>{0, 2, 1, 0, 1}));
  LookupAll(table.get(), {3});  // as frequent as 4, and more recent now
  EXPECT_EQ(TierOf(table.get(), Range(1, 6)), (std::vector<int32_t>{0, 2, 0, 1, 1}));
  LookupAll(table.get(), {2});  // the least frequent stays below
  EXPECT_EQ(TierOf(table.get(), Range(1, 6)), (std::vector<int32_t>{0, 2, 0, 1, 1}));
  ExpectTiersInOrder(table.get());
}

// They would be written down again before the lookup ends.
TEST(TierChain, ALookupLeavesRowsBelowWhereAllOfDramHaveHigherScores) {
  auto lower = std::make_shared<MemoryTier>();
  TableOptions options = TieredOptions(4, 2, lower);
  options.cache_strategy = Replacement::kScore;
  options.lower_tiers[0].budget_bytes = 8 * kRowBytes;  // so it keeps no copies
  auto table = MakeTable(options);
  const auto train = [&](std::vector<int64_t> keys, int64_t step) {
    Training training = Sgd(std::move(keys), 1.0f, 4);
    training.step = step;
    return training.Run(table.get());
  };
  MT_ASSERT_OK(train({1, 2}, 1));
  MT_ASSERT_OK(train({3, 4}, 2));
  const int64_t written = lower->counters().records_written;
  auto plain = MakeTable(BasicOptions(4));
  MT_ASSERT_OK(Sgd({1, 2}, 1.0f, 4).Run(plain.get()));
  EXPECT_TRUE(SameBits(LookupAll(table.get(), {1, 2}), LookupAll(plain.get(), {1, 2})));
  EXPECT_EQ(TierOf(table.get(), {1, 2, 3, 4}), (std::vector<int32_t>{1, 1, 0, 0}));
  EXPECT_EQ(lower->counters().records_written, written);
  EXPECT_EQ(table->Stats().tiers[1].promotions, 0);
  MT_ASSERT_OK(train({1}, 3));  // 3 goes
  MT_ASSERT_OK(table->Remove(std::vector<int64_t>{4}, nullptr));
  LookupAll(table.get(), {2});  // there is room
  EXPECT_EQ(TierOf(table.get(), {1, 2, 3}), (std::vector<int32_t>{0, 0, 1}));
}

TEST(TierChain, DramThatIsNoTierHoldsNoRowsBetweenOperations) {
  TableOptions options = BasicOptions(4);
  options.dram_named = false;
  options.lower_tiers.push_back({std::make_shared<MemoryTier>(), 0});
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 8), 1.0f, 4).Run(table.get()));
  LookupAll(table.get(), Range(0, 8));
  EXPECT_EQ(TierOf(table.get(), Range(7, 9)), (std::vector<int32_t>{0, -1}));
  ASSERT_EQ(table->Stats().tiers.size(), 1u);
  EXPECT_EQ(table->Stats().tiers[0].rows, 8);
  EXPECT_EQ(table->Stats().tiers[0].name, "memory");
}

TEST(TierChain, CleanRowPassesThroughTheMiddleWithoutAWriteToTheLast) {
  auto last = std::make_shared<MemoryTier>();
  TableOptions options = TieredOptions(4, 1, std::make_shared<MemoryTier>());
  options.lower_tiers[0].budget_bytes = kRowBytes;
  options.lower_tiers.push_back({last, 0});
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 4), 1.0f, 4).Run(table.get()));
  for (const int64_t key : {0, 1, 2, 3, 0, 1}) LookupAll(table.get(), {key});  // by now every row was in the last tier
  const int64_t written = last->counters().records_written;
  EXPECT_EQ(written, 4);
  for (const int64_t key : {0, 1, 2, 3, 0, 1, 2, 3}) LookupAll(table.get(), {key});
  EXPECT_EQ(last->counters().records_written, written);
  ExpectTiersInOrder(table.get());
}

TEST(TierChain, FullLastTierRefusesOrDropsTheColdest) {
  for (const bool drop : {false, true}) {
    TableOptions options = TieredOptions(4, 2, std::make_shared<MemoryTier>());
    options.lower_tiers[0].budget_bytes = 3 * kRowBytes;
    options.drop_coldest = drop;
    auto table = MakeTable(options);
    MT_ASSERT_OK(Sgd(Range(0, 5), 1.0f, 4).Run(table.get()));
    EXPECT_EQ(Sgd({4, 5, 6}, 1.0f, 4).Run(table.get()).code(), drop ? StatusCode::kOk : StatusCode::kResourceExhausted);
    EXPECT_EQ(table->TotalCount(), 5);
    std::vector<int64_t> dropped = table->PopDropped();
    EXPECT_EQ(dropped, drop ? Range(0, 2) : std::vector<int64_t>());
    EXPECT_TRUE(table->PopDropped().empty());
    MT_EXPECT_OK(table->Stats().sticky_error);
    ExpectTiersInOrder(table.get());
    if (drop) continue;
    // Nothing changed, rows in every tier are trained, and what is removed makes room.
    EXPECT_EQ(LookupAll(table.get(), {4}), LookupAll(table.get(), {4}));
    std::vector<int64_t> frequency(1);
    MT_ASSERT_OK(table->Frequency(std::vector<int64_t>{4}, frequency.data()));
    EXPECT_EQ(frequency[0], 1);
    MT_ASSERT_OK(Sgd(Range(0, 5), 1.0f, 4).Run(table.get()));
    MT_ASSERT_OK(table->Remove(std::vector<int64_t>{0}, nullptr));
    MT_ASSERT_OK(Sgd({7}, 1.0f, 4).Run(table.get()));
    EXPECT_EQ(Sgd({8}, 1.0f, 4).Run(table.get()).code(), StatusCode::kResourceExhausted);
    EXPECT_LE(table->Stats().tiers[0].rows, 2);
    EXPECT_LE(table->Stats().tiers[1].rows, 3);
  }
}

// In any order of tiers, whichever row is asked for, no tier is ever over its size when an operation has ended.
TEST(TierChain, GivenSizesHoldAfterEveryOperation) {
  for (const Replacement strategy : {Replacement::kLru, Replacement::kLfu}) {
    for (const int64_t dram : {0, 3}) {
      for (const bool middle : {false, true}) {
        TableOptions options = TieredOptions(4, dram, std::make_shared<MemoryTier>());
        options.dram_named = dram > 0;
        options.cache_strategy = strategy;
        options.lower_tiers[0].budget_bytes = 5 * kRowBytes;
        if (middle) options.lower_tiers.push_back({std::make_shared<MemoryTier>(), 7 * kRowBytes});
        const int64_t most = dram + 5 + (middle ? 7 : 0);
        auto table = MakeTable(options);
        auto plain = MakeTable(BasicOptions(4));
        std::mt19937_64 random(7);
        int refused = 0;
        for (int step = 0; step < 400; ++step) {
          std::vector<int64_t> keys;
          for (uint64_t i = 1 + random() % 4; i > 0; --i) keys.push_back(static_cast<int64_t>(random() % 20));
          if (random() % 6 == 0) {
            for (auto* one : {table.get(), plain.get()}) MT_ASSERT_OK(one->Remove(keys, nullptr));
          } else if (const Status status = Sgd(keys, 1.0f, 4).Run(table.get()); status.ok()) {
            MT_ASSERT_OK(Sgd(keys, 1.0f, 4).Run(plain.get()));
          } else {
            ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
            ++refused;
          }
          const TableStats stats = table->Stats();
          MT_ASSERT_OK(stats.sticky_error);
          ASSERT_LE(stats.rows, most);
          for (const TableStats::PerTier& tier : stats.tiers) ASSERT_LE(tier.row_bytes, tier.budget_bytes) << tier.name;
        }
        EXPECT_GT(refused, 20);
        ExpectSameTables(table.get(), plain.get());
      }
    }
  }
}

// Headers of some records cannot be read.
class FlakyTier : public MemoryTier {
 public:
  Status Read(Span<ReadRecord> records) override {
    const Status status = MemoryTier::Read(records);
    for (ReadRecord& record : records) {
      if (record.row_data == nullptr && fails.count(record.header.key) != 0) record.status = UnavailableError("cable");
    }
    return status;
  }
  std::set<int64_t> fails;
};

TEST(TierChain, ColdestRowWhoseHeaderCannotBeReadIsStillTheColdest) {
  auto lower = std::make_shared<FlakyTier>();
  TableOptions options = TieredOptions(4, 1, lower);
  options.lower_tiers[0].budget_bytes = 2 * kRowBytes;
  options.drop_coldest = true;
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 3), 1.0f, 4).Run(table.get()));
  lower->fails = {0, 1};
  MT_ASSERT_OK(Sgd({3}, 1.0f, 4).Run(table.get()));
  EXPECT_EQ(table->Stats().sticky_error.code(), StatusCode::kUnavailable);
  EXPECT_TRUE(table->PopDropped().empty());
  EXPECT_EQ(table->TotalCount(), 4);
  lower->fails = {0};  // one bad place does not end training: the next coldest goes instead
  MT_ASSERT_OK(table->Drain());
  EXPECT_EQ(table->PopDropped(), Range(1, 2));
  MT_ASSERT_OK(Sgd({4}, 1.0f, 4).Run(table.get()));
  MT_EXPECT_OK(table->Stats().sticky_error);
  EXPECT_EQ(table->PopDropped(), Range(2, 3));
  lower->fails.clear();
  MT_ASSERT_OK(Sgd({5}, 1.0f, 4).Run(table.get()));
  EXPECT_EQ(table->PopDropped(), Range(0, 1));
  ExpectTiersInOrder(table.get());
}

// The order of a tier is cleared of what left it, again and again. A row that an operation reads meanwhile is still there.
TEST(TierChain, RowThatIsBeingReadKeepsItsPlaceInTheOrder) {
  auto lower = std::make_shared<MemoryTier>();
  TableOptions options = TieredOptions(4, 1, lower);
  options.lower_tiers[0].budget_bytes = 3 * kRowBytes;
  options.drop_coldest = true;
  options.cache_strategy = Replacement::kLru;
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 3), 1.0f, 4).Run(table.get()));
  std::atomic<bool> reading{false};
  lower->SetHook([&](MemoryTier::Point point) {
    if (point != MemoryTier::Point::kAfterRead || reading.exchange(true)) return;
    std::thread([&] {  // each time one comes up and the other goes down
      for (int i = 0; i < 3000; ++i) MT_EXPECT_OK(Sgd({1 + i % 2}, 1.0f, 4).Run(table.get()));
    })
        .join();
  });
  std::vector<float> value(4);
  MT_ASSERT_OK(table->Peek(Range(0, 1), value.data()));
  ASSERT_TRUE(reading);
  lower->SetHook(nullptr);
  MT_ASSERT_OK(Sgd(Range(3, 5), 1.0f, 4).Run(table.get()));
  EXPECT_EQ(table->PopDropped(), Range(0, 1));
  ExpectTiersInOrder(table.get());
}

// Recencies have 32 bits. After a row has been below for long, its recency says little, and in the end the opposite.
class ForgetfulTier : public MemoryTier {
 public:
  Status Read(Span<ReadRecord> records) override {
    const Status status = MemoryTier::Read(records);
    for (ReadRecord& record : records) {
      if (record.row_data == nullptr) record.header.recency += 1u << 20;
    }
    return status;
  }
};

TEST(TierChain, RowWhoseRecencySaysNothingAnyMoreGoesDownAllTheSame) {
  TableOptions options = TieredOptions(4, 1, std::make_shared<ForgetfulTier>());
  options.lower_tiers[0].budget_bytes = 2 * kRowBytes;
  options.lower_tiers.push_back({std::make_shared<MemoryTier>(), 0});
  auto table = MakeTable(options);
  for (int64_t key = 0; key < 20; ++key) MT_ASSERT_OK(Sgd({key}, 1.0f, 4).Run(table.get()));
  MT_EXPECT_OK(table->Drain());
  EXPECT_EQ(table->Stats().tiers[1].rows, 2);
  EXPECT_EQ(table->Stats().tiers[2].rows, 17);
  ExpectTiersInOrder(table.get());
}

// A tier that moves its records does not tell how often their rows were used; the records do.
TEST(TierChain, MovedRowsAreDroppedByTheirFrequency) {
  TableOptions options = TieredOptions(4, 1, std::make_shared<RelocatingTier>(1));
  options.lower_tiers[0].budget_bytes = 8 * kRowBytes;
  options.drop_coldest = true;
  options.cache_strategy = Replacement::kLfu;
  auto table = MakeTable(options);
  Training often = Sgd(Range(0, 4), 1.0f, 4);
  often.counts = {50, 60, 70, 80};
  MT_ASSERT_OK(often.Run(table.get()));
  for (int64_t key = 10; key < 200; ++key) MT_ASSERT_OK(Sgd({key}, 1.0f, 4).Run(table.get()));
  EXPECT_GT(table->Stats().dropped, 100);
  EXPECT_EQ(FrequencyOf(table.get(), Range(0, 4)), often.counts);
  ExpectTiersInOrder(table.get());
}

TEST(TierChain, DramAloneDropsItsColdestWhereTheOptionSaysSo) {
  TableOptions options = BasicOptions(4);
  options.dram_budget_bytes = 3 * kRowBytes;
  options.drop_coldest = true;
  auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 5), 1.0f, 4).Run(table.get()));
  EXPECT_EQ(table->PopDropped(), Range(0, 2));
  EXPECT_EQ(TierOf(table.get(), Range(0, 5)), (std::vector<int32_t>{-1, -1, 0, 0, 0}));
}

TEST(TierChain, TheNextDemotionRepeatsARefusedRemovalFirst) {
  auto lower = std::make_shared<RelocatingTier>(3);
  auto table = MakeTable(TieredOptions(4, 2, lower));
  MT_ASSERT_OK(Sgd(Range(0, 6), 1.0f, 4).Run(table.get()));
  lower->FailRemove(1, ResourceExhaustedError("disk full"), 1 << 30);
  int64_t removed = 0;
  MT_ASSERT_OK(table->Remove(std::vector<int64_t>{0}, &removed));
  EXPECT_EQ(removed, 1);
  EXPECT_EQ(table->Stats().sticky_error.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(table->TotalCount(), 5);
  EXPECT_EQ(lower->RecoverableKeys().count(0), 1u);
  lower->FailRemove(1, OkStatus(), 0);
  MT_ASSERT_OK(table->Drain());
  EXPECT_EQ(lower->RecoverableKeys().count(0), 0u);
  ExpectTiersInOrder(table.get());
}

// The n-th write or read fails, for every n: no wrong value ever, and the table goes on.
TEST(TierChain, EveryFailingCallOfAChainLeavesEveryValueRight) {
  for (const bool of_last : {false, true}) {
    for (const bool write : {false, true}) {
      for (int n = 1; n < 20; n += 20 / Rounds(20)) {
        auto middle = std::make_shared<MemoryTier>();
        auto last = std::make_shared<MemoryTier>();
        TableOptions options = TieredOptions(4, 2, middle);
        options.lower_tiers[0].budget_bytes = 3 * kRowBytes;
        options.lower_tiers.push_back({last, 0});
        auto table = MakeTable(options);
        auto plain = MakeTable(BasicOptions(4));
        MemoryTier* failing = (of_last ? last : middle).get();
        write ? failing->FailWrite(n, UnavailableError("cable"), 2) : failing->FailRead(n, UnavailableError("cable"), 2);
        std::mt19937_64 random(n);
        for (int step = 0; step < 60; ++step) {
          const std::vector<int64_t> keys{static_cast<int64_t>(random() % 12), static_cast<int64_t>(random() % 12)};
          const Status status = Sgd(keys, 1.0f, 4).Run(table.get());
          if (status.ok()) MT_ASSERT_OK(Sgd(keys, 1.0f, 4).Run(plain.get()));
          std::vector<float> out(4);
          if (table->Lookup(Span<const int64_t>(keys).subspan(0, 1), out.data()).ok()) {
            ASSERT_TRUE(SameBits(out, LookupAll(plain.get(), {keys[0]}))) << "n " << n << " step " << step;
          }
        }
        MT_ASSERT_OK(table->Drain());
        ExpectSameTables(table.get(), plain.get());
        ExpectTiersInOrder(table.get());
      }
    }
  }
}

TEST(TierChain, ClearEmptiesEveryTier) {
  auto lower = std::make_shared<MemoryTier>();
  auto table = MakeTable(TieredOptions(2, 2, lower));
  MT_ASSERT_OK(Sgd(Range(0, 10), 1.0f, 2).Run(table.get()));
  MT_ASSERT_OK(table->Clear());
  EXPECT_EQ(table->TotalCount(), 0);
  EXPECT_EQ(lower->stats().rows, 0);
  MT_ASSERT_OK(Sgd(Range(0, 10), 1.0f, 2).Run(table.get()));
  EXPECT_EQ(table->TotalCount(), 10);
}

}  // namespace
}  // namespace multitier::tier_chain_test
