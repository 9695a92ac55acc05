// KeyBatch: the keys of one operation, sorted by shard and, where asked, deduplicated.
//
//   keys      7  3  7  9  3  7          (positions 0 .. 5)
//   shard 0   7 -> 0, 2, 5              a unique key and its positions, in batch order
//             9 -> 3
//   shard 1   3 -> 1, 4
//
// Within a shard unique keys stand in the order of their first occurrence. The arrays are kept between uses: a batch as
// large as one before allocates nothing.
//
// SortByShard first, then PrepareDedup and Dedup of any shards in parallel; afterwards const methods from any thread.

#ifndef CC_TABLE_API_KEY_BATCH_H_
#define CC_TABLE_API_KEY_BATCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/span.h"

namespace multitier {

class KeyBatch {
 public:
  static constexpr uint32_t kEnd = 0xffffffffu;

  // Sorts `keys` (fewer than 2^32 - 1) into 2^log2_shards shards by the top bits of their hashes.
  // `distinct`: the keys are distinct, and there is nothing to dedup.
  void SortByShard(Span<const int64_t> keys, int log2_shards, bool distinct = false);
  // Makes room for Dedup: once after SortByShard, before the first Dedup.
  void PrepareDedup();
  // Makes the entries of the shard unique; occurrences are then found by first_position() and next().
  void Dedup(int shard);

  size_t num_keys() const { return num_keys_; }
  // Entries of the shard: all of them after SortByShard, the unique ones after Dedup.
  uint32_t begin(int shard) const { return begin_[shard]; }
  uint32_t end(int shard) const { return end_[shard]; }

  int64_t key(uint32_t entry) const { return keys_[entry]; }
  uint64_t hash(uint32_t entry) const { return hashes_[entry]; }
  uint32_t first_position(uint32_t entry) const { return positions_[entry]; }
  // The next position of the same key, or kEnd. After Dedup only.
  uint32_t next(uint32_t position) const { return distinct_ ? kEnd : next_[position]; }

 private:
  size_t num_keys_ = 0;
  bool distinct_ = false;
  std::vector<uint32_t> begin_, end_;        // [shards]
  std::vector<int64_t> keys_;                // [n] by shard
  std::vector<uint64_t> hashes_;             // [n] by shard
  std::vector<uint32_t> positions_;          // [n] by shard
  std::vector<uint32_t> last_;               // [n] by entry: last position so far
  std::vector<uint32_t> next_;               // [n] by position
  std::vector<std::vector<uint32_t>> seen_;  // [shards] hash set of entries, used by Dedup
};

// A KeyBatch of this thread's, taken and given back, so that steady traffic allocates nothing. Nested use gets another.
class BorrowedKeyBatch {
 public:
  BorrowedKeyBatch();
  ~BorrowedKeyBatch();
  BorrowedKeyBatch(const BorrowedKeyBatch&) = delete;
  BorrowedKeyBatch& operator=(const BorrowedKeyBatch&) = delete;
  KeyBatch* operator->() { return batch_.get(); }
  KeyBatch& operator*() { return *batch_; }
  const KeyBatch* operator->() const { return batch_.get(); }
  const KeyBatch& operator*() const { return *batch_; }

 private:
  std::unique_ptr<KeyBatch> batch_;
};

}  // namespace multitier

#endif  // CC_TABLE_API_KEY_BATCH_H_
