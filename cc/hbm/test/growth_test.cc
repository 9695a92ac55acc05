// HBM alone: the table grows as rows are added, and keeps every row on the device.

#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::growth_test {
namespace {

constexpr int kDim = 4;
constexpr uint64_t kRowBytes = kDim * sizeof(float);

TEST(Growth, EveryRowIsInHbmAfterItsUseAndHasTheBitsOfAPlainTable) {
  auto table = GrowingTable(BasicOptions(kDim), NewEmulatedDevice());
  auto plain = MakeTable(BasicOptions(kDim));
  constexpr int64_t kKeys = kSanitized ? 60 : 700;
  for (int64_t keys = 1; keys < kKeys; keys = 2 * keys + 1) {
    const Training training = Sgd(Range(keys / 2, keys), 0.25f, kDim);
    MT_ASSERT_OK(training.Run(plain.get()));
    MT_ASSERT_OK(Train(training, table.get()));
    ASSERT_TRUE(SameBits(LookupAll(plain.get(), Range(0, keys + 3)), LookupAll(table.get(), Range(0, keys + 3))));
    EXPECT_EQ(TierOf(table.get(), Range(0, keys)), std::vector<int32_t>(static_cast<size_t>(keys), 0));
    const TableStats stats = table->Stats();
    EXPECT_EQ(stats.tiers[0].rows, keys);
    EXPECT_EQ(stats.tiers[0].budget_bytes, 0);
  }
  ExpectSameTables(plain.get(), table.get());
}

TEST(Growth, LookupsOfAbsentKeysTakeNoMemory) {
  auto device = NewEmulatedDevice();
  auto table = GrowingTable(BasicOptions(kDim), device);
  const int64_t bytes = table->Stats().tiers[0].resident_bytes;
  LookupAll(table.get(), Range(0, 300));
  EXPECT_EQ(table->Stats().tiers[0].resident_bytes, bytes);
  EXPECT_EQ(table->TotalCount(), 0);
}

TEST(Growth, AFullTableRefusesNewRowsAndTrainsTheOthers) {
  auto table = GrowingTable(BasicOptions(kDim), NewEmulatedDevice(), 10 * kRowBytes);
  MT_ASSERT_OK(Train(Sgd(Range(0, 9), 1.0f, kDim), table.get()));
  const Status full = Train(Sgd({8, 9, 10}, 1.0f, kDim), table.get());
  EXPECT_EQ(full.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(full.message(),
            "table 't': tier hbm: expected room for 11 rows (176 bytes), found a size of 160 bytes, which holds 10: remove or "
            "expire keys, or use a larger storage_size or storage_rows (OneEmbedding: capacity), a tier below, an admission "
            "filter, drop_coldest=True, or on_full='warn'");
  EXPECT_EQ(table->TotalCount(), 9);
  MT_ASSERT_OK(Train(Sgd(Range(0, 10), 1.0f, kDim), table.get()));
  std::vector<int64_t> frequencies(11);
  MT_ASSERT_OK(table->Frequency(Range(0, 11), frequencies.data()));
  EXPECT_EQ(frequencies, (std::vector<int64_t>{2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 0}));
  EXPECT_EQ(TierOf(table.get(), Range(0, 10)), std::vector<int32_t>(10, 0));
  MT_ASSERT_OK(table->Remove(std::vector<int64_t>{3}, nullptr));
  MT_ASSERT_OK(Train(Sgd({10}, 1.0f, kDim), table.get()));
}

TEST(Growth, WhereTheDeviceHasNoMoreMemoryNewRowsAreRefusedWithWhatWasFree) {
  auto device = NewEmulatedDevice();
  auto table = GrowingTable(BasicOptions(kDim), device);
  auto plain = MakeTable(BasicOptions(kDim));
  const auto both = [&](const Training& training) {
    MT_EXPECT_OK(training.Run(plain.get()));
    MT_EXPECT_OK(Train(training, table.get()));
  };
  both(Sgd(Range(0, 20), 1.0f, kDim));
  device->SetMemory(device->used_bytes() + (16 << 10));
  const Status refused = Train(Sgd(Range(0, 3000), 1.0f, kDim), table.get());
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(refused.message().find("table 't'"), std::string::npos) << refused.message();
  EXPECT_NE(refused.message().find("bytes are free"), std::string::npos) << refused.message();
  both(Sgd(Range(0, 20), 1.0f, kDim));
  ExpectSameTables(plain.get(), table.get());
  device->SetMemory(64 << 20);
  both(Sgd(Range(0, kSanitized ? 100 : 1000), 1.0f, kDim));
  ExpectSameTables(plain.get(), table.get());
}

// What growth does with rows that are in HBM: both tables are trained on the same keys, the second time on more.
struct Grown {
  explicit Grown(const std::vector<int64_t>& keys) {
    both(Sgd(keys, 1.0f, kDim));
    demotions = table->Stats().tiers[1].demotions;
  }
  void both(const Training& training) {
    MT_EXPECT_OK(training.Run(plain.get()));
    MT_EXPECT_OK(Train(training, table.get()));
  }
  int64_t HandedDown() const { return table->Stats().tiers[1].demotions - demotions; }
  void ExpectRows(int64_t rows) const {
    EXPECT_EQ(table->Stats().tiers[0].rows, rows);
    ExpectSameTables(plain.get(), table.get());
  }
  std::shared_ptr<CopyCountingDevice> device = std::make_shared<CopyCountingDevice>();
  std::unique_ptr<HbmTable> table = GrowingTable(BasicOptions(kDim), device);
  std::unique_ptr<EmbeddingTable> plain = MakeTable(BasicOptions(kDim));
  int64_t demotions = 0;
};

TEST(Growth, RowsMoveOnTheDevice) {
  Grown grown(Range(0, 300));
  LookupAll(grown.table.get(), Range(-4, 4));
  const size_t up = grown.device->up(), down = grown.device->down();
  const int64_t resident = grown.table->Stats().tiers[0].resident_bytes;
  grown.both(Sgd({3, 1000, 1001}, 0.5f, kDim));
  EXPECT_GT(grown.table->Stats().tiers[0].resident_bytes, resident);
  EXPECT_LT(grown.device->up() - up, 1000u);  // 300 rows are 9,600 bytes
  EXPECT_LT(grown.device->down() - down, 1000u);
  EXPECT_EQ(grown.HandedDown(), 0);
  grown.ExpectRows(302);
  grown.both(Sgd(Range(200, 900), 0.5f, kDim));
  grown.ExpectRows(902);
}

TEST(Growth, WithoutMemoryForBothRowsGoOverTheHost) {
  Grown grown(Range(0, 300));
  const auto resident = static_cast<size_t>(grown.table->Stats().tiers[0].resident_bytes);
  grown.device->SetMemory(grown.device->used_bytes() + resident * 3 / 2);
  grown.both(Sgd({3, 1000, 1001}, 0.5f, kDim));
  EXPECT_EQ(grown.HandedDown(), 300);
  grown.ExpectRows(3);
}

// Keys of two neighbouring buckets belong to one bucket of the larger table, which has fewer slots.
TEST(Growth, WhereABucketHasNoSlotForAKeyRowsGoOverTheHost) {
  constexpr uint32_t kBuckets = 4, kLargerBuckets = 9;
  std::vector<int64_t> keys, of_bucket[2];
  for (int64_t key = 0; of_bucket[0].size() < 120 || of_bucket[1].size() < 120; ++key) {
    const uint32_t bucket = device::PlaceOf(key, kBuckets).bucket;
    if (bucket < 2 && device::PlaceOf(key, kLargerBuckets).bucket == 2 && of_bucket[bucket].size() < 120) {
      of_bucket[bucket].push_back(key);
      keys.push_back(key);
    }
  }
  Grown grown(keys);
  EXPECT_EQ(grown.table->Stats().tiers[0].rows, 240);
  grown.both(Sgd(Range(-300, 0), 0.5f, kDim));
  EXPECT_EQ(grown.HandedDown(), 240);
  grown.ExpectRows(300);
}

TEST(Growth, NewSlotsAndAnImportLeaveEveryRowInTheTable) {
  auto table = GrowingTable(BasicOptions(kDim), NewEmulatedDevice());
  auto plain = MakeTable(BasicOptions(kDim));
  MT_ASSERT_OK(Sgd(Range(0, 50), 1.0f, kDim).Run(plain.get()));
  MT_ASSERT_OK(table->Import(*plain->Export(true), nullptr));
  Training adagrad = Sgd(Range(40, 70), 0.5f, kDim);
  adagrad.rule = *FindUpdateRule("adagrad");
  adagrad.hyper = SomeHyper(*adagrad.rule);
  MT_ASSERT_OK(adagrad.Run(plain.get()));
  MT_ASSERT_OK(Train(adagrad, table.get()));
  ExpectSameTables(plain.get(), table.get());
  LookupAll(table.get(), Range(0, 70));
  EXPECT_EQ(TierOf(table.get(), Range(0, 70)), std::vector<int32_t>(70, 0));
}

TEST(Growth, SlotsThatWouldNotFitAreRefused) {
  auto table = GrowingTable(BasicOptions(kDim), NewEmulatedDevice(), 10 * kRowBytes);
  MT_ASSERT_OK(Train(Sgd(Range(0, 9), 1.0f, kDim), table.get()));
  const Status refused = table->AddSlots(SlotColumns(**FindUpdateRule("adagrad"), kDim));
  EXPECT_EQ(refused.message(), "table 't': expected a budget of tier hbm of at least 9 rows (288 bytes), found 160");
  MT_ASSERT_OK(Train(Sgd(Range(0, 10), 1.0f, kDim), table.get()));
}

TEST(Growth, UnderAFilterAFullTableRefusesAbsentKeys) {
  TableOptions options = BasicOptions(kDim);
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 2;
  auto table = GrowingTable(options, NewEmulatedDevice(), 4 * kRowBytes);
  for (int i = 0; i < 3; ++i) MT_ASSERT_OK(Train(Sgd(Range(0, 4), 1.0f, kDim), table.get()));
  EXPECT_EQ(table->TotalCount(), 4);
  EXPECT_EQ(Train(Sgd({0, 4}, 1.0f, kDim), table.get()).code(), StatusCode::kResourceExhausted);
  MT_ASSERT_OK(Train(Sgd(Range(0, 4), 1.0f, kDim), table.get()));
  EXPECT_EQ(TierOf(table.get(), Range(0, 4)), std::vector<int32_t>(4, 0));
}

}  // namespace
}  // namespace multitier::hbm::growth_test
