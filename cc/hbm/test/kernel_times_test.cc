#include "cc/hbm/check/kernel_times.h"

#include "cc/hbm/check/row_times.h"
#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::kernel_times_test {
namespace {

void ExpectTimes(const std::string& json, const std::vector<const char*>& names) {
  for (const char* name : names) {
    const std::string member = StrCat("\"", name, "\": {\"seconds\": ");
    const size_t at = json.find(member);
    ASSERT_NE(at, std::string::npos) << name << " in " << json;
    EXPECT_GT(std::stod(json.substr(at + member.size())), 0) << json;
  }
}

TEST(KernelTimes, EveryKernelIsTimedOnAnyDevice) {
  KernelTimesOptions options;
  options.index_rows = 500;
  options.value_rows = 300;
  options.value_dim = 8;
  options.batch = kSanitized ? 40 : 200;
  options.repeats = 2;
  const auto times = MeasureKernels(NewEmulatedDevice(), options);
  MT_ASSERT_OK(times.status());
  ExpectTimes(*times, {"find_all", "find_60_percent", "insert_and_evict", "gather", "copy"});
}

TEST(KernelTimes, EveryStepOfAGroupIsTimedOnAnyDevice) {
  RowTimesOptions options;
  options.entries = kSanitized ? 60 : 300;
  options.tables = 3;
  options.distinct = 60;
  options.rows = 64;
  options.dim = 8;
  options.hot_entries = 40;
  options.repeats = 2;
  const auto times = MeasureRows(NewEmulatedDevice(), options);
  MT_ASSERT_OK(times.status());
  ExpectTimes(*times, {"dedup", "sort", "values_dim_8", "values_dim_16", "values_dim_64", "values_dim_128", "gradients_uniform",
                       "gradients_one_key_of_90_percent", "update_sgd", "update_adagrad", "update_adam"});
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
