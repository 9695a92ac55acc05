#include "cc/policy/counting_bloom_filter.h"

#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cc/env/env.h"
#include "cc/env/fault_env.h"
#include "gtest/gtest.h"

namespace multitier::counting_bloom_filter_test {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::unique_ptr<CountingBloomFilter> Make(int64_t keys, double p, int bits) {
  return *CountingBloomFilter::Create(Env::Posix(), keys, p, bits);
}

class CountingBloomFilterTest : public testing::TestWithParam<int> {
 protected:
  int64_t Saturated() const { return GetParam() == 64 ? kMax : static_cast<int64_t>((uint64_t{1} << GetParam()) - 1); }
};
INSTANTIATE_TEST_SUITE_P(CounterBits, CountingBloomFilterTest, testing::Values(8, 16, 32, 64));

TEST(CountingBloomFilterSizeTest, FollowsTheFormulas) {
  const auto filter = Make(1000000, 0.01, 32);
  EXPECT_EQ(filter->num_hashes(), 7);           // ceil(6.64)
  EXPECT_EQ(filter->num_counters(), 9585059u);  // ceil(9.585058... M)
  EXPECT_EQ(filter->bytes(), 4u * 9585059);
  EXPECT_EQ(filter->Counters().size(), filter->bytes());
  EXPECT_EQ(Make(10, 0.5, 8)->num_hashes(), 1);
  EXPECT_EQ(Make(10, 0.5, 8)->num_counters(), 15u);  // ceil(14.43)
  EXPECT_EQ(Make(1, 0.99, 8)->num_counters(), 1u);
  EXPECT_EQ(Make(1, 1e-300, 64)->num_hashes(), 997);
}

TEST(CountingBloomFilterSizeTest, BadArgumentsAreRefusedByName) {
  auto message = [](int64_t keys, double p, int bits) {
    const Status status = CountingBloomFilter::Create(Env::Posix(), keys, p, bits).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    return status.message();
  };
  EXPECT_NE(message(0, 0.01, 32).find("found 0"), std::string::npos);
  EXPECT_NE(message(10, 1.0, 32).find("found 1"), std::string::npos);
  EXPECT_NE(message(10, std::numeric_limits<double>::quiet_NaN(), 32).find("more than 0 and less than 1, found"),
            std::string::npos);
  EXPECT_NE(message(10, 0.01, 24).find("found 24"), std::string::npos);
  EXPECT_NE(message(kMax, 0.01, 8).find("bytes"), std::string::npos);
}

TEST(CountingBloomFilterSizeTest, NoMemoryIsResourceExhausted) {
  FaultEnv env(Env::Posix());
  env.FailNth(FaultKind::kAllocate, 1, ResourceExhaustedError("no memory"));
  const Status status = CountingBloomFilter::Create(&env, 1000, 0.01, 32).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("lower max_element_size (1000)"), std::string::npos) << status.message();
  EXPECT_TRUE(CountingBloomFilter::Create(&env, 1000, 0.01, 32).ok());
}

TEST_P(CountingBloomFilterTest, CountsOfFewKeysAreExact) {
  const auto filter = Make(10000, 0.001, GetParam());
  int64_t count = 1;
  for (const int64_t key : {kMin, int64_t{-1}, int64_t{0}, int64_t{1}, kMax}) {
    EXPECT_EQ(filter->Estimate(key), 0);
    filter->Add(key, count++);
    filter->Add(key, 0);
  }
  count = 1;
  for (const int64_t key : {kMin, int64_t{-1}, int64_t{0}, int64_t{1}, kMax}) EXPECT_EQ(filter->Estimate(key), count++);
  filter->Subtract(kMax, 2);
  EXPECT_EQ(filter->Estimate(kMax), 3);
  filter->Subtract(kMax, 100);
  EXPECT_EQ(filter->Estimate(kMax), 0);
  EXPECT_EQ(filter->Estimate(1), 4);
}

TEST_P(CountingBloomFilterTest, SaturatedCounterSticks) {
  const auto filter = Make(1000, 0.01, GetParam());
  filter->Add(7, Saturated() - 1);
  EXPECT_EQ(filter->Estimate(7), Saturated() - 1);
  filter->Subtract(7, 1);
  EXPECT_EQ(filter->Estimate(7), Saturated() - 2);
  for (int i = 0; i < 5; ++i) filter->Add(7, kMax);
  EXPECT_EQ(filter->Estimate(7), Saturated());
  filter->Subtract(7, 1);
  filter->Subtract(7, kMax);
  EXPECT_EQ(filter->Estimate(7), Saturated());
  EXPECT_EQ(filter->Estimate(8), 0);
}

// Even in a filter of one counter, where all hashes meet, a key is counted once.
TEST_P(CountingBloomFilterTest, TinyFilterCountsEachOccurrenceOnce) {
  const auto filter = Make(1, 0.01, GetParam());
  EXPECT_EQ(filter->num_counters(), 10u);
  filter->Add(5, 3);
  EXPECT_EQ(filter->Estimate(5), 3);
  filter->Subtract(5, 3);
  for (const uint8_t byte : filter->Counters()) EXPECT_EQ(byte, 0);
}

TEST_P(CountingBloomFilterTest, EstimatesAreNeverTooLowAndRarelyTooHigh) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  constexpr int64_t kKeys = 20000;
  const auto filter = Make(kKeys, 0.01, GetParam());
  std::unordered_map<int64_t, int64_t> truth;
  while (truth.size() < kKeys) {
    const int64_t key = static_cast<int64_t>(random());
    const int64_t count = static_cast<int64_t>(1 + random() % 3);
    filter->Add(key, count);
    truth[key] += count;
  }
  int too_high = 0;
  for (const auto& [key, count] : truth) {
    ASSERT_GE(filter->Estimate(key), count);
    too_high += filter->Estimate(key) > count;
  }
  int false_positives = 0;
  for (int64_t i = 0; i < kKeys; ++i) false_positives += filter->Estimate(static_cast<int64_t>(random())) > 0;
  // Expected 200 of each, plus 5 standard deviations.
  EXPECT_LE(too_high, 300);
  EXPECT_LE(false_positives, 300);
  for (const auto& [key, count] : truth) filter->Subtract(key, count);
  for (const uint8_t byte : filter->Counters()) ASSERT_EQ(byte, 0);
}

TEST_P(CountingBloomFilterTest, CountersCarryTheWholeState) {
  const auto filter = Make(1000, 0.01, GetParam()), copy = Make(1000, 0.01, GetParam());
  for (int64_t key = 0; key < 1000; ++key) filter->Add(key, key % 5);
  std::memcpy(copy->Counters().data(), filter->Counters().data(), filter->bytes());
  for (int64_t key = 0; key < 2000; ++key) EXPECT_EQ(copy->Estimate(key), filter->Estimate(key));
}

TEST_P(CountingBloomFilterTest, ConcurrentAddsLoseNoCount) {
  constexpr int kThreads = 4, kRounds = 25;
  const auto filter = Make(1000, 0.01, GetParam());
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&filter] {
      for (int round = 0; round < kRounds; ++round) {
        for (int64_t key = 0; key < 20; ++key) {
          filter->Add(key, 3);
          EXPECT_GE(filter->Estimate(key), 1);
          filter->Subtract(key, 2);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int64_t key = 0; key < 20; ++key) EXPECT_GE(filter->Estimate(key), kThreads * kRounds);
  for (int64_t key = 0; key < 20; ++key) filter->Subtract(key, kThreads * kRounds);
  for (const uint8_t byte : filter->Counters()) EXPECT_EQ(byte, 0);
}

}  // namespace
}  // namespace multitier::counting_bloom_filter_test
