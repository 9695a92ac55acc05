// The tier oracle (cc/table/tier_oracle.h) over four rows of HBM above DRAM and tiers below it: the bits of DRAM alone.

#include "cc/hbm/hbm_above.h"
#include "cc/hbm/hbm_test_util.h"
#include "cc/table/tier_oracle.h"

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
    RunOracle(put, admission, rounds);
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
