#include "cc/policy/admission.h"

#include <cmath>
#include <limits>
#include <string>

#include "gtest/gtest.h"

namespace multitier::admission_test {
namespace {

AdmissionSpec Bloom() {
  AdmissionSpec spec;
  spec.kind = AdmissionKind::kBloom;
  spec.filter_freq = 3;
  spec.max_element_size = 1000;
  return spec;
}

void ExpectRefused(const AdmissionSpec& spec, const std::string& field, const std::string& found) {
  const Status status = ValidateAdmission(spec);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find(field), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("found " + found), std::string::npos) << status.message();
}

TEST(AdmissionTest, DefaultsAreValidAndAdmitAll) {
  AdmissionSpec spec;
  EXPECT_TRUE(ValidateAdmission(spec).ok());
  EXPECT_TRUE(spec.admits_all());
  spec.kind = AdmissionKind::kCounter;
  EXPECT_TRUE(spec.admits_all());
  spec.filter_freq = 2;
  EXPECT_FALSE(spec.admits_all());
  spec.kind = AdmissionKind::kProbabilistic;
  EXPECT_TRUE(ValidateAdmission(spec).ok());
}

TEST(AdmissionTest, BloomFieldsOutOfRangeAreNamed) {
  EXPECT_TRUE(ValidateAdmission(Bloom()).ok());
  AdmissionSpec spec = Bloom();
  spec.max_element_size = 0;
  ExpectRefused(spec, "max_element_size", "0");
  for (const double p : {0.0, 1.0, -0.5, std::numeric_limits<double>::quiet_NaN()}) {
    spec = Bloom();
    spec.false_positive_probability = p;
    ExpectRefused(spec, "false_positive_probability", "");
  }
  spec = Bloom();
  spec.counter_bits = 12;
  ExpectRefused(spec, "counter_bits", "12");
  spec.counter_bits = 8;
  spec.filter_freq = 256;
  ExpectRefused(spec, "filter_freq", "256");
  spec.filter_freq = 255;
  EXPECT_TRUE(ValidateAdmission(spec).ok());
}

TEST(AdmissionTest, ProbabilityOutOfRangeIsNamed) {
  AdmissionSpec spec;
  spec.kind = AdmissionKind::kProbabilistic;
  for (const double p : {0.0, 1.5, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    spec.probability = p;
    ExpectRefused(spec, "probability", "");
  }
}

TEST(AdmissionTest, UnknownKindIsRefused) {
  AdmissionSpec spec;
  spec.kind = static_cast<AdmissionKind>(9);
  ExpectRefused(spec, "kind", "9");
}

// 100,000 keys: three standard deviations of the share are 0.005 at most.
TEST(AdmitProbabilisticTest, AdmitsTheShareThatTheOccurrencesPromise) {
  constexpr int kKeys = 100000;
  for (const double p : {0.01, 0.3, 0.9}) {
    for (const int64_t count : {1, 2, 7}) {
      int admitted = 0;
      for (int64_t key = 0; key < kKeys; ++key) admitted += AdmitProbabilistic(5, key, 11, count, p);
      EXPECT_NEAR(static_cast<double>(admitted) / kKeys, 1 - std::pow(1 - p, static_cast<double>(count)), 0.006)
          << "p " << p << " count " << count;
    }
  }
}

TEST(AdmitProbabilisticTest, SameArgumentsGiveTheSameAnswerAndEachArgumentMatters) {
  int by_seed = 0, by_nonce = 0, by_key = 0;
  for (int64_t key = 0; key < 10000; ++key) {
    const bool admitted = AdmitProbabilistic(1, key, 2, 1, 0.5);
    EXPECT_EQ(AdmitProbabilistic(1, key, 2, 1, 0.5), admitted);
    by_seed += AdmitProbabilistic(2, key, 2, 1, 0.5) != admitted;
    by_nonce += AdmitProbabilistic(1, key, 3, 1, 0.5) != admitted;
    by_key += AdmitProbabilistic(1, ~key, 2, 1, 0.5) != admitted;
  }
  for (const int differ : {by_seed, by_nonce, by_key}) EXPECT_NEAR(differ, 5000, 300);
}

TEST(AdmitProbabilisticTest, MoreOccurrencesOrProbabilityNeverTurnAdmissionIntoRefusal) {
  for (int64_t key = 0; key < 1000; ++key) {
    bool before = false;
    for (int64_t count = 1; count < 40; ++count) {
      const bool admitted = AdmitProbabilistic(1, key, 0, count, 0.05);
      EXPECT_TRUE(admitted || !before);
      before = admitted;
    }
    EXPECT_TRUE(AdmitProbabilistic(1, key, 0, 1, 0.6) || !AdmitProbabilistic(1, key, 0, 1, 0.4));
  }
}

TEST(AdmitProbabilisticTest, EndsOfTheRangeAreExact) {
  for (const int64_t key :
       {std::numeric_limits<int64_t>::min(), int64_t{-1}, int64_t{0}, int64_t{1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_TRUE(AdmitProbabilistic(1, key, 1, 1, 1.0));
    EXPECT_FALSE(AdmitProbabilistic(1, key, 1, 0, 1.0));
    EXPECT_FALSE(AdmitProbabilistic(1, key, 1, 5, 0.0));
    EXPECT_TRUE(AdmitProbabilistic(1, key, 1, std::numeric_limits<int64_t>::max(), 0.01));
  }
}

}  // namespace
}  // namespace multitier::admission_test
