// UpdateRule: one optimizer's arithmetic on rows. One rule a file; this header and the registry know them all.
//
// A rule is stateless. It names its slots (columns of the row) and its hyperparameters (scalars passed with each apply)
// and updates a batch of distinct rows in memory, which cannot fail.
//
// Arithmetic: +, -, x, / and square root of IEEE float32, never contracted to FMA, in the order TensorFlow's own sparse
// kernel of that optimizer uses, so that results do not depend on the ISA, the batch or the thread count. Reductions
// over a row (rowwise Adagrad) add in 16 fixed lanes: lane l sums elements l, l + 16, ... in order, then lanes are
// added pairwise (l with l + 8, then + 4, + 2, + 1). Subnormals are kept, whatever the calling thread's mode:
// TensorFlow's worker threads flush them.
//
// The same arithmetic in NumPy: tests/reference_rules.py.
//
// Thread-safe: rules are immutable. Update() needs exclusive access to the rows it is given.

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
  const char* name;              // canonical, as the optimizer's get_slot() calls it: "accumulator", "m"
  bool per_row;                  // one element a row (rowwise rules), else `dim` elements
  float default_initial_value;   // where the caller gives none
};

// Distinct rows to update and what to update them with.
struct UpdateBatch {
  uint8_t* const* rows;          // [n] row data; the value column is at offset 0
  const float* const* grads;     // [n] -> [dim] summed gradient of the row
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
  // Names of the scalars every apply passes, in order: {"learning_rate", "epsilon"}.
  virtual Span<const char* const> hyperparameters() const = 0;
  // InvalidArgument, naming the scalar, where a value is out of its range; NaN and infinities always are. Called before
  // anything changes.
  virtual Status Validate(const float* hyper) const;  // hyper: [hyperparameters().size()]
  // Updates every row of the batch with its gradient. Rows that are not in the batch stay as they are, slots included:
  // every rule is lazy. REQUIRES: Validate(batch.hyper).ok(); rows distinct, their data and offsets aligned to 4 bytes.
  virtual void Update(const UpdateBatch& batch) const = 0;
};

// The rule of that name; InvalidArgument listing the supported names where there is none.
Result<const UpdateRule*> FindUpdateRule(const std::string& name);
// All rules, sorted by name.
std::vector<const UpdateRule*> AllUpdateRules();

}  // namespace multitier

#endif  // CC_OPTIMIZER_UPDATE_RULE_H_
