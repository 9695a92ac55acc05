// ReplacementPolicy: which rows of a fast tier are to leave it.
//
// A policy knows rows by their location (a slot number, dense from 0) and is told what happens to them, a batch at a time:
//   1. Insert   rows have come: born, or brought up from below with the frequency they had
//   2. Touch    rows that are there were used, in the order of their last occurrence in the batch
//   3. ChooseVictims   names rows to demote, coldest first; they stay, since demotion may fail or find them used again
//   4. Remove   rows have gone
// A table keeps one for each shard. It owns nothing but its own notes, bounds nothing, and never looks at a row.
//
//   policy          order                                              bytes a row
//   kLru            least recently used first, exact                   8
//   kLfu            least frequency first, of equals the least recently used, exact    12
//   kDefault        probation_clock.h: scan-resistant, near kLfu's hit rate at less than kLru's cost    3
//
// Not thread-safe: used under the shard's lock.

#ifndef CC_POLICY_REPLACEMENT_H_
#define CC_POLICY_REPLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cc/base/span.h"

namespace multitier {

enum class Replacement { kDefault, kLru, kLfu };
const char* ReplacementName(Replacement replacement);  // "default", "lru", "lfu"

// A row that came or was used.
struct RowUse {
  uint32_t location = 0;
  uint32_t frequency = 0;  // of the row, this use included
  uint64_t idle = 0;       // of Insert: uses of other rows since this row's last, as far as known; 0 for a new one
};

class ReplacementPolicy {
 public:
  // Whether a row must not be chosen now.
  using Pinned = std::function<bool(uint32_t location)>;

  static std::unique_ptr<ReplacementPolicy> Create(Replacement replacement);
  virtual ~ReplacementPolicy() = default;

  // REQUIRES: the locations hold no row yet
  virtual void Insert(Span<const RowUse> rows) = 0;
  // REQUIRES (as for Remove): the locations hold rows
  virtual void Touch(Span<const RowUse> rows) = 0;
  virtual void Remove(Span<const uint32_t> locations) = 0;
  // Appends n locations to victims, fewer where all others are pinned. Each is named once a call. A second call without
  // Remove or Touch between may name the same ones.
  virtual void ChooseVictims(size_t n, const Pinned& pinned, std::vector<uint32_t>* victims) = 0;
  virtual void Clear() = 0;

  virtual size_t rows() const = 0;
  virtual size_t resident_bytes() const = 0;
};

}  // namespace multitier

#endif  // CC_POLICY_REPLACEMENT_H_
