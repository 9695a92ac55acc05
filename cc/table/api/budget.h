// Budget: how much a tier may hold, as bytes of row data or as rows. With bytes, fewer rows fit once an optimizer adds slots; a
// number of rows stays. demoter.h keeps tiers within it.

#ifndef CC_TABLE_API_BUDGET_H_
#define CC_TABLE_API_BUDGET_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "cc/base/status.h"

namespace multitier {

class Budget {
 public:
  static constexpr uint64_t kNoBound = ~uint64_t{0} >> 1;

  Budget() : Budget(0, false) {}  // no bound
  static Budget Bytes(uint64_t n) { return Budget(n, false); }
  static Budget Rows(uint64_t n) { return Budget(n, true); }
  // At most one of the two is given; neither: no bound.
  static Budget Of(uint64_t bytes, uint64_t rows) { return rows != 0 ? Rows(rows) : Bytes(bytes); }

  bool bounded() const { return amount_ != 0; }
  bool in_rows() const { return in_rows_ != 0; }
  // kNoBound where there is none.
  uint64_t rows(size_t row_bytes) const { return !bounded() ? kNoBound : in_rows_ ? amount_ : amount_ / row_bytes; }
  // 0 where there is no bound.
  uint64_t bytes(size_t row_bytes) const { return in_rows_ ? amount_ * row_bytes : amount_; }
  // "64 bytes" or "4 rows"
  std::string text() const { return StrCat(static_cast<uint64_t>(amount_), in_rows_ ? " rows" : " bytes"); }

 private:
  Budget(uint64_t amount, bool in_rows) : in_rows_(in_rows), amount_(amount) {}
  // One word, so that an atomic needs no lock.
  uint64_t in_rows_ : 1;
  uint64_t amount_ : 63;
};

}  // namespace multitier

#endif  // CC_TABLE_API_BUDGET_H_
