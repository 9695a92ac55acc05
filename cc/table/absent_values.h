// AbsentValues: what a lookup gives for a key without a row.
//
//                     no filter            a filter
//   in training       the initial value    the value of keys that are not admitted
//   in evaluation     the value of eval_initializer, if it is given; else as in training
//
// Values are rounded to the table's value_dtype, as those of rows are.
//
// Immutable. Thread-safe.

#ifndef CC_TABLE_ABSENT_VALUES_H_
#define CC_TABLE_ABSENT_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/status.h"
#include "cc/row/initializer.h"

namespace multitier {

struct TableOptions;

// What a lookup is for.
enum class ReadFor { kTraining, kEvaluation };

class AbsentValues {
 public:
  // InvalidArgument: an initializer of the options is none (Initializer::Create).
  static Result<AbsentValues> Of(const TableOptions& options);

  // Writes the values of n keys: out[i] points to dim floats.
  void Fill(ReadFor reason, const int64_t* keys, size_t n, float* const* out) const {
    (reason == ReadFor::kTraining ? training_ : evaluation_)->FillBatch(keys, n, out);
  }
  // What a row of a key begins with.
  const Initializer& initial() const { return *initial_; }
  // Whether Fill gives that.
  bool are_initial(ReadFor reason) const { return (reason == ReadFor::kTraining ? training_ : evaluation_) == initial_; }

 private:
  std::shared_ptr<const Initializer> initial_, training_, evaluation_;
};

}  // namespace multitier

#endif  // CC_TABLE_ABSENT_VALUES_H_
