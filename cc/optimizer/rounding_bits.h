// The random bits of stochastic rounding (StoreStochastically), for CPU and GPU.
//
// The bits of an element are one word of Philox4x32-10: of key (upper word of the step, "STOC") and counter (number of the
// group of four elements, lower and upper word of the embedding key, lower word of the step). So they depend on nothing else,
// and two runs are equal.

#ifndef CC_OPTIMIZER_ROUNDING_BITS_H_
#define CC_OPTIMIZER_ROUNDING_BITS_H_

#include <cstdint>

#include "cc/base/host_device.h"
#include "cc/base/philox.h"

namespace multitier {

// Of elements [4 group, 4 group + 4) of the value of a key. step: the number of the apply, among those of the table.
MT_HOST_DEVICE PhiloxBlock RoundingBits(int64_t key, int64_t step, uint32_t group) {
  const auto key_bits = static_cast<uint64_t>(key), step_bits = static_cast<uint64_t>(step);
  return Philox4x32(group, static_cast<uint32_t>(key_bits), static_cast<uint32_t>(key_bits >> 32),
                    static_cast<uint32_t>(step_bits), static_cast<uint32_t>(step_bits >> 32), 0x53544f43u);
}

}  // namespace multitier

#endif  // CC_OPTIMIZER_ROUNDING_BITS_H_
