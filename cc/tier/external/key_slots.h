// KeySlots: the headers of an external tier's records, by location and by key. They are in memory, and nowhere else.
//
// A location is a slot of a dense array, from a list of free slots. The slots in use are also the entries of a hash table with
// chains. A key may have several: the newest, and those whose row the store has no longer, until they are released. 32 bytes
// and 4 to 8 of the hash table for each.
//
//   free -> held -> hidden -> free      Add, Hide or another Add of the key, Release
//                <- Show
//
// Not thread-safe.

#ifndef CC_TIER_EXTERNAL_KEY_SLOTS_H_
#define CC_TIER_EXTERNAL_KEY_SLOTS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cc/base/hash.h"
#include "cc/base/prefetch.h"
#include "cc/tier/tier.h"

namespace multitier {

class KeySlots {
 public:
  static constexpr uint32_t kNone = kNoLocation;

  struct Slot {
    int64_t key = 0;
    int64_t version = 0;
    uint32_t frequency = 0;
    uint32_t number = 0;    // of Adds: tells two records of a slot apart
    uint32_t next = kNone;  // in the chain, or of free slots
    uint32_t num_columns : 30;
    uint32_t used : 1;
    uint32_t hidden : 1;

    Slot() : num_columns(0), used(0), hidden(0) {}
  };
  static_assert(sizeof(Slot) == 32);

  // Hides the key's record, if it has one. REQUIRES: end() < kNoLocation
  uint32_t Add(const RecordHeader& header);
  // Of a used slot.
  void Release(uint32_t location);
  // The record of a key that is not hidden, or kNone.
  uint32_t Find(int64_t key) const;
  void Hide(uint32_t location) { slots_[location].hidden = true; }
  // Undoes Hide, unless the slot has another record by now.
  void Show(uint32_t location, uint32_t number);
  void SetColumns(uint32_t location, uint32_t num_columns) { slots_[location].num_columns = num_columns; }

  // Null: the location has no record, or a hidden one.
  const Slot* held(uint32_t location) const {
    return location < slots_.size() && slots_[location].used && !slots_[location].hidden ? &slots_[location] : nullptr;
  }
  // Whether the location has a record of that key, hidden or not.
  bool Has(uint32_t location, int64_t key) const {
    return location < slots_.size() && slots_[location].used && slots_[location].key == key;
  }
  // Brings the slot of a location, and what Find and Add read of a key first, into the processor's cache.
  void Prefetch(uint32_t location) const {
    if (location < slots_.size()) PrefetchLine(&slots_[location]);
  }
  void PrefetchKey(int64_t key) const {
    if (!heads_.empty()) PrefetchLine(&heads_[HashKey(key) & (heads_.size() - 1)]);
  }
  // The same of the first slot of the key's chain.
  void PrefetchChain(int64_t key) const {
    if (!heads_.empty()) Prefetch(heads_[HashKey(key) & (heads_.size() - 1)]);
  }
  uint32_t end() const { return static_cast<uint32_t>(slots_.size()); }
  int64_t used() const { return used_; }
  size_t resident_bytes() const { return slots_.capacity() * sizeof(Slot) + heads_.capacity() * sizeof(uint32_t); }

 private:
  uint32_t* HeadOf(int64_t key);
  void Grow();

  std::vector<Slot> slots_;
  std::vector<uint32_t> heads_;  // a power of two
  uint32_t free_ = kNone;
  uint32_t adds_ = 0;
  int64_t used_ = 0;
};

}  // namespace multitier

#endif  // CC_TIER_EXTERNAL_KEY_SLOTS_H_
