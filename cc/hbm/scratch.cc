#include "cc/hbm/scratch.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace multitier::hbm {
namespace {

int Log2Of(size_t bytes) {
  int log2 = 8;
  while (size_t{1} << log2 < bytes) ++log2;
  return log2;
}

}  // namespace

Result<device::Buffer> ScratchPool::Take(bool pinned, size_t bytes) {
  const int log2 = Log2Of(bytes);
  const size_t rounded = size_t{1} << log2;
  bool too_much_idle;
  {
    MutexLock lock(mutex_);
    too_much_idle = idle_ > 2 * most_lent_ + may_lie_idle_;
    std::vector<device::Buffer>& free = free_[pinned][log2];
    if (!too_much_idle && !free.empty()) {
      device::Buffer buffer = std::move(free.back());
      free.pop_back();
      idle_ -= rounded;
      lent_ += rounded;
      most_lent_ = std::max(most_lent_, lent_);
      return buffer;
    }
  }
  if (too_much_idle) Empty();
  auto buffer = pinned ? memory_.Pinned(rounded) : memory_.OnDevice(rounded);
  // An operation copies more down than it has written, where it cannot know how much that is.
  if (buffer.ok() && !pinned) MT_RETURN_IF_ERROR(memory_.device()->Fill(stream_, buffer->as<void>(), 0, rounded));
  if (!buffer.ok()) return buffer;
  MutexLock lock(mutex_);
  lent_ += rounded;
  most_lent_ = std::max(most_lent_, lent_);
  return buffer;
}

void ScratchPool::NoteEnd(size_t taken) {
  MutexLock lock(mutex_);
  lent_ -= taken;
}

void ScratchPool::GiveBack(bool pinned, device::Buffer buffer) {
  const int log2 = Log2Of(buffer.bytes());
  MutexLock lock(mutex_);
  idle_ += buffer.bytes();
  free_[pinned][log2].push_back(std::move(buffer));
}

void ScratchPool::Bury(device::Buffer buffer) {
  MutexLock lock(mutex_);
  buried_.push_back(std::move(buffer));
}

void ScratchPool::Empty() {
  std::vector<device::Buffer> idle;
  {
    MutexLock lock(mutex_);
    for (auto& kind : free_) {
      for (std::vector<device::Buffer>& buffers : kind) {
        std::move(buffers.begin(), buffers.end(), std::back_inserter(idle));
        buffers.clear();
      }
    }
    idle_ = 0;
    most_lent_ = lent_;
  }
  if (memory_.device()->Synchronize(stream_).ok()) return;
  for (device::Buffer& buffer : idle) Bury(std::move(buffer));
}

Scratch::~Scratch() {
  for (const bool pinned : {false, true}) {
    for (device::Buffer& buffer : lent_[pinned]) pool_->GiveBack(pinned, std::move(buffer));
  }
  if (taken_ > 0) pool_->NoteEnd(taken_);
}

device::Buffer Scratch::Keep(const void* memory) {
  std::vector<device::Buffer>& pinned = lent_[true];
  const auto found =
      std::find_if(pinned.begin(), pinned.end(), [&](const device::Buffer& buffer) { return buffer.as<void>() == memory; });
  device::Buffer kept;
  if (found == pinned.end()) return kept;
  std::swap(kept, *found);
  pinned.erase(found);
  return kept;
}

bool Scratch::GotAll() {
  if (status_.ok()) return true;
  if (status_.code() == StatusCode::kResourceExhausted) status_ = OkStatus();
  return false;
}

void Scratch::Bury() {
  for (auto& kind : lent_) {
    for (device::Buffer& buffer : kind) pool_->Bury(std::move(buffer));
    kind.clear();
  }
}

void Scratch::Abandon() {
  for (auto& kind : lent_) {
    for (device::Buffer& buffer : kind) (void)new device::Buffer(std::move(buffer));
    kind.clear();
  }
  taken_ = 0;
}

void* Scratch::Take(bool pinned, size_t bytes) {
  if (!status_.ok()) return nullptr;
  Result<device::Buffer> buffer = pool_->Take(pinned, bytes);
  if (!buffer.ok() && buffer.status().code() == StatusCode::kResourceExhausted) {  // what lies idle in the pool may be enough
    pool_->Empty();
    buffer = pool_->Take(pinned, bytes);
  }
  if (!buffer.ok()) {
    const Status& refused = buffer.status();
    status_ = Status(refused.code(), StrCat("table '", table_, "': tier hbm: ", refused.message()));
    return nullptr;
  }
  taken_ += buffer->bytes();
  lent_[pinned].push_back(*std::move(buffer));
  return lent_[pinned].back().as<void>();
}

}  // namespace multitier::hbm
