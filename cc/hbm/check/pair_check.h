// CheckPair: runs the same batches on tables of two devices and compares every bit that each launch function of DeviceKernels
// defines.
//
// The check of a GPU compares a GPU with the emulated device, a test compares two emulated devices with other seeds. A batch
// goes through the steps of PairSide::Steps, one for each function: those of a training step over several tables, as one batch
// and as a group with members of every form; prefetched rows; rows that leave. Batches take turns with the update rules.

#ifndef CC_HBM_CHECK_PAIR_CHECK_H_
#define CC_HBM_CHECK_PAIR_CHECK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/device/device.h"
#include "cc/device/kernels/kernels.h"

namespace multitier::hbm {

struct PairCheckOptions {
  static constexpr uint32_t kRules = static_cast<uint32_t>(device::DeviceRule::kFtrlPowerShrinkage) + 1;
  uint64_t seed = 1;
  uint32_t rows = 200;    // of each table
  uint32_t keys = 500;    // distinct keys of a table in all batches
  uint32_t entries = 60;  // of a member at most
  uint32_t batches = kRules;
  uint32_t dim = 17;        // floats of a value at most
  uint32_t first_rule = 0;  // of the first batch
};

// OK, or the first difference: batch, launch function, array, position and both values.
Status CheckPair(const std::shared_ptr<device::Device>& a, const std::shared_ptr<device::Device>& b,
                 const PairCheckOptions& options);

// The launch functions that it calls, in the order of a batch.
std::vector<std::string> LaunchesOfPairCheck();

}  // namespace multitier::hbm

#endif  // CC_HBM_CHECK_PAIR_CHECK_H_
