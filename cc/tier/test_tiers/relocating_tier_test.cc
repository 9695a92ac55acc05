#include "cc/tier/test_tiers/relocating_tier.h"

#include "cc/tier/tier_conformance.h"

namespace multitier::relocating_tier_test {
namespace {

INSTANTIATE_TEST_SUITE_P(Relocating, TierConformanceTest,
                         testing::Values(TierTestCase{"Relocating",
                                                      [](std::shared_ptr<const RowLayout>) -> std::unique_ptr<Tier> {
                                                        return std::make_unique<RelocatingTier>(1);
                                                      },
                                                      nullptr}),
                         TierTestName);

}  // namespace
}  // namespace multitier::relocating_tier_test
