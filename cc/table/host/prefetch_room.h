// PrefetchRoom: how many rows the prefetches that run together may still pin.
//
// A prefetch reads from the tiers below between its count of the pinned rows and its own pins. So it reserves its rows first;
// another prefetch counts them as pinned. The rows that a prefetch has pinned are counted twice until it gives up its
// reservation. Then others may bring up fewer rows than would fit.
//
// Owns the number of reserved rows. Called by HostTable::Prefetch. Locks: its mutex comes before those of shards.

#ifndef CC_TABLE_HOST_PREFETCH_ROOM_H_
#define CC_TABLE_HOST_PREFETCH_ROOM_H_

#include <algorithm>
#include <cstdint>

#include "cc/base/mutex.h"

namespace multitier {

class PrefetchRoom {
 public:
  // Rows that one prefetch may pin, until it is destroyed.
  class Reservation {
   public:
    // Up to `wanted` rows, so that reserved and pinned ones together are `most`. `count` gives the number of pinned rows.
    template <typename Count>
    Reservation(PrefetchRoom* room, int64_t wanted, int64_t most, Count count) : room_(*room) {
      MutexLock lock(room_.mutex_);
      rows_ = std::max<int64_t>(0, std::min(wanted, most - room_.reserved_ - count()));
      room_.reserved_ += rows_;
    }
    ~Reservation() {
      MutexLock lock(room_.mutex_);
      room_.reserved_ -= rows_;
    }
    Reservation(const Reservation&) = delete;
    Reservation& operator=(const Reservation&) = delete;

    int64_t rows() const { return rows_; }

   private:
    PrefetchRoom& room_;
    int64_t rows_ = 0;
  };

 private:
  Mutex mutex_;
  int64_t reserved_ MT_GUARDED_BY(mutex_) = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_HOST_PREFETCH_ROOM_H_
