// The device runs out of memory while a table is used. The operation returns an error that says how much it asked for and how
// much was free. It changes nothing, and the table stays usable.

#include "cc/hbm/test/hbm_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::out_of_hbm_test {
namespace {

constexpr int kDim = 4;

std::unique_ptr<HbmTable> SmallTable(const std::shared_ptr<device::Device>& device, int rows = 8) {
  return MakeHbmTable(TieredOptions(kDim, 2, std::make_shared<MemoryTier>()), rows, device);
}

// Whether the operation succeeded. If not, expects an error that says that memory is missing.
bool Worked(const Status& status) {
  if (status.ok()) return true;
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  EXPECT_NE(status.message().find("table 't': "), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("no memory for "), std::string::npos) << status.message();
  EXPECT_NE(status.message().find(" bytes are free"), std::string::npos) << status.message();
  return false;
}

// A failed allocation is repeated once, after the pool has freed its memory. So two in a row must fail.
TEST(OutOfHbm, WhereTwoOfNAllocationsFailNoRowIsLost) {
  int failures = 0;
  for (int64_t n = 2; n < 40; n += kSanitized ? 13 : 2) {
    SCOPED_TRACE(n);
    auto device = NewEmulatedDevice();
    auto table = SmallTable(device);
    auto plain = MakeTable(BasicOptions(kDim));
    std::mt19937_64 random(static_cast<uint64_t>(n));
    device->FailTwoAllocationsOf(n);
    for (int step = 0; step < (kSanitized ? 3 : 6); ++step) {  // each batch larger than those before: the pool has no memory
      std::vector<int64_t> keys(size_t{20} << step);
      for (int64_t& key : keys) key = static_cast<int64_t>(random() % 40);
      const Training training = Sgd(keys, 0.5f, kDim);
      if (Worked(Train(training, table.get()))) {
        MT_ASSERT_OK(training.Run(plain.get()));
      } else {
        ++failures;
      }
      std::vector<float> values(keys.size() * kDim);
      if (Worked(table->Lookup(keys, values.data()))) {
        EXPECT_TRUE(SameBits(values, LookupAll(plain.get(), keys)));
      }
      if (Worked(table->Remove(Span<const int64_t>(keys.data(), 2), nullptr))) {
        MT_ASSERT_OK(plain->Remove(Span<const int64_t>(keys.data(), 2), nullptr));
      }
    }
    device->FailTwoAllocationsOf(0);
    ExpectSameTables(plain.get(), table.get());
  }
  EXPECT_GT(failures, kSanitized ? 2 : 30);
}

TEST(OutOfHbm, ABatchThatIsTooLargeIsRefusedAndSmallerOnesWork) {
  auto device = NewEmulatedDevice();
  auto table = SmallTable(device, 50);
  auto plain = MakeTable(BasicOptions(kDim));
  const auto train = [&](std::vector<int64_t> keys) {
    const Training training = Sgd(std::move(keys), 1.0f, kDim);
    const bool worked = Worked(Train(training, table.get()));
    if (worked) MT_EXPECT_OK(training.Run(plain.get()));
    return worked;
  };
  EXPECT_TRUE(train(Range(0, 20)));
  device->SetMemory(device->used_bytes() + (30 << 10));
  EXPECT_FALSE(train(Range(0, 2000)));
  std::vector<float> values(2000 * kDim);
  EXPECT_FALSE(Worked(table->Lookup(Range(0, 2000), values.data())));
  for (int64_t from = 0; from < 60; from += 20) EXPECT_TRUE(train(Range(from, from + 20)));
  ExpectSameTables(plain.get(), table.get());
}

// All rows are dirty, and there is memory to hand down a few of them at a time.
TEST(OutOfHbm, RowsAreSavedInSmallerPieces) {
  auto device = NewEmulatedDevice();
  constexpr int kRows = 3000;
  auto table = SmallTable(device, kRows);
  auto plain = MakeTable(BasicOptions(kDim));
  for (int64_t from = 0; from < kRows / 2; from += 100) {
    const Training training = Sgd(Range(from, from + 100), 1.0f, kDim);
    MT_ASSERT_OK(Train(training, table.get()));
    MT_ASSERT_OK(training.Run(plain.get()));
  }
  device->SetMemory(device->used_bytes() + (20 << 10));
  ExpectSameTables(plain.get(), table.get());
}

}  // namespace
}  // namespace multitier::hbm::out_of_hbm_test
