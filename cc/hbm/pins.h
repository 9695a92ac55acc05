// HbmTable::Pins: which prefetches keep rows in HBM, and until when. The pins themselves are in the slots of the table on the
// device (kPinAhead), so only the device knows which rows were used since.
//
// How many rows are pinned is known without the device: what the last sweep found, and since then what prefetches pinned and
// what operations used. An operation's uses come down with its other numbers. If a sweep ran after its find, the sweep has seen
// them.
//
// Thread-safe. Its lock comes behind turn_ and before enqueue_.

#ifndef CC_HBM_PINS_H_
#define CC_HBM_PINS_H_

#include <algorithm>
#include <atomic>
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
  // All rows left HBM.
  void Forget();

  // An operation used pinned rows that were pinned when `sweeps` sweeps had been enqueued. No lock.
  void Used(int64_t rows, uint64_t sweeps) {
    if (sweeps == sweeps_) used_ += rows;
  }
  uint64_t sweeps() const { return sweeps_; }
  // How many rows are pinned. A row whose time is over counts until the next sweep, unless the time of all is over. No lock.
  int64_t Count() const { return latest_ <= Now() ? 0 : std::max<int64_t>(0, counted_ - used_); }

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
  int64_t reserved_ MT_GUARDED_BY(mutex_) = 0;  // rows that running prefetches may pin
  // Changed under mutex_, except used_.
  std::atomic<int64_t> counted_{0};  // rows that are pinned, or were and have been used since
  std::atomic<int64_t> used_{0};     // of them
  std::atomic<uint64_t> sweeps_{0};
  std::atomic<uint64_t> latest_{0};  // when the time of all is over
};

}  // namespace multitier::hbm

#endif  // CC_HBM_PINS_H_
