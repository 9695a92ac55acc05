#include "cc/row/initializer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "cc/base/philox.h"
#include "cc/row/distributions.h"

namespace multitier::initializer_test {
namespace {

constexpr int64_t kMinKey = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxKey = std::numeric_limits<int64_t>::max();

InitializerSpec Spec(InitializerKind kind, float a, float b, uint64_t seed = 1) {
  InitializerSpec spec;
  spec.kind = kind;
  spec.a = a;
  spec.b = b;
  spec.seed = seed;
  return spec;
}

InitializerSpec MatrixSpec(std::vector<float> values, int64_t rows) {
  InitializerSpec spec = Spec(InitializerKind::kMatrix, 0, 0);
  spec.matrix = std::make_shared<const std::vector<float>>(std::move(values));
  spec.matrix_rows = rows;
  return spec;
}

std::vector<float> Row(const InitializerSpec& spec, int dim, int64_t key) {
  std::vector<float> row(static_cast<size_t>(dim));
  Initializer::Create(spec, dim).operator*().Fill(key, row.data());
  return row;
}

// n keys of dim elements, flat.
std::vector<float> Sample(const InitializerSpec& spec, int dim, int64_t n) {
  const Initializer initializer = *Initializer::Create(spec, dim);
  std::vector<float> values(static_cast<size_t>(n * dim));
  std::vector<int64_t> keys;
  std::vector<float*> out;
  for (int64_t i = 0; i < n; ++i) {
    keys.push_back(i - n / 2);
    out.push_back(values.data() + i * dim);
  }
  initializer.FillBatch(keys.data(), keys.size(), out.data());
  return values;
}

double Cdf(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

// Largest distance between the sample's distribution and `cdf`, times sqrt(n): above 1.95 once in a thousand samples.
double KolmogorovSmirnov(std::vector<float> sample, const std::function<double(double)>& cdf) {
  std::sort(sample.begin(), sample.end());
  const double n = static_cast<double>(sample.size());
  double distance = 0;
  for (size_t i = 0; i < sample.size(); ++i) {
    const double p = cdf(sample[i]);
    const double rank = static_cast<double>(i);
    distance = std::max({distance, std::fabs(p - rank / n), std::fabs(p - (rank + 1) / n)});
  }
  return distance * std::sqrt(n);
}

struct Moments {
  double mean = 0, deviation = 0, skewness = 0, kurtosis = 0;
};

Moments MomentsOf(const std::vector<float>& sample) {
  const double n = static_cast<double>(sample.size());
  Moments m;
  for (const float x : sample) m.mean += x / n;
  double second = 0, third = 0, fourth = 0;
  for (const float x : sample) {
    const double d = x - m.mean;
    second += d * d / n;
    third += d * d * d / n;
    fourth += d * d * d * d / n;
  }
  m.deviation = std::sqrt(second);
  m.skewness = third / (second * m.deviation);
  m.kurtosis = fourth / (second * second);
  return m;
}

// Errors of the fits.

// Relative error of z as the inverse of the normal distribution at lower-tail probability p <= 1/2, z <= 0.
double InverseError(double z, double p) {
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * M_PI);
  return std::fabs((Cdf(z) - p) / density / std::max(std::fabs(z), 1e-6));
}

TEST(DistributionsTest, NormalInvertsTheDistributionToSingleAccuracy) {
  double worst = 0;
  for (uint64_t i = 0; i < (1u << 20); ++i) {
    // Evenly in p, then evenly in log p.
    const uint32_t even = static_cast<uint32_t>(i << 11);
    const uint32_t tail = static_cast<uint32_t>(i * 0x9e3779b1u) >> (1 + i % 31);
    for (const uint32_t bits : {even & 0x7fffffffu, tail}) {
      const float z = UnitNormal(bits);
      const double p = (static_cast<double>(bits) + 0.5) / 4294967296.0;
      ASSERT_TRUE(std::isfinite(z)) << bits;
      ASSERT_GE(z, 0.0f) << bits;
      ASSERT_EQ(UnitNormal(bits | 0x80000000u), -z) << bits;
      worst = std::max(worst, InverseError(-static_cast<double>(z), p));
    }
  }
  EXPECT_LT(worst, 1e-6);
}

TEST(DistributionsTest, NormalAtTheEndsOfItsRangeIsFinite) {
  EXPECT_NEAR(UnitNormal(0), 6.338, 0.001);
  EXPECT_NEAR(UnitNormal(0x80000000u), -6.338, 0.001);
  EXPECT_NEAR(UnitNormal(0x7fffffffu), 2.918e-10, 1e-13);
  EXPECT_NEAR(UnitNormal(0xffffffffu), -2.918e-10, 1e-13);
}

TEST(DistributionsTest, NormalIsMonotoneAcrossTheSeamOfItsFits) {
  // 2p = 0.0455: where |z| passes 2. Nearly monotone is all that single precision allows.
  float last = 10;
  for (uint32_t bits = 97600000; bits < 97800000; bits += 100) {
    const float z = UnitNormal(bits);
    ASSERT_LE(z, last + 1e-6f) << bits;
    last = z;
  }
  EXPECT_GT(UnitNormal(97600000), 2.0f);
  EXPECT_LT(UnitNormal(97799900), 2.0f);
}

TEST(DistributionsTest, TruncatedNormalInvertsItsDistributionAndEndsAtTwo) {
  double worst = 0;
  for (uint64_t i = 0; i < (1u << 20); ++i) {
    const uint32_t bits = static_cast<uint32_t>(i << 12) | static_cast<uint32_t>(i & 0xfff);
    const float z = UnitTruncatedNormal(bits);
    ASSERT_LE(std::fabs(z), 2.0f);
    const double x = (static_cast<double>(static_cast<int32_t>(bits)) + 0.5) / 2147483648.0 * (1 - 2 * Cdf(-2));
    worst = std::max(worst, InverseError(-std::fabs(static_cast<double>(z)), (1 - std::fabs(x)) / 2));
  }
  EXPECT_LT(worst, 2e-6);
  EXPECT_NEAR(UnitTruncatedNormal(0x7fffffffu), 2.0f, 1e-6);
  EXPECT_NEAR(UnitTruncatedNormal(0x80000000u), -2.0f, 1e-6);
  EXPECT_GE(UnitTruncatedNormal(0x80000000u), -2.0f);
}

// Statistics of the rows.

TEST(InitializerTest, UniformSampleIsUniform) {
  const std::vector<float> sample = Sample(Spec(InitializerKind::kUniform, -0.5f, 1.5f), 16, 40000);
  EXPECT_LT(KolmogorovSmirnov(sample, [](double x) { return (x + 0.5) / 2; }), 1.95);
  const Moments m = MomentsOf(sample);
  EXPECT_NEAR(m.mean, 0.5, 0.003);
  EXPECT_NEAR(m.deviation, 2 / std::sqrt(12.0), 0.002);
  EXPECT_GE(*std::min_element(sample.begin(), sample.end()), -0.5f);
  EXPECT_LT(*std::max_element(sample.begin(), sample.end()), 1.5f);
}

TEST(InitializerTest, NormalSampleIsNormal) {
  const std::vector<float> sample = Sample(Spec(InitializerKind::kNormal, 1.0f, 0.5f), 16, 40000);
  EXPECT_LT(KolmogorovSmirnov(sample, [](double x) { return Cdf((x - 1.0) / 0.5); }), 1.95);
  const Moments m = MomentsOf(sample);
  EXPECT_NEAR(m.mean, 1.0, 0.003);
  EXPECT_NEAR(m.deviation, 0.5, 0.002);
  EXPECT_NEAR(m.skewness, 0, 0.015);
  EXPECT_NEAR(m.kurtosis, 3, 0.03);
}

TEST(InitializerTest, TruncatedNormalSampleIsTruncatedNormal) {
  const std::vector<float> sample = Sample(Spec(InitializerKind::kTruncatedNormal, 1.0f, 0.5f), 16, 40000);
  const double outside = Cdf(-2);
  EXPECT_LT(KolmogorovSmirnov(sample, [=](double x) { return (Cdf((x - 1.0) / 0.5) - outside) / (1 - 2 * outside); }), 1.95);
  const Moments m = MomentsOf(sample);
  EXPECT_NEAR(m.mean, 1.0, 0.003);
  EXPECT_NEAR(m.deviation, 0.5 * 0.87962566, 0.002);
  for (const float x : sample) ASSERT_LE(std::fabs(x - 1.0f), 1.0f);
}

TEST(InitializerTest, ElementsOfARowAndRowsOfConsecutiveKeysAreUncorrelated) {
  constexpr int kDim = 8;
  constexpr int64_t kKeys = 40000;
  const std::vector<float> sample = Sample(Spec(InitializerKind::kNormal, 0, 1), kDim, kKeys);
  for (const int64_t lag : {1, 2, 3, 4, kDim, 2 * kDim}) {
    double sum = 0;
    const int64_t n = kDim * kKeys - lag;
    const float* x = sample.data();
    for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i + lag];
    EXPECT_LT(std::fabs(sum) / std::sqrt(static_cast<double>(n)), 4.0) << "lag " << lag;
  }
}

TEST(InitializerTest, UniformNeverReturnsItsMaximum) {
  const float next = std::nextafterf(1.0f, 2.0f);
  for (const float v : Sample(Spec(InitializerKind::kUniform, 1.0f, next), 4, 2000)) ASSERT_EQ(v, 1.0f);
  // In steps of 1/2 and 1: rounding up must not reach the maximum.
  for (const float v : Sample(Spec(InitializerKind::kUniform, 8388604.0f, 8388608.0f), 4, 2000)) ASSERT_LT(v, 8388608.0f);
  for (const float v : Sample(Spec(InitializerKind::kUniform, -3.0f, 0.0f), 4, 20000)) {
    ASSERT_LT(v, 0.0f);
    ASSERT_GE(v, -3.0f);
  }
}

// Determinism.

TEST(InitializerTest, ElementDependsOnlyOnSeedKeyAndItsPlace) {
  const uint64_t seed = 0x0123456789abcdefull;
  for (const int64_t key : {int64_t{0}, int64_t{-1}, int64_t{1} << 40, kMinKey, kMaxKey}) {
    const std::vector<float> row = Row(Spec(InitializerKind::kUniform, 0.0f, 1.0f, seed), 300, key);
    for (uint32_t i = 0; i < 300; ++i) {
      const uint64_t k = static_cast<uint64_t>(key);
      const PhiloxBlock block =
          Philox4x32(static_cast<uint32_t>(k), static_cast<uint32_t>(k >> 32), i / 4, 0, 0x89abcdefu, 0x01234567u);
      ASSERT_EQ(row[i], static_cast<float>(block.v[i % 4] >> 8) / 16777216.0f) << key << " " << i;
    }
  }
}

class RandomKindTest : public testing::TestWithParam<InitializerKind> {
 protected:
  InitializerSpec RandomSpec(uint64_t seed = 7) const { return Spec(GetParam(), 0.25f, 0.75f, seed); }
};

INSTANTIATE_TEST_SUITE_P(Kinds, RandomKindTest,
                         testing::Values(InitializerKind::kUniform, InitializerKind::kNormal, InitializerKind::kTruncatedNormal,
                                         InitializerKind::kNormalBetween));

TEST_P(RandomKindTest, BatchOfAnySizeOnAnyIsaHasTheBitsOfSingleRows) {
  for (const int dim : {1, 2, 3, 4, 5, 8, 15, 16, 17, 64, 200, 255, 256, 257, 1000}) {
    const Initializer initializer = *Initializer::Create(RandomSpec(), dim);
    const size_t stride = static_cast<size_t>(dim) + 1;  // one guard element a row, and no alignment
    for (const size_t n : {0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 130}) {
      std::vector<int64_t> keys;
      for (size_t i = 0; i < n; ++i) keys.push_back(i == 0 ? kMinKey : i == 1 ? kMaxKey : static_cast<int64_t>(i) - 8);
      std::vector<float> single(n * stride, 99.0f);
      for (size_t i = 0; i < n; ++i) initializer.Fill(keys[i], single.data() + i * stride);
      for (int isa = 0; isa <= static_cast<int>(BestIsa()); ++isa) {
        std::vector<float> batch(n * stride, 99.0f);
        std::vector<float*> out;
        for (size_t i = 0; i < n; ++i) out.push_back(batch.data() + i * stride);
        initializer_internal::FillBatch(initializer, static_cast<Isa>(isa), keys.data(), n, out.data());
        ASSERT_EQ(batch, single) << "dim " << dim << ", " << n << " keys, isa " << isa;
      }
    }
  }
}

TEST_P(RandomKindTest, IsasAgreeBitForBitOverManyValues) {
  const Initializer initializer = *Initializer::Create(RandomSpec(), 64);
  std::vector<int64_t> keys(4096);
  std::vector<float> baseline(keys.size() * 64), other(keys.size() * 64);
  std::vector<float*> baseline_out, other_out;
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<int64_t>(i * 0x9e3779b97f4a7c15ull);
    baseline_out.push_back(&baseline[i * 64]);
    other_out.push_back(&other[i * 64]);
  }
  initializer_internal::FillBatch(initializer, Isa::kBaseline, keys.data(), keys.size(), baseline_out.data());
  for (int isa = 1; isa <= static_cast<int>(BestIsa()); ++isa) {
    initializer_internal::FillBatch(initializer, static_cast<Isa>(isa), keys.data(), keys.size(), other_out.data());
    ASSERT_EQ(0, std::memcmp(baseline.data(), other.data(), baseline.size() * sizeof(float))) << "isa " << isa;
  }
}

TEST_P(RandomKindTest, ShorterRowIsThePrefixOfALongerOne) {
  std::vector<float> row = Row(RandomSpec(), 300, -5);
  row.resize(7);
  EXPECT_EQ(row, Row(RandomSpec(), 7, -5));
}

TEST_P(RandomKindTest, NoTwoKeysAndNoTwoSeedsAreAlike) {
  std::set<std::vector<float>> rows;
  std::vector<int64_t> keys = {kMinKey, kMinKey + 1, kMaxKey, kMaxKey - 1};
  for (int64_t key = -10000; key < 10000; ++key) keys.push_back(key);
  for (int64_t bit = 15; bit < 63; ++bit) keys.push_back(int64_t{1} << bit);
  const Initializer initializer = *Initializer::Create(RandomSpec(), 4);
  for (const int64_t key : keys) {
    std::vector<float> row(4);
    initializer.Fill(key, row.data());
    EXPECT_TRUE(rows.insert(row).second) << key;
  }
  for (const uint64_t seed : {uint64_t{8}, uint64_t{7} << 32, ~uint64_t{0}}) {
    EXPECT_TRUE(rows.insert(Row(RandomSpec(seed), 4, 0)).second) << seed;
  }
}

// Kinds without chance, and errors.

TEST(InitializerTest, ConstantFillsEveryElement) {
  EXPECT_EQ(Row(Spec(InitializerKind::kConstant, 0.1f, 0), 17, kMinKey), std::vector<float>(17, 0.1f));
}

// Cut-offs: a lower and an upper one, in the middle, far in either tail, very near each other.

InitializerSpec Between(float mean, float deviation, float lower, float upper) {
  InitializerSpec spec = Spec(InitializerKind::kNormalBetween, mean, deviation);
  spec.lower = lower;
  spec.upper = upper;
  return spec;
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

const InitializerSpec kBetween[] = {Between(0, 1, -1, 1),
                                    Between(0, 1, -kInfinity, kInfinity),
                                    Between(0, 1, -0.5f, kInfinity),
                                    Between(0, 1, 2, 3),
                                    Between(0, 1, 10, 11),
                                    Between(0, 1, 8, kInfinity),
                                    Between(0, 1, -6, -2),
                                    Between(5, 2, -kInfinity, -40),
                                    Between(-1, 1, 0, 1e-5f),
                                    Between(0, 1, -1e-5f, 1e-5f),
                                    Between(0, 1e-3f, -5e-3f, 1e-4f),
                                    Between(-1, 1, 0, 1e-9f),
                                    Between(0.5f, 0.1f, 0, 1),
                                    Between(-50, 1, 0, kInfinity),
                                    Between(-1e4f, 1, 0, 1)};

// The part of the probability between the cut-offs that is below x. All in the smaller tail, so that nothing cancels.
long double PartBelow(const InitializerSpec& spec, long double x) {
  const bool low = spec.upper < spec.a;
  const auto tail = [&](long double at) {
    const long double z = (at - spec.a) / spec.b;
    return std::erfc((low ? -z : z) / std::sqrt(2.0L));
  };
  const long double lower = tail(spec.lower), upper = tail(spec.upper);
  return (tail(x) - lower) / (upper - lower);
}

TEST(NormalBetweenTest, SamplesHaveTheDistributionAndStayBetweenTheCutOffs) {
  for (const InitializerSpec& spec : kBetween) {
    const std::vector<float> sample = Sample(spec, 16, 4096);
    for (const float x : sample) ASSERT_TRUE(x >= spec.lower && x <= spec.upper) << x << " of " << spec.lower;
    if (spec.a < -1000) continue;  // of which no reference has a probability; see below
    const double distance = KolmogorovSmirnov(sample, [&](double x) { return static_cast<double>(PartBelow(spec, x)); });
    EXPECT_LT(distance, 1.95) << spec.lower << " to " << spec.upper;
  }
}

TEST(NormalBetweenTest, BitsAreInvertedToSingleAccuracy) {
  for (const InitializerSpec& spec : kBetween) {
    const NormalBetween p = NormalBetween::Of(spec.a, spec.b, spec.lower, spec.upper);
    if (p.narrow || spec.a < -1000) continue;
    for (uint64_t i = 0; i < 20000; ++i) {
      const auto bits = static_cast<uint32_t>(i * 214748u);
      const float x = NumberBetween(p, bits);
      const float down = std::nextafterf(x, -kInfinity), up = std::nextafterf(x, kInfinity);
      const bool mirrored = p.deviation < 0;
      const double u = (static_cast<double>(mirrored ? ~bits : bits) + 0.5) / 4294967296.0;
      // Within one step of a float, and 1e-9 of the probability.
      ASSERT_LE(static_cast<double>(PartBelow(spec, std::max(down, spec.lower))), u + 1e-9) << bits << " at " << x;
      ASSERT_GE(static_cast<double>(PartBelow(spec, std::min(up, spec.upper))), u - 1e-9) << bits << " at " << x;
    }
  }
}

TEST(NormalBetweenTest, FarInTheTailNumbersAreExponential) {
  const InitializerSpec spec = Between(-1e4f, 1, 0, kInfinity);
  const std::vector<float> sample = Sample(spec, 16, 4096);
  const double distance = KolmogorovSmirnov(sample, [](double x) { return -std::expm1(-(1e4 + x / 2) * x); });
  EXPECT_LT(distance, 1.95);
}

TEST(NormalBetweenTest, MillsRatioIsExactToThirteenPlaces) {
  for (double z = 0; z < 37; z += 0.01) {
    const long double exact = std::sqrt(M_PIl / 2) * std::erfc(z / std::sqrt(2.0L)) * std::exp(0.5L * z * z);
    ASSERT_NEAR(normal_between_internal::Mills(z) / static_cast<double>(exact), 1.0, 1e-13) << z;
  }
  for (double x = 1e-300; x < 1e300; x *= 1.37) {
    ASSERT_NEAR(normal_between_internal::Ln(x), std::log(x), 1e-15 * std::max(1.0, std::fabs(std::log(x)))) << x;
  }
  for (double x = 0; x > -699; x -= 0.1) {
    ASSERT_NEAR(normal_between_internal::Exp(x) / std::exp(x), 1.0, 2e-13) << x;
  }
}

TEST(NormalBetweenTest, BadCutOffsAreRefused) {
  const float max = std::numeric_limits<float>::max();
  for (const InitializerSpec& spec :
       {Between(0, 0, -1, 1), Between(0, -1, -1, 1), Between(0, 1, 1, 1), Between(0, 1, 2, 1), Between(0, 1, std::nanf(""), 1),
        Between(0, 1, 0, std::nanf("")), Between(0, 1, kInfinity, kInfinity), Between(0, 1e-30f, 10, 11),
        Between(max, max, 0, kInfinity), Between(kInfinity, 1, 0, 1)}) {
    EXPECT_EQ(Initializer::Create(spec, 2).status().code(), StatusCode::kInvalidArgument) << spec.lower << " " << spec.upper;
  }
}

TEST(InitializerTest, DebugIsTheKeyModuloAHundredThousand) {
  const InitializerSpec spec = Spec(InitializerKind::kDebug, 0, 0);
  EXPECT_EQ(Row(spec, 3, 299999), std::vector<float>(3, 99999.0f));
  EXPECT_EQ(Row(spec, 1, -1), std::vector<float>{99999.0f});
  EXPECT_EQ(Row(spec, 1, kMinKey), std::vector<float>{24192.0f});  // -2^63 = -9223372036854775808
}

TEST(InitializerTest, ZeroDeviationGivesTheMean) {
  EXPECT_EQ(Row(Spec(InitializerKind::kNormal, 2.0f, 0), 3, 9), std::vector<float>(3, 2.0f));
  EXPECT_EQ(Row(Spec(InitializerKind::kTruncatedNormal, -2.0f, 0), 3, 9), std::vector<float>(3, -2.0f));
}

TEST(InitializerTest, MatrixRowIsTheKeyModuloItsRowsAlsoForNegativeKeys) {
  const InitializerSpec spec = MatrixSpec({0, 1, 10, 11, 20, 21}, 3);
  const auto first = [&](int64_t key) { return Row(spec, 2, key)[0]; };
  EXPECT_EQ(Row(spec, 2, 4), (std::vector<float>{10, 11}));
  EXPECT_EQ(first(0), 0);
  EXPECT_EQ(first(-1), 20);
  EXPECT_EQ(first(-3), 0);
  EXPECT_EQ(first(kMaxKey), 10);  // 2^63 - 1 = 1 mod 3
  EXPECT_EQ(first(kMinKey), 10);  // -2^63 = 1 mod 3
}

TEST(InitializerTest, BadSpecsAreRefused) {
  const float inf = std::numeric_limits<float>::infinity();
  const float max = std::numeric_limits<float>::max();
  const InitializerSpec bad[] = {Spec(InitializerKind::kConstant, inf, 0),
                                 Spec(InitializerKind::kConstant, std::nanf(""), 0),
                                 Spec(InitializerKind::kUniform, 1, 1),
                                 Spec(InitializerKind::kUniform, 2, 1),
                                 Spec(InitializerKind::kUniform, -max, max),
                                 Spec(InitializerKind::kUniform, -inf, 0),
                                 Spec(InitializerKind::kNormal, 0, -1),
                                 Spec(InitializerKind::kNormal, max, max),
                                 Spec(InitializerKind::kTruncatedNormal, 0, -1),
                                 Spec(static_cast<InitializerKind>(9), 0, 0),
                                 Spec(InitializerKind::kMatrix, 0, 0),
                                 MatrixSpec({1, 2, 3}, 2),
                                 MatrixSpec({}, 0),
                                 MatrixSpec({1, 2}, -1),
                                 MatrixSpec({1, inf}, 1)};
  int i = 0;
  for (const InitializerSpec& spec : bad) {
    EXPECT_EQ(Initializer::Create(spec, 2).status().code(), StatusCode::kInvalidArgument) << i;
    ++i;
  }
  const Status status = Initializer::Create(Spec(InitializerKind::kConstant, 0, 0), 0).status();
  EXPECT_EQ(status, InvalidArgumentError("initializer: dim: expected at least 1, found 0"));
}

}  // namespace
}  // namespace multitier::initializer_test
