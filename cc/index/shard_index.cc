#include "cc/index/shard_index.h"

#include <cstring>

namespace multitier {
namespace {

constexpr int kFirstAllocatedLog2 = 6;      // 64 buckets: one page
constexpr size_t kReserveBytes = 2u << 20;  // arrays from this size on grow in place
constexpr int kDoublingsPerTagBase = 12;
constexpr double kSweepLoad = 0.95;         // of the load cap: at most this, tombstones are swept; above, the array doubles
constexpr int kCrowdedLog2 = 14;            // up to here an array doubles for a crowded home whatever its load
constexpr uint64_t kMaxDisplacement = 512;  // buckets searched for a free word that displacement moves nearer
constexpr size_t kHugePage = 2u << 20;
constexpr double kReadyLoad = 0.875;  // of the load cap: from here on pages are touched,
constexpr double kReadyShare = 0.1;   // over this share of it
constexpr uint64_t kDistanceMask = uint64_t{0xf} << 33;

uint32_t DistanceOf(uint64_t word) { return static_cast<uint32_t>(word >> 33) & 0xf; }
uint32_t TagOf(uint64_t word) { return static_cast<uint32_t>(word >> 40); }
uint64_t WithDistance(uint64_t word, uint64_t distance) { return (word & ~kDistanceMask) | (distance << 33); }
constexpr uint64_t kTombstoneWord = static_cast<uint64_t>(WordState::kTombstone) << 37;

}  // namespace

ShardIndex::ShardIndex(Env* env, bool frozen, Limits limits) : env_(env), frozen_(frozen), limits_(limits), buckets_(first_) {
  if (frozen_) tag_base_ = kFrozenLog2Buckets;
}

ShardIndex::~ShardIndex() { Clear(); }

void ShardIndex::Clear() {
  if (allocated_bytes_ != 0) env_->FreePages(buckets_, allocated_bytes_);
  buckets_ = first_;
  std::memset(first_, 0, sizeof(first_));
  num_buckets_ = 1;
  log2_buckets_ = 0;
  tag_base_ = frozen_ ? kFrozenLog2Buckets : 0;
  live_ = tombstones_ = allocated_bytes_ = ready_bytes_ = 0;
  reserved_ = false;
  SetReadyAt();
}

Status ShardIndex::Reserve(size_t n, const HashOfWord& hash_of) {
  // An array of one bucket has none of the hash bits below a frozen tag base, so a frozen index never holds a word in it.
  if (frozen_ && num_buckets_ == 1 && n > 0) MT_RETURN_IF_ERROR(Grow(hash_of));
  while (live_ + tombstones_ + n > MaxWords(num_buckets_)) {
    if (static_cast<double>(live_ + n) <= kSweepLoad * static_cast<double>(MaxWords(num_buckets_))) {
      Rebuild(buckets_, log2_buckets_);
    } else {
      MT_RETURN_IF_ERROR(Grow(hash_of));
    }
  }
  return OkStatus();
}

Status ShardIndex::Insert(uint64_t hash, WordState state, uint32_t location, const HashOfWord& hash_of) {
  MT_RETURN_IF_ERROR(Reserve(1, hash_of));
  for (;;) {
    uint32_t distance = 0;
    uint64_t* word = FreeWord(buckets_, num_buckets_, Home(hash), &distance);
    if (word == nullptr) word = MakeFreeWord(Home(hash), &distance);
    if (word != nullptr) {
      if (*word != 0) --tombstones_;
      *word = (static_cast<uint64_t>(High(Tag(hash), state, distance)) << 32) | location;
      if (++live_ >= ready_at_) ReadyPage();
      return OkStatus();
    }
    if (log2_buckets_ >= kCrowdedLog2 && live_ < MaxWords(num_buckets_) / 2) {
      return ResourceExhaustedError("index of a shard: more keys in one of its ", num_buckets_,
                                    " buckets than a uniform hash allows; it holds ", live_, " keys");
    }
    MT_RETURN_IF_ERROR(Grow(hash_of));
  }
}

void ShardIndex::Erase(uint64_t* word) {
  uint64_t* bucket = buckets_ + (word - buckets_) / kWordsPerBucket * kWordsPerBucket;
  const bool has_empty = MatchHigh(bucket, 0xe0u, 0) != 0;
  *word = has_empty ? 0 : kTombstoneWord;
  if (!has_empty) ++tombstones_;
  --live_;
}

uint64_t* ShardIndex::FreeWord(uint64_t* buckets, size_t num_buckets, uint64_t home, uint32_t* distance) {
  for (uint32_t d = 0; d <= kMaxDistance; ++d) {
    uint64_t* bucket = buckets + ((home + d) & (num_buckets - 1)) * kWordsPerBucket;
    const unsigned tombstone = MatchHigh(bucket, 0xe0u, static_cast<uint32_t>(WordState::kTombstone) << 5);
    const unsigned free_words = tombstone != 0 ? tombstone : MatchHigh(bucket, 0xe0u, 0);
    if (free_words == 0) continue;
    *distance = d;
    return bucket + __builtin_ctz(free_words);
  }
  return nullptr;
}

uint64_t* ShardIndex::MakeFreeWord(uint64_t home, uint32_t* distance) {
  const uint64_t mask = num_buckets_ - 1;
  uint64_t* free_word = nullptr;
  uint64_t at = 0;  // of free_word: buckets from home
  for (uint64_t skipped = kMaxDistance + 1; free_word == nullptr; skipped += kMaxDistance + 1) {
    if (skipped >= num_buckets_ || skipped > kMaxDisplacement) return nullptr;
    uint32_t d = 0;
    free_word = FreeWord(buckets_, num_buckets_, home + skipped, &d);
    at = skipped + d;
  }
  if (at >= num_buckets_) return nullptr;
  // All buckets from home up to `at` are full of live words, so a word of any of them may move to `at`: no walk for it ends
  // earlier. The earliest bucket goes first, for the longest step.
  while (at > kMaxDistance) {
    uint64_t* moved = nullptr;
    for (uint64_t from = at - kMaxDistance; from < at && moved == nullptr; ++from) {
      uint64_t* bucket = buckets_ + ((home + from) & mask) * kWordsPerBucket;
      for (int i = 0; i < kWordsPerBucket && moved == nullptr; ++i) {
        const uint64_t new_distance = DistanceOf(bucket[i]) + (at - from);
        if (new_distance > kMaxDistance) continue;
        if (*free_word != 0) --tombstones_;
        *free_word = WithDistance(bucket[i], new_distance);
        moved = bucket + i;
        *moved = kTombstoneWord;  // the bucket was full, so walks pass it
        ++tombstones_;
        at = from;
      }
    }
    if (moved == nullptr) return nullptr;
    free_word = moved;
  }
  *distance = static_cast<uint32_t>(at);
  return free_word;
}

Status ShardIndex::Grow(const HashOfWord& hash_of) {
  // From one bucket (or, frozen, none that was ever used) straight to the first array.
  const int log2 = num_buckets_ == 1 ? (frozen_ ? kFrozenLog2Buckets : kFirstAllocatedLog2) : log2_buckets_ + 1;
  if (log2 - tag_base_ > kTagBits || log2 > 32) {
    return ResourceExhaustedError("index of a shard: ", live_, " keys use up its tag bits; partition the table");
  }
  const size_t bytes = size_t{64} << log2;
  const bool in_place = reserved_ && bytes <= allocated_bytes_;
  size_t allocated_bytes = allocated_bytes_;
  bool reserved = reserved_;
  uint64_t* buckets = buckets_;
  if (!in_place) {
    buckets = AllocateBuckets(log2, &allocated_bytes, &reserved);
  } else if (!env_->CommitPages(buckets_ + num_buckets_ * kWordsPerBucket, bytes - num_buckets_ * 64)) {
    buckets = nullptr;
  }
  if (buckets == nullptr) {
    return ResourceExhaustedError("index of a shard: no memory for ", size_t{1} << log2, " buckets (", bytes,
                                  " bytes); it holds ", live_, " keys");
  }
  Rebuild(buckets, log2);
  if (!in_place && allocated_bytes_ != 0) env_->FreePages(buckets_, allocated_bytes_);
  buckets_ = buckets;
  allocated_bytes_ = allocated_bytes;
  reserved_ = reserved;
  num_buckets_ = size_t{1} << log2;
  log2_buckets_ = log2;
  ready_bytes_ = 0;
  SetReadyAt();
  if (!frozen_ && log2_buckets_ - tag_base_ >= kDoublingsPerTagBase) Retag(hash_of);
  return OkStatus();
}

void ShardIndex::SetReadyAt() {
  const size_t bytes = num_buckets_ * 64;
  ready_at_ = ~size_t{0};
  if (!reserved_ || 2 * bytes > allocated_bytes_ || ready_bytes_ >= bytes) return;
  const double done = static_cast<double>(ready_bytes_ + kHugePage) / static_cast<double>(bytes);  // with the next page
  ready_at_ = static_cast<size_t>((kReadyLoad + kReadyShare * done) * static_cast<double>(MaxWords(num_buckets_)));
}

void ShardIndex::ReadyPage() {
  uint8_t* const page = reinterpret_cast<uint8_t*>(buckets_ + num_buckets_ * kWordsPerBucket) + ready_bytes_;
  // Without memory for it, Grow finds that out.
  if (env_->CommitPages(page, kHugePage)) *static_cast<volatile uint8_t*>(page) = 0;
  ready_bytes_ += kHugePage;
  SetReadyAt();
}

uint64_t* ShardIndex::AllocateBuckets(int log2, size_t* allocated_bytes, bool* reserved) {
  const size_t bytes = size_t{64} << log2;
  *allocated_bytes = bytes;
  *reserved = false;
  if (bytes < kReserveBytes) return static_cast<uint64_t*>(env_->AllocatePages(bytes, /*huge=*/false));
  if (!env_->CommitPages(nullptr, bytes)) return nullptr;
  // Room for max_words and one doubling more, so that growth stays in place.
  size_t reserve = bytes;
  while (reserve < (size_t{1} << 38) && MaxWords(reserve / 64) / 2 < limits_.max_words) reserve <<= 1;
  uint64_t* buckets = static_cast<uint64_t*>(env_->ReserveAddressSpace(reserve, /*huge=*/true));
  if (buckets == nullptr) return static_cast<uint64_t*>(env_->AllocatePages(bytes, /*huge=*/true));
  *allocated_bytes = reserve;
  *reserved = true;
  return buckets;
}

void ShardIndex::Rebuild(uint64_t* to, int log2) {
  const uint64_t old_mask = num_buckets_ - 1;
  const uint64_t new_mask = (uint64_t{1} << log2) - 1, new_bits = new_mask & ~old_mask;
  uint64_t start = 0;  // the load cap makes sure that some bucket has an empty word
  while (MatchHigh(buckets_ + start * kWordsPerBucket, 0xe0u, 0) == 0) ++start;
  for (uint64_t i = 1; i <= num_buckets_; ++i) {
    const uint64_t at = (start + i) & old_mask;
    uint64_t* bucket = buckets_ + at * kWordsPerBucket;
    uint64_t words[kWordsPerBucket];
    std::memcpy(words, bucket, sizeof(words));
    if (to == buckets_) std::memset(bucket, 0, sizeof(words));
    for (const uint64_t word : words) {
      const WordState s = state(word);
      if (s == WordState::kEmpty || s == WordState::kTombstone) continue;
      const uint64_t old_home = (at - DistanceOf(word)) & old_mask;
      const uint64_t home = old_home | ((static_cast<uint64_t>(TagOf(word)) << tag_base_) & new_bits);
      uint64_t* into = to + home * kWordsPerBucket;  // there are no tombstones up to the place that is found
      unsigned free_words = MatchHigh(into, 0xe0u, 0);
      uint64_t distance = 0;
      while (free_words == 0) {
        MT_CHECK(++distance <= kMaxDistance);
        into = to + ((home + distance) & new_mask) * kWordsPerBucket;
        free_words = MatchHigh(into, 0xe0u, 0);
      }
      into[__builtin_ctz(free_words)] = WithDistance(word, distance);
    }
  }
  tombstones_ = 0;
}

void ShardIndex::Retag(const HashOfWord& hash_of) {
  tag_base_ = log2_buckets_;
  for (size_t i = 0; i < num_buckets_ * kWordsPerBucket; ++i) {
    uint64_t& word = buckets_[i];
    const WordState s = state(word);
    if (s == WordState::kEmpty || s == WordState::kTombstone) continue;
    const uint64_t tag = Tag(hash_of(s, location(word)));
    word = (word & 0xffffffffffULL) | (tag << 40);
  }
}

}  // namespace multitier
