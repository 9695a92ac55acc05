// MeasureKernels: how long find, insert with eviction and gather take on a
// device.

#ifndef CC_HBM_CHECK_KERNEL_TIMES_H_
#define CC_HBM_CHECK_KERNEL_TIMES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/status.h"
#include "cc/device/device.h"

namespace multitier::hbm {

struct KernelTimesOptions {
  uint32_t index_rows = 96u << 20;  // of the table of find and insert, with values of 4 floats
  uint32_t value_rows = 8u << 20;   // of the table of gather
  uint32_t value_dim = 128;
  uint32_t batch = 1u << 20;  // distinct keys; those that have rows are drawn from all rows, by a permutation
  int repeats = 20;           // each with keys of its own; the median is given
};

// Bytes of device memory that a key moves, from the layout of the table and of
// the arrays of a batch. What lies scattered counts as whole sectors of 32
// bytes. Not counted: slots whose digest is that of another key.
//
// hits: the share of the keys that have a row.
double FindBytes(double hits);
// A miss of which each finds a place, all steps from compact to exchange. Misses
// of one bucket share the read of its 128 slots.
double InsertBytes(double misses_a_bucket, uint32_t row_stride);
double GatherBytes(uint32_t dim);

// A JSON object: seconds of each, keys a second, bytes a key, bytes a second.
// Wall time from the launch until the stream is done.
Result<std::string> MeasureKernels(const std::shared_ptr<device::Device>& device, const KernelTimesOptions& options);

}  // namespace multitier::hbm

#endif  // CC_HBM_CHECK_KERNEL_TIMES_H_
