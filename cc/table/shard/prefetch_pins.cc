#include "cc/table/shard/prefetch_pins.h"

#include <algorithm>

namespace multitier {
namespace {

constexpr size_t kFewEnds = 64;

}  // namespace

bool PrefetchPins::Pin(RowHeader* row, uint64_t until, bool room) {
  const bool pinned = row->has(kRowPrefetched);
  if (row->has(kRowUncommitted) || !(pinned || room)) return false;
  uint64_t& end = ends_[row->key];
  if (pinned && until <= end) return false;
  end = until;
  heap_.push_back(End{row->key, until});
  std::push_heap(heap_.begin(), heap_.end(), Later);
  if (!pinned) {
    row->flags |= kRowPrefetched;
    ++pinned_;
  }
  if (heap_.size() > kFewEnds + 2 * static_cast<size_t>(pinned_.load())) Rebuild();
  return !pinned;
}

void PrefetchPins::Rebuild() {
  heap_.clear();
  for (auto end = ends_.begin(); end != ends_.end();) {
    const RowHeader* const row = row_of_(end->first);
    if (row != nullptr && row->has(kRowPrefetched)) {
      heap_.push_back(End{end->first, end->second});
      ++end;
    } else {
      end = ends_.erase(end);
    }
  }
  std::make_heap(heap_.begin(), heap_.end(), Later);
}

void PrefetchPins::Sweep(uint64_t now) {
  for (; !heap_.empty() && heap_.front().until <= now; heap_.pop_back()) {
    const End next = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    const auto end = ends_.find(next.key);
    if (end == ends_.end() || end->second != next.until) continue;
    ends_.erase(end);
    RowHeader* const row = row_of_(next.key);
    if (row == nullptr || !row->has(kRowPrefetched)) continue;
    row->flags = static_cast<uint16_t>(row->flags & ~kRowPrefetched);
    --pinned_;
  }
}

void PrefetchPins::Clear() {
  heap_.clear();
  ends_.clear();
  pinned_ = 0;
}

}  // namespace multitier
