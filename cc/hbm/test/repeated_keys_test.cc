// Keys that are in a batch many times: an update on the device has the bits of the table on the CPU, however often a key
// repeats.

#include "cc/hbm/test/device_caller.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::repeated_keys_test {
namespace {

// Each key this number of times, mixed.
std::vector<int64_t> Repeated(const std::vector<size_t>& times, std::mt19937_64* random) {
  std::vector<int64_t> keys;
  for (size_t k = 0; k < times.size(); ++k) keys.insert(keys.end(), times[k], static_cast<int64_t>(k));
  std::shuffle(keys.begin(), keys.end(), *random);
  return keys;
}

enum class Path { kHost, kDevice, kPlan };

class RepeatedKeys : public testing::TestWithParam<Path> {};

TEST_P(RepeatedKeys, HaveTheBitsOfTheCpuAfterEachUpdate) {
  constexpr int kDim = 5;
  std::mt19937_64 random(29);
  for (const UpdateRule* rule : RulesWithKernels()) {
    for (const int hbm_rows : {6, 100}) {
      Pair pair(kDim, hbm_rows, random());
      for (const auto& times : std::vector<std::vector<size_t>>{{257, 1, 3, 256, 300, 1, 1, 1, 1, 2}, {1500, 300, 2}}) {
        const Training training = SomeTraining(rule, Repeated(times, &random), kDim, &random);
        MT_ASSERT_OK(training.Run(pair.plain.get()));
        DeviceCaller caller(pair.device);
        DevicePlan plan;
        if (GetParam() == Path::kHost) {
          MT_ASSERT_OK(Train(training, pair.table.get()));
        } else if (GetParam() == Path::kDevice) {
          MT_ASSERT_OK(caller.Apply(training, pair.table.get()));
        } else {
          MT_ASSERT_OK(pair.table->AddSlots(SlotColumns(*rule, kDim)));
          caller.LookupAll(pair.table.get(), training.keys, &plan);
          MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));
        }
      }
      ExpectSameTables(pair.plain.get(), pair.table.get());
      if (testing::Test::HasFailure()) FAIL() << rule->name() << " with " << hbm_rows << " rows of HBM";
      if (kSanitized) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, RepeatedKeys, testing::Values(Path::kHost, Path::kDevice, Path::kPlan));

}  // namespace
}  // namespace multitier::hbm::repeated_keys_test
