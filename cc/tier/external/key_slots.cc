#include "cc/tier/external/key_slots.h"

#include <utility>

namespace multitier {

uint32_t* KeySlots::HeadOf(int64_t key) { return &heads_[HashKey(key) & (heads_.size() - 1)]; }

void KeySlots::Grow() {
  heads_.assign(heads_.empty() ? 64 : 2 * heads_.size(), kNone);
  for (uint32_t location = 0; location < slots_.size(); ++location) {
    if (!slots_[location].used) continue;
    uint32_t* const head = HeadOf(slots_[location].key);
    slots_[location].next = std::exchange(*head, location);
  }
}

uint32_t KeySlots::Find(int64_t key) const {
  if (heads_.empty()) return kNone;
  uint32_t location = heads_[HashKey(key) & (heads_.size() - 1)];
  while (location != kNone && (slots_[location].key != key || slots_[location].hidden)) location = slots_[location].next;
  return location;
}

uint32_t KeySlots::Add(const RecordHeader& header) {
  if (static_cast<size_t>(used_) >= heads_.size()) Grow();
  if (const uint32_t older = Find(header.key); older != kNone) Hide(older);
  if (free_ == kNone) {
    free_ = end();
    slots_.emplace_back();
  }
  const uint32_t location = free_;
  Slot& slot = slots_[location];
  free_ = slot.next;
  Prefetch(free_);
  slot.key = header.key;
  slot.version = header.version;
  slot.frequency = header.frequency;
  slot.num_columns = header.num_columns & ((1u << 30) - 1);
  slot.number = ++adds_;
  slot.used = 1;
  slot.hidden = 0;
  slot.next = std::exchange(*HeadOf(header.key), location);
  ++used_;
  return location;
}

void KeySlots::Release(uint32_t location) {
  Slot& slot = slots_[location];
  uint32_t* link = HeadOf(slot.key);
  while (*link != location) link = &slots_[*link].next;
  *link = slot.next;
  slot.used = 0;
  slot.next = std::exchange(free_, location);
  --used_;
}

void KeySlots::Show(uint32_t location, uint32_t number) {
  Slot& slot = slots_[location];
  if (slot.used && slot.number == number) slot.hidden = 0;
}

}  // namespace multitier
