// WaitingCopies and ShardCopies: copies of rows that changed before a snapshot (snapshot.cc) came to them. They wait in memory
// until the snapshot takes them.
//
// Each shard has ShardCopies, used under its lock. WaitingCopies is their sum, in all tables whose snapshots share a moment. An
// update copies thousands of rows, so that one copy must cost no more than the copying: there is no lock besides the shard's,
// no atomic operation for each row, and no vector that grows. The sum therefore lags behind by less than kUncountedBytes of
// each shard.

#ifndef CC_TABLE_SNAPSHOT_COPIES_H_
#define CC_TABLE_SNAPSHOT_COPIES_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/table/rows.h"

namespace multitier {

// The bytes of copies that wait, in all tables whose snapshots share a moment. If they are too many, operations that change
// rows wait. Thread-safe.
class WaitingCopies {
 public:
  static constexpr size_t kFarBehindBytes = 64u << 20;
  static constexpr size_t kSliceBytes = 8u << 20;  // of rows that a long operation changes between two calls of Await, about

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

// The copies of one shard, in blocks of Rows. Owns the blocks. Not thread-safe: used under the shard's lock.
class ShardCopies {
 public:
  static constexpr size_t kBlockBytes = 64u << 10;  // of a block, about
  static constexpr size_t kUncountedBytes = 4u << 10;
  static constexpr size_t kKeyBytes = 24;  // with its frequency and version

  // The rows that get one copy more. Row data has this number of floats; 0: only a key is added.
  Rows* Next(size_t floats) {
    if (left_ == 0) AddBlock(floats);
    --left_;
    uncounted_ += kKeyBytes + floats * sizeof(float);
    return &blocks_.back();
  }
  // The bytes that were added since the last call, if they are many enough to be counted; else 0.
  size_t ToCount() {
    if (uncounted_ < kUncountedBytes) return 0;
    bytes_ += uncounted_;
    return std::exchange(uncounted_, 0);
  }
  // All copies. *counted: the sum of what ToCount gave for them.
  std::vector<Rows> Take(size_t* counted) {
    *counted = std::exchange(bytes_, 0);
    left_ = uncounted_ = 0;
    return std::exchange(blocks_, {});
  }
  const std::vector<Rows>& blocks() const { return blocks_; }

 private:
  // The first block grows, because most shards of a model with many tables have few copies. The others have all of their memory
  // at once.
  void AddBlock(size_t floats) {
    left_ = std::max<size_t>(1, kBlockBytes / (kKeyBytes + floats * sizeof(float)));
    const bool is_first = blocks_.empty();
    Rows& block = blocks_.emplace_back();
    if (is_first || floats == 0) return;
    block.keys.reserve(left_);
    block.frequencies.reserve(left_);
    block.versions.reserve(left_);
    block.data.reserve(left_ * floats);
  }

  std::vector<Rows> blocks_;
  size_t left_ = 0;       // copies for which the last block has room
  size_t bytes_ = 0;      // that ToCount gave
  size_t uncounted_ = 0;  // bytes
};

}  // namespace multitier

#endif  // CC_TABLE_SNAPSHOT_COPIES_H_
