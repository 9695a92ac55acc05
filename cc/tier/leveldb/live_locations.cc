#include "cc/tier/leveldb/live_locations.h"

#include "cc/row/row_layout.h"

namespace multitier {

bool LiveLocations::Contains(uint32_t location) const {
  const size_t i = location >> kShift;
  if (i >= chunks_.size() || chunks_[i] == nullptr) return false;
  return (chunks_[i]->words[(location & kMask) / 64] >> (location % 64) & 1) != 0;
}

void LiveLocations::Insert(uint32_t location) {
  if (Contains(location)) return;
  const size_t i = location >> kShift;
  if (i >= chunks_.size()) chunks_.resize(i + 1);
  if (chunks_[i] == nullptr) {
    chunks_[i] = std::make_unique<Chunk>();
    ++num_chunks_;
  }
  chunks_[i]->words[(location & kMask) / 64] |= uint64_t{1} << (location % 64);
  ++chunks_[i]->live;
  ++size_;
}

bool LiveLocations::Erase(uint32_t location) {
  if (!Contains(location)) return false;
  std::unique_ptr<Chunk>& chunk = chunks_[location >> kShift];
  chunk->words[(location & kMask) / 64] &= ~(uint64_t{1} << (location % 64));
  --size_;
  if (--chunk->live == 0) {
    chunk.reset();
    --num_chunks_;
  }
  return true;
}

uint32_t LiveLocations::NextFree(uint32_t location) const {
  while (location == kNoLocation || Contains(location)) ++location;
  return location;
}

size_t LiveLocations::resident_bytes() const {
  return chunks_.capacity() * sizeof(chunks_[0]) + num_chunks_ * sizeof(Chunk);
}

}  // namespace multitier
