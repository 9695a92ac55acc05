// Rows that changed are handed down: what that costs, and what is left where the table below refuses them.

#include "cc/hbm/test/hbm_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::hand_down_test {
namespace {

constexpr int kRows = 24, kChunk = 4;

// Rows of HBM come down `kChunk` at a time. They are all changed.
struct Changed {
  Changed() {
    HbmOptions options;
    auto below = MakeTableBelow(TieredOptions(1, 2, tier));
    options.device = device;
    options.budget = Budget::Bytes(kRows * below->layout()->row_bytes());
    options.hand_down_bytes = kChunk * (below->layout()->row_bytes() + sizeof(device::DeviceRowHeader));
    table = *HbmTable::Create(options, std::move(below));
    const Training training = Sgd(Range(0, kRows), 1.0f, 1);
    MT_EXPECT_OK(training.Run(plain.get()));
    MT_EXPECT_OK(Train(training, table.get()));
  }
  Status Save() {
    uint64_t next = 0;
    return table->Scan(ScanRequest(), &next).status();
  }
  std::shared_ptr<MemoryTier> tier = std::make_shared<MemoryTier>();
  std::shared_ptr<device::EmulatedDevice> device = NewEmulatedDevice();
  std::unique_ptr<EmbeddingTable> plain = MakeTable(BasicOptions(1));
  std::unique_ptr<HbmTable> table;
};

// The flags of a million places are looked at in one launch, and what changed comes down.
TEST(HandDown, ASaveOfFewChangedRowsTakesFewLaunches) {
  const auto device = NewEmulatedDevice();
  auto plain = MakeTable(BasicOptions(1));
  auto table = MakeHbmTable(BasicOptions(1), kSanitized ? 1 << 16 : 1 << 20, device);
  const Training first = Sgd(Range(0, 5000), 1.0f, 1);
  MT_ASSERT_OK(first.Run(plain.get()));
  MT_ASSERT_OK(Train(first, table.get()));
  MT_ASSERT_OK(table->Export(true).status());
  EXPECT_EQ(table->Stats().tiers[1].demotions, 5000);
  const Training second = Sgd({1, 4000, 4999}, 1.0f, 1);
  MT_ASSERT_OK(second.Run(plain.get()));
  MT_ASSERT_OK(Train(second, table.get()));
  const int64_t launches = device->launches(), waits = device->synchronizations();
  MT_ASSERT_OK(table->Export(true).status());
  EXPECT_EQ(device->launches() - launches, 2);
  EXPECT_EQ(device->synchronizations() - waits, 2);
  EXPECT_EQ(table->Stats().tiers[1].demotions, 5003);
  ExpectSameTables(plain.get(), table.get());
}

TEST(HandDown, AChunkComesDownWhileTheOneBeforeIsPutBelow) {
  Changed changed;
  std::vector<int64_t> launches;  // as the table below writes rows
  const int64_t before = changed.device->launches(), waits = changed.device->synchronizations();
  changed.tier->SetHook([&](MemoryTier::Point point) {
    if (point == MemoryTier::Point::kBeforeWrite) launches.push_back(changed.device->launches() - before);
  });
  MT_ASSERT_OK(changed.Save());
  changed.tier->SetHook(nullptr);
  launches.erase(std::unique(launches.begin(), launches.end()), launches.end());
  EXPECT_EQ(launches, (std::vector<int64_t>{3, 4, 5, 6, 7}));  // the list, and one launch a chunk
  EXPECT_EQ(changed.device->synchronizations() - waits, 1 + kRows / kChunk);
  EXPECT_EQ(changed.table->Stats().tiers[1].demotions, kRows);
  ExpectSameTables(changed.plain.get(), changed.table.get());
}

TEST(HandDown, ARefusedChunkAndTheOneBehindItAreKept) {
  for (int64_t n = 1; n <= 3; ++n) {  // the write, after which some more chunks find room
    Changed changed;
    changed.tier->FailWrite(n, ResourceExhaustedError("disk full"), 1000);
    const Status refused = changed.Save();
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << refused.ToString();
    EXPECT_TRUE(SameBits(LookupAll(changed.table.get(), Range(0, kRows)), LookupAll(changed.plain.get(), Range(0, kRows))));
    EXPECT_EQ(changed.table->TotalCount(), kRows);
    changed.tier->FailWrite(1, OkStatus(), 0);
    MT_ASSERT_OK(changed.Save());
    ExpectSameTables(changed.plain.get(), changed.table.get());
  }
}

}  // namespace
}  // namespace multitier::hbm::hand_down_test
