// RowSlab: rows of one layout in memory, addressed in place. Every shard of a table has one: its rows in DRAM.
//
//   chunk 0                     chunk 1
//   | row | row | ... | row |   | row | ...        rows: RowHeader + row data, `stride` apart
//
// A location is a slot number; its chunk is location / rows_per_chunk (a power of two). Row addresses do not change until
// MoveInto. A chunk is reserved address space; its pages get memory when slots are first used. The first chunk begins on small
// pages, so that an empty or small slab uses little memory, and moves to huge pages when it has 2 to 3 MiB. Free slots
// form a list through their headers (flag kRowFree, next slot in `below`). With a RowMemory, chunks are allocated from it
// instead, each as a whole.
//
// The kernel takes milliseconds to clear a huge page. The slabs of a table fill alike, and would all need the next one in the
// same step of training. So each touches it `ahead` of its first row, a share of a page that differs from slab to slab.
//
// Owns its memory. Has no bound of its own: the table decides how many rows it may hold, fewer than 2^32.
//
// Not thread-safe: the caller holds the lock of the shard that owns the slab.

#ifndef CC_ROW_ROW_SLAB_H_
#define CC_ROW_ROW_SLAB_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/prefetch.h"
#include "cc/env/env.h"
#include "cc/row/row_layout.h"
#include "cc/row/row_memory.h"

namespace multitier {

class RowSlab {
 public:
  // memory: where chunks are allocated; null: ordinary memory, from `env`. ahead: 0 to 1.
  RowSlab(Env* env, std::shared_ptr<const RowLayout> layout, std::shared_ptr<RowMemory> memory = nullptr, double ahead = 0);
  ~RowSlab();
  RowSlab(const RowSlab&) = delete;
  RowSlab& operator=(const RowSlab&) = delete;

  // Ensures that the next n Allocate calls succeed. ResourceExhausted with the requested size; the slab is then unchanged.
  Status Reserve(size_t n);
  // Returns a free slot. Its header is zero except `below`, which is kNoLocation; its row data is undefined. REQUIRES: Reserve.
  uint32_t Allocate();
  void Release(uint32_t location);
  RowHeader* Header(uint32_t location) const {
    return reinterpret_cast<RowHeader*>(chunks_[location >> chunk_shift_] + (location & chunk_mask_) * stride_);
  }
  // Prefetches the first `bytes` bytes of a row, header included.
  void Prefetch(uint32_t location, size_t bytes) const { PrefetchBytes(Header(location), bytes); }
  static uint8_t* Data(RowHeader* header) { return reinterpret_cast<uint8_t*>(header + 1); }
  static const uint8_t* Data(const RowHeader* header) { return reinterpret_cast<const uint8_t*>(header + 1); }
  const std::shared_ptr<const RowLayout>& layout() const { return layout_; }
  // One more than the highest slot ever used. A slot below it holds a row unless its flag kRowFree is set.
  uint32_t end() const { return end_; }
  size_t rows() const { return rows_; }
  size_t resident_bytes() const;
  // More columns, in two steps, so that several slabs are widened or none. RoomFor makes an empty slab with room for every slot
  // of this one: ResourceExhausted where memory is short. MoveInto moves every row into it, chunk by chunk, and cannot fail:
  // locations stay, new columns hold their initial value, and what Reserve promised is forgotten. O(rows). REQUIRES: the
  // columns of layout() come first in the new one
  Result<std::unique_ptr<RowSlab>> RoomFor(std::shared_ptr<const RowLayout> layout) const;
  void MoveInto(std::unique_ptr<RowSlab> room);
  // Frees all rows and all chunks.
  void Clear();

 private:
  size_t chunk_bytes() const;
  void SetGeometry();
  Status AddChunk();
  // Huge pages have numbers, chunk after chunk.
  size_t pages_in_chunk() const;
  // The number of pages with the rows of the first `end` slots.
  uint64_t PagesOf(uint32_t end) const;
  void MoveToHugePages();
  // Touches the page after those that were touched.
  void TouchPage();
  void SetTouchAt();
  void FreeChunk(uint8_t* chunk, size_t bytes);

  Env* const env_;
  const std::shared_ptr<RowMemory> memory_;
  const size_t ahead_bytes_;
  std::shared_ptr<const RowLayout> layout_;
  size_t stride_ = 0;
  int chunk_shift_ = 0;
  uint32_t chunk_mask_ = 0;
  std::vector<uint8_t*> chunks_;
  uint32_t end_ = 0;
  uint32_t free_ = kNoLocation;  // head of the list of free slots
  size_t num_free_ = 0;
  size_t rows_ = 0;
  uint64_t huge_pages_ = 0;  // that were touched; 0: the first chunk has small pages
  uint32_t touch_at_ = 0;    // the slot whose first use touches the next one
};

}  // namespace multitier

#endif  // CC_ROW_ROW_SLAB_H_
