// Two emulated devices with other seeds give the same bits. The check of a GPU is the same, with the GPU as one of the two.

#include "cc/hbm/check/pair_check.h"

#include <gtest/gtest.h>

#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::pair_check_test {
namespace {

TEST(PairCheck, EveryRuleGivesTheSameBitsWithEverySeedOfTheDevice) {
  for (int rule = 0; rule <= static_cast<int>(device::DeviceRule::kFtrlPowerShrinkage); ++rule) {
    PairCheckOptions options;
    options.rule = static_cast<device::DeviceRule>(rule);
    options.seed = static_cast<uint64_t>(rule) + 1;
    options.dim = static_cast<uint32_t>(std::vector<int>{1, 4, 17, 64}[static_cast<size_t>(rule) % 4]);
    options.rank_by = static_cast<device::RankBy>(rule % 3);
    options.batches = kSanitized ? 1 : 3;
    options.rows = 300;
    options.keys = 900;
    options.batch = kSanitized ? 60 : 300;
    MT_EXPECT_OK(CheckPair(NewEmulatedDevice(1), NewEmulatedDevice(options.seed + 7), options));
  }
}

// A device whose gather leaves out the last element of each value.
TEST(PairCheck, ADifferenceIsNamed) {
  auto wrong = device::EmulatedKernels();
  wrong.gather = [](device::Stream stream, const device::GatherArgs& args) {
    device::GatherArgs less = args;
    less.dim = args.dim - 1;
    return device::EmulatedKernels().gather(stream, less);
  };
  auto other = std::make_shared<device::EmulatedDevice>(device::EmulatedDevice::Options(), &wrong);
  const Status status = CheckPair(NewEmulatedDevice(), other, PairCheckOptions());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("batch 0, values, byte"), std::string::npos) << status.ToString();
}

}  // namespace
}  // namespace multitier::hbm::pair_check_test
