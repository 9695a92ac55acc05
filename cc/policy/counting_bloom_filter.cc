#include "cc/policy/counting_bloom_filter.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "cc/base/coding.h"
#include "cc/base/hash.h"
#include "cc/base/prefetch.h"

namespace multitier {
namespace {

constexpr int kMaxHashes = 1100;  // |log2| of the smallest double is 1074
constexpr double kMaxBytes = 281474976710656.0;
constexpr size_t kHugePage = 2u << 20;

// Counters are plain integers in memory, reached by atomic operations only; no order between counters is promised.
template <typename T>
T Load(const T* counter) {
  return __atomic_load_n(counter, __ATOMIC_RELAXED);
}

// Replaces the counter by next(its value); a saturated one stays.
template <typename T, typename Next>
void Update(T* counter, Next&& next) {
  T old = Load(counter);
  while (old != std::numeric_limits<T>::max() &&
         !__atomic_compare_exchange_n(counter, &old, next(old), /*weak=*/true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

// Calls visit(counters as an array of their type).
template <typename Visit>
void WithType(void* counters, int counter_bytes, Visit&& visit) {
  switch (counter_bytes) {
    case 1:
      return visit(static_cast<uint8_t*>(counters));
    case 2:
      return visit(static_cast<uint16_t*>(counters));
    case 4:
      return visit(static_cast<uint32_t*>(counters));
    default:
      return visit(static_cast<uint64_t*>(counters));
  }
}

}  // namespace

Result<std::unique_ptr<CountingBloomFilter>> CountingBloomFilter::Create(Env* env, int64_t expected_keys,
                                                                         double false_positive_probability, int counter_bits) {
  const double p = false_positive_probability;
  if (expected_keys <= 0) {
    return InvalidArgumentError("counting Bloom filter: number of keys: expected at least 1, found ", expected_keys);
  }
  if (!(p > 0.0 && p < 1.0)) {
    return InvalidArgumentError(
        "counting Bloom filter: false positive probability: expected more than 0 and less than 1, found ", p);
  }
  if (counter_bits != 8 && counter_bits != 16 && counter_bits != 32 && counter_bits != 64) {
    return InvalidArgumentError("counting Bloom filter: counter bits: expected 8, 16, 32 or 64, found ", counter_bits);
  }
  const int num_hashes = static_cast<int>(std::ceil(std::fabs(std::log2(p))));
  const double counters =
      std::ceil(std::fabs(std::log(p)) / (std::log(2.0) * std::log(2.0)) * static_cast<double>(expected_keys));
  const int counter_bytes = counter_bits / 8;
  if (counters * counter_bytes > kMaxBytes) {
    return InvalidArgumentError("counting Bloom filter: ", expected_keys, " keys at false positive probability ", p,
                                " would take ", counters * counter_bytes, " bytes, at most ", kMaxBytes, " are supported");
  }
  const uint64_t num_counters = static_cast<uint64_t>(counters);
  const size_t bytes = static_cast<size_t>(num_counters) * static_cast<size_t>(counter_bytes);
  void* memory = env->AllocatePages(bytes, /*huge=*/bytes >= kHugePage);
  if (memory == nullptr) {
    return ResourceExhaustedError("counting Bloom filter: no memory for ", num_counters, " counters (", bytes,
                                  " bytes): lower max_element_size (", expected_keys,
                                  "), the number of keys that it is expected to count");
  }
  return std::unique_ptr<CountingBloomFilter>(new CountingBloomFilter(env, num_hashes, num_counters, counter_bytes, memory));
}

CountingBloomFilter::CountingBloomFilter(Env* env, int num_hashes, uint64_t num_counters, int counter_bytes, void* counters)
    : env_(env), num_hashes_(num_hashes), num_counters_(num_counters), counter_bytes_(counter_bytes), counters_(counters) {
  static_assert(kMaxHashes > 1074, "num_hashes fits the array of ForEachCounter");
}

CountingBloomFilter::~CountingBloomFilter() { env_->FreePages(counters_, bytes()); }

template <typename Visit>
void CountingBloomFilter::ForEachCounter(int64_t key, Visit&& visit) const {
  // Two independent hashes make all of them (Kirsch and Mitzenmacher). A step of 0 would make them one.
  const uint64_t first = HashKey(key);
  const uint64_t step = Mix64(first ^ 0x6a09e667f3bcc909ULL) | 1;
  uint64_t seen[kMaxHashes];
  for (int i = 0; i < num_hashes_; ++i) {
    const uint64_t hash = first + static_cast<uint64_t>(i) * step;
    const uint64_t index = static_cast<uint64_t>((static_cast<unsigned __int128>(hash) * num_counters_) >> 64);
    seen[i] = index;
    bool repeated = false;  // in a small filter two hashes may meet; the counter is the key's only once
    for (int j = 0; j < i; ++j) repeated = repeated || seen[j] == index;
    if (!repeated) visit(index);
  }
}

void CountingBloomFilter::Add(int64_t key, int64_t count) {
  if (count <= 0) return;
  WithType(counters_, counter_bytes_, [&](auto* counters) {
    using T = std::decay_t<decltype(*counters)>;
    constexpr T kMax = std::numeric_limits<T>::max();
    ForEachCounter(key, [&](uint64_t index) {
      Update(&counters[index], [count](T old) {
        const uint64_t room = static_cast<uint64_t>(kMax - old);
        return static_cast<uint64_t>(count) >= room ? kMax : static_cast<T>(old + static_cast<T>(count));
      });
    });
  });
}

void CountingBloomFilter::Subtract(int64_t key, int64_t count) {
  if (count <= 0) return;
  WithType(counters_, counter_bytes_, [&](auto* counters) {
    using T = std::decay_t<decltype(*counters)>;
    ForEachCounter(key, [&](uint64_t index) {
      Update(&counters[index], [count](T old) {
        return static_cast<uint64_t>(count) >= old ? T{0} : static_cast<T>(old - static_cast<T>(count));
      });
    });
  });
}

int64_t CountingBloomFilter::Estimate(int64_t key) const {
  uint64_t smallest = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  WithType(counters_, counter_bytes_, [&](const auto* counters) {
    ForEachCounter(key, [&](uint64_t index) {
      const uint64_t value = Load(&counters[index]);
      if (value < smallest) smallest = value;
    });
  });
  return static_cast<int64_t>(smallest);
}

void CountingBloomFilter::Prefetch(int64_t key) const {
  const char* counters = static_cast<const char*>(counters_);
  ForEachCounter(key, [&](uint64_t index) { PrefetchLine(counters + index * static_cast<uint64_t>(counter_bytes_)); });
}

void CountingBloomFilter::EncodeGeometry(uint8_t* out) const {
  EncodeFixed32(out, static_cast<uint32_t>(counter_bits()));
  EncodeFixed32(out + 4, static_cast<uint32_t>(num_hashes_));
  EncodeFixed64(out + 8, num_counters_);
}

std::vector<uint8_t> CountingBloomFilter::State() const {
  std::vector<uint8_t> state(kGeometryBytes + bytes());
  EncodeGeometry(state.data());
  std::memcpy(state.data() + kGeometryBytes, counters_, bytes());
  return state;
}

bool CountingBloomFilter::RestoreState(Span<const uint8_t> state) {
  uint8_t geometry[kGeometryBytes];
  EncodeGeometry(geometry);
  if (state.size() != kGeometryBytes + bytes() || std::memcmp(state.data(), geometry, kGeometryBytes) != 0) return false;
  std::memcpy(counters_, state.data() + kGeometryBytes, bytes());
  return true;
}

}  // namespace multitier
