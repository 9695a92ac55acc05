// MeasureRows: how long the kernels of a group take that work on entries and rows: dedup, sort, gradients, values, updates.

#ifndef CC_HBM_CHECK_ROW_TIMES_H_
#define CC_HBM_CHECK_ROW_TIMES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/status.h"
#include "cc/device/device.h"

namespace multitier::hbm {

struct RowTimesOptions {
  uint32_t entries = 1u << 20;  // of a batch, of `tables` tables
  uint32_t tables = 10;
  uint32_t distinct = 350000;    // keys of a batch at most
  uint32_t rows = 4u << 20;      // that the keys of a batch are drawn from
  uint32_t dim = 128;            // of gradients and updates
  uint32_t hot_entries = 65536;  // of the batch in which one key has 90 % of the entries
  int repeats = 20;
};

// A JSON object: dedup, sort, values of dims 8 to 128, gradients of a uniform batch and of one with a hot key, updates of
// several rules. By events; the inputs of one launch are not those of the launch before.
Result<std::string> MeasureRows(const std::shared_ptr<device::Device>& device, const RowTimesOptions& options);

}  // namespace multitier::hbm

#endif  // CC_HBM_CHECK_ROW_TIMES_H_
