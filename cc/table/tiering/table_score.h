// TableScore: the versions that the updates of one table set (cc/policy/score.h).
//
// The newest version of the table is a maximum: it never decreases, also if custom scores do. The orders of the shards rank new
// rows by it (victim_order.h).
//
// Thread-safe.

#ifndef CC_TABLE_TIERING_TABLE_SCORE_H_
#define CC_TABLE_TIERING_TABLE_SCORE_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <utility>

#include "cc/base/status.h"
#include "cc/policy/score.h"

namespace multitier {

// Raises an atomic maximum.
inline void RaiseTo(std::atomic<int64_t>* maximum, int64_t value) {
  int64_t seen = maximum->load();
  while (seen < value && !maximum->compare_exchange_weak(seen, value)) {
  }
}

inline int64_t WallMicros() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since).count();
}

class TableScore {
 public:
  // newest: the newest version of the table, which outlives this. clock: microseconds.
  TableScore(Score kind, std::atomic<int64_t>* newest, std::function<int64_t()> clock = WallMicros)
      : kind_(kind), newest_(*newest), clock_(std::move(clock)) {}

  Score kind() const { return kind_; }

  // Sets the custom score. *decreased: it is the first that is less than the one before. InvalidArgument for other kinds.
  Status Set(int64_t score, bool* decreased) {
    *decreased = false;
    if (kind_ != Score::kCustom) return InvalidArgumentError("expected a table with score 'custom', found another score");
    const int64_t before = custom_.exchange(score);
    const bool was_set = set_.exchange(true);  // last: an update that sees it reads the score
    *decreased = was_set && score < before && !warned_.exchange(true);
    return OkStatus();
  }
  // FailedPrecondition where updates have no score: a custom one was never set.
  Status Check() const {
    if (kind_ != Score::kCustom || set_.load()) return OkStatus();
    return FailedPreconditionError("expected a score: with score 'custom', set one (set_score) before the first update");
  }
  // The version that an update at `step` sets now, without an effect.
  int64_t Peek(int64_t step) const {
    if (kind_ == Score::kCustom) return custom_.load();
    return kind_ == Score::kTime ? std::max(clock_(), newest_.load()) : step;
  }
  // The version of an update at `step`.
  int64_t Take(int64_t step) {
    const int64_t version = Peek(step);
    RaiseTo(&newest_, version);
    return kind_ == Score::kTime ? newest_.load() : version;
  }
  // The version of a new row that comes without one.
  int64_t OfNewRow() const { return kind_ == Score::kTime || set_.load() ? Peek(0) : newest_.load(); }

 private:
  const Score kind_;
  std::atomic<int64_t>& newest_;
  const std::function<int64_t()> clock_;
  std::atomic<int64_t> custom_{0};
  std::atomic<bool> set_{false};
  std::atomic<bool> warned_{false};
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_TABLE_SCORE_H_
