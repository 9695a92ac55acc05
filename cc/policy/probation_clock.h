// ProbationClock: the default replacement. Rows that were used once pass through without pushing out those in use.
//
//   new rows ->  probation: FIFO, about half of the rows  -- used again meanwhile -->  main: CLOCK
//                     | not used again                                                   ^  | count 0 under the hand
//                     v                                                                  |  v
//                   victim                    rows that were frequent when they left ----'  victim
//
// - A row enters main at once where its frequency, halved for every 8 uses a row of the cache that it was idle, is at least
//   3: the frequency that travels with a demoted row does what a list of ghosts does in other policies.
// - A row in main has a count of 0 to 3: a use adds one, the hand passing takes one, a row at 0 is chosen.
// - A choice takes from probation while that holds more than its share, else from main.
// - The share is what new keys get to prove themselves. A tenth gives up to a point more hits where the keys in use stay the
//   same, and costs 2 to 9 points against LRU where thousands of them change in each batch; half is above LRU in both, without
//   anybody having to find out which of the two it is (docs/benchmarks.md).
//
// One byte a row in a dense array, by location; and 4 bytes for each row in probation. Choosing costs amortized O(1): the
// hand passes a row at most four times before it chooses it, and pinned rows are passed over.
//
// Not thread-safe.

#ifndef CC_POLICY_PROBATION_CLOCK_H_
#define CC_POLICY_PROBATION_CLOCK_H_

#include <deque>
#include <vector>

#include "cc/policy/replacement.h"

namespace multitier {

class ProbationClock : public ReplacementPolicy {
 public:
  void Insert(Span<const RowUse> rows) override;
  void Touch(Span<const RowUse> rows) override;
  void Remove(Span<const uint32_t> locations) override;
  void ChooseVictims(size_t n, const Pinned& pinned, std::vector<uint32_t>* victims) override;
  void Clear() override;
  size_t rows() const override { return rows_in_probation_ + rows_in_main_; }
  size_t resident_bytes() const override;

 private:
  // The byte of a location.
  enum : uint8_t {
    kCountMask = 3,    // uses since it came to probation, or the count in main
    kProbation = 4,
    kMain = 8,
    kQueued = 16,      // the location stands in probation_, be it of a row that has gone
    kChosen = 32,      // by the running call
  };

  bool IsFrequent(const RowUse& row) const;
  // The next row of probation that was not used again, or kNone: moves those that were to main.
  uint32_t NextOfProbation(const Pinned& pinned);
  uint32_t NextOfMain(const Pinned& pinned);

  std::vector<uint8_t> state_;
  std::deque<uint32_t> probation_;  // oldest first
  size_t hand_ = 0;
  size_t rows_in_probation_ = 0;
  size_t rows_in_main_ = 0;
};

}  // namespace multitier

#endif  // CC_POLICY_PROBATION_CLOCK_H_
