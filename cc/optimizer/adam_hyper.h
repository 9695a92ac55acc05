// Slots of Adam and its kin, and hyperparameters of Adam, AdamAmsgrad, AdamAsync and AdamW.

#ifndef CC_OPTIMIZER_ADAM_HYPER_H_
#define CC_OPTIMIZER_ADAM_HYPER_H_

#include "cc/optimizer/rule_kernel.h"

namespace multitier {

inline constexpr SlotSpec kAdamSlots[] = {{"m", false, 0.0f}, {"v", false, 0.0f}};

// The first six hyperparameters, in this order, of each of these rules.
#define MT_ADAM_HYPER                                                                                         \
  {"learning_rate", HyperRange::kFinite}, {"beta1", HyperRange::kBelowOne}, {"beta2", HyperRange::kBelowOne}, \
      {"epsilon", HyperRange::kNonNegative}, {"beta1_power", HyperRange::kBelowOne}, {                        \
    "beta2_power", HyperRange::kBelowOne                                                                      \
  }

}  // namespace multitier

#endif  // CC_OPTIMIZER_ADAM_HYPER_H_
