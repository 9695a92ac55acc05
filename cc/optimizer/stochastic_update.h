// UpdateStochastically: an update of rows whose values have 16 bits, with stochastic rounding (value_codec.h) by the bits of
// rounding_bits.h.
//
// Thread-safe, as UpdateRule::Update is.

#ifndef CC_OPTIMIZER_STOCHASTIC_UPDATE_H_
#define CC_OPTIMIZER_STOCHASTIC_UPDATE_H_

#include <cstdint>

#include "cc/optimizer/update_rule.h"

namespace multitier {

// What rule.Update(batch) does, except that values are rounded stochastically. keys: [batch.n]. Slots are the same to the bit.
// REQUIRES: those of UpdateRule::Update; values of 16 bits
void UpdateStochastically(const UpdateRule& rule, const UpdateBatch& batch, const int64_t* keys, int64_t step);

}  // namespace multitier

#endif  // CC_OPTIMIZER_STOCHASTIC_UPDATE_H_
