// PrefetchPins: until when the rows that Prefetch brought up stay in DRAM.
//
// A pin is the flag kRowPrefetched of its row; here is when it ends. A lookup or apply that uses the row takes the flag away
// and nothing else, because lookups run side by side. The end stays here until its time comes or the key is pinned again. A
// pin that is renewed before its use ends when the latest of its calls says. The heap holds all ends in order; an entry that
// is not its key's end any more is skipped.
//
// Owns the ends and the count of flags. Needs the shard's lock; Used() also works under its shared
// side.

#ifndef CC_TABLE_SHARD_PREFETCH_PINS_H_
#define CC_TABLE_SHARD_PREFETCH_PINS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/row/row_layout.h"

namespace multitier {

class PrefetchPins {
 public:
  // Gives a key's row in DRAM, or null.
  using RowOf = std::function<RowHeader*(int64_t key)>;

  explicit PrefetchPins(RowOf row_of) : row_of_(std::move(row_of)) {}

  // Pins a row until `until` (Env's clock, in us), where it is pinned already or `room` says that one more may be. Returns
  // whether the row is newly pinned. A row that is pinned stays so until the later of the two ends.
  bool Pin(RowHeader* row, uint64_t until, bool room);
  // Ends the pins whose time is over.
  void Sweep(uint64_t now);
  // The flag of a row was taken away, or the row is leaving DRAM with it.
  void Used() const { --pinned_; }
  // Rows with the flag.
  int64_t pinned() const { return pinned_.load(); }
  bool empty() const { return heap_.empty(); }
  void Clear();

 private:
  struct End {
    int64_t key;
    uint64_t until;
  };
  static bool Later(const End& a, const End& b) { return a.until > b.until; }
  // Drops the ends of rows that are not pinned any more.
  void Rebuild();

  const RowOf row_of_;
  std::unordered_map<int64_t, uint64_t> ends_;  // by key, of rows that were used, too
  std::vector<End> heap_;                       // of ends, some past; the next on top
  mutable std::atomic<int64_t> pinned_{0};
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_PREFETCH_PINS_H_
