// UpdateStochastically: an update of rows whose values have 16 bits, with stochastic rounding (value_codec.h).
//
// The random bits of an element are one word of Philox4x32-10: of key (upper word of the step, "STOC") and counter (number of
// the group of four elements, lower and upper word of the embedding key, lower word of the step). So they depend on nothing
// else, and two runs are equal.
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
