#include "cc/row/row_slab.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace multitier {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2u << 20;
constexpr size_t kTargetChunkBytes = 16u << 20;
constexpr size_t kTargetPieceBytes = 64u << 10;  // of a RowMemory, which has them all at once

}  // namespace

RowSlab::RowSlab(Env* env, std::shared_ptr<const RowLayout> layout, std::shared_ptr<RowMemory> memory, double ahead)
    : env_(env), memory_(std::move(memory)), ahead_bytes_(static_cast<size_t>(ahead * kHugePage)), layout_(std::move(layout)) {
  SetGeometry();
}

RowSlab::~RowSlab() { Clear(); }

void RowSlab::SetGeometry() {
  stride_ = layout_->stride();
  chunk_shift_ = 0;
  const size_t target = memory_ == nullptr ? kTargetChunkBytes : kTargetPieceBytes;
  while ((stride_ << (chunk_shift_ + 1)) <= target) ++chunk_shift_;
  chunk_mask_ = (1u << chunk_shift_) - 1;
  SetTouchAt();
}

size_t RowSlab::chunk_bytes() const {
  const size_t page = memory_ == nullptr ? kHugePage : kPage;
  return ((stride_ << chunk_shift_) + page - 1) / page * page;
}

void RowSlab::FreeChunk(uint8_t* chunk, size_t bytes) {
  memory_ == nullptr ? env_->FreePages(chunk, bytes) : memory_->Free(chunk, bytes);
}

void RowSlab::Clear() {
  for (uint8_t* chunk : chunks_) FreeChunk(chunk, chunk_bytes());
  chunks_.clear();
  end_ = 0;
  free_ = kNoLocation;
  num_free_ = rows_ = 0;
  huge_pages_ = 0;
  SetTouchAt();
}

size_t RowSlab::pages_in_chunk() const { return chunk_bytes() / kHugePage; }

uint64_t RowSlab::PagesOf(uint32_t end) const {
  const uint32_t last = end - 1;
  return (last >> chunk_shift_) * pages_in_chunk() + (((last & chunk_mask_) + 1) * stride_ - 1) / kHugePage + 1;
}

void RowSlab::SetTouchAt() {
  touch_at_ = kNoLocation;
  if (memory_ != nullptr) return;
  if (huge_pages_ == 0) {
    // Before the first touch, and for each slab at another row, too.
    touch_at_ = std::min(static_cast<uint32_t>((kHugePage + (kHugePage - ahead_bytes_) / 2) / stride_), chunk_mask_);
    return;
  }
  const uint64_t chunk = huge_pages_ / pages_in_chunk(), page = huge_pages_ % pages_in_chunk();
  const uint64_t first = (chunk << chunk_shift_) + page * kHugePage / stride_;  // its first row
  if (first + chunk_mask_ < kNoLocation)
    touch_at_ = static_cast<uint32_t>(first - std::min<uint64_t>(first, ahead_bytes_ / stride_));
}

void RowSlab::MoveToHugePages() {
  env_->CollapsePages(chunks_[0], chunk_bytes());
  huge_pages_ = PagesOf(end_);
}

void RowSlab::TouchPage() {
  const uint64_t chunk = huge_pages_ / pages_in_chunk();
  // Without memory for it, Reserve finds that out where the slot is needed.
  if (chunk < chunks_.size() || AddChunk().ok()) {
    *static_cast<volatile uint8_t*>(chunks_[chunk] + huge_pages_ % pages_in_chunk() * kHugePage) = 0;
  }
  ++huge_pages_;
}

Status RowSlab::AddChunk() {
  const size_t bytes = chunk_bytes();
  if (memory_ != nullptr) {
    MT_ASSIGN_OR_RETURN(void* piece, memory_->Allocate(bytes));
    chunks_.push_back(static_cast<uint8_t*>(piece));
    return OkStatus();
  }
  void* chunk = env_->CommitPages(nullptr, bytes) ? env_->ReserveAddressSpace(bytes, /*huge=*/!chunks_.empty()) : nullptr;
  if (chunk == nullptr) {
    return ResourceExhaustedError("dram tier: no memory for ", chunk_mask_ + 1, " more rows of ", layout_->row_bytes(),
                                  " bytes (", bytes, " bytes); it holds ", rows_, " rows");
  }
  chunks_.push_back(static_cast<uint8_t*>(chunk));
  return OkStatus();
}

Status RowSlab::Reserve(size_t n) {
  const size_t chunks_before = chunks_.size();
  for (;;) {
    const uint64_t slots = static_cast<uint64_t>(chunks_.size()) << chunk_shift_;
    if (num_free_ + (slots - end_) >= n) return OkStatus();
    Status status = slots + chunk_mask_ < kNoLocation
                        ? AddChunk()
                        : ResourceExhaustedError("dram tier: a shard holds fewer than 2^32 rows; partition the table");
    if (status.ok()) continue;
    for (; chunks_.size() > chunks_before; chunks_.pop_back()) FreeChunk(chunks_.back(), chunk_bytes());
    return status;
  }
}

uint32_t RowSlab::Allocate() {
  uint32_t location = free_;
  if (location != kNoLocation) {
    free_ = Header(location)->below;
    --num_free_;
    if (free_ != kNoLocation) Prefetch(free_, sizeof(RowHeader));  // its link is what the next call waits for
  } else {
    location = end_++;
    for (; location >= touch_at_; SetTouchAt()) huge_pages_ == 0 ? MoveToHugePages() : TouchPage();
  }
  RowHeader* header = Header(location);
  std::memset(header, 0, sizeof(*header));
  header->below = kNoLocation;
  ++rows_;
  return location;
}

void RowSlab::Release(uint32_t location) {
  RowHeader* header = Header(location);
  header->flags = kRowFree;
  header->below = free_;
  free_ = location;
  ++num_free_;
  --rows_;
}

size_t RowSlab::resident_bytes() const {
  if (memory_ != nullptr) return chunks_.size() * chunk_bytes();
  if (huge_pages_ > 0) return huge_pages_ * kHugePage;
  return (end_ * stride_ + kPage - 1) / kPage * kPage;
}

Result<std::unique_ptr<RowSlab>> RowSlab::RoomFor(std::shared_ptr<const RowLayout> layout) const {
  auto room = std::make_unique<RowSlab>(env_, std::move(layout), memory_);
  while ((static_cast<uint64_t>(room->chunks_.size()) << room->chunk_shift_) < end_) MT_RETURN_IF_ERROR(room->AddChunk());
  return room;
}

void RowSlab::MoveInto(std::unique_ptr<RowSlab> room) {
  RowSlab& wide = *room;
  const std::shared_ptr<const RowLayout> layout = wide.layout_;
  const size_t old_bytes = sizeof(RowHeader) + layout_->row_bytes();
  const size_t first_new = layout_->columns().size();
  const size_t old_chunk_bytes = chunk_bytes();
  for (uint32_t location = 0; location < end_; ++location) {
    RowHeader* to = wide.Header(location);
    std::memcpy(to, Header(location), old_bytes);
    if (!to->has(kRowFree)) layout->FillSlots(Data(to), first_new);
    // Frees the old chunk as soon as its last row has moved, so that the two slabs never exist in full at the same time.
    if ((location & chunk_mask_) == chunk_mask_) {
      FreeChunk(chunks_[location >> chunk_shift_], old_chunk_bytes);
      chunks_[location >> chunk_shift_] = nullptr;
    }
  }
  for (uint8_t* chunk : chunks_) {
    if (chunk != nullptr) FreeChunk(chunk, old_chunk_bytes);
  }
  chunks_.swap(wide.chunks_);
  wide.chunks_.clear();
  layout_ = layout;
  huge_pages_ = 0;  // the first chunk began on small pages again
  SetGeometry();
  if (end_ <= touch_at_) return;
  MoveToHugePages();
  SetTouchAt();
}

}  // namespace multitier
