// SnapshotState: a snapshot that is being taken (snapshot.cc). It knows which records the snapshot has not given to its visitor
// yet.
//
// For rows in DRAM and counted keys, each shard has one bit for each slot (SnapshotMarks): set means not given yet. For records
// in lower tiers, this class has one bit for each location, with the opposite meaning: set means given. So the moment itself
// writes nothing for records. Before an operation changes or removes a row, the row is copied. The copy waits in its shard
// until the snapshot takes it (snapshot_copies.h).
//
// Owned by the snapshot, its shards and CurrentSnapshot together. Thread-safe. A location's bit changes under the lock of its
// key's shard. `mutex` and the lock of WaitingCopies are taken inside a shard's lock, and nothing inside them.

#ifndef CC_TABLE_MARKS_SNAPSHOT_STATE_H_
#define CC_TABLE_MARKS_SNAPSHOT_STATE_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/prefetch.h"
#include "cc/table/marks/snapshot_copies.h"

namespace multitier {

// One bit for each slot of a shard. Not thread-safe.
class SlotBits {
 public:
  // Sets all of the first `slots`, and those up to the next word.
  void Fill(size_t slots) { words_.assign((slots + 63) / 64, ~uint64_t{0}); }
  void Clear() { words_ = std::vector<uint64_t>(); }
  bool empty() const { return words_.empty(); }
  uint32_t end() const { return static_cast<uint32_t>(words_.size() * 64); }  // none is set from here on

  bool has(uint32_t slot) const { return slot / 64 < words_.size() && (words_[slot / 64] >> slot % 64 & 1) != 0; }
  void Set(uint32_t slot) {
    if (slot / 64 >= words_.size()) words_.resize(slot / 64 + 1);
    words_[slot / 64] |= uint64_t{1} << slot % 64;
  }
  void Prefetch(uint32_t slot) const {
    if (slot / 64 < words_.size()) PrefetchLine(&words_[slot / 64]);
  }
  // Unsets it; whether it was set.
  bool Take(uint32_t slot) {
    const bool was = has(slot);
    if (was) words_[slot / 64] &= ~(uint64_t{1} << slot % 64);
    return was;
  }

 private:
  std::vector<uint64_t> words_;
};

// A bit for each of 2^32 locations, unset at first; memory for those that were set, 1 Mi at a time.
class LocationBits {
 public:
  LocationBits() = default;
  ~LocationBits() {
    for (auto& group : groups_) {
      if (group.load() == nullptr) continue;
      for (auto& chunk : group.load()->chunks) delete chunk.load();
      delete group.load();
    }
  }
  LocationBits(const LocationBits&) = delete;
  LocationBits& operator=(const LocationBits&) = delete;

  bool has(uint32_t location) const {
    const Group* group = groups_[location >> kGroupShift].load(std::memory_order_acquire);
    if (group == nullptr) return false;
    const Chunk* chunk = group->chunks[ChunkOf(location)].load(std::memory_order_acquire);
    return chunk != nullptr && (chunk->words[Word(location)].load(std::memory_order_relaxed) & Bit(location)) != 0;
  }
  // Gives what it was.
  bool Set(uint32_t location, bool value) {
    Group* group = Made(&groups_[location >> kGroupShift], value);
    Chunk* chunk = group == nullptr ? nullptr : Made(&group->chunks[ChunkOf(location)], value);
    if (chunk == nullptr) return false;
    std::atomic<uint64_t>& word = chunk->words[Word(location)];
    const uint64_t bit = Bit(location);
    const uint64_t was =
        value ? word.fetch_or(bit, std::memory_order_relaxed) : word.fetch_and(~bit, std::memory_order_relaxed);
    return (was & bit) != 0;
  }
  // Sets `count` of them. REQUIRES: multiples of 64, of one chunk
  void SetRun(uint32_t location, uint32_t count) {
    Chunk* chunk = Made(&Made(&groups_[location >> kGroupShift], true)->chunks[ChunkOf(location)], true);
    for (uint32_t i = 0; i < count / 64; ++i) chunk->words[Word(location) + i].store(~uint64_t{0}, std::memory_order_relaxed);
  }
  // The first one from `location` on, and before `end`, that is not set; else `end`.
  uint64_t FirstUnset(uint64_t location, uint64_t end) const {
    while (location < end) {
      const Group* group = groups_[location >> kGroupShift].load(std::memory_order_acquire);
      const Chunk* chunk = group == nullptr ? nullptr : group->chunks[ChunkOf(location)].load(std::memory_order_acquire);
      if (chunk == nullptr) return location;
      const uint64_t unset = ~chunk->words[Word(location)].load(std::memory_order_relaxed) >> location % 64;
      if (unset != 0) return std::min<uint64_t>(end, location + static_cast<uint64_t>(__builtin_ctzll(unset)));
      location = (location | 63) + 1;
    }
    return end;
  }

 private:
  static constexpr int kShift = 20, kGroupShift = 26;
  struct Chunk {
    std::atomic<uint64_t> words[(size_t{1} << kShift) / 64];
  };
  struct Group {
    std::atomic<Chunk*> chunks[size_t{1} << (kGroupShift - kShift)];
  };
  // What is at the place; where nothing is and it `is_needed`, a new one.
  template <typename T>
  static T* Made(std::atomic<T*>* place, bool is_needed) {
    T* there = place->load(std::memory_order_acquire);
    if (there != nullptr || !is_needed) return there;
    T* made = new T();
    if (place->compare_exchange_strong(there, made)) return made;
    delete made;
    return there;
  }
  static size_t ChunkOf(uint64_t location) { return (location >> kShift) & ((1u << (kGroupShift - kShift)) - 1); }
  static size_t Word(uint64_t location) { return (location & ((1u << kShift) - 1)) / 64; }
  static uint64_t Bit(uint32_t location) { return uint64_t{1} << (location % 64); }

  std::atomic<Group*> groups_[size_t{1} << (32 - kGroupShift)] = {};
};

// Locations, both ends included.
struct LocationRun {
  uint32_t first = 0, last = 0;
};

struct SnapshotState {
  // A damaged record cannot be given, or is freed before its turn: the snapshot lacks its row.
  void LeaveOut(int level, uint32_t location) {
    if (!given[level].Set(location, true)) left_out += leaves_out_damaged;
  }

  // A tier moved a record of its own: the mark goes along. Under the lock of the key's shard
  void Moved(int level, uint32_t from, uint32_t to) {
    const bool was_given = given[level].has(from);
    given[level].Set(to, was_given);
    if (was_given) return;
    MutexLock lock(mutex);
    ++moves;
    std::vector<LocationRun>& runs = moved[level];
    // Copies stand close together; what is between them is looked at in vain at most.
    if (!runs.empty() && to > runs.back().last && to - runs.back().last <= kRunGap) {
      runs.back().last = to;
    } else {
      runs.push_back(LocationRun{to, to});
    }
  }

  // Where the moves of a tier stand: what comes later is seen by MovedSince.
  struct MoveMark {
    uint64_t moves = 0;
    size_t runs = 0;
  };
  MoveMark Moves(int level) {
    MutexLock lock(mutex);
    return MoveMark{moves, moved[level].size()};
  }
  // Whether a record came to stand at `location`, or close to it, since then. REQUIRES: the runs were not taken since, and
  // the lock of the shard whose key is asked for is held
  bool MovedSince(const MoveMark& mark, int level, uint32_t location) {
    if (moves == mark.moves) return false;
    MutexLock lock(mutex);
    const std::vector<LocationRun>& runs = moved[level];
    for (size_t i = mark.runs == 0 ? 0 : mark.runs - 1; i < runs.size(); ++i) {  // the last may have grown
      if (runs[i].first <= location && location <= runs[i].last) return true;
    }
    return false;
  }

  // Copies were added, or taken.
  void CountCopies(size_t bytes) {
    if (bytes == 0) return;
    copied += bytes;
    waiting->Add(bytes);
  }
  void CopiesTaken(size_t bytes) {
    if (bytes == 0) return;
    copied -= bytes;
    waiting->Remove(bytes);
  }
  // Ends the snapshot: no more copies are made, and no operation waits for it.
  void End() {
    over = true;
    waiting->Remove(0);
  }

  LocationBits given[2];             // by lower tier
  int64_t rows = 0;                  // that the table had at the moment
  int64_t counted_keys = 0;          // likewise
  bool leaves_out_damaged = false;   // on_corruption says so: a snapshot without damaged rows is complete
  std::atomic<int64_t> left_out{0};  // of those rows, where it is: see LeaveOut
  std::atomic<int64_t> lost{0};      // rows of a delta that were to be given and cannot be
  std::atomic<uint64_t> moves{0};    // of records still to be given; counted with the mutex held
  std::atomic<bool> in_dram{true};   // the pass over DRAM is not over: the tiers are to come
  bool all_columns = true;
  bool is_delta = false;          // gives what changed since an earlier moment: see SnapshotMarks::BeginDelta
  std::atomic<bool> over{false};  // no more copies are made
  std::atomic<size_t> copied{0};  // bytes of the copies that wait, of this table: see snapshot_copies.h
  // Of the snapshot: it cannot wait for itself.
  std::atomic<std::thread::id> thread{std::this_thread::get_id()};
  std::shared_ptr<WaitingCopies> waiting = std::make_shared<WaitingCopies>();  // replaced before the snapshot begins

  static constexpr uint32_t kRunGap = 64;

  Mutex mutex;
  std::vector<LocationRun> moved[2] MT_GUARDED_BY(mutex);  // by lower tier: where records still to be given came to stand
};

}  // namespace multitier

#endif  // CC_TABLE_MARKS_SNAPSHOT_STATE_H_
