// Every rule against plain scalar code, bit for bit, for each ISA that this machine has.

#include "cc/optimizer/update_rule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/optimizer/reference_update.h"
#include "cc/optimizer/rule_kernel.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace multitier {
namespace {

// ---- Rows as a table keeps them.

const KernelRule& Rule(const std::string& name) {
  const Result<const UpdateRule*> rule = FindUpdateRule(name);
  EXPECT_TRUE(rule.ok()) << rule.status().ToString();
  return static_cast<const KernelRule&>(**rule);
}

size_t RoundUp(size_t n) { return (n + 15) / 16 * 16; }

// n rows of a rule in memory, every byte that no column covers filled with a mark.
class Rows {
 public:
  static constexpr uint8_t kMark = 0xa5;

  Rows(const UpdateRule& rule, size_t n, int dim, DType dtype = DType::kFloat32)
      : rule_(rule), n_(n), dim_(dim), dtype_(dtype) {
    stride_ = RoundUp(DTypeSize(dtype) * dim) + 16;
    for (const SlotSpec& slot : rule.slots()) {
      offsets_.push_back(static_cast<uint32_t>(stride_));
      stride_ += RoundUp(sizeof(float) * Width(slot)) + 16;
    }
    memory_.assign((n + 1) * stride_, kMark);
    for (size_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < offsets_.size(); ++k) {
        const SlotSpec& slot = rule.slots()[k];
        std::vector<float> initial(Width(slot), slot.default_initial_value);
        std::memcpy(row(i) + offsets_[k], initial.data(), sizeof(float) * initial.size());
      }
    }
  }

  uint8_t* row(size_t i) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (RoundUp(begin) - begin) + i * stride_;
  }

  void SetValue(size_t i, const std::vector<float>& w) {
    for (int d = 0; d < dim_; ++d) {
      if (dtype_ == DType::kFloat32) StoreValue(w[d], reinterpret_cast<float*>(row(i)) + d);
      if (dtype_ == DType::kBFloat16) StoreValue(w[d], reinterpret_cast<BFloat16*>(row(i)) + d);
      if (dtype_ == DType::kFloat16) StoreValue(w[d], reinterpret_cast<Float16*>(row(i)) + d);
    }
  }

  PlainRow Read(size_t i) {
    PlainRow out;
    for (int d = 0; d < dim_; ++d) {
      if (dtype_ == DType::kFloat32) out.w.push_back(reinterpret_cast<float*>(row(i))[d]);
      if (dtype_ == DType::kBFloat16) out.w.push_back(LoadValue(reinterpret_cast<BFloat16*>(row(i))[d]));
      if (dtype_ == DType::kFloat16) out.w.push_back(LoadValue(reinterpret_cast<Float16*>(row(i))[d]));
    }
    for (size_t k = 0; k < offsets_.size(); ++k) {
      const float* slot = reinterpret_cast<float*>(row(i) + offsets_[k]);
      out.slots[rule_.slots()[k].name].assign(slot, slot + Width(rule_.slots()[k]));
    }
    return out;
  }

  // Rows [begin, end), grads [n][dim].
  void Update(Isa isa, const Hyper& hyper, const std::vector<float>& grads, size_t begin, size_t end) {
    std::vector<uint8_t*> rows;
    std::vector<const float*> grad_rows;
    for (size_t i = begin; i < end; ++i) {
      rows.push_back(row(i));
      grad_rows.push_back(&grads[i * dim_]);
    }
    std::vector<float> scalars;
    for (const char* name : rule_.hyperparameters()) scalars.push_back(hyper.at(name));
    ASSERT_TRUE(rule_.Validate(scalars.data()).ok()) << rule_.Validate(scalars.data()).ToString();
    UpdateBatch batch{rows.data(), grad_rows.data(), rows.size(), dim_, dtype_, offsets_.data(), scalars.data()};
    static_cast<const KernelRule&>(rule_).UpdateOn(isa, batch);
  }

  // Row 0, by a rule with the same slots.
  void UpdateBy(const UpdateRule& rule, const Hyper& hyper, const std::vector<float>& grad) {
    uint8_t* const data = row(0);
    const float* const of_row = grad.data();
    std::vector<float> scalars;
    for (const char* name : rule.hyperparameters()) scalars.push_back(hyper.at(name));
    rule.Update(UpdateBatch{&data, &of_row, 1, dim_, dtype_, offsets_.data(), scalars.data()});
  }

  // The marks around and after the columns are still there.
  void ExpectMarksIntact() {
    for (size_t i = 0; i < n_; ++i) {
      ExpectMarks(i, DTypeSize(dtype_) * dim_, offsets_.empty() ? stride_ : offsets_[0]);
      for (size_t k = 0; k < offsets_.size(); ++k) {
        const size_t end = k + 1 < offsets_.size() ? offsets_[k + 1] : stride_;
        ExpectMarks(i, offsets_[k] + sizeof(float) * Width(rule_.slots()[k]), end);
      }
    }
  }

 private:
  size_t Width(const SlotSpec& slot) const { return slot.per_row ? 1 : dim_; }
  void ExpectMarks(size_t i, size_t begin, size_t end) {
    for (size_t at = begin; at < end; ++at) {
      ASSERT_EQ(row(i)[at], kMark) << rule_.name() << " dim " << dim_ << " byte " << at;
    }
  }

  const UpdateRule& rule_;
  const size_t n_;
  const int dim_;
  const DType dtype_;
  size_t stride_;
  std::vector<uint32_t> offsets_;
  std::vector<uint8_t> memory_;
};

void ExpectSameBits(const std::vector<float>& found, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t d = 0; d < found.size(); ++d) {
    if (std::isnan(found[d]) && std::isnan(expected[d])) continue;
    ASSERT_EQ(FloatBits(found[d]), FloatBits(expected[d]))
        << what << " element " << d << ": found " << found[d] << ", expected " << expected[d];
  }
}

void ExpectSameRow(const PlainRow& found, const PlainRow& expected, const std::string& what) {
  ExpectSameBits(found.w, expected.w, what + " value");
  for (const auto& [name, slot] : expected.slots) ExpectSameBits(found.slots.at(name), slot, what + " " + name);
}

std::vector<Isa> Isas() {
  std::vector<Isa> isas;
  for (int i = 0; i <= static_cast<int>(BestIsa()); ++i) isas.push_back(static_cast<Isa>(i));
  return isas;
}

// Every rule with each of its branches.
std::vector<std::pair<std::string, Hyper>> Cases() {
  const Hyper adam = {{"learning_rate", 0.05f}, {"beta1", 0.9f},         {"beta2", 0.99f},
                      {"epsilon", 1e-7f},       {"beta1_power", 0.729f}, {"beta2_power", 0.97f}};
  auto with = [](Hyper h, const char* name, float value) {
    h[name] = value;
    return h;
  };
  const Hyper adamax = {
      {"learning_rate", 0.05f}, {"beta1", 0.9f}, {"beta2", 0.99f}, {"epsilon", 1e-7f}, {"beta1_power", 0.729f}};
  const Hyper nadam = {{"learning_rate", 0.05f}, {"beta1", 0.9f},     {"beta2", 0.99f},         {"epsilon", 1e-7f},
                       {"beta2_power", 0.97f},   {"momentum", 0.51f}, {"momentum_next", 0.52f}, {"momentum_product", 0.13f}};
  const Hyper momentum = {{"learning_rate", 0.05f}, {"momentum", 0.9f}, {"use_nesterov", 0}};
  const Hyper decay = {
      {"learning_rate", 0.05f}, {"decay_count", 2}, {"accumulator_decay_rate", 0.7f}, {"accumulator_baseline", 0.1f}};
  const Hyper rmsprop = {{"learning_rate", 0.05f}, {"decay", 0.9f}, {"momentum", 0.5f}, {"epsilon", 1e-3f}};
  const Hyper ftrl = {
      {"learning_rate", 0.05f}, {"learning_rate_power", -0.5f}, {"l1", 0.01f}, {"l2", 0.02f}, {"l2_shrinkage", 0}};
  return {{"sgd", {{"learning_rate", 0.05f}}},
          {"momentum", momentum},
          {"momentum", with(momentum, "use_nesterov", 1)},
          {"adagrad", {{"learning_rate", 0.05f}}},
          {"adagrad_decay", decay},
          {"adagrad_decay_v2", decay},
          {"adagrad_epsilon", {{"learning_rate", 0.05f}, {"epsilon", 1e-8f}}},
          {"adam", adam},
          {"adam_amsgrad", adam},
          {"adam_async", with(adam, "apply_sparse_rmsprop", 0)},
          {"adam_async", with(adam, "apply_sparse_rmsprop", 1)},
          {"adamax", adamax},
          {"adamw", with(adam, "weight_decay", 0.01f)},
          {"lion", {{"learning_rate", 0.05f}, {"beta1", 0.9f}, {"beta2", 0.99f}}},
          {"nadam", nadam},
          {"rmsprop", rmsprop},
          {"centered_rmsprop", rmsprop},
          {"ftrl", ftrl},
          {"ftrl", with(ftrl, "l2_shrinkage", 0.1f)},
          {"ftrl", with(ftrl, "learning_rate_power", -0.7f)},
          {"ftrl", with(with(ftrl, "learning_rate_power", -0.3f), "l2_shrinkage", 0.1f)},
          {"rowwise_adagrad", {{"learning_rate", 0.05f}, {"epsilon", 1e-8f}}},
          {"adadelta", {{"learning_rate", 0.05f}, {"rho", 0.95f}, {"epsilon", 1e-8f}}}};
}

// Gradients from 1e-20 to 1e3, some exactly 0.
std::vector<float> Gradients(size_t count, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& g : out) {
    const int kind = (*random)() % 16;
    g = kind == 0 ? 0.0f : normal(*random) * (kind == 1 ? 1e-20f : kind == 2 ? 1e3f : 1.0f);
  }
  return out;
}

constexpr int kDims[] = {1, 2, 3, 8, 15, 16, 17, 31, 32, 64, 200};
constexpr size_t kRows = 21;  // more than are prefetched ahead
constexpr int kSteps = 4;

void ExpectMatchesReference(const std::string& name, const Hyper& hyper, int dim, DType dtype, Isa isa) {
  const std::string what = name + " dim " + std::to_string(dim) + " isa " + std::to_string(static_cast<int>(isa));
  std::mt19937 random(static_cast<unsigned>(dim));
  Rows rows(Rule(name), kRows, dim, dtype);
  std::vector<PlainRow> plain(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    rows.SetValue(i, Gradients(dim, &random));
    plain[i] = rows.Read(i);
  }
  for (int step = 0; step < kSteps; ++step) {
    const std::vector<float> grads = Gradients(kRows * dim, &random);
    rows.Update(isa, hyper, grads, 0, kRows);
    for (size_t i = 0; i < kRows; ++i) {
      ReferenceUpdate(name, &plain[i], &grads[i * dim], hyper);
      Rows rounded(Rule(name), 1, dim, dtype);
      rounded.SetValue(0, plain[i].w);
      plain[i].w = rounded.Read(0).w;
      ExpectSameRow(rows.Read(i), plain[i], what);
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  rows.ExpectMarksIntact();
}

TEST(UpdateRuleTest, EveryRuleMatchesScalarCodeAtEveryDimOnEveryIsa) {
  for (const auto& [name, hyper] : Cases()) {
    for (int dim : kDims) {
      for (Isa isa : Isas()) ExpectMatchesReference(name, hyper, dim, DType::kFloat32, isa);
    }
  }
}

TEST(UpdateRuleTest, NarrowValuesAreComputedInFloat32AndRoundedOnce) {
  for (const auto& [name, hyper] : Cases()) {
    for (int dim : {1, 8, 17}) {
      for (DType dtype : {DType::kBFloat16, DType::kFloat16}) {
        for (Isa isa : Isas()) ExpectMatchesReference(name, hyper, dim, dtype, isa);
      }
    }
  }
}

TEST(UpdateRuleTest, CasesCoverEveryRule) {
  std::map<std::string, int> seen;
  for (const auto& [name, hyper] : Cases()) ++seen[name];
  for (const UpdateRule* rule : AllUpdateRules()) EXPECT_EQ(seen.count(rule->name()), 1u) << rule->name();
}

TEST(UpdateRuleTest, ABatchGivesTheSameBitsAsItsRowsOneByOne) {
  for (const auto& [name, hyper] : Cases()) {
    std::mt19937 random(3);
    Rows together(Rule(name), kRows, 16), apart(Rule(name), kRows, 16);
    for (size_t i = 0; i < kRows; ++i) {
      const std::vector<float> w = Gradients(16, &random);
      together.SetValue(i, w);
      apart.SetValue(i, w);
    }
    const std::vector<float> grads = Gradients(kRows * 16, &random);
    together.Update(BestIsa(), hyper, grads, 0, kRows);
    for (size_t i = kRows; i-- > 0;) apart.Update(BestIsa(), hyper, grads, i, i + 1);
    for (size_t i = 0; i < kRows; ++i) ExpectSameRow(together.Read(i), apart.Read(i), name);
  }
}

TEST(UpdateRuleTest, AnEmptyBatchIsFine) {
  for (const auto& [name, hyper] : Cases()) Rows(Rule(name), 1, 16).Update(BestIsa(), hyper, {}, 0, 0);
}

#if defined(__SSE__)
TEST(UpdateRuleTest, AThreadThatFlushesSubnormalsGetsTheSameBitsAndKeepsItsMode) {
  for (const auto& [name, hyper] : Cases()) {
    Rows kept(Rule(name), 1, 16), flushed(Rule(name), 1, 16);
    const std::vector<float> grads(16, 1e-39f);
    kept.SetValue(0, std::vector<float>(16, 3e-39f));
    flushed.SetValue(0, std::vector<float>(16, 3e-39f));
    kept.Update(BestIsa(), hyper, grads, 0, 1);
    const unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);  // flush to zero, subnormals are zero
    flushed.Update(BestIsa(), hyper, grads, 0, 1);
    const unsigned after = _mm_getcsr();
    _mm_setcsr(before);
    EXPECT_EQ(after & 0x8040, 0x8040u);
    ExpectSameRow(flushed.Read(0), kept.Read(0), name);
  }
}
#endif

TEST(AdagradDecayTest, ARowDecaysOncePerApplyUntilItHasCaughtUp) {
  for (const char* name : {"adagrad_decay", "adagrad_decay_v2"}) {
    Rows rows(Rule(name), 1, 2);
    rows.SetValue(0, {1.0f, 1.0f});
    Hyper hyper = {
        {"learning_rate", 0.1f}, {"decay_count", 0}, {"accumulator_decay_rate", 0.5f}, {"accumulator_baseline", 0.25f}};
    rows.Update(BestIsa(), hyper, {2.0f, 0.0f}, 0, 1);
    EXPECT_EQ(rows.Read(0).slots["accumulator"][0], 0.1f + 4.0f);
    hyper["decay_count"] = 2;  // two periods have passed
    for (float power : {1.0f, 2.0f, 2.0f}) {
      const float before = rows.Read(0).slots["accumulator"][0];
      const bool decays = rows.Read(0).slots["accumulator_decay_power"][0] < 2;
      rows.Update(BestIsa(), hyper, {0.0f, 0.0f}, 0, 1);
      EXPECT_EQ(rows.Read(0).slots["accumulator_decay_power"][0], power);
      EXPECT_EQ(rows.Read(0).slots["accumulator"][0], decays ? before * 0.5f : before);
      EXPECT_EQ(rows.Read(0).slots["accumulator"][1], 0.25f);  // not below the baseline
    }
  }
}

TEST(AdamAsyncTest, IsAdamWhereTheBetaPowersAreTheSame) {
  Hyper hyper = {{"learning_rate", 0.05f}, {"beta1", 0.9f},        {"beta2", 0.99f},
                 {"epsilon", 1e-7f},       {"beta1_power", 0.81f}, {"beta2_power", 0.98f}};
  Rows adam(Rule("adam"), 1, 16), async(Rule("adam_async"), 1, 16);
  const std::vector<float> w(16, 0.3f), grads(16, 0.7f);
  adam.SetValue(0, w);
  async.SetValue(0, w);
  adam.Update(BestIsa(), hyper, grads, 0, 1);
  hyper["apply_sparse_rmsprop"] = 0;
  async.Update(BestIsa(), hyper, grads, 0, 1);
  ExpectSameRow(async.Read(0), adam.Read(0), "adam_async");
}

TEST(DecayedRuleTest, EveryRuleStepsFromTheDecayedValue) {
  for (const auto& [name, hyper] : Cases()) {
    if (hyper.count("weight_decay")) continue;
    const UpdateRule &plain = Rule(name), &decayed = **FindUpdateRule(name + "+weight_decay");
    for (DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      Rows expected(plain, 1, 17, dtype), found(plain, 1, 17, dtype);
      std::mt19937 random(5);
      std::vector<float> w = Gradients(17, &random);
      const std::vector<float> grads = Gradients(17, &random);
      found.SetValue(0, w);
      w = found.Read(0).w;
      for (float& each : w) each = each - each * (0.25f * 0.05f);
      expected.SetValue(0, w);
      expected.Update(BestIsa(), hyper, grads, 0, 1);
      Hyper all = hyper;
      all["weight_decay"] = 0.25f;
      found.UpdateBy(decayed, all, grads);
      ExpectSameRow(found.Read(0), expected.Read(0), decayed.name());
    }
  }
}

TEST(DecayedRuleTest, ItsDecayAndTheRulesHyperparametersAreChecked) {
  const UpdateRule& rule = **FindUpdateRule("momentum+weight_decay");
  EXPECT_TRUE(rule.Validate(std::vector<float>{0.1f, 0.9f, 1, 0.2f}.data()).ok());
  for (const float decay : {NAN, -0.1f}) {
    const Status refused = rule.Validate(std::vector<float>{0.1f, 0.9f, 1, decay}.data());
    EXPECT_NE(refused.message().find("weight_decay: expected"), std::string::npos) << decay;
  }
  EXPECT_NE(rule.Validate(std::vector<float>{0.1f, 0.9f, 3, 0.2f}.data()).message().find("use_nesterov: expected"),
            std::string::npos);
}

TEST(EmaRuleTest, EveryRuleStepsAsWithoutAndTheAverageFollowsItsValue) {
  constexpr int kDim = 17;
  for (const auto& [name, hyper] : Cases()) {
    for (const std::string& rule_name : {name, name + "+weight_decay"}) {
      const UpdateRule &plain = **FindUpdateRule(rule_name), &averaged = **FindUpdateRule(rule_name + "+ema");
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        Rows expected(plain, 1, kDim, dtype), found(averaged, 1, kDim, dtype);
        std::mt19937 random(5);
        std::vector<float> numbers = Gradients(kDim, &random);
        expected.SetValue(0, numbers);
        found.SetValue(0, numbers);
        std::vector<float> mean = found.Read(0).w;
        Hyper all = hyper;
        all["weight_decay"] = 0.25f;
        for (const float momentum : {0.75f, 0.75f, 0.0f, 0.75f}) {
          numbers = Gradients(kDim, &random);
          all["ema_momentum"] = momentum;
          expected.UpdateBy(plain, all, numbers);
          found.UpdateBy(averaged, all, numbers);
          const PlainRow row = found.Read(0);
          ExpectSameRow(row, expected.Read(0), averaged.name());
          for (size_t d = 0; d < kDim; ++d) {
            mean[d] = momentum * mean[d] + (1 - momentum) * row.w[d];
            ASSERT_NEAR(row.w[d] + row.slots.at("average_offset")[d], mean[d], 2e-6f * (1 + std::fabs(mean[d]))) << rule_name;
          }
        }
        found.ExpectMarksIntact();
      }
    }
  }
}

TEST(EmaRuleTest, ItsMomentumAndTheRulesHyperparametersAreChecked) {
  const UpdateRule& rule = **FindUpdateRule("sgd+weight_decay+ema");
  EXPECT_TRUE(rule.Validate(std::vector<float>{0.1f, 0.2f, 1}.data()).ok());
  for (const float momentum : {NAN, -0.1f, 1.1f}) {
    const Status refused = rule.Validate(std::vector<float>{0.1f, 0.2f, momentum}.data());
    EXPECT_NE(refused.message().find("ema_momentum: expected"), std::string::npos) << momentum;
  }
  EXPECT_NE(rule.Validate(std::vector<float>{0.1f, -1, 1}.data()).message().find("weight_decay: expected"), std::string::npos);
}

// ---- Names, slots, hyperparameters.

TEST(RegistryTest, RulesAreSortedAndFoundByName) {
  std::string previous;
  for (const UpdateRule* rule : AllUpdateRules()) {
    EXPECT_LT(previous, rule->name());
    previous = rule->name();
    EXPECT_EQ(*FindUpdateRule(rule->name()), rule);
  }
  EXPECT_EQ(AllUpdateRules().size(), 18u);
}

TEST(RegistryTest, AnUnknownNameIsRefusedWithTheListOfNames) {
  for (const char* name : {"", "Adagrad", "+weight_decay", "tiger+weight_decay", "sgd+ema+ema"}) {
    const Result<const UpdateRule*> rule = FindUpdateRule(name);
    ASSERT_FALSE(rule.ok());
    EXPECT_EQ(rule.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(rule.status().message().find("'" + std::string(name) + "'"), std::string::npos);
    EXPECT_NE(rule.status().message().find("adadelta, adagrad, adagrad_decay,"), std::string::npos);
  }
}

TEST(RegistryTest, PerRowSlotsComeLast) {
  for (const UpdateRule* rule : AllUpdateRules()) {
    bool per_row = false;
    for (const SlotSpec& slot : rule->slots()) {
      EXPECT_GE(slot.per_row, per_row) << rule->name();
      per_row = slot.per_row;
    }
  }
}

Status ValidateWith(const std::string& name, Hyper hyper, const std::string& scalar, float value) {
  hyper[scalar] = value;
  std::vector<float> scalars;
  for (const char* h : Rule(name).hyperparameters()) scalars.push_back(hyper.at(h));
  return Rule(name).Validate(scalars.data());
}

TEST(ValidateTest, NanAndInfinityAreRefusedInEveryScalarByName) {
  for (const auto& [name, hyper] : Cases()) {
    for (const auto& [scalar, value] : hyper) {
      EXPECT_TRUE(ValidateWith(name, hyper, scalar, value).ok());
      for (float bad : {NAN, INFINITY, -INFINITY}) {
        const Status status = ValidateWith(name, hyper, scalar, bad);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << name << " " << scalar << " " << bad;
        EXPECT_NE(status.message().find(name + ": " + scalar + ": expected "), std::string::npos) << status.message();
      }
    }
  }
}

TEST(ValidateTest, RangesAreThoseOfTheFormulas) {
  struct Bound {
    const char* rule;
    const char* scalar;
    std::vector<float> good;
    std::vector<float> bad;
  };
  const Bound bounds[] = {
      {"sgd", "learning_rate", {0, -1, 5}, {}},
      {"momentum", "use_nesterov", {0, 1}, {0.5f, 2, -1}},
      {"adagrad_decay", "decay_count", {0, 1, 16777216}, {-1, 0.5f, 16777218}},
      {"adagrad_decay_v2", "accumulator_decay_rate", {0, 1}, {-0.1f, 1.1f}},
      {"adagrad_decay", "accumulator_baseline", {0, 3}, {-0.1f}},
      {"adam", "beta1", {0, 0.99f}, {1, -0.1f}},
      {"adam", "beta2_power", {0, 0.99f}, {1, 2}},
      {"adamw", "epsilon", {0, 1}, {-1e-8f}},
      {"adam_async", "apply_sparse_rmsprop", {0, 1}, {3}},
      {"rmsprop", "decay", {0, 1}, {1.5f}},
      {"ftrl", "learning_rate", {1e-6f}, {0, -1}},
      {"ftrl", "learning_rate_power", {0, -0.5f, -2}, {0.5f}},
      {"ftrl", "l1", {0, 1}, {-1}},
      {"ftrl", "l2_shrinkage", {0, 1}, {-1}},
      {"rowwise_adagrad", "epsilon", {1e-12f}, {0, -1}},
      {"adagrad_epsilon", "epsilon", {1e-12f}, {0, -1}},
      {"adadelta", "rho", {0, 0.95f, 1}, {-1}},
      {"nadam", "momentum_product", {0, 0.9f}, {1, -0.1f}},
      {"lion", "beta1", {0, 1}, {1.1f, -0.1f}},
  };
  for (const Bound& bound : bounds) {
    for (const auto& [name, hyper] : Cases()) {
      if (name != bound.rule) continue;
      auto ok = [&, name = name, hyper = hyper](float x) { return ValidateWith(name, hyper, bound.scalar, x).ok(); };
      for (float x : bound.good) EXPECT_TRUE(ok(x)) << name << " " << bound.scalar << " " << x;
      for (float x : bound.bad) EXPECT_FALSE(ok(x)) << name << " " << bound.scalar << " " << x;
    }
  }
}

}  // namespace
}  // namespace multitier
