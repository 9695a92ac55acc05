// The tier oracle (tier_oracle.h) over every order of test tiers and every admission filter.

#include "cc/table/tier_oracle.h"

namespace multitier {
namespace {

class TierOracle : public testing::TestWithParam<ChainCase> {
 protected:
  void Run(const AdmissionSpec& admission, int rounds) {
    const ChainCase chain = GetParam();
    RunOracle([chain](uint64_t row_bytes, uint64_t seed, TableOptions* options) { PutChain(chain, row_bytes, seed, options); },
              admission, rounds);
  }
};

TEST_P(TierOracle, EveryKeyAdmittedGivesTheSameBits) { Run(AdmissionSpec(), 400); }

TEST_P(TierOracle, CounterFilterGivesTheSameBits) {
  AdmissionSpec admission;
  admission.kind = AdmissionKind::kCounter;
  admission.filter_freq = 3;
  Run(admission, 250);
}

TEST_P(TierOracle, BloomFilterGivesTheSameBits) {
  AdmissionSpec admission;
  admission.kind = AdmissionKind::kBloom;
  admission.filter_freq = 3;
  admission.max_element_size = 100;
  Run(admission, 150);
}

TEST_P(TierOracle, ProbabilisticAdmissionGivesTheSameBits) {
  AdmissionSpec admission;
  admission.kind = AdmissionKind::kProbabilistic;
  admission.probability = 0.4;
  admission.seed = 5;
  Run(admission, 150);
}

INSTANTIATE_TEST_SUITE_P(Chains, TierOracle, testing::ValuesIn(AllChains()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier
