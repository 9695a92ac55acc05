// Shard: one part of a table's keys. Owns a reader-writer lock and the rows of these keys (ShardRows). Callers reach the rows
// through two classes, whose objects hold the lock:
//
//   Shard::Locked    exclusive. Gives all methods of ShardRows.
//   Shard::Shared    shared, for lookups. Gives the const methods of ShardRows.
//
// Who may take the lock:
//   - an operation or a demotion, inside the gate (operation_scope.h)
//   - a snapshot, Stats and TotalCount, also outside of the gate
//   - TierStack::Relocate, on any thread of a tier
//
// Rules for a thread:
//   - It holds at most one Locked, or the Locked or the Shared of all shards, which ShardSet takes in order.
//   - It does no I/O while it holds a lock.
//   - In the background, it releases the lock after a short piece of work.
//   - A function with a parameter Shard::Locked& works under its caller's lock.

#ifndef CC_TABLE_SHARD_SHARD_H_
#define CC_TABLE_SHARD_SHARD_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "cc/base/shared_mutex.h"
#include "cc/table/shard/event.h"
#include "cc/table/shard/shard_rows.h"

namespace multitier {

class alignas(64) Shard {
 public:
  class Locked;
  class Shared;

  // ahead: of RowSlab.
  Shard(ShardCommon* common, std::shared_ptr<const RowLayout> layout, ShardIndex::Limits limits,
        std::shared_ptr<RowMemory> memory, double ahead = 0)
      : rows_(common, std::move(layout), limits, std::move(memory), &resolved_, ahead) {}

 private:
  SharedMutex mutex_;              // guards all members below
  Event resolved_;                 // happens when a read of a record ends, and when a ShardWriter is released
  bool being_written_ = false;     // a thread has the ShardWriter (tier_stack.h)
  FreedRecords pending_removals_;  // removals that TierStack still has to pass to the tiers
  ShardRows rows_;
};

class Shard::Locked {
 public:
  explicit Locked(Shard* shard) : shard_(shard), lock_(shard->mutex_) {}
  explicit Locked(const std::unique_ptr<Shard>& shard) : Locked(shard.get()) {}
  Locked(Locked&&) = default;
  ~Locked() {
    if (lock_.owns_lock()) shard_->rows_.TellMoved();
  }

  ShardRows* operator->() const { return &shard_->rows_; }
  ShardRows& operator*() const { return shard_->rows_; }
  // Releases the lock before the end of the block. The caller does not use this object any more.
  void Unlock() {
    shard_->rows_.TellMoved();
    lock_.unlock();
  }

  // How often resolved_ has happened.
  uint64_t resolutions() const { return shard_->resolved_.count(); }
  // Waits until resolutions() is no longer `seen`. The lock is released during the wait and held again after it.
  void WaitForResolution(uint64_t seen) {
    shard_->rows_.TellMoved();
    shard_->resolved_.Wait(&lock_, [this, seen] { return resolutions() != seen; });
  }

 private:
  friend class ShardWriter;
  friend class TierStack;
  // Waits until no other thread has the shard's ShardWriter, and takes it.
  void BeginWriting() {
    shard_->rows_.TellMoved();
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

#endif  // CC_TABLE_SHARD_SHARD_H_
