// PairCheck: runs the same batches on tables of two devices and compares every
// bit that the kernels define.
//
// The GPU's check compares a GPU with the emulated device, a test compares two
// emulated devices with other seeds. One batch is a whole training step: dedup,
// find, stage, insert with eviction, exchange, gather, sum, sort, update, and
// the rows that leave.

#ifndef CC_HBM_CHECK_PAIR_CHECK_H_
#define CC_HBM_CHECK_PAIR_CHECK_H_

#include <cstdint>
#include <memory>
#include <random>
#include <string>

#include "cc/base/status.h"
#include "cc/device/device.h"
#include "cc/device/kernels/kernels.h"

namespace multitier::hbm {

struct PairCheckOptions {
  uint64_t seed = 1;
  uint32_t rows = 1000;  // of the table
  uint32_t keys = 5000;  // distinct keys in all batches
  uint32_t batch = 700;  // keys of a batch at most
  uint32_t batches = 10;
  uint32_t dim = 17;  // floats of a value
  device::RankBy rank_by = device::RankBy::kNothing;
  device::DeviceRule rule = device::DeviceRule::kAdagrad;
};

// OK, or the first difference: batch, step, array, position and both values.
Status CheckPair(const std::shared_ptr<device::Device>& a, const std::shared_ptr<device::Device>& b,
                 const PairCheckOptions& options);

}  // namespace multitier::hbm

#endif  // CC_HBM_CHECK_PAIR_CHECK_H_
