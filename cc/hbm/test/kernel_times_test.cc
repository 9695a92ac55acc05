#include "cc/hbm/check/kernel_times.h"

#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::kernel_times_test {
namespace {

TEST(KernelTimes, EveryKernelIsTimedOnAnyDevice) {
  KernelTimesOptions options;
  options.index_rows = 500;
  options.value_rows = 300;
  options.value_dim = 8;
  options.batch = kSanitized ? 40 : 200;
  options.repeats = 2;
  const auto times = MeasureKernels(NewEmulatedDevice(), options);
  MT_ASSERT_OK(times.status());
  for (const char* name : {"find_all", "find_60_percent", "insert_and_evict", "gather", "copy"}) {
    EXPECT_NE(times->find(StrCat("\"", name, "\": {\"seconds\": ")), std::string::npos) << *times;
  }
}

// The table of docs/benchmarks.md.
TEST(KernelTimes, BytesOfAKeyAreThoseOfTheLayout) {
  EXPECT_EQ(FindBytes(1.0), 248);
  EXPECT_NEAR(FindBytes(0.6), 209.6, 1e-9);
  EXPECT_EQ(FindBytes(0.0), 152);
  EXPECT_EQ(GatherBytes(128), 1036);
  constexpr uint32_t kStride = sizeof(device::DeviceRowHeader) + 4 * sizeof(float);
  EXPECT_NEAR(InsertBytes(1e-9, kStride), 768 + 484 + 2 * kStride, 1e-3);  // each miss has a bucket of its own
  EXPECT_NEAR(InsertBytes(1.0, kStride), 1033.5, 0.1);
  // Memory: a slot, and the header of a row.
  EXPECT_EQ(sizeof(uint8_t) + sizeof(device::Slot) + sizeof(uint32_t), 21u);
  EXPECT_EQ(sizeof(device::DeviceRowHeader), 16u);
}

}  // namespace
}  // namespace multitier::hbm::kernel_times_test
