#include "cc/checkpoint_files/read_ahead.h"

#include <condition_variable>
#include <deque>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/thread.h"

namespace multitier {
namespace {

// The blocks between the thread that reads and the one that visits. Thread-safe.
class Blocks {
 public:
  Blocks() {
    for (Rows& block : blocks_) empty_.push_back(&block);
  }

  // Reads until the end, an error or Stop.
  void Fill(PartFileReader* file) {
    while (Rows* const block = TakeEmpty()) {
      Status status = file->Next(block);
      const bool over = !status.ok() || file->ended();
      MutexLock lock(mutex_);
      if (status.ok()) filled_.push_back(block);
      status_ = std::move(status);
      over_ = over_ || over;
      changed_.notify_all();
      if (over) return;
    }
  }

  // Gives the block before back. Null after the last one, and where it could not be read: status().
  Rows* TakeFilled(Rows* before) {
    MutexLock lock(mutex_);
    if (before != nullptr) empty_.push_back(before);
    changed_.notify_all();
    lock.Wait(changed_, [this]() MT_REQUIRES(mutex_) { return !filled_.empty() || over_; });
    return Take(&filled_);
  }
  Status status() {
    MutexLock lock(mutex_);
    return status_;
  }
  void Stop() {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

 private:
  static Rows* Take(std::deque<Rows*>* from) {
    if (from->empty()) return nullptr;
    Rows* const block = from->front();
    from->pop_front();
    return block;
  }
  // Null after Stop.
  Rows* TakeEmpty() {
    MutexLock lock(mutex_);
    lock.Wait(changed_, [this]() MT_REQUIRES(mutex_) { return !empty_.empty() || over_; });
    return over_ ? nullptr : Take(&empty_);
  }

  Rows blocks_[kBlocksAhead];
  Mutex mutex_;
  std::condition_variable changed_;
  std::deque<Rows*> empty_ MT_GUARDED_BY(mutex_), filled_ MT_GUARDED_BY(mutex_);
  bool over_ MT_GUARDED_BY(mutex_) = false;  // no block will be filled any more
  Status status_ MT_GUARDED_BY(mutex_);
};

Status ReadInTurn(PartFileReader* file, const std::function<Status(Rows*)>& visit) {
  for (Rows block; !file->ended();) {
    MT_RETURN_IF_ERROR(file->Next(&block));
    MT_RETURN_IF_ERROR(visit(&block));
  }
  return OkStatus();
}

}  // namespace

Status ReadAhead(PartFileReader* file, const std::function<Status(Rows*)>& visit) {
  Blocks blocks;
  Thread thread;  // after what it uses: its destructor waits for it
  if (!file->has_many_blocks() || !thread.Start("mt-read-ahead", [&] { blocks.Fill(file); }).ok()) {
    return ReadInTurn(file, visit);
  }
  Rows* block = nullptr;
  while ((block = blocks.TakeFilled(block)) != nullptr) {
    Status status = visit(block);
    if (status.ok()) continue;
    blocks.Stop();
    return status;
  }
  return blocks.status();
}

}  // namespace multitier
