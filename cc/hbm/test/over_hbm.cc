// Linked into a test of cc/table: every table with lower tiers that the test makes has HBM above them, as large as its DRAM, on
// a device of its own.

#include "cc/hbm/device_rule.h"
#include "cc/hbm/hbm_above.h"
#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm {
namespace {

[[maybe_unused]] const bool kPut = [] {
  TestedAbove& above = AboveOfTests();
  above.slower = static_cast<int>(8 * Stride(2, 10));
  above.runs = [](const UpdateRule& rule) { return DeviceRuleOf(rule, SomeHyper(rule).data()).ok(); };
  above.put = [](TableOptions* options) {
    static uint64_t seed = 0;
    options->above = HbmOver(NewEmulatedDevice(++seed));
    const uint64_t four_rows = 4 * RowLayout::Create(options->dim, DType::kFloat32)->row_bytes();
    options->hbm_budget_bytes = options->dram_budget_bytes != 0 ? options->dram_budget_bytes : four_rows;
  };
  return true;
}();

}  // namespace
}  // namespace multitier::hbm
