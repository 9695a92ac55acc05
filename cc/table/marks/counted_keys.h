// CountedKeys: the counter filter's entries of one shard, 24 bytes for each key that was counted but has no row yet.
//
// Owns the memory of the entries. Entries do not move. ShardRows calls it under the shard's lock; it is not thread-safe.

#ifndef CC_TABLE_MARKS_COUNTED_KEYS_H_
#define CC_TABLE_MARKS_COUNTED_KEYS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/env/env.h"

namespace multitier {

struct CountedKey {
  int64_t key;
  int64_t version;     // step at which it was last counted
  uint32_t frequency;  // 0: made by an apply that has not counted yet, reads as absent
  uint32_t pins;       // applies that will count it; free: next free entry
};
static_assert(sizeof(CountedKey) == 24, "the documented cost of a counted key");

class CountedKeys {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;

  explicit CountedKeys(Env* env) : env_(env) {}
  ~CountedKeys() { Clear(); }
  CountedKeys(const CountedKeys&) = delete;
  CountedKeys& operator=(const CountedKeys&) = delete;

  CountedKey* at(uint32_t location) const { return chunks_[location / kPerChunk] + location % kPerChunk; }

  // Makes sure that the next n Allocate calls succeed. False: there is no memory for them.
  bool Reserve(size_t n) {
    while (num_free_ + chunks_.size() * kPerChunk - end_ < n) {
      void* chunk = env_->AllocatePages(kChunkBytes, /*huge=*/false);
      if (chunk == nullptr) return false;
      chunks_.push_back(static_cast<CountedKey*>(chunk));
    }
    return true;
  }
  // REQUIRES: Reserve.
  uint32_t Allocate(int64_t key) {
    uint32_t location = free_;
    if (location != kNone) {
      free_ = at(location)->pins;
      --num_free_;
    } else {
      location = end_++;
    }
    *at(location) = CountedKey{key, -1, 0, 0};
    return location;
  }
  void Release(uint32_t location) {
    at(location)->frequency = 0;
    at(location)->pins = free_;
    free_ = location;
    ++num_free_;
  }
  void Clear() {
    for (CountedKey* chunk : chunks_) env_->FreePages(chunk, kChunkBytes);
    chunks_.clear();
    end_ = 0;
    free_ = kNone;
    num_free_ = 0;
  }
  uint32_t end() const { return end_; }  // of the slots ever taken; a free one has no frequency
  size_t bytes() const { return chunks_.size() * kChunkBytes; }

 private:
  static constexpr size_t kChunkBytes = 24 * 1024;
  static constexpr uint32_t kPerChunk = kChunkBytes / sizeof(CountedKey);

  Env* const env_;
  std::vector<CountedKey*> chunks_;
  uint32_t end_ = 0;
  uint32_t free_ = kNone;
  size_t num_free_ = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_MARKS_COUNTED_KEYS_H_
