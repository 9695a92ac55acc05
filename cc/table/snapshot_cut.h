// SnapshotCut: which of the rows that a table had at the moment of a snapshot are still to be given (snapshot.cc).
//
// Of rows in DRAM a shard has a bit a slot (Shard::to_give). Of records below there is a bit a location here, the other way
// round: unset is to be given, so that the moment itself costs nothing. Rows that an operation changes or takes away before
// their turn are handed over: they wait here for the snapshot to take them along.
//
// Thread-safe. A location's bit changes under the lock of its key's shard.

#ifndef CC_TABLE_SNAPSHOT_CUT_H_
#define CC_TABLE_SNAPSHOT_CUT_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "cc/table/embedding_table.h"

namespace multitier {

// A bit for each of 2^32 locations, unset at first; memory for those that were set, 1 Mi at a time.
class LocationBits {
 public:
  LocationBits() = default;
  ~LocationBits() {
    for (auto& chunk : chunks_) delete chunk.load();
  }
  LocationBits(const LocationBits&) = delete;
  LocationBits& operator=(const LocationBits&) = delete;

  bool has(uint32_t location) const {
    const Chunk* chunk = chunks_[location >> kShift].load(std::memory_order_acquire);
    return chunk != nullptr && (chunk->words[Word(location)].load(std::memory_order_relaxed) & Bit(location)) != 0;
  }
  void Set(uint32_t location, bool value) {
    std::atomic<Chunk*>& place = chunks_[location >> kShift];
    Chunk* chunk = place.load(std::memory_order_acquire);
    if (chunk == nullptr) {
      if (!value) return;
      Chunk* made = new Chunk();
      if (place.compare_exchange_strong(chunk, made)) {
        chunk = made;
      } else {
        delete made;
      }
    }
    std::atomic<uint64_t>& word = chunk->words[Word(location)];
    value ? word.fetch_or(Bit(location), std::memory_order_relaxed) : word.fetch_and(~Bit(location), std::memory_order_relaxed);
  }

 private:
  static constexpr int kShift = 20;
  struct Chunk {
    std::atomic<uint64_t> words[(size_t{1} << kShift) / 64];
  };
  static size_t Word(uint32_t location) { return (location & ((1u << kShift) - 1)) / 64; }
  static uint64_t Bit(uint32_t location) { return uint64_t{1} << (location % 64); }

  std::atomic<Chunk*> chunks_[size_t{1} << (32 - kShift)] = {};
};

struct SnapshotCut {
  LocationBits given[2];               // by lower tier
  std::atomic<bool> in_dram{true};     // the pass over DRAM is not over: the tiers are to come
  bool all_columns = true;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  Rows handed_over;
  bool over = false;  // nobody takes along any more
};

}  // namespace multitier

#endif  // CC_TABLE_SNAPSHOT_CUT_H_
