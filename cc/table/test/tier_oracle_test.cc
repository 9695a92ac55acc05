// The tier oracle (tier_oracle.h) over every order of test tiers and every admission filter.

#include "cc/table/test/tier_oracle.h"

namespace multitier::tier_oracle_test {
namespace {

class TierOracle : public testing::TestWithParam<ChainCase> {
 protected:
  void Run(const AdmissionSpec& admission, int rounds) {
    const ChainCase chain = GetParam();
    const PutTiers put = [chain](uint64_t row_bytes, uint64_t seed, bool, TableOptions* options) {
      PutChain(chain, row_bytes, seed, options);
    };
    RunOracle(put, admission, rounds);
  }
};

TEST_P(TierOracle, EveryKeyAdmittedGivesTheSameBits) { Run(AdmissionSpec(), 300); }
TEST_P(TierOracle, CounterFilterGivesTheSameBits) { Run(AllFilters()[0], 200); }
TEST_P(TierOracle, BloomFilterGivesTheSameBits) { Run(AllFilters()[1], 120); }
TEST_P(TierOracle, ProbabilisticAdmissionGivesTheSameBits) { Run(AllFilters()[2], 120); }

INSTANTIATE_TEST_SUITE_P(Chains, TierOracle, testing::ValuesIn(AllChains()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier::tier_oracle_test
