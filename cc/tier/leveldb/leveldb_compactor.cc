#include "cc/tier/leveldb/leveldb_compactor.h"

#include <algorithm>
#include <utility>

#include "cc/base/thread.h"
#include "cc/env/env.h"

namespace multitier {
namespace {

constexpr size_t kSamplesPerRange = 16;

}  // namespace

LevelDbCompactor::LevelDbCompactor(Database database, const Options& options)
    : database_(std::move(database)), options_(options), pool_(OfThisProcess<Pool>()), job_([this] { return Step(); }) {}

LevelDbCompactor::~LevelDbCompactor() { pool_->Cancel(&job_); }

bool LevelDbCompactor::Exceeds(int halves, int64_t more_bytes) const {
  const int64_t live = database_.live_bytes();
  const int64_t stored = database_.stored_bytes();
  MutexLock lock(mutex_);
  const int64_t base = std::max(live, left_bytes_ - removed_bytes_);
  return stored > 2 * base + options_.allowance_bytes + halves * base / 2 + more_bytes &&
         Env::Posix()->NowMicros() >= not_before_us_;
}

void LevelDbCompactor::WaitIfBehind() {
  while (Behind()) {
    int64_t steps;
    {
      MutexLock lock(mutex_);
      steps = steps_;
    }
    if (!pool_->Schedule(&job_)) pool_->Help(&job_);
    ++waiting_;
    MutexLock lock(mutex_);
    while (steps_ == steps) lock.Wait(progress_);
    --waiting_;
  }
}

void LevelDbCompactor::CompactIfDue() {
  if (Due()) (void)pool_->Schedule(&job_);
}

void LevelDbCompactor::NoteRemoved(int64_t bytes) {
  MutexLock lock(mutex_);
  removed_bytes_ += bytes;
}

std::vector<int64_t> LevelDbCompactor::ChooseBounds() const {
  const size_t ranges = static_cast<size_t>(database_.stored_bytes() / options_.range_bytes) + 1;
  std::vector<int64_t> samples = database_.sample_keys(ranges * kSamplesPerRange);
  std::sort(samples.begin(), samples.end());
  std::vector<int64_t> bounds;
  for (size_t range = 1; range < ranges; ++range) {
    const size_t at = samples.size() * range / ranges;
    if (at < samples.size() && (bounds.empty() || samples[at] > bounds.back())) bounds.push_back(samples[at]);
  }
  return bounds;
}

uint64_t LevelDbCompactor::Step() {
  const uint64_t pause_us = CompactNext();
  MutexLock lock(mutex_);
  ++steps_;
  progress_.notify_all();
  return pause_us;
}

uint64_t LevelDbCompactor::CompactNext() {
  if (!in_round_) {
    if (!Due()) return BackgroundPool::kDone;
    in_round_ = true;
    ++rounds_;
    bounds_ = ChooseBounds();
    next_ = 0;
    stored_before_ = database_.stored_bytes();
    appended_before_ = database_.appended_bytes();
    MutexLock lock(mutex_);
    removed_before_ = removed_bytes_;
  }
  const int64_t* const first = next_ == 0 ? nullptr : &bounds_[next_ - 1];
  const int64_t* const last = next_ == bounds_.size() ? nullptr : &bounds_[next_];
  const bool good = database_.compact_range(first, last, stored_before_ / static_cast<int64_t>(bounds_.size() + 1));
  if (good && ++next_ <= bounds_.size()) return 0;
  in_round_ = false;
  // What was appended meanwhile may be dead already.
  const int64_t left = database_.stored_bytes() - (database_.appended_bytes() - appended_before_);
  MutexLock lock(mutex_);
  if (good) {
    left_bytes_ = left;
    removed_bytes_ -= removed_before_;
  } else {
    not_before_us_ = Env::Posix()->NowMicros() + options_.retry_us;
  }
  return BackgroundPool::kDone;
}

}  // namespace multitier
