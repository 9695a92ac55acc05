// WaitingCopies and ShardCopies: copies of rows that changed before a snapshot (snapshot.cc) came to them. They wait in memory
// until the snapshot takes them.
//
// Each shard has ShardCopies, used under its lock. WaitingCopies is their sum, in all tables whose snapshots share a moment. An
// update copies thousands of rows, so that one copy must cost no more than the copying: there is no lock besides the shard's,
// no atomic operation for each row, and no vector of rows that grows beyond a block. The sum therefore lags behind by less than
// kUncountedBytes of each shard.

#ifndef CC_TABLE_MARKS_SNAPSHOT_COPIES_H_
#define CC_TABLE_MARKS_SNAPSHOT_COPIES_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/table/api/rows.h"

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

  // The rows that get one copy more. Row data has this number of floats, the same for all rows; 0: only a key is added. Rows
  // and keys have blocks of their own, because the size of a block is that of what it holds.
  Rows* Next(size_t floats) {
    OpenBlock& open = floats == 0 ? open_of_keys_ : open_of_rows_;
    if (open.left == 0) AddBlock(floats, &open);
    --open.left;
    uncounted_ += kKeyBytes + floats * sizeof(float);
    return &blocks_[open.block];
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
    uncounted_ = 0;
    open_of_rows_ = open_of_keys_ = OpenBlock();
    return std::exchange(blocks_, {});
  }
  const std::vector<Rows>& blocks() const { return blocks_; }

 private:
  // The block of rows, or of keys, that is being filled.
  struct OpenBlock {
    bool begun = false;  // there was one
    size_t block = 0;
    size_t left = 0;  // copies for which it has room
  };

  // The first block of rows grows, because most shards of a model with many tables have few copies, and blocks of keys do. The
  // others have all of their memory at once.
  void AddBlock(size_t floats, OpenBlock* open) {
    const bool is_first = !std::exchange(open->begun, true);
    open->left = std::max<size_t>(1, kBlockBytes / (kKeyBytes + floats * sizeof(float)));
    open->block = blocks_.size();
    Rows& block = blocks_.emplace_back();
    if (is_first || floats == 0) return;
    block.keys.reserve(open->left);
    block.frequencies.reserve(open->left);
    block.versions.reserve(open->left);
    block.data.reserve(open->left * floats);
  }

  std::vector<Rows> blocks_;
  OpenBlock open_of_rows_, open_of_keys_;
  size_t bytes_ = 0;      // that ToCount gave
  size_t uncounted_ = 0;  // bytes
};

}  // namespace multitier

#endif  // CC_TABLE_MARKS_SNAPSHOT_COPIES_H_
