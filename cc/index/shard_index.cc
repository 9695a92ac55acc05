#include "cc/index/shard_index.h"

#include <algorithm>
#include <cstring>

namespace multitier {
namespace {

constexpr int kFirstAllocatedLog2 = 6;      // 64 buckets: one page
constexpr size_t kReserveBytes = 2u << 20;  // arrays from this size on grow in place
constexpr int kDoublingsPerTagBase = 12;
constexpr uint64_t kDistanceMask = uint64_t{0xf} << 33;

uint32_t DistanceOf(uint64_t word) { return static_cast<uint32_t>(word >> 33) & 0xf; }
uint32_t TagOf(uint64_t word) { return static_cast<uint32_t>(word >> 40); }

}  // namespace

ShardIndex::ShardIndex(Env* env, bool frozen, uint64_t max_words)
    : env_(env), frozen_(frozen), max_words_(max_words), buckets_(first_) {
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
  live_ = tombstones_ = allocated_bytes_ = 0;
  reserved_ = false;
}

Status ShardIndex::Reserve(size_t n, const HashOfWord& hash_of) {
  // One bucket knows none of the hash bits below a frozen tag base, so a frozen index never holds a word in it.
  if (frozen_ && num_buckets_ == 1 && n > 0) MT_RETURN_IF_ERROR(Grow(hash_of));
  while (static_cast<double>(live_ + tombstones_ + n) > kMaxLoad * static_cast<double>(num_buckets_ * kWordsPerBucket)) {
    MT_RETURN_IF_ERROR(Grow(hash_of));
  }
  return OkStatus();
}

Status ShardIndex::Insert(uint64_t hash, WordState state, uint32_t location, const HashOfWord& hash_of) {
  MT_RETURN_IF_ERROR(Reserve(1, hash_of));
  for (;;) {
    const uint64_t word = (static_cast<uint64_t>(Tag(hash)) << 40) | (static_cast<uint64_t>(state) << 37) | location;
    bool reused_tombstone = false;
    if (Place(buckets_, num_buckets_, Home(hash), word, &reused_tombstone)) {
      ++live_;
      if (reused_tombstone) --tombstones_;
      return OkStatus();
    }
    MT_RETURN_IF_ERROR(Grow(hash_of));
  }
}

void ShardIndex::Erase(uint64_t* word) {
  uint64_t* bucket = buckets_ + (word - buckets_) / kWordsPerBucket * kWordsPerBucket;
  const bool has_empty = MatchHigh(bucket, 0xe0u, 0) != 0;
  *word = has_empty ? 0 : static_cast<uint64_t>(WordState::kTombstone) << 37;
  if (!has_empty) ++tombstones_;
  --live_;
}

bool ShardIndex::Place(uint64_t* buckets, size_t num_buckets, uint64_t home, uint64_t word, bool* reused_tombstone) {
  for (uint64_t distance = 0; distance <= kMaxDistance; ++distance) {
    uint64_t* bucket = buckets + ((home + distance) & (num_buckets - 1)) * kWordsPerBucket;
    const unsigned empty = MatchHigh(bucket, 0xe0u, 0);
    const unsigned tombstone = MatchHigh(bucket, 0xe0u, static_cast<uint32_t>(WordState::kTombstone) << 5);
    const unsigned free_words = tombstone != 0 ? tombstone : empty;
    if (free_words == 0) continue;
    bucket[__builtin_ctz(free_words)] = (word & ~kDistanceMask) | (distance << 33);
    *reused_tombstone = tombstone != 0;
    return true;
  }
  return false;
}

uint64_t ShardIndex::HomeAfterGrowth(uint64_t bucket, uint64_t word, int log2) const {
  const uint64_t home = (bucket - DistanceOf(word)) & (num_buckets_ - 1);
  const uint64_t tag_bits = static_cast<uint64_t>(TagOf(word)) << tag_base_;
  const uint64_t mask = ((uint64_t{1} << log2) - 1) & ~(num_buckets_ - 1);
  return home | (tag_bits & mask);
}

Status ShardIndex::Grow(const HashOfWord& hash_of) {
  // From one bucket (or, frozen, none that was ever used) straight to the first array.
  const int log2 = num_buckets_ == 1 ? (frozen_ ? kFrozenLog2Buckets : kFirstAllocatedLog2) : log2_buckets_ + 1;
  if (log2 - tag_base_ > kTagBits || log2 > 32) {
    return ResourceExhaustedError("index of a shard: ", live_, " keys use up its tag bits; partition the table");
  }
  if (!(num_buckets_ > 1 && reserved_ && GrowInPlace())) MT_RETURN_IF_ERROR(GrowByCopy(log2));
  if (!frozen_ && log2_buckets_ - tag_base_ >= kDoublingsPerTagBase) Retag(hash_of);
  return OkStatus();
}

Status ShardIndex::GrowByCopy(int log2) {
  const size_t new_buckets = size_t{1} << log2;
  const size_t bytes = new_buckets * 64;
  uint64_t* buckets = nullptr;
  size_t allocated = bytes;
  bool reserved = false;
  if (bytes >= kReserveBytes) {
    // Room for max_words_ at half the load cap, so that doubling in place always fits.
    size_t reserve = bytes;
    while (reserve < (uint64_t{1} << 38) && static_cast<double>(reserve / 8) * kMaxLoad < static_cast<double>(max_words_)) {
      reserve <<= 1;
    }
    if (env_->CommitPages(nullptr, bytes)) {
      buckets = static_cast<uint64_t*>(env_->ReserveAddressSpace(reserve, /*huge=*/true));
    }
    reserved = buckets != nullptr;
    if (reserved) allocated = reserve;
  }
  if (buckets == nullptr) buckets = static_cast<uint64_t*>(env_->AllocatePages(bytes, bytes >= kReserveBytes));
  if (buckets == nullptr) {
    return ResourceExhaustedError("index of a shard: no memory for ", new_buckets, " buckets (", bytes, " bytes) to hold ",
                                  live_, " keys");
  }
  bool fits = true;
  for (uint64_t b = 0; b < num_buckets_ && fits; ++b) {
    for (int i = 0; i < kWordsPerBucket && fits; ++i) {
      const uint64_t word = buckets_[b * kWordsPerBucket + i];
      if (state(word) == WordState::kEmpty || state(word) == WordState::kTombstone) continue;
      bool reused;
      fits = Place(buckets, new_buckets, HomeAfterGrowth(b, word, log2), word, &reused);
    }
  }
  if (!fits) {  // a hash this uneven does not happen by chance; refuse rather than loop
    env_->FreePages(buckets, allocated);
    return ResourceExhaustedError("index of a shard: ", live_, " keys crowd one place of the index");
  }
  if (allocated_bytes_ != 0) env_->FreePages(buckets_, allocated_bytes_);
  buckets_ = buckets;
  num_buckets_ = new_buckets;
  log2_buckets_ = log2;
  allocated_bytes_ = allocated;
  reserved_ = reserved;
  tombstones_ = 0;
  return OkStatus();
}

bool ShardIndex::GrowInPlace() {
  const size_t old_buckets = num_buckets_, new_buckets = old_buckets * 2;
  if (new_buckets * 64 > allocated_bytes_) return false;
  if (!env_->CommitPages(buckets_ + old_buckets * kWordsPerBucket, old_buckets * 64)) return false;
  // Nobody walked past a bucket with an empty word: start behind one. The load cap makes sure there is one.
  uint64_t start = 0;
  while (MatchHigh(buckets_ + start * kWordsPerBucket, 0xe0u, 0) == 0) ++start;
  ++start;
  const int log2 = log2_buckets_ + 1;
  for (uint64_t i = 0; i < old_buckets; ++i) {
    const uint64_t b = (start + i) & (old_buckets - 1);
    uint64_t* bucket = buckets_ + b * kWordsPerBucket;
    uint64_t words[kWordsPerBucket];
    std::memcpy(words, bucket, sizeof(words));
    std::memset(bucket, 0, sizeof(words));
    for (const uint64_t word : words) {
      if (state(word) == WordState::kEmpty || state(word) == WordState::kTombstone) continue;
      bool reused;
      MT_CHECK(Place(buckets_, new_buckets, HomeAfterGrowth(b, word, log2), word, &reused));
    }
  }
  num_buckets_ = new_buckets;
  log2_buckets_ = log2;
  tombstones_ = 0;
  return true;
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
