#include "cc/row/row_slab.h"

#include <cstring>
#include <utility>

namespace multitier {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = 2u << 20;
constexpr size_t kTargetChunkBytes = 16u << 20;
constexpr size_t kTargetPieceBytes = 64u << 10;  // of a RowMemory, which has them all at once

}  // namespace

RowSlab::RowSlab(Env* env, std::shared_ptr<const RowLayout> layout, std::shared_ptr<RowMemory> memory)
    : env_(env), memory_(std::move(memory)), layout_(std::move(layout)) {
  SetGeometry();
}

RowSlab::~RowSlab() { Clear(); }

void RowSlab::SetGeometry() {
  stride_ = layout_->stride();
  chunk_shift_ = 0;
  const size_t target = memory_ == nullptr ? kTargetChunkBytes : kTargetPieceBytes;
  while ((stride_ << (chunk_shift_ + 1)) <= target) ++chunk_shift_;
  chunk_mask_ = (1u << chunk_shift_) - 1;
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
    if (memory_ == nullptr && location < (1u << chunk_shift_) && location == kHugePage / stride_ + 1) {
      env_->CollapsePages(chunks_[0], chunk_bytes());
    }
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
  // Pages are touched as slots are first used: small ones up to 2 MiB, then whole huge pages.
  const size_t full_chunks = end_ >> chunk_shift_;
  const size_t rest = static_cast<size_t>(end_ & chunk_mask_) * stride_;
  if (full_chunks == 0 && rest < kHugePage) return (rest + kPage - 1) / kPage * kPage;
  return full_chunks * chunk_bytes() + (rest + kHugePage - 1) / kHugePage * kHugePage;
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
  SetGeometry();
  // The first chunk began on small pages again.
  if (memory_ != nullptr) return;
  if (!chunks_.empty() && static_cast<size_t>(end_) * stride_ > kHugePage) env_->CollapsePages(chunks_[0], chunk_bytes());
}

}  // namespace multitier
