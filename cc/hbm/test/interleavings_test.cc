// Parts of operations in every order: no update is lost, and a lookup returns the updates that had finished when it finished,
// no more and no fewer.

#include <algorithm>
#include <optional>

#include "cc/hbm/test/hbm_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::interleavings_test {
namespace {

// Two operations, their parts in every order: find a < finish a, find b < finish b.
TEST(Interleavings, TwoOperationsInEveryOrderOfTheirPartsLoseNoUpdate) {
  const std::vector<std::vector<int>> orders = {{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 0},
                                                {1, 0, 0, 1}, {1, 0, 1, 0}, {1, 1, 0, 0}};
  const size_t step = static_cast<size_t>(Stride(3, 11));
  const std::vector<std::vector<int64_t>> batches = {{1, 2}, {2, 3, 4}, {5}, {1, 2, 3, 4, 5, 6}};
  for (const int rows : {1, 3, 100}) {
    for (const auto& order : orders) {
      for (size_t pair = 0; pair < batches.size() * batches.size() * 2; pair += rows == 3 || kSanitized ? step : 3 * step) {
        const bool bounded = (pair / 2 + pair / 8 + static_cast<size_t>(rows)) % 2 == 0;  // rows are created in the table below
        const std::vector<int64_t> keys[2] = {batches[pair / 2 % 4], batches[pair / 8]};
        const bool lookup = pair % 2 == 1;  // the second operation
        TableOptions tiered = TieredOptions(4, 2, std::make_shared<MemoryTier>()), basic = BasicOptions(4);
        for (TableOptions* options : {&tiered, &basic}) {  // sums are exact, in any order
          options->initializer = InitializerSpec();
        }
        if (bounded) tiered.lower_tiers[0].budget_rows = 6;
        auto table = MakeHbmTable(tiered, rows, NewEmulatedDevice(pair));
        auto plain = MakeTable(basic);
        const Training before = Sgd(Range(0, 4), 1.0f, 4);
        MT_ASSERT_OK(before.Run(plain.get()));
        MT_ASSERT_OK(Train(before, table.get()));
        const Training trainings[2] = {Sgd(keys[0], 0.5f, 4), Sgd(keys[1], 0.25f, 4)};
        std::vector<float> out(keys[1].size() * 4);
        HbmTable::Operation operations[2] = {HbmTable::Operation(table.get()), HbmTable::Operation(table.get())};
        bool found[2] = {false, false};
        for (const int o : order) {
          if (!found[o]) {
            MT_ASSERT_OK(table->Find(&operations[o], keys[o]));
          } else if (o == 1 && lookup) {
            MT_ASSERT_OK(table->FinishLookup(&operations[o], out.data(), 0, ReadFor::kTraining));
            ASSERT_TRUE(SameBits(out, LookupAll(plain.get(), keys[o])))
                << "the lookup, " << rows << " rows, pair " << pair << ", order " << order[0] << order[1] << order[2]
                << order[3];
          } else {
            MT_ASSERT_OK(table->FinishApply(&operations[o], RequestOf(trainings[o])));
            MT_ASSERT_OK(trainings[o].Run(plain.get()));
          }
          found[o] = true;
        }
        const std::vector<int64_t> all = Range(0, 8);
        ASSERT_TRUE(SameBits(LookupAll(table.get(), all), LookupAll(plain.get(), all)))
            << rows << " rows, pair " << pair << ", order " << order[0] << order[1] << order[2] << order[3];
      }
    }
  }
}

// One operation of a test that drives its parts: it begins (takes its number), finds, finishes and ends.
struct Driven {
  std::vector<int64_t> keys;
  bool lookup = false;
  std::optional<HbmTable::Operation> operation;
  int parts = 0;  // done so far
  std::vector<float> out;

  Training training() const { return Sgd(keys, -1.0f, 4); }
  void Next(HbmTable* table) {
    const int part = parts++;
    if (part == 0) {
      operation.emplace(table);
    } else if (part == 1) {
      MT_ASSERT_OK(table->Find(&*operation, keys));
    } else if (lookup) {
      out.resize(keys.size() * 4);
      MT_ASSERT_OK(table->FinishLookup(&*operation, out.data(), 0, ReadFor::kTraining));
      operation.reset();
    } else {
      MT_ASSERT_OK(table->FinishApply(&*operation, RequestOf(training())));
      operation.reset();
    }
  }
};

TableOptions CountingOptions(int64_t dram_rows) {
  TableOptions options = TieredOptions(4, dram_rows, std::make_shared<MemoryTier>());
  options.initializer = InitializerSpec();
  return options;
}

TEST(Interleavings, AnOldOperationThatLooksAgainDoesNotFreeTheRowOfALaterOne) {
  auto table = MakeHbmTable(CountingOptions(8), 1, NewEmulatedDevice());
  MT_ASSERT_OK(Train(Sgd({1}, -1.0f, 4), table.get()));  // in the one row of HBM
  Driven older, later, evicting;
  older.keys = {1, 2};
  later.keys = {1};
  evicting.keys = {3};
  for (int part = 0; part < 2; ++part) older.Next(table.get());
  for (int part = 0; part < 2; ++part) later.Next(table.get());  // has the address of key 1's row
  older.Next(table.get());                                       // misses key 2, so it looks again for both
  for (int part = 0; part < 3; ++part) evicting.Next(table.get());
  later.Next(table.get());
  const std::vector<float> values = LookupAll(table.get(), {1, 2, 3});
  for (size_t k = 0; k < 3; ++k) EXPECT_EQ(values[k * 4], k == 0 ? 3.0f : 1.0f) << "key " << k + 1;
}

// Four rows of HBM, of which a prefetch may pin one. The operation `later` has the address of key 1's row. Then an older
// operation or an older prefetch uses the row, and others take every place that they may.
class PinnedRow : public testing::Test {
 protected:
  void SetUp() override {
    device_ = std::make_shared<HeldDevice>();
    table_ = MakeHbmTable(CountingOptions(8), 4, device_);
    MT_ASSERT_OK(Train(Sgd({5, 6, 7, 8}, -1.0f, 4), table_.get()));
    MT_ASSERT_OK(Train(Sgd({1, 2, 3, 4}, -1.0f, 4), table_.get()));  // in HBM
    later_.keys = {1};
  }
  void BeginLater() {
    for (int part = 0; part < 2; ++part) later_.Next(table_.get());
  }
  // The update of `later` must reach key 1's row.
  void EvictAndEndLater() {
    MT_ASSERT_OK(Train(Sgd({5, 6, 7, 8}, -1.0f, 4), table_.get()));
    EXPECT_EQ(TierOf(table_.get(), {1}), std::vector<int32_t>{0});
    later_.Next(table_.get());
    const std::vector<float> values = LookupAll(table_.get(), Range(1, 9));
    for (size_t k = 0; k < 8; ++k) EXPECT_EQ(values[k * 4], k >= 1 && k < 4 ? 1.0f : 2.0f) << "key " << k + 1;
  }

  std::shared_ptr<HeldDevice> device_;
  std::unique_ptr<HbmTable> table_;
  Driven later_;
};

TEST_F(PinnedRow, AnOldOperationThatEndsAPinDoesNotFreeTheRowOfALaterOne) {
  Driven older;
  older.keys = {1};
  older.lookup = true;
  older.Next(table_.get());  // has its number
  BeginLater();
  int64_t pinned = 0;
  MT_ASSERT_OK(table_->Prefetch(std::vector<int64_t>{1}, 3600ull * 1000000, &pinned));
  ASSERT_EQ(pinned, 1);
  older.Next(table_.get());  // ends the pin
  older.Next(table_.get());
  EXPECT_EQ(table_->Stats().prefetched, 0);
  EvictAndEndLater();
}

TEST_F(PinnedRow, AnOldPrefetchThatPinsDoesNotFreeTheRowOfALaterOperation) {
  device_->Hold(table_->queue()->stream());
  std::thread prefetch([&] { MT_EXPECT_OK(table_->Prefetch(std::vector<int64_t>{1}, 3600ull * 1000000, nullptr)); });
  while (device_->waiting() == 0) std::this_thread::yield();  // it has its number, and has found the row
  BeginLater();
  device_->Let();
  prefetch.join();
  table_->ReleasePrefetched();
  EvictAndEndLater();
}

// All 1,680 orders of three operations of three parts each: a lookup gives what the applies before its last part have added.
TEST(Interleavings, ThreeOperationsInEveryOrderOfTheirPartsLoseNoUpdateAndReadNoOldOne) {
  std::mt19937_64 random(11);
  std::vector<int> order = {1, 1, 1, 2, 2, 2, 3, 3, 3};
  int round = 0, compared = 0;
  do {
    ++round;
    if (round % Stride(15, 28) != 0) continue;
    TableOptions options = CountingOptions(2);
    if (random() % 2 == 0) options.lower_tiers[0].budget_rows = 4;  // rows are created in the table below
    auto table = MakeHbmTable(options, static_cast<int>(1 + random() % 4), NewEmulatedDevice(random()));
    std::vector<float> updates(6);
    Driven driven[4];  // the first one runs alone, before the others
    for (Driven& one : driven) {
      for (size_t i = 0, n = 1 + random() % 4; i < n; ++i) one.keys.push_back(static_cast<int64_t>(random() % 6));
      one.lookup = random() % 3 == 0;
    }
    const auto next = [&](Driven* one) {
      one->Next(table.get());
      if (one->parts < 3) return;
      for (size_t i = 0; i < one->keys.size(); ++i) {
        float& count = updates[static_cast<size_t>(one->keys[i])];
        if (!one->lookup) {
          count += 1.0f;
          continue;
        }
        ++compared;
        const std::vector<float> expected(4, count), found(&one->out[4 * i], &one->out[4 * i] + 4);
        EXPECT_EQ(found, expected) << "lookup of key " << one->keys[i];
      }
    };
    for (int part = 0; part < 3; ++part) next(&driven[0]);
    for (const int o : order) next(&driven[o]);
    const std::vector<float> values = LookupAll(table.get(), Range(0, 6));
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], updates[i / 4]) << "key " << i / 4;
    if (testing::Test::HasFailure()) FAIL() << "round " << round << ", order " << testing::PrintToString(order);
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(round, 1680);
  EXPECT_GT(compared * Stride(15, 28), 2000);
}

}  // namespace
}  // namespace multitier::hbm::interleavings_test
