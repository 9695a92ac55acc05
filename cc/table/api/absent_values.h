// AbsentValues: what a lookup gives for a key without a row.
//
//                     no filter            a filter
//   in training       the initial value    the value of keys that are not admitted
//   in evaluation     the value of eval_initializer, if it is given; else as in training
//
// Values are rounded to the table's value_dtype, as those of rows are.
//
// Immutable. Thread-safe.

#ifndef CC_TABLE_API_ABSENT_VALUES_H_
#define CC_TABLE_API_ABSENT_VALUES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/row/initializer_set.h"

namespace multitier {

struct TableOptions;

// What a lookup is for.
enum class ReadFor { kTraining, kEvaluation };

class AbsentValues {
 public:
  // InvalidArgument: an initializer of the options is none (Initializer::Create).
  static Result<AbsentValues> Of(const TableOptions& options);

  // Writes the values of n keys: out[i] points to dim floats. tables: [n] of the keys, as in InitializerSet.
  void Fill(ReadFor reason, const int64_t* keys, const uint16_t* tables, size_t n, float* const* out) const {
    (reason == ReadFor::kTraining ? training_ : evaluation_)->FillBatch(keys, tables, n, out);
  }
  // What a row of a key begins with.
  const InitializerSet& initial() const { return *initial_; }
  // Whether lookups give table numbers.
  bool have_tables() const { return initial_->tables() > 1; }
  // Whether what a row begins with depends on them.
  bool differ_by_table() const { return initial_->differ_by_table(); }
  // Whether Fill gives that.
  bool are_initial(ReadFor reason) const { return (reason == ReadFor::kTraining ? training_ : evaluation_) == initial_; }

 private:
  std::shared_ptr<const InitializerSet> initial_, training_, evaluation_;
};

// The error of an update that has a key without a row and without a known table.
Status UnknownTable(const std::string& table, size_t tables, int64_t key);

// The table of a key; 0 where it is not known. Nothing may become of the value then, if tables differ.
inline uint16_t KnownTable(Span<const uint16_t> tables, size_t i) {
  return tables.empty() || tables[i] == kNoTable ? uint16_t{0} : tables[i];
}

}  // namespace multitier

#endif  // CC_TABLE_API_ABSENT_VALUES_H_
