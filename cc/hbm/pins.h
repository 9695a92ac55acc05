// HbmTable::Pins: which prefetches keep rows in HBM, and until when. The pins themselves are in the slots of the table on the
// device (kPinAhead), so only the device knows which rows were used since.
//
// Thread-safe. Its lock comes behind turn_ and before enqueue_.

#ifndef CC_HBM_PINS_H_
#define CC_HBM_PINS_H_

#include <cstdint>
#include <vector>

#include "cc/hbm/operation.h"

namespace multitier::hbm {

class HbmTable::Pins {
 public:
  explicit Pins(HbmTable* table) : table_(table) {}

  uint64_t Now() const;
  // Gives the number of rows, of `wanted`, that a prefetch may pin: with it, at most `most` are pinned or reserved by all
  // prefetches. It stays reserved until Unreserve. Looks through the table if it must. REQUIRES: as Sweep
  Result<int64_t> Reserve(int64_t wanted, int64_t most);
  void Unreserve(int64_t rows);
  // A prefetch is about to pin rows. Returns the operations of those that end later, ascending.
  std::vector<uint32_t> Add(uint32_t operation, uint64_t until);
  // It has pinned rows that were not pinned.
  void Pinned(int64_t rows);
  // Whether the time of a prefetch is over.
  bool AnyOver() const;
  // Releases the rows of prefetches whose time is over, or of all, and forgets prefetches without pinned rows. Returns how many
  // rows stay pinned. REQUIRES: inside the gate; turn_, or the pins of a prefetch that is under way would be forgotten
  Result<int64_t> Sweep(bool all);
  // How many rows are pinned; while the gate is closed or the device fails, how many there were before.
  int64_t Count();

 private:
  struct Pin {
    uint32_t operation;
    uint64_t until;  // microseconds
  };
  static bool IsBefore(const Pin& a, const Pin& b) { return a.operation < b.operation; }
  // Gives the number of pinned rows of each kept operation.
  Result<std::vector<uint32_t>> SweepDevice(const std::vector<uint32_t>& kept);

  HbmTable* const table_;
  mutable Mutex mutex_;
  std::vector<Pin> pins_ MT_GUARDED_BY(mutex_);
  int64_t counted_ MT_GUARDED_BY(mutex_) = 0;   // rows that are pinned, or were and have been used since
  int64_t reserved_ MT_GUARDED_BY(mutex_) = 0;  // rows that running prefetches may pin
};

}  // namespace multitier::hbm

#endif  // CC_HBM_PINS_H_
