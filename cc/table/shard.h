// Shard: a part of the table's keys behind one lock. Owns the lock and the rows (ShardRows). The rows can be reached through
// the lock alone:
//
//   Shard::Locked    the exclusive side: every step of a row's life (ShardRows). Background work holds it for short slices.
//   Shard::Shared    the shared side, for lookups: what is const of ShardRows.
//
// These may take the lock: an operation that has entered the gate (operation_scope.h), a thread that demotes, Stats and
// TotalCount, and TierStack::Relocate. A thread holds one Locked at a time, or Shared of all shards, taken in order. No I/O
// while it holds either. A function that takes a Shard::Locked& works under its caller's lock.

#ifndef CC_TABLE_SHARD_H_
#define CC_TABLE_SHARD_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "cc/base/shared_mutex.h"
#include "cc/table/event.h"
#include "cc/table/shard_rows.h"

namespace multitier {

class alignas(64) Shard {
 public:
  class Locked;
  class Shared;

  Shard(ShardCommon* common, std::shared_ptr<const RowLayout> layout, uint64_t max_words, std::shared_ptr<RowMemory> memory)
      : rows_(common, std::move(layout), max_words, std::move(memory), &resolved_) {}

 private:
  SharedMutex mutex_;              // guards all below
  Event resolved_;                 // a record is no longer being read, or a writer is done
  bool being_written_ = false;     // a thread has the ShardWriter
  FreedRecords pending_removals_;  // that tiers have refused or not seen yet: see TierStack
  ShardRows rows_;
};

class Shard::Locked {
 public:
  explicit Locked(Shard* shard) : shard_(shard), lock_(shard->mutex_) {}
  explicit Locked(const std::unique_ptr<Shard>& shard) : Locked(shard.get()) {}

  ShardRows* operator->() const { return &shard_->rows_; }
  ShardRows& operator*() const { return shard_->rows_; }
  // The rest, for a caller that is done before its block ends.
  void Unlock() { lock_.unlock(); }

  // How often a record stopped being read, or a writer was done; and a wait for the next time, without the lock.
  uint64_t resolutions() const { return shard_->resolved_.count(); }
  void WaitForResolution(uint64_t seen) {
    shard_->resolved_.Wait(&lock_, [this, seen] { return resolutions() != seen; });
  }

 private:
  friend class ShardWriter;
  friend class TierStack;
  // Waits until no thread has the shard's ShardWriter.
  void BeginWriting() {
    shard_->resolved_.Wait(&lock_, [this] { return !shard_->being_written_; });
    shard_->being_written_ = true;
  }
  void EndWriting() {
    shard_->being_written_ = false;
    shard_->resolved_.Happen();
  }
  FreedRecords* pending_removals() { return &shard_->pending_removals_; }

  Shard* const shard_;
  std::unique_lock<SharedMutex> lock_;
};

class Shard::Shared {
 public:
  explicit Shared(Shard* shard) : shard_(shard) { shard_->mutex_.lock_shared(); }
  Shared(Shared&& other) noexcept : shard_(std::exchange(other.shard_, nullptr)) {}
  ~Shared() {
    if (shard_ != nullptr) shard_->mutex_.unlock_shared();
  }
  const ShardRows* operator->() const { return &shard_->rows_; }

 private:
  Shard* shard_;
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_H_
