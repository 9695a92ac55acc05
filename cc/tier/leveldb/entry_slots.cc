#include "cc/tier/leveldb/entry_slots.h"

#include "cc/row/row_layout.h"

namespace multitier {

uint32_t EntrySlots::Take() {
  if (free_ == kNoLocation) {
    keys_.push_back(0);
    generations_.push_back(0);
    held_.push_back(false);
    return end() - 1;
  }
  const uint32_t location = free_;
  free_ = generations_[location];
  return location;
}

void EntrySlots::Hold(uint32_t location, int64_t key, uint32_t generation) {
  keys_[location] = key;
  generations_[location] = generation;
  held_[location] = true;
  ++num_held_;
}

void EntrySlots::GiveBack(uint32_t location) {
  num_held_ -= held_[location];
  held_[location] = false;
  generations_[location] = free_;
  free_ = location;
}

size_t EntrySlots::resident_bytes() const {
  return keys_.capacity() * sizeof(int64_t) + generations_.capacity() * sizeof(uint32_t) + held_.capacity() / 8;
}

}  // namespace multitier
