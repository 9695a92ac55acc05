#include "cc/policy/exact_order.h"

#include <algorithm>

namespace multitier {

void LinkedLocations::PushBack(List* list, uint32_t location) {
  if (location >= links_.size()) links_.resize(std::max<size_t>(location + size_t{1}, links_.size() * 5 / 4));
  links_[location] = Link{list->last, kNone};
  (list->last == kNone ? list->first : links_[list->last].next) = location;
  list->last = location;
}

void LinkedLocations::Erase(List* list, uint32_t location) {
  const Link link = links_[location];
  (link.previous == kNone ? list->first : links_[link.previous].next) = link.next;
  (link.next == kNone ? list->last : links_[link.next].previous) = link.previous;
}

void ExactLru::Insert(Span<const RowUse> rows) {
  for (const RowUse& row : rows) links_.PushBack(&order_, row.location);
  rows_ += rows.size();
}

void ExactLru::Touch(Span<const RowUse> rows) {
  for (const RowUse& row : rows) {
    links_.Erase(&order_, row.location);
    links_.PushBack(&order_, row.location);
  }
}

void ExactLru::Remove(Span<const uint32_t> locations) {
  for (const uint32_t location : locations) links_.Erase(&order_, location);
  rows_ -= locations.size();
}

void ExactLru::ChooseVictims(size_t n, const Pinned& pinned, std::vector<uint32_t>* victims) {
  for (uint32_t at = order_.first; n > 0 && at != LinkedLocations::kNone; at = links_.next(at)) {
    if (pinned(at)) continue;
    victims->push_back(at);
    --n;
  }
}

void ExactLfu::Add(const RowUse& row) {
  if (row.location >= frequency_.size()) {
    frequency_.resize(std::max<size_t>(row.location + size_t{1}, frequency_.size() * 5 / 4));
  }
  frequency_[row.location] = row.frequency;
  links_.PushBack(&lists_[row.frequency], row.location);
}

void ExactLfu::Drop(uint32_t location) {
  const auto it = lists_.find(frequency_[location]);
  links_.Erase(&it->second, location);
  if (it->second.first == LinkedLocations::kNone) lists_.erase(it);
}

void ExactLfu::Insert(Span<const RowUse> rows) {
  for (const RowUse& row : rows) Add(row);
  rows_ += rows.size();
}

void ExactLfu::Touch(Span<const RowUse> rows) {
  for (const RowUse& row : rows) {
    Drop(row.location);
    Add(row);
  }
}

void ExactLfu::Remove(Span<const uint32_t> locations) {
  for (const uint32_t location : locations) Drop(location);
  rows_ -= locations.size();
}

void ExactLfu::ChooseVictims(size_t n, const Pinned& pinned, std::vector<uint32_t>* victims) {
  for (const auto& [frequency, list] : lists_) {
    for (uint32_t at = list.first; n > 0 && at != LinkedLocations::kNone; at = links_.next(at)) {
      if (pinned(at)) continue;
      victims->push_back(at);
      --n;
    }
    if (n == 0) return;
  }
}

size_t ExactLfu::resident_bytes() const {
  constexpr size_t kNodeBytes = 64;  // of a tree node, about
  return links_.resident_bytes() + frequency_.capacity() * sizeof(uint32_t) + lists_.size() * kNodeBytes;
}

}  // namespace multitier
