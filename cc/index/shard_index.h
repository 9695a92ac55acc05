// ShardIndex: the hash index of one shard, over all tiers. Each key has one word of 8 bytes. The index knows where a key may
// be; it does not store the key.
//
// Layout. An array of 2^k buckets. A bucket is one cache line with eight words. A key's hash gives:
//
//     ... | shard 6 (top) | ... | tag: 24 bits from `tag_base` up | ... | home bucket: the low k bits |
//
//   word:  63        40 39   37 36      33  32   31          0
//          |  tag 24   | state | distance | dev |  location   |       0 = empty
//
//   A word is in its home bucket, or, if that is full, in one of the next 15 buckets. `distance` is the number of buckets from
//   home, so a word's home is known without its key. A probe visits buckets from home on, and ends at the first bucket with an
//   empty word. Insertion, erasure and growth keep this invariant: between a word's home and its bucket, every bucket is full.
//
// A tag match is not a key match. The caller must verify the key in the row or record, and continue the probe if it is another
// key.
//
// Insert uses the first free place from home on. If the 16 buckets in reach are full, words of the buckets in between are moved
// until a free place is in reach. No word moves further than 15 buckets from its own home. In large arrays this happens long
// before the load cap (a window of 16 buckets is full with probability 1e-4 at 70 % load), so growth would not be a solution.
//
// Erase empties the word if its bucket has another empty word. Otherwise the word becomes a tombstone. Tombstones count as
// load, and inserts use them again. At the load cap, the array is swept of tombstones if the live words alone fit; otherwise it
// doubles.
//
// Growth doubles the array. A sweep rebuilds it at the same size. Neither reads a row, because bit k of a word's hash is bit
// k - tag_base of its tag. Both work in place (growth only for large arrays, inside reserved address space):
//   1. They start after a bucket with an empty word.
//   2. They empty the buckets in order and insert their words again. Every word finds a place at its old distance or nearer,
//      because the places at that distance, in either half, were left by words of the same bucket.
//   3. So no bucket overflows and no word is visited twice.
//
// The kernel takes milliseconds to clear a huge page. So a large array touches the pages that its doubling needs one by one,
// while the last eighth of its load comes in.
//
// Each doubling uses up one tag bit. While all keys are in memory, Grow computes new tags from the keys every 12 doublings. If
// keys may be in lower tiers, the tag base is fixed for 1,024 buckets from the start. This allows 12 doublings with a false
// match rate of 8 / 4096 words.
//
// Memory: an empty index has one bucket inside the object. Right after doubling at a load of 0.7 it takes at most
// 8 / (0.95 * 0.7 / 2) = 24.1 bytes per key. The shards of a table double at loads around that (ShardSet).
//
// Keys that are chosen to share low hash bits are not handled: if more than 128 keys share a home, Insert fails with
// ResourceExhausted instead of growing without end.
//
// Not thread-safe: every method needs the shard's lock. Word pointers are valid until the next Insert or Reserve.

#ifndef CC_INDEX_SHARD_INDEX_H_
#define CC_INDEX_SHARD_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <functional>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "cc/base/prefetch.h"
#include "cc/base/status.h"
#include "cc/env/env.h"

namespace multitier {

enum class WordState : uint32_t {
  kEmpty = 0,
  kDram = 1,     // location: slot of the shard's DRAM tier
  kLower1 = 2,   // location: in the first tier below DRAM
  kLower2 = 3,   // location: in the second tier below DRAM
  kPending = 4,  // an operation is reading or moving the row; location: id in the shard's pending table
  kCounted = 5,  // the key is counted and not admitted; location: slot of the counted entries
  kTombstone = 6,
};

class ShardIndex {
 public:
  static constexpr int kWordsPerBucket = 8;
  static constexpr int kTagBits = 24;
  static constexpr int kMaxDistance = 15;
  static constexpr int kFrozenLog2Buckets = 10;
  static constexpr double kMaxLoad = 0.70;

  // Returns the hash of the key of a word whose key is in memory (DRAM and counted words).
  using HashOfWord = std::function<uint64_t(WordState state, uint32_t location)>;

  struct Limits {
    uint64_t max_words = 0;      // size of the reserved address space
    double max_load = kMaxLoad;  // at which it doubles: 0.6 to 0.8
  };
  // frozen: keys may be in lower tiers, so the tag base never changes.
  ShardIndex(Env* env, bool frozen, Limits limits);
  ~ShardIndex();
  ShardIndex(const ShardIndex&) = delete;
  ShardIndex& operator=(const ShardIndex&) = delete;

  // Makes room for `n` inserts. ResourceExhausted if there is no memory or no tag bit left; the index does not change then.
  Status Reserve(size_t n, const HashOfWord& hash_of);
  // Adds a word. After Reserve it fails only if too many keys share a home. REQUIRES: the key is not in the index.
  Status Insert(uint64_t hash, WordState state, uint32_t location, const HashOfWord& hash_of);
  void Erase(uint64_t* word);
  // Empties the index and frees its memory.
  void Clear();

  size_t words() const { return live_; }
  size_t bytes() const { return num_buckets_ > 1 ? num_buckets_ * 64 + ready_bytes_ : 0; }

  // --- Words.
  static WordState state(uint64_t word) { return static_cast<WordState>((word >> 37) & 7); }
  static uint32_t location(uint64_t word) { return static_cast<uint32_t>(word); }
  // Changes the state and location of a word; tag and distance stay.
  static void Switch(uint64_t* word, WordState state, uint32_t location) {
    *word = (*word & ~((uint64_t{7} << 37) | 0xffffffffULL)) | (static_cast<uint64_t>(state) << 37) | location;
  }

  // --- Probing.
  void Prefetch(uint64_t hash) const { PrefetchLine(buckets_ + Home(hash) * kWordsPerBucket); }

  // The location of the first DRAM word in the home bucket whose tag matches; kNone if there is none. This finds nearly every
  // key that is present. The caller verifies the key, and calls Find if it is another key.
  static constexpr uint32_t kNone = 0xffffffffu;
  uint32_t FindHomeDram(uint64_t hash) const {
    const uint64_t* bucket = buckets_ + Home(hash) * kWordsPerBucket;
    const unsigned match = MatchHigh(bucket, 0xffffffffu, High(Tag(hash), WordState::kDram, 0));
    return match == 0 ? kNone : location(bucket[__builtin_ctz(match)]);
  }

  // Calls visit(word) for each word whose tag matches, in probe order, without tombstones, until visit returns true.
  // Returns that word, or nullptr.
  template <typename Visit>
  uint64_t* Find(uint64_t hash, Visit&& visit) const {
    const uint64_t home = Home(hash);
    const uint32_t tag = Tag(hash);
    for (uint32_t distance = 0; distance <= kMaxDistance; ++distance) {
      uint64_t* bucket = buckets_ + ((home + distance) & (num_buckets_ - 1)) * kWordsPerBucket;
      // Compare all bits except the state and the device bit.
      unsigned match = MatchHigh(bucket, ~0xe1u, (tag << 8) | (distance << 1));
      while (match != 0) {
        uint64_t* word = bucket + __builtin_ctz(match);
        match &= match - 1;
        const WordState s = state(*word);
        if (s == WordState::kEmpty || s == WordState::kTombstone) continue;
        if (visit(*word)) return word;
      }
      if (MatchHigh(bucket, 0xe0u, 0) != 0) return nullptr;  // a bucket with an empty word ends the probe
    }
    return nullptr;
  }

  int log2_buckets() const { return log2_buckets_; }
  void PrefetchHome(uint32_t home) const { PrefetchLine(buckets_ + size_t{home} * kWordsPerBucket); }
  // Calls visit(word) for the eight words of one bucket, whatever their homes; empty ones too.
  template <typename Visit>
  void ForEachIn(uint32_t bucket, Visit&& visit) const {
    for (int i = 0; i < kWordsPerBucket; ++i) visit(buckets_[size_t{bucket} * kWordsPerBucket + i]);
  }
  // Calls visit(word) for every word whose home is bucket `home`, without tombstones.
  template <typename Visit>
  void ForEachAtHome(uint32_t home, Visit&& visit) const {
    for (uint32_t distance = 0; distance <= kMaxDistance && distance < num_buckets_; ++distance) {
      uint64_t* bucket = buckets_ + ((home + distance) & (num_buckets_ - 1)) * kWordsPerBucket;
      for (int i = 0; i < kWordsPerBucket; ++i) {
        const WordState s = state(bucket[i]);
        if (s == WordState::kEmpty || s == WordState::kTombstone) continue;
        if (((bucket[i] >> 33) & 0xf) == distance) visit(bucket[i]);
      }
      if (MatchHigh(bucket, 0xe0u, 0) != 0) return;
    }
  }
  // Calls visit(word) for every word, without tombstones, in any order.
  template <typename Visit>
  void ForEach(Visit&& visit) const {
    for (size_t i = 0; i < num_buckets_ * kWordsPerBucket; ++i) {
      const WordState s = state(buckets_[i]);
      if (s != WordState::kEmpty && s != WordState::kTombstone) visit(buckets_[i]);
    }
  }

 private:
  static uint32_t High(uint32_t tag, WordState s, uint32_t distance) {
    return (tag << 8) | (static_cast<uint32_t>(s) << 5) | (distance << 1);
  }
  uint64_t Home(uint64_t hash) const { return hash & (num_buckets_ - 1); }
  uint32_t Tag(uint64_t hash) const { return static_cast<uint32_t>(hash >> tag_base_) & 0xffffffu; }

  // Bit i is set if the high half of word i, under `mask`, equals `want`.
  static unsigned MatchHigh(const uint64_t* bucket, uint32_t mask, uint32_t want);

  size_t MaxWords(size_t num_buckets) const {
    return static_cast<size_t>(limits_.max_load * static_cast<double>(num_buckets * kWordsPerBucket));
  }
  // The first free word (tombstone or empty) from `home` on, at most kMaxDistance buckets away; nullptr if there is none.
  static uint64_t* FreeWord(uint64_t* buckets, size_t num_buckets, uint64_t home, uint32_t* distance);
  // If FreeWord finds none: moves words until there is one. nullptr if no word can move without exceeding kMaxDistance.
  uint64_t* MakeFreeWord(uint64_t home, uint32_t* distance);

  Status Grow(const HashOfWord& hash_of);
  // Touches the next page of the doubled array, and sets the number of words that asks for another one.
  void ReadyPage();
  void SetReadyAt();
  // Memory for 2^log2 buckets, zero-filled; nullptr if there is none.
  uint64_t* AllocateBuckets(int log2, size_t* allocated_bytes, bool* reserved);
  // Inserts every word into 2^log2 buckets at `to`, without tombstones. `to` may be buckets_.
  // REQUIRES: 2^log2 >= num_buckets_; the part of `to` beyond the present buckets is zero
  void Rebuild(uint64_t* to, int log2);
  void Retag(const HashOfWord& hash_of);

  Env* const env_;
  const bool frozen_;
  const Limits limits_;
  uint64_t* buckets_;
  size_t num_buckets_ = 1;  // a power of two
  int log2_buckets_ = 0;
  int tag_base_ = 0;
  size_t live_ = 0;
  size_t tombstones_ = 0;
  size_t allocated_bytes_ = 0;  // bytes of buckets_; 0: buckets_ is first_
  bool reserved_ = false;       // allocated_bytes_ is address space, not memory
  size_t ready_bytes_ = 0;      // behind the buckets: touched for the next doubling
  size_t ready_at_ = ~size_t{0};
  alignas(64) uint64_t first_[kWordsPerBucket] = {};
};

inline unsigned ShardIndex::MatchHigh(const uint64_t* bucket, uint32_t mask, uint32_t want) {
#if defined(__SSE2__)
  const __m128i* v = reinterpret_cast<const __m128i*>(bucket);
  const __m128 a0 = _mm_castsi128_ps(_mm_load_si128(v)), a1 = _mm_castsi128_ps(_mm_load_si128(v + 1));
  const __m128 a2 = _mm_castsi128_ps(_mm_load_si128(v + 2)), a3 = _mm_castsi128_ps(_mm_load_si128(v + 3));
  const __m128i low = _mm_castps_si128(_mm_shuffle_ps(a0, a1, _MM_SHUFFLE(3, 1, 3, 1)));
  const __m128i high = _mm_castps_si128(_mm_shuffle_ps(a2, a3, _MM_SHUFFLE(3, 1, 3, 1)));
  const __m128i m = _mm_set1_epi32(static_cast<int>(mask)), w = _mm_set1_epi32(static_cast<int>(want));
  const __m128i e0 = _mm_cmpeq_epi32(_mm_and_si128(low, m), w), e1 = _mm_cmpeq_epi32(_mm_and_si128(high, m), w);
  const __m128i packed = _mm_packs_epi16(_mm_packs_epi32(e0, e1), _mm_setzero_si128());
  return static_cast<unsigned>(_mm_movemask_epi8(packed)) & 0xffu;
#else
  unsigned match = 0;
  for (int i = 0; i < kWordsPerBucket; ++i) {
    match |= static_cast<unsigned>((static_cast<uint32_t>(bucket[i] >> 32) & mask) == want) << i;
  }
  return match;
#endif
}

}  // namespace multitier

#endif  // CC_INDEX_SHARD_INDEX_H_
