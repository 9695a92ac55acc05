// SnapshotState: a snapshot that is being taken (snapshot.cc). It knows which records the snapshot has not given to its visitor
// yet, and holds the copies that wait for the visitor.
//
// For rows in DRAM and counted keys, each shard has one bit for each slot (SnapshotMarks): set means not given yet. For records
// in lower tiers, this class has one bit for each location, with the opposite meaning: set means given. So the moment itself
// writes nothing for records. Before an operation changes or removes a row, the row is copied. The copy waits here until the
// snapshot takes it.
//
// Owned by the snapshot, its shards and CurrentSnapshot together. Thread-safe. A location's bit changes under the lock of its
// key's shard. `mutex` and a lane's mutex are taken inside a shard's lock; inside them only the lock of WaitingCopies.

#ifndef CC_TABLE_SNAPSHOT_STATE_H_
#define CC_TABLE_SNAPSHOT_STATE_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/table/rows.h"

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

// The bytes of copies that wait, in all tables whose snapshots share a moment. If they are too many, operations that change
// rows wait. Thread-safe.
class WaitingCopies {
 public:
  static constexpr size_t kFarBehindBytes = 32u << 20;

  void Add(size_t bytes) { bytes_ += bytes; }
  // The snapshot took this number of bytes; 0: a snapshot has ended. Wakes the threads in Await.
  void Remove(size_t bytes) {
    MutexLock lock(mutex_);
    bytes_ -= bytes;
    changed_.notify_all();
  }
  size_t bytes() const { return bytes_; }
  bool far_behind() const { return bytes_ > kFarBehindBytes; }
  // Waits while it is far behind and the snapshot is not `over`.
  void Await(const std::atomic<bool>& over) {
    MutexLock lock(mutex_);
    lock.Wait(changed_, [&] { return over.load() || !far_behind(); });
  }

 private:
  Mutex mutex_;
  std::condition_variable changed_;
  std::atomic<size_t> bytes_{0};
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

  // Bytes of the copies that wait.
  size_t copied_bytes() const {
    size_t bytes = 0;
    for (const CopyLane& lane : lanes) {
      MutexLock lock(lane.mutex);
      bytes += BytesOf(lane.copies);
    }
    return bytes;
  }
  // The lane of a shard's copies, for the next shard that asks.
  int NextLane() { return static_cast<int>(next_lane++ % kLanes); }
  // Adds copies to a lane by append(&copies) while the snapshot goes on.
  template <typename Append>
  void AddCopies(int lane, Append append) {
    CopyLane& own = lanes[lane];
    MutexLock lock(own.mutex);
    if (over) return;
    const size_t before = BytesOf(own.copies);
    append(&own.copies);
    waiting->Add(BytesOf(own.copies) - before);
  }
  // The copies that wait in a lane. What *taken had is dropped; its memory is used for later copies, if it is not much.
  void TakeCopies(int lane, Rows* taken) {
    taken->Resize(0);
    if (taken->data.capacity() * sizeof(float) > kSpareBytes || taken->keys.capacity() * kKeyBytes > kSpareBytes)
      *taken = Rows();
    MutexLock lock(lanes[lane].mutex);
    const size_t bytes = BytesOf(lanes[lane].copies);
    if (bytes == 0) return;
    std::swap(*taken, lanes[lane].copies);
    waiting->Remove(bytes);
  }
  // Ends the snapshot: drops the copies, and AddCopies adds no more.
  void End() {
    over = true;
    Rows dropped;
    for (int lane = 0; lane < kLanes; ++lane) TakeCopies(lane, &dropped);
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
  std::atomic<bool> over{false};  // copies are not taken any more: AddCopies asks with a lane's lock held
  // Of the snapshot: it cannot wait for itself.
  std::atomic<std::thread::id> thread{std::this_thread::get_id()};
  std::shared_ptr<WaitingCopies> waiting = std::make_shared<WaitingCopies>();  // replaced before the snapshot begins

  static constexpr uint32_t kRunGap = 64;
  static constexpr size_t kKeyBytes = 24;  // with its frequency and version
  static constexpr int kLanes = 8;
  static constexpr size_t kSpareBytes = 1u << 20;  // of a lane: memory that it keeps when its copies are taken

  // Copies of rows that changed before their turn. Shards are spread over the lanes: two threads that copy rows of two shards
  // seldom wait for each other.
  struct alignas(64) CopyLane {
    mutable Mutex mutex;
    Rows copies MT_GUARDED_BY(mutex);
  };
  CopyLane lanes[kLanes];
  std::atomic<uint32_t> next_lane{0};

  Mutex mutex;
  std::vector<LocationRun> moved[2] MT_GUARDED_BY(mutex);  // by lower tier: where records still to be given came to stand

 private:
  static size_t BytesOf(const Rows& copies) {
    const size_t keys = copies.keys.size() + copies.counted_keys.size() + copies.removed_keys.size();
    return copies.data.size() * sizeof(float) + keys * kKeyBytes;
  }
};

}  // namespace multitier

#endif  // CC_TABLE_SNAPSHOT_STATE_H_
