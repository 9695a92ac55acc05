// New slots make the rows of HBM wider, where they are: next to plain tables, bit by bit.

#include <thread>

#include "cc/hbm/test/device_caller.h"
#include "cc/table/test/storage_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::added_slots_test {
namespace {

constexpr uint64_t kHour = 3600ull * 1000000;

std::vector<ColumnSpec> SlotsOf(const char* rule, int dim) { return SlotColumns(**FindUpdateRule(rule), dim); }

std::unique_ptr<HbmTable> WithHbm(TableOptions options, Budget budget, std::shared_ptr<device::Device> device) {
  HbmOptions hbm;
  hbm.device = std::move(device);
  hbm.budget = budget;
  return *HbmTable::Create(hbm, MakeTableBelow(std::move(options)));
}

// A table in HBM and a plain one.
struct Both {
  Both(TableOptions options, TableOptions plain_options, const std::function<std::unique_ptr<HbmTable>(TableOptions)>& make)
      : dim(options.dim), table(make(std::move(options))), plain(MakeTable(std::move(plain_options))) {}

  void Run(const Training& training) {
    MT_ASSERT_OK(training.Run(plain.get()));
    MT_ASSERT_OK(Train(training, table.get()));
  }
  void Run(const char* rule, std::vector<int64_t> keys) {
    Run(SomeTraining(*FindUpdateRule(rule), std::move(keys), dim, &random));
  }
  void Add(const char* rule) {
    MT_ASSERT_OK(plain->AddSlots(SlotsOf(rule, dim)));
    MT_ASSERT_OK(table->AddSlots(SlotsOf(rule, dim)));
  }
  void ExpectSame() { ExpectSameTables(plain.get(), table.get()); }
  int64_t InHbm() const { return table->Stats().tiers[0].rows; }
  int64_t HandedDown() const { return table->Stats().tiers[1].demotions; }

  const int dim;
  std::mt19937_64 random{7};
  std::unique_ptr<HbmTable> table;
  std::unique_ptr<EmbeddingTable> plain;
};

enum class Kind { kHbm, kOverDram, kOverSsdHash };

struct SlotsCase {
  Kind kind;
  int dim;
  uint64_t values;  // see WithValues
};

class TablesOfEachType : public testing::TestWithParam<SlotsCase> {
 protected:
  static constexpr int kRows = 300;

  TablesOfEachType() : root_("added_slots") {}
  std::unique_ptr<Both> Make() {
    const SlotsCase& its = GetParam();
    TableOptions options = BasicOptions(its.dim);
    if (its.kind == Kind::kOverSsdHash)
      options = TieredOptions(its.dim, 8, root_.Open("ssdhash", StrCat("t", ++tables_), false));
    return std::make_unique<Both>(WithValues(options, its.values), WithValues(BasicOptions(its.dim), its.values),
                                  [&](TableOptions made) {
                                    if (its.kind == Kind::kHbm) return GrowingTable(std::move(made), device_);
                                    return WithHbm(std::move(made), Budget::Rows(kRows), device_);
                                  });
  }
  StorageDirectory root_;
  int tables_ = 0;
  std::shared_ptr<CopyCountingDevice> device_ = std::make_shared<CopyCountingDevice>();
};
INSTANTIATE_TEST_SUITE_P(AddedSlots, TablesOfEachType,
                         testing::Values(SlotsCase{Kind::kHbm, 3, 0}, SlotsCase{Kind::kHbm, 17, 1},
                                         SlotsCase{Kind::kOverDram, 5, 2}, SlotsCase{Kind::kOverDram, 40, 3},
                                         SlotsCase{Kind::kOverSsdHash, 1, 4}, SlotsCase{Kind::kOverSsdHash, 8, 0}));

// Of the rows in HBM some are as they were handed down, some have changed since, and some are new; others are below.
TEST_P(TablesOfEachType, RowsStayInHbmAndNoneCrosses) {
  const auto both = Make();
  const auto row_bytes = static_cast<size_t>(both->table->Stats().row_bytes);
  both->Run("sgd", Range(0, 200));
  both->Run("sgd", Range(150, 350));
  both->ExpectSame();
  both->Run("sgd", Range(300, 330));
  both->Run("sgd", Range(340, 380));
  const std::vector<int32_t> tiers = TierOf(both->table.get(), Range(0, 400));
  for (const char* rule : {"adagrad", "rowwise_adagrad", "adam"}) {
    const size_t up = device_->up(), down = device_->down();
    const int64_t demotions = both->HandedDown(), rows = both->InHbm();
    both->Add(rule);
    const size_t wider = static_cast<size_t>(both->table->Stats().row_bytes);
    EXPECT_GT(wider, row_bytes);
    EXPECT_LT(device_->up() - up, wider + 1000);  // what a new row has, and descriptions
    EXPECT_LT(device_->down() - down, 200u);      // counts
    EXPECT_EQ(both->HandedDown(), demotions);
    EXPECT_EQ(both->InHbm(), rows);
    EXPECT_GE(rows, kRows * 3 / 4);
    EXPECT_EQ(TierOf(both->table.get(), Range(0, 400)), tiers);
    const std::vector<int64_t> some = Range(320, 360);
    EXPECT_TRUE(SameBits(LookupAll(both->table.get(), some), LookupAll(both->plain.get(), some)));
  }
  both->Run("adam", Range(310, 420));  // rows that stayed, and new ones
  both->Run("adagrad", Range(0, 60));
  both->Run("rowwise_adagrad", Range(200, 340));
  both->ExpectSame();
}

TEST_P(TablesOfEachType, RowsThatAreMadeAfterwardsHaveThem) {
  const auto both = Make();
  both->Run("sgd", Range(0, 10));
  both->Add("adagrad");
  for (int step = 0; step < 4; ++step) both->Run("adagrad", Range(step * 40 - 20, step * 40 + 40));
  both->ExpectSame();
}

// A lookup's plan is of rows that were narrower.
TEST_P(TablesOfEachType, PlansThatWereMadeBeforeGiveTheSameBits) {
  const auto both = Make(), other = Make();
  DeviceCaller caller(device_);
  for (const auto& each : {both.get(), other.get()}) each->Run("sgd", Range(0, 20));
  std::vector<Training> trainings;
  std::vector<DeviceMember> members;
  std::vector<DeviceUpdate> updates;
  for (const auto& each : {both.get(), other.get()}) {
    trainings.push_back(SomeTraining(*FindUpdateRule("sgd"), {3, 40, 19, 3, 41}, each->dim, &each->random));
    members.push_back(caller.Plain(each->table.get(), trainings.back().keys));
  }
  DevicePlan plan;
  MT_ASSERT_OK(caller.Lookup(members, &plan));
  both->Add("adagrad");
  for (int m = 0; m < 2; ++m) updates.push_back(caller.UpdateOf(trainings[static_cast<size_t>(m)], m));
  MT_ASSERT_OK(caller.Update(plan, updates));
  for (size_t m = 0; m < 2; ++m) MT_ASSERT_OK(trainings[m].Run((m == 0 ? both : other)->plain.get()));
  other->Add("adagrad");
  for (const auto& each : {both.get(), other.get()}) {
    each->Run("adagrad", Range(0, 60));
    each->ExpectSame();
  }
}

TEST_P(TablesOfEachType, SlotsThatAreRefusedChangeNothing) {
  const auto both = Make();
  both->Run("adagrad", Range(0, 100));
  const int64_t rows = both->InHbm(), demotions = both->HandedDown();
  std::vector<ColumnSpec> slots = SlotsOf("adam", both->dim), wrong = SlotsOf("adagrad", both->dim + 1);
  slots.push_back(wrong[0]);
  EXPECT_EQ(both->table->AddSlots(slots).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(both->InHbm(), rows);
  EXPECT_EQ(both->HandedDown(), demotions);
  both->Run("adagrad", Range(90, 120));
  both->Run("adam", Range(50, 110));
  both->ExpectSame();
}

TEST_P(TablesOfEachType, WithoutMemoryForBothRowsGoOverTheHost) {
  const auto both = Make();
  both->Run("sgd", Range(0, 100));
  const auto resident = static_cast<size_t>(both->table->Stats().tiers[0].resident_bytes);
  device_->SetMemory(device_->used_bytes() + resident * 3 / 4);
  both->Add("rowwise_adagrad");
  EXPECT_EQ(both->HandedDown(), 100);
  EXPECT_EQ(both->InHbm(), 0);
  device_->SetMemory(64 << 20);
  both->Run("rowwise_adagrad", Range(50, 150));
  both->ExpectSame();
}

TEST(AddedSlots, PinsStay) {
  Both both(TieredOptions(4, 8, std::make_shared<MemoryTier>()), BasicOptions(4),
            [](TableOptions options) { return WithHbm(std::move(options), Budget::Rows(20), NewEmulatedDevice()); });
  both.Run("sgd", Range(0, 20));
  int64_t pinned = 0;
  MT_ASSERT_OK(both.table->Prefetch(std::vector<int64_t>{1, 2, 3}, kHour, &pinned));
  EXPECT_EQ(pinned, 3);
  both.Add("adagrad");
  EXPECT_EQ(both.table->Stats().prefetched, 3);
  for (int i = 0; i < 3; ++i) both.Run("adagrad", Range(100 + i * 30, 130 + i * 30));
  EXPECT_EQ(TierOf(both.table.get(), {1, 2, 3}), std::vector<int32_t>(3, 0));
  EXPECT_EQ(both.table->Stats().prefetched, 3);
  LookupAll(both.table.get(), {1, 2, 3});
  EXPECT_EQ(both.table->Stats().prefetched, 0);
  both.ExpectSame();
}

// Rows that no update has made yet read as absent, and get their slots, too.
TEST(AddedSlots, ProvisionalRowsStayProvisional) {
  for (const uint64_t rows : {0, 64}) {
    const auto device = NewEmulatedDevice();
    Both both(BasicOptions(4), BasicOptions(4), [&](TableOptions options) {
      return rows == 0 ? GrowingTable(std::move(options), device) : WithHbm(std::move(options), Budget::Rows(rows), device);
    });
    DeviceCaller caller(device);
    both.Run("sgd", Range(0, 10));
    {
      DevicePlan plan;
      caller.LookupAll(both.table.get(), Range(5, 20), &plan);
    }
    const int64_t in_hbm = both.InHbm();
    both.Add("adagrad");
    EXPECT_EQ(both.InHbm(), in_hbm);
    EXPECT_EQ(both.table->TotalCount(), 10);
    both.ExpectSame();
    both.Run("adagrad", Range(8, 25));
    both.ExpectSame();
  }
}

// A budget in bytes holds fewer rows once they are wider.
TEST(AddedSlots, WhereTheBudgetHoldsFewerRowsThoseThatFitStay) {
  for (const int used : {10, 20, 400}) {
    const auto device = std::make_shared<CopyCountingDevice>();
    const int places = used == 400 ? 400 : 20;
    Both both(TieredOptions(4, 8, std::make_shared<MemoryTier>()), BasicOptions(4),
              [&](TableOptions options) { return MakeHbmTable(std::move(options), places, device); });
    both.Run("sgd", Range(0, used));
    both.ExpectSame();
    both.Run("sgd", Range(0, 5));
    LookupAll(both.table.get(), Range(0, used));
    const int64_t demotions = both.HandedDown(), before = both.InHbm();
    int64_t pinned = 0;
    MT_ASSERT_OK(both.table->Prefetch(Range(0, places / 4), kHour, &pinned));
    EXPECT_EQ(pinned, places / 4);
    both.Add("adagrad");
    EXPECT_EQ(both.HandedDown() - demotions, 5);
    const std::vector<int32_t> tiers = TierOf(both.table.get(), Range(0, used));
    const int64_t stayed = std::count(tiers.begin(), tiers.end(), 0);
    EXPECT_EQ(both.InHbm(), stayed);
    EXPECT_LE(stayed, places / 2);
    EXPECT_GE(stayed, std::min<int64_t>(before, places / 2) * 9 / 10);
    if (places == 20) {  // one bucket
      EXPECT_EQ(stayed, 10);
    }
    EXPECT_EQ(both.table->Stats().prefetched, std::count(tiers.begin(), tiers.begin() + places / 4, 0));
    EXPECT_TRUE(SameBits(LookupAll(both.table.get(), Range(0, used)), LookupAll(both.plain.get(), Range(0, used))));
    both.ExpectSame();
    for (int i = 0; i < 3; ++i) both.Run("adagrad", Range(i * used / 3, used + i * 7));
    both.table->ReleasePrefetched();
    both.Run("adam", Range(3, used + 3));  // fewer again
    both.Run("adagrad", Range(0, used));
    EXPECT_LE(both.InHbm(), places / 4);
    both.ExpectSame();
  }
}

// Of provisional rows that leave none was counted: births go on in a table whose rows all stayed.
TEST(AddedSlots, BirthsGoOnWhereAllRowsStay) {
  const auto device = std::make_shared<CopyCountingDevice>();
  Both both(BasicOptions(4), BasicOptions(4),
            [&](TableOptions options) { return MakeHbmTable(std::move(options), 4000, device); });
  DeviceCaller caller(device);
  both.Run("sgd", Range(0, 100));
  {
    DevicePlan plan;
    caller.LookupAll(both.table.get(), Range(10000, 12500), &plan);  // more than fit afterwards
  }
  both.Add("adagrad");
  EXPECT_EQ(TierOf(both.table.get(), Range(0, 100)), std::vector<int32_t>(100, 0));
  EXPECT_LE(both.InHbm(), 2000);
  both.table->Stats();
  MT_ASSERT_OK(both.table->Remove(Range(10000, 12500), nullptr));  // makes room
  both.Run("adagrad", Range(200, 210));
  const Training training = SomeTraining(*FindUpdateRule("adagrad"), Range(300, 350), 4, &both.random);
  MT_ASSERT_OK(training.Run(both.plain.get()));
  const size_t up = device->up();
  MT_ASSERT_OK(both.table->Apply(RequestOf(training)));
  EXPECT_LT(device->up() - up, 2000u);  // keys and gradients are 1,200 bytes, the rows would be 2,400
  both.ExpectSame();
}

// Wider rows are too many for the table below, which drops the coldest: by what they are in HBM, where they do not stay.
TEST(AddedSlots, RowsThatTheTableBelowDropsLeaveHbm) {
  constexpr int kDim = 4, kKeys = 20;
  for (const bool has_memory_for_both : {true, false}) {
    TableOptions options = BasicOptions(kDim);
    options.dram_budget_bytes = kKeys * RowLayout::Create(kDim, DType::kFloat32)->row_bytes();
    options.cache_strategy = Replacement::kScore;
    options.score = Score::kStep;
    options.drop_coldest = true;
    const auto device = NewEmulatedDevice();
    Both both(options, options, [&](TableOptions made) {
      made.is_below = true;
      return WithHbm(std::move(made), Budget::Rows(kKeys), device);
    });
    const auto train = [&](std::vector<int64_t> keys, int64_t step) {
      Training training = Sgd(std::move(keys), 1.0f, kDim);
      training.step = step;
      both.Run(training);
    };
    for (int64_t key = 0; key < kKeys; ++key) train({key}, 1 + key);
    LookupAll(both.table.get(), Range(0, kKeys));
    train({1, 3}, 100);  // in HBM alone
    EXPECT_EQ(both.InHbm(), kKeys);
    if (!has_memory_for_both) device->SetMemory(device->used_bytes() + 100);
    both.Add("adagrad");
    device->SetMemory(64 << 20);
    MT_ASSERT_OK(both.plain->Drain());
    const std::vector<int64_t> dropped = both.plain->PopDropped();
    EXPECT_EQ(dropped.size(), static_cast<size_t>(kKeys / 2));
    EXPECT_EQ(both.table->PopDropped(), dropped);
    EXPECT_EQ(TierOf(both.table.get(), dropped), std::vector<int32_t>(dropped.size(), -1));
    EXPECT_TRUE(SameBits(LookupAll(both.table.get(), Range(0, kKeys)), LookupAll(both.plain.get(), Range(0, kKeys))));
    both.ExpectSame();
  }
}

TEST(AddedSlots, ThreadsThatLookUpAndSaveMeanwhileSeeWholeRows) {
  constexpr int kDim = 8;
  constexpr int64_t kKeys = 40;
  TableOptions options = TieredOptions(kDim, 10, std::make_shared<MemoryTier>());
  options.initializer = InitializerSpec();
  auto table = WithHbm(options, Budget::Rows(20), NewEmulatedDevice());
  Training training = Sgd(Range(0, kKeys), 0.0f, kDim);
  for (size_t i = 0; i < training.grads.size(); ++i) training.grads[i] = -static_cast<float>(1 + i % kDim);
  MT_ASSERT_OK(Train(training, table.get()));
  std::atomic<bool> done{false};
  const auto check = [](const float* row, int64_t key) {
    for (int d = 1; d < kDim; ++d) EXPECT_EQ(row[d], row[0] * static_cast<float>(1 + d)) << "a torn row of key " << key;
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    for (int64_t i = 0; !done; ++i) {
      const std::vector<int64_t> keys = {i % kKeys, kKeys - 1 - i % kKeys, 20};
      const std::vector<float> now = LookupAll(table.get(), keys);
      for (size_t k = 0; k < keys.size(); ++k) check(&now[k * kDim], keys[k]);
    }
  });
  threads.emplace_back([&] {
    while (!done) {
      const auto rows = table->Export(true);
      EXPECT_TRUE(rows.ok()) << rows.status().ToString();
      if (!rows.ok()) return;
      EXPECT_EQ(rows->keys.size(), static_cast<size_t>(kKeys));
      const auto elements = static_cast<size_t>(rows->row_elements());
      for (size_t r = 0; r < rows->keys.size(); ++r) {
        check(&rows->data[r * elements], rows->keys[r]);
        for (size_t e = kDim; e < elements; ++e) EXPECT_EQ(rows->data[r * elements + e], 0.5f);
      }
    }
  });
  constexpr int kSlots = kSanitized ? 4 : 12;
  for (int s = 0; s < kSlots; ++s) {
    MT_EXPECT_OK(table->AddSlots(std::vector<ColumnSpec>{{StrCat("slot ", s), DType::kFloat32, 1 + s % 7, 0.5f}}));
    MT_EXPECT_OK(Train(training, table.get()));
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  const std::vector<float> last = LookupAll(table.get(), Range(0, kKeys));
  for (size_t k = 0; k < kKeys; ++k) EXPECT_EQ(last[k * kDim], static_cast<float>(1 + kSlots));
}

}  // namespace
}  // namespace multitier::hbm::added_slots_test
