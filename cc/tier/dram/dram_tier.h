// DramTier: a slab of rows in memory, addressed in place. The first tier of every shard, and, through the Tier interface
// (Write copies in, Read copies out), a tier like any other to the conformance suite.
//
//   chunk 0                     chunk 1
//   | row | row | ... | row |   | row | ...        rows: RowHeader + row data, `stride` apart
//
// A location is a slot number; its chunk is location / rows_per_chunk (a power of two), so addresses never move until
// Widen. Chunks are address space that fills as slots are first used; the first chunk begins on small pages, so that an
// empty or small slab costs nothing, and moves to huge pages once 2 MiB of it are in use. Free slots form a list through
// their headers (flag kRowFree, next in `below`). Over a RowMemory chunks are pieces of that instead, all theirs at once.
//
// Owns its memory. Does not bound: the table decides how many rows it may hold, fewer than 2^32.
//
// Allocate, Address and the like need the lock of the shard that owns the slab; so does the Tier interface, which has no
// lock of its own.

#ifndef CC_TIER_DRAM_DRAM_TIER_H_
#define CC_TIER_DRAM_DRAM_TIER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cc/env/env.h"
#include "cc/row/row_layout.h"
#include "cc/row/row_memory.h"
#include "cc/tier/tier.h"

namespace multitier {

class DramTier : public Tier {
 public:
  // memory: null: ordinary memory, of `env`.
  DramTier(Env* env, std::shared_ptr<const RowLayout> layout, std::shared_ptr<RowMemory> memory = nullptr);
  ~DramTier() override;

  // --- In place.
  // Makes sure that the next n Allocate calls succeed. ResourceExhausted naming what was asked; the slab is then as it was.
  Status Reserve(size_t n);
  // A free slot: header zeroed but for kNoLocation in `below`, row data undefined. REQUIRES: Reserve.
  uint32_t Allocate();
  void Release(uint32_t location);
  RowHeader* Header(uint32_t location) const {
    return reinterpret_cast<RowHeader*>(chunks_[location >> chunk_shift_] + (location & chunk_mask_) * stride_);
  }
  // Asks for a row to be brought into the processor's cache, to be changed.
  void Prefetch(uint32_t location) const {
    const char* const row = reinterpret_cast<const char*>(Header(location));
    for (size_t at = 0; at < std::min(stride_, kPrefetchedBytes); at += 64) __builtin_prefetch(row + at, 1);
  }
  static uint8_t* Data(RowHeader* header) { return reinterpret_cast<uint8_t*>(header + 1); }
  static const uint8_t* Data(const RowHeader* header) { return reinterpret_cast<const uint8_t*>(header + 1); }
  const std::shared_ptr<const RowLayout>& layout() const { return layout_; }
  // Slots ever used: rows are found at locations below it, where not kRowFree.
  uint32_t end() const { return end_; }
  size_t rows() const { return rows_; }
  size_t resident_bytes() const;
  // Rewrites every row to a layout with more columns, locations unchanged, chunk by chunk; new columns hold their initial
  // value. On ResourceExhausted the slab is as it was. Undoes Reserve. O(rows). REQUIRES: the columns of layout() come first
  Status Widen(std::shared_ptr<const RowLayout> layout);
  // The two halves of Widen, for who widens several slabs or none: an empty slab with room for every slot of this one
  // (ResourceExhausted where memory is short), and the move into it, which cannot fail.
  Result<std::unique_ptr<DramTier>> RoomFor(std::shared_ptr<const RowLayout> layout) const;
  void MoveInto(std::unique_ptr<DramTier> room);
  // Frees everything.
  void Clear();

  // --- Tier. Records with fewer columns are widened when written, so they read as full rows. Free stops the process where a
  // location does not hold a row of the key.
  const char* name() const override { return memory_ == nullptr ? "dram" : memory_->name(); }
  TierCapabilities capabilities() const override;
  Status SetLayout(std::shared_ptr<const RowLayout> layout) override { return Widen(std::move(layout)); }
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override;
  Status Read(Span<ReadRecord> records) override;
  void Free(Span<const KeyLocation> records) override;
  Status Remove(Span<const KeyLocation> records) override;
  bool SwitchBelow(const KeyLocation& record, uint32_t from, uint32_t to) override;
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) override;
  uint64_t location_end() const override { return end_; }
  Status Sync() override { return OkStatus(); }
  TierStats stats() const override;

 private:
  static constexpr size_t kPrefetchedBytes = 512;  // of a longer row the processor's own prefetching sees to the rest

  RecordHeader RecordHeaderOf(const RowHeader& row) const;
  size_t chunk_bytes() const;
  void SetGeometry();
  Status AddChunk();
  void FreeChunk(uint8_t* chunk, size_t bytes);

  Env* const env_;
  const std::shared_ptr<RowMemory> memory_;
  std::shared_ptr<const RowLayout> layout_;
  size_t stride_ = 0;
  int chunk_shift_ = 0;
  uint32_t chunk_mask_ = 0;
  std::vector<uint8_t*> chunks_;
  uint32_t end_ = 0;
  uint32_t free_ = kNoLocation;  // head of the list of free slots
  size_t num_free_ = 0;
  size_t rows_ = 0;
};

}  // namespace multitier

#endif  // CC_TIER_DRAM_DRAM_TIER_H_
