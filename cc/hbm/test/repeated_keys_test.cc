// Keys that are in a batch many times. An update on the device has the bits of the table on the CPU if no key is there more
// than 256 times. Of other keys it sums pieces of 256, and then the sums: the bits of an update on the CPU with these sums as
// entries.

#include <algorithm>
#include <map>
#include <vector>

#include "cc/device/kernels/kernels.h"
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

// The training with the pieces of those keys as entries.
Training InPieces(const Training& training, int dim) {
  const auto d = static_cast<size_t>(dim);
  std::map<int64_t, std::vector<size_t>> of_keys;
  for (size_t i = 0; i < training.keys.size(); ++i) of_keys[training.keys[i]].push_back(i);
  Training pieces = training;
  pieces.keys.clear();
  pieces.grads.clear();
  for (const auto& [key, entries] : of_keys) {
    const size_t piece = entries.size() > device::kPieceEntries ? device::kPieceEntries : 1;
    for (size_t begin = 0; begin < entries.size(); begin += piece) {
      const size_t end = std::min(begin + piece, entries.size());
      std::vector<float> sum(training.grads.begin() + static_cast<int64_t>(entries[begin] * d),
                             training.grads.begin() + static_cast<int64_t>((entries[begin] + 1) * d));
      for (size_t i = begin + 1; i < end; ++i) {
        for (size_t e = 0; e < d; ++e) sum[e] += training.grads[entries[i] * d + e];
      }
      pieces.keys.push_back(key);
      pieces.counts.push_back(static_cast<int64_t>(end - begin));
      pieces.grads.insert(pieces.grads.end(), sum.begin(), sum.end());
    }
  }
  return pieces;
}

enum class Path { kHost, kDevice, kPlan };

class RepeatedKeys : public testing::TestWithParam<Path> {};

TEST_P(RepeatedKeys, HaveTheBitsOfTheCpuInPiecesAfterEachUpdate) {
  std::mt19937_64 random(29);
  uint64_t values = 0;
  for (const UpdateRule* rule : RulesWithKernels()) {
    for (const int hbm_rows : {8, 100}) {
      const int dim = hbm_rows == 8 ? 5 : 4;
      Pair pair(dim, hbm_rows, random(), /*dram_rows=*/8, /*values=*/++values);
      for (const auto& times :
           std::vector<std::vector<size_t>>{{256, 1, 3, 255}, {257, 1, 3, 256, 300, 1, 1, 1, 1, 2}, {1500, 300, 2}}) {
        const Training training = SomeTraining(rule, Repeated(times, &random), dim, &random);
        MT_ASSERT_OK(InPieces(training, dim).Run(pair.plain.get()));
        DeviceCaller caller(pair.device);
        DevicePlan plan;
        if (GetParam() == Path::kHost) {
          MT_ASSERT_OK(Train(training, pair.table.get()));
        } else if (GetParam() == Path::kDevice) {
          MT_ASSERT_OK(caller.Apply(training, pair.table.get()));
        } else {
          MT_ASSERT_OK(pair.table->AddSlots(SlotColumns(*rule, dim)));
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
