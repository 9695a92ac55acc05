// EmaRule: any rule, and then the moving average of the value, named "<rule>+ema".
//
//   the rule's own step                                             old value -> new value
//   average = ema_momentum * average + (1 - ema_momentum) * new value
//
// Its slots are average_offset, which is average - value, and then the rule's. So the average of a new row, or of one that had
// no such slot, begins with its value:
//
//   average_offset = ema_momentum * (average_offset + old value - new value)
//
// Its hyperparameters are the rule's, and then ema_momentum; 0 makes the new value the average. As every rule it is lazy: the
// average of a row moves when the row is trained. It follows values of 16 bits as they are stored, after the rounding.
//
// Source: Keras' `use_ema`, which moves the averages of all rows of a dense table in each step.
//
// Immutable. Thread-safe.

#ifndef CC_OPTIMIZER_EMA_RULE_H_
#define CC_OPTIMIZER_EMA_RULE_H_

#include <string>
#include <vector>

#include "cc/optimizer/update_rule.h"

namespace multitier {

class EmaRule final : public UpdateRule {
 public:
  static constexpr char kSuffix[] = "+ema";

  explicit EmaRule(const UpdateRule* rule);  // keeps its address

  const char* name() const override { return name_.c_str(); }
  Span<const SlotSpec> slots() const override { return Span<const SlotSpec>(slots_.data(), slots_.size()); }
  Span<const char* const> hyperparameters() const override {
    return Span<const char* const>(hyper_names_.data(), hyper_names_.size());
  }
  Status Validate(const float* hyper) const override;
  void Update(const UpdateBatch& batch) const override;

  // Update is Begin, rule().Update(OfRule(batch)) and End. For an update that rounds values by itself. REQUIRES: as Update
  void Begin(const UpdateBatch& batch) const;  // makes the slot the average itself, until End
  const UpdateRule& rule() const { return *rule_; }
  static UpdateBatch OfRule(UpdateBatch batch) {
    ++batch.slot_offsets;
    return batch;
  }
  void End(const UpdateBatch& batch) const;

 private:
  const UpdateRule* const rule_;
  const std::string name_;
  std::vector<SlotSpec> slots_;
  std::vector<const char*> hyper_names_;
};

}  // namespace multitier

#endif  // CC_OPTIMIZER_EMA_RULE_H_
