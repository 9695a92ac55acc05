// The tier oracle (cc/table/test/tier_oracle.h) over four rows of HBM above DRAM and tiers below it: the bits of DRAM alone.
// Half of the lookups and trainings are operations with device memory.

#include "cc/hbm/hbm_above.h"
#include "cc/hbm/test/device_caller.h"
#include "cc/hbm/test/hbm_test_util.h"
#include "cc/table/test/tier_oracle.h"

namespace multitier::hbm {
namespace {

struct HbmChain {
  ChainCase chain;
  bool dram_alone;     // nothing below DRAM, which has no bound
  bool grows = false;  // HBM keeps every row
};

std::vector<HbmChain> HbmChains() {
  std::vector<HbmChain> chains = {{{"HbmOverDram", true, -1, false, 0}, true}, {{"HbmAlone", true, -1, false, 0}, true, true}};
  for (const ChainCase& chain : AllChains()) {
    if (!kSanitized || chain.middle_rows == 3) chains.push_back({chain, false});
  }
  return chains;
}

// A caller of the table's device.
DeviceCaller CallerOf(const HbmTable& table) {
  return DeviceCaller(std::shared_ptr<device::Device>(&DeviceOf(table), [](device::Device*) {}));
}

std::vector<float> LookUpOnDevice(EmbeddingTable* table, const std::vector<int64_t>& keys, ReadFor reason) {
  HbmTable* const hbm = HbmTableOf(table);
  DeviceCaller caller = CallerOf(*hbm);
  DeviceMember member = caller.Plain(hbm, keys);
  member.reason = reason;
  MT_EXPECT_OK(caller.Lookup({member}));
  return caller.Values(member);
}

// With a plan, or without one.
Status TrainOnDevice(EmbeddingTable* table, const Training& training, uint64_t random) {
  HbmTable* const hbm = HbmTableOf(table);
  DeviceCaller caller = CallerOf(*hbm);
  if (!training.counts.empty() || random % 2 == 0) return caller.Apply(training, hbm, false);
  MT_RETURN_IF_ERROR(hbm->AddSlots(SlotColumns(*training.rule, hbm->dim())));
  DevicePlan plan;
  caller.LookupAll(hbm, training.keys, &plan);
  return caller.Update(plan, {caller.UpdateOf(training, 0)});
}

class HbmOracle : public testing::TestWithParam<HbmChain> {
 protected:
  void Run(const AdmissionSpec& admission, int rounds) {
    const HbmChain chain = GetParam();
    const PutTiers put = [chain](uint64_t row_bytes, uint64_t seed, bool, TableOptions* options) {
      if (chain.dram_alone) {
        options->dram_budget_bytes = 0;
      } else {
        PutChain(chain.chain, row_bytes, seed, options);
      }
      options->above = HbmOver(NewEmulatedDevice(seed), chain.grows ? 1 : 0);
      options->hbm_budget_bytes = chain.grows ? kUnboundedBytes : 4 * row_bytes / 3;  // as much as the DRAM of the oracle
    };
    RunOracle(put, admission, rounds, OtherForm{LookUpOnDevice, TrainOnDevice});
  }
};

constexpr int kRounds = 24;  // of a table without HBM: see Rounds()

TEST_P(HbmOracle, EveryKeyAdmittedGivesTheSameBits) { Run(AdmissionSpec(), 2 * kRounds); }
TEST_P(HbmOracle, CounterFilterGivesTheSameBits) { Run(AllFilters()[0], kRounds); }
TEST_P(HbmOracle, BloomFilterGivesTheSameBits) { Run(AllFilters()[1], kRounds); }
TEST_P(HbmOracle, ProbabilisticAdmissionGivesTheSameBits) { Run(AllFilters()[2], kRounds); }

INSTANTIATE_TEST_SUITE_P(Chains, HbmOracle, testing::ValuesIn(HbmChains()),
                         [](const auto& info) { return std::string(info.param.chain.name); });

}  // namespace
}  // namespace multitier::hbm
