// UpdateRule: the arithmetic of one optimizer on rows. Each rule has its own file.
//
// A rule is stateless. It names its slots (columns of the row) and its hyperparameters (scalars that each apply passes). It
// updates a batch of distinct rows in memory. Updates cannot fail.
//
// Arithmetic: +, -, x, / and square root of IEEE float32, never contracted to FMA. The order of operations is that of
// TensorFlow's sparse kernel of the same optimizer. So results do not depend on the ISA, the batch or the number of threads.
// Reductions over a row (rowwise Adagrad) use 16 lanes: lane l sums elements l, l + 16, ... in order. Then the lanes are added
// pairwise (l with l + 8, then + 4, + 2, + 1). Subnormals are kept, although TensorFlow's worker threads flush them by default.
//
// registry.cc lists the rules. tf_multitier/_src/training/rules.py finds the rule of a Python optimizer, with its slots and
// hyperparameters.
// tests/util/reference_rules.py has the same arithmetic in NumPy.
//
// Thread-safe: rules are immutable. Update() needs exclusive access to its rows.

#ifndef CC_OPTIMIZER_UPDATE_RULE_H_
#define CC_OPTIMIZER_UPDATE_RULE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/row/row_layout.h"

namespace multitier {

// A slot that a rule needs in every row.
struct SlotSpec {
  const char* name;             // the name for the optimizer's get_slot(): "accumulator", "m"
  bool per_row;                 // true: one element per row (rowwise rules); false: `dim` elements
  float default_initial_value;  // used if the caller gives none
};

// Distinct rows and their gradients.
struct UpdateBatch {
  uint8_t* const* rows;       // [n] row data; the value column is at offset 0
  const float* const* grads;  // [n] -> [dim] summed gradient of the row
  size_t n;
  int dim;
  DType value_dtype;             // of the value column; slots are float32
  const uint32_t* slot_offsets;  // [slots().size()] bytes from the row data, in the order of slots()
  const float* hyper;            // [hyperparameters().size()], in that order
};

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // Canonical name: "sgd", "adagrad", ...
  virtual const char* name() const = 0;
  // Per-row slots come last.
  virtual Span<const SlotSpec> slots() const = 0;
  // Names of the scalars that every apply passes, in order: {"learning_rate", "epsilon"}.
  virtual Span<const char* const> hyperparameters() const = 0;
  // InvalidArgument, with the name of the scalar, if a value is out of its range, NaN or infinite. Callers call this before
  // they change anything.
  virtual Status Validate(const float* hyper) const;  // hyper: [hyperparameters().size()]
  // Updates every row of the batch with its gradient. Every rule is lazy: other rows and their slots do not change.
  // REQUIRES: Validate(batch.hyper).ok(); rows are distinct; row data and offsets are aligned to 4 bytes.
  virtual void Update(const UpdateBatch& batch) const = 0;
};

// The rule with that name. InvalidArgument, with a list of the supported names, if there is none.
Result<const UpdateRule*> FindUpdateRule(const std::string& name);
// All rules, sorted by name.
std::vector<const UpdateRule*> AllUpdateRules();

}  // namespace multitier

#endif  // CC_OPTIMIZER_UPDATE_RULE_H_
