// PendingWords: the index words whose records are being read.
//
// In the index such a word is kPending and holds an id instead of its location; here the word is kept as it was. Until the id
// is given back, no other operation moves, frees or reads that record.
//
// Owned and called by ShardRows, under the shard's lock.

#ifndef CC_TABLE_SHARD_PENDING_WORDS_H_
#define CC_TABLE_SHARD_PENDING_WORDS_H_

#include <cstdint>
#include <vector>

#include "cc/index/shard_index.h"

namespace multitier {

class PendingWords {
 public:
  // Marks a word of the index as pending; returns its id.
  uint32_t Add(uint64_t* word) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(words_.size()));
      words_.push_back(0);
    }
    const uint32_t id = free_.back();
    free_.pop_back();
    words_[id] = *word;
    ShardIndex::Switch(word, WordState::kPending, id);
    return id;
  }
  // Makes the word of the index what it was. REQUIRES: Add gave the id for this word
  void Restore(uint64_t* word, uint32_t id) {
    ShardIndex::Switch(word, ShardIndex::state(words_[id]), ShardIndex::location(words_[id]));
    free_.push_back(id);
  }
  static bool IsPending(uint64_t word, uint32_t id) {
    return ShardIndex::state(word) == WordState::kPending && ShardIndex::location(word) == id;
  }
  // The word, or, of a pending one, the word as it was.
  uint64_t Original(uint64_t word) const {
    return ShardIndex::state(word) == WordState::kPending ? words_[ShardIndex::location(word)] : word;
  }
  bool any() const { return words_.size() > free_.size(); }

 private:
  std::vector<uint64_t> words_;  // by id
  std::vector<uint32_t> free_;   // ids
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_PENDING_WORDS_H_
