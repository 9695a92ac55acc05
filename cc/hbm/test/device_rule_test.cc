// Sums of gradients and every rule's step on the emulated device give the bits of the CPU.

#include "cc/hbm/device_rule.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "cc/device/emulated_device.h"
#include "cc/device/kernels/test_memory.h"
#include "cc/hbm/test/hbm_test_util.h"
#include "cc/optimizer/stochastic_update.h"
#include "cc/row/value_column.h"

namespace multitier::hbm::device_rule_test {
namespace {

using device::DeviceRowHeader;

struct RuleCase {
  const char* rule;
  std::vector<float> hyper;
};

const std::vector<RuleCase>& Cases() {
  static const std::vector<RuleCase> cases = {
      {"sgd", {0.1f}},
      {"momentum", {0.1f, 0.9f, 0.0f}},
      {"momentum", {0.1f, 0.9f, 1.0f}},
      {"adagrad", {0.1f}},
      {"adagrad_epsilon", {0.1f, 1e-6f}},
      {"rowwise_adagrad", {0.1f, 1e-6f}},
      {"adam", {0.1f, 0.9f, 0.99f, 1e-6f, 0.81f, 0.97f}},
      {"adam_async", {0.1f, 0.9f, 0.99f, 1e-6f, 0.81f, 0.97f, 0.0f}},
      {"adam_async", {0.1f, 0.9f, 0.99f, 1e-6f, 0.81f, 0.97f, 1.0f}},
      {"adamw", {0.1f, 0.9f, 0.99f, 1e-6f, 0.81f, 0.97f, 0.01f}},
      {"rmsprop", {0.1f, 0.9f, 0.8f, 1e-6f}},
      {"centered_rmsprop", {0.1f, 0.5f, 0.8f, 1.0f}},
      {"ftrl", {0.1f, -0.5f, 0.01f, 0.02f, 0.0f}},
      {"ftrl", {0.1f, -0.5f, 0.01f, 0.02f, 0.1f}},
      {"ftrl", {0.1f, -0.3f, 0.01f, 0.02f, 0.0f}},
      {"ftrl", {0.1f, -0.3f, 0.01f, 0.02f, 0.1f}},
  };
  return cases;
}

// A batch of occurrences of `keys` rows, as dedup numbers them.
struct TestBatch {
  TestBatch(uint32_t keys, uint32_t n, int dim, std::mt19937_64* random) : counts(keys, 0) {
    for (uint32_t i = 0; i < n; ++i) {
      const auto key = i < keys ? i : static_cast<uint32_t>((*random)() % keys);
      entries.push_back(uint64_t{key} << 32 | i);
      ++counts[key];
      occurrences.push_back(static_cast<int64_t>((*random)() % 5));
      for (int d = 0; d < dim; ++d) grads.push_back(static_cast<float>(static_cast<int>((*random)() % 2001) - 1000) / 700.0f);
    }
  }
  std::vector<uint64_t> entries;  // in batch order
  std::vector<uint32_t> counts;
  std::vector<float> grads;
  std::vector<int64_t> occurrences;
};

class DeviceRuleTest : public testing::Test {
 protected:
  explicit DeviceRuleTest(uint64_t seed = 1) {
    device::EmulatedDevice::Options options;
    options.simt.seed = seed;
    device_ = std::make_shared<device::EmulatedDevice>(options, &device::EmulatedKernels());
    stream_ = *device_->NewStream();
    memory_ = std::make_unique<device::TestMemory>(device_, stream_);
  }

  // A copy that begins `shift` floats behind a multiple of 16 bytes.
  float* Shifted(std::vector<float> values, size_t shift) {
    values.insert(values.begin(), shift, 0.0f);
    return memory_->Up(values) + shift;
  }

  // shift: of gradients and sums.
  device::SumArgs Sum(const TestBatch& batch, int dim, bool with_occurrences, size_t shift = 0) {
    const auto n = static_cast<uint32_t>(batch.entries.size()), keys = static_cast<uint32_t>(batch.counts.size());
    uint64_t* const sorted = memory_->Filled<uint64_t>(n, 0x5c);
    EXPECT_TRUE(device_->SortByUpper(stream_, memory_->Up(batch.entries), sorted, n, 17, memory_->Filled<uint64_t>(n, 0)).ok());
    device::SumArgs sum{sorted,
                        n,
                        memory_->Up(std::vector<uint32_t>{keys}),
                        keys,
                        memory_->Up(batch.counts),
                        Shifted(batch.grads, shift),
                        static_cast<uint32_t>(dim),
                        with_occurrences ? memory_->Up(batch.occurrences) : nullptr,
                        memory_->Filled<uint32_t>(keys, 0x5c),
                        memory_->Filled<float>(size_t{keys} * static_cast<size_t>(dim) + shift, 0x5c) + shift,
                        memory_->Filled<uint64_t>(keys, 0x5c),
                        memory_->Filled<float>(size_t{device::LaterPieces(n)} * static_cast<size_t>(dim), 0x5c),
                        memory_->Filled<uint64_t>(device::LaterPieces(n), 0x5c)};
    EXPECT_TRUE(device_->kernels().sum(stream_, sum).ok());
    return sum;
  }

  std::shared_ptr<device::EmulatedDevice> device_;
  device::Stream stream_;
  std::unique_ptr<device::TestMemory> memory_;
};

// As the CPU sums them; of a key with more than `piece` entries, the sums of pieces.
std::vector<float> SumsOnCpu(const TestBatch& batch, int dim, size_t piece = device::kPieceEntries) {
  const auto d = static_cast<size_t>(dim);
  std::vector<float> sums(batch.counts.size() * d);
  for (size_t key = 0; key < batch.counts.size(); ++key) {
    std::vector<size_t> of_key;
    for (size_t i = 0; i < batch.entries.size(); ++i) {
      if (batch.entries[i] >> 32 == key) of_key.push_back(i);
    }
    for (size_t e = 0; e < d; ++e) {
      float* const sum = &sums[key * d + e];
      for (size_t begin = 0; begin < of_key.size(); begin += piece) {
        float of_piece = batch.grads[of_key[begin] * d + e];
        const size_t end = std::min(begin + piece, of_key.size());
        for (size_t i = begin + 1; i < end; ++i) of_piece += batch.grads[of_key[i] * d + e];
        *sum = begin == 0 ? of_piece : *sum + of_piece;
      }
    }
  }
  return sums;
}

TEST_F(DeviceRuleTest, SumsAreTheCpusBitForBitInPieces) {
  std::mt19937_64 random(7);
  for (const auto& [keys, n, dim] : std::vector<std::tuple<uint32_t, uint32_t, int>>{{1, 1, 1},
                                                                                     {1, 256, 5},
                                                                                     {1, 257, 4},
                                                                                     {1, 700, 3},
                                                                                     {2, 1025, 8},
                                                                                     {5, 1700, 7},
                                                                                     {300, 900, 40},
                                                                                     {90, 90, 17},
                                                                                     {9, 600, 128},
                                                                                     {3, 800, 2},
                                                                                     {20, 40, 255},
                                                                                     {30, 120, 299}}) {
    const TestBatch batch(keys, n, dim, &random);
    for (const size_t shift : {size_t{0}, size_t{1}}) {
      const bool with_occurrences = shift == 1 || n % 2 == 0;
      const device::SumArgs sum = Sum(batch, dim, with_occurrences, shift);
      const std::vector<float> expected = SumsOnCpu(batch, dim), found = memory_->Down(sum.sums, expected.size());
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0) << keys << " keys of " << n;
      std::vector<uint64_t> occurrences(keys, 0);
      for (size_t i = 0; i < batch.entries.size(); ++i) {
        occurrences[batch.entries[i] >> 32] += with_occurrences ? static_cast<uint64_t>(batch.occurrences[i]) : 1;
      }
      EXPECT_EQ(memory_->Down(sum.occurrences, keys), occurrences);
    }
  }
}

TEST_F(DeviceRuleTest, AKeyOfManyEntriesIsSummedByManyWarps) {
  constexpr uint32_t kEntries = 60000;
  std::mt19937_64 random(3);
  const TestBatch batch(1, kEntries, 4, &random);
  const uint64_t before = device_->stats().chain;
  const device::SumArgs sum = Sum(batch, 4, false);
  const std::vector<float> expected = SumsOnCpu(batch, 4), found = memory_->Down(sum.sums, expected.size());
  EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)), 0);
  EXPECT_NE(found, SumsOnCpu(batch, 4, kEntries));  // the order of additions shows
  const uint64_t chain = device_->stats().chain - before;
  EXPECT_LE(chain, 256 + kEntries / 256);
  EXPECT_GT(chain, 255u);  // they are counted
}

// Rows [value | slots] of random numbers, and what they are after one step on the CPU.
struct TestRows {
  TestRows(const UpdateRule& rule, int dim, DType dtype, size_t n, std::mt19937_64* random)
      : layout(*RowLayout::Create(dim, dtype)) {
    for (const SlotSpec& slot : rule.slots()) {
      ColumnSpec column;
      column.name = slot.name;
      column.dim = slot.per_row ? 1 : dim;
      layout = *layout.WithColumn(column);
      offsets.push_back(layout.columns().back().offset);
    }
    stride = sizeof(DeviceRowHeader) + layout.row_bytes();
    bytes.resize(n * stride);
    for (size_t i = 0; i < n; ++i) {
      *header(i) =
          DeviceRowHeader{3, i % 4 == 0 ? 0xfffffffeu : 5u, static_cast<uint16_t>(i % 3 == 0 ? device::kRowProvisional : 0), 0};
      std::vector<float> floats(layout.row_bytes() / sizeof(float));
      for (float& x : floats) x = static_cast<float>((*random)() % 1000 + 1) / 500.0f;
      std::memcpy(data(i), floats.data(), layout.row_bytes());
      WriteColumn(dtype, floats.data(), static_cast<size_t>(std::min<int>(dim, static_cast<int>(floats.size()))), data(i));
    }
  }
  DeviceRowHeader* header(size_t i) { return reinterpret_cast<DeviceRowHeader*>(bytes.data() + i * stride); }
  uint8_t* data(size_t i) { return bytes.data() + i * stride + sizeof(DeviceRowHeader); }

  RowLayout layout;
  std::vector<uint32_t> offsets;
  size_t stride = 0;
  std::vector<uint8_t> bytes;
};

TEST_F(DeviceRuleTest, EveryRulesStepIsTheCpusBitForBit) {
  std::mt19937_64 random(11);
  constexpr int64_t kStep = int64_t{3} << 32 | 7;
  uint64_t values = 0;
  for (const RuleCase& c : Cases()) {
    const UpdateRule& rule = **FindUpdateRule(c.rule);
    ASSERT_TRUE(rule.Validate(c.hyper.data()).ok());
    for (const int dim : {1, 2, 3, 7, 16, 17, 70, 128, 255, 299, 300}) {
      const uint32_t keys = 21;
      const TestBatch batch(keys, 40, dim, &random);
      const TableOptions options = WithValues(TableOptions(), values++);
      TestRows rows(rule, dim, options.value_dtype, keys, &random);
      std::vector<int64_t> key_of(keys);
      for (int64_t& key : key_of) key = static_cast<int64_t>(random());
      const device::SumArgs sum = Sum(batch, dim, false, dim == 300 ? 1 : 0);
      uint8_t* const on_device = memory_->Up(rows.bytes);
      std::vector<uint8_t*> places;
      for (uint32_t i = 0; i < keys; ++i) places.push_back(on_device + i * rows.stride);
      device::UpdateArgs update{memory_->Up(places),
                                sum.num_keys,
                                keys,
                                sum.sums,
                                sum.occurrences,
                                static_cast<uint32_t>(dim),
                                {},
                                {},
                                9,
                                dim == 3,
                                memory_->Filled<uint32_t>(1, 0)};
      update.value_dtype = options.value_dtype;
      update.stochastic = options.stochastic_rounding;
      update.keys = options.stochastic_rounding ? memory_->Up(key_of) : nullptr;
      update.step = kStep;
      std::copy(rows.offsets.begin(), rows.offsets.end(), update.slot_offsets);
      std::copy(c.hyper.begin(), c.hyper.end(), update.hyper);
      ASSERT_TRUE(device_->kernels().update(stream_, *DeviceRuleOf(rule, c.hyper.data()), update).ok());

      const std::vector<float> sums = SumsOnCpu(batch, dim);
      uint32_t created = 0;
      for (uint32_t i = 0; i < keys; ++i) {
        const bool provisional = rows.header(i)->flags == device::kRowProvisional;
        if (provisional && update.skip_provisional) continue;
        uint8_t* const data = rows.data(i);
        const float* const grad = sums.data() + i * static_cast<size_t>(dim);
        const UpdateBatch one{&data, &grad, 1, dim, options.value_dtype, rows.offsets.data(), c.hyper.data()};
        if (options.stochastic_rounding) {
          UpdateStochastically(rule, one, &key_of[i], kStep);
        } else {
          rule.Update(one);
        }
        const uint64_t frequency = (provisional ? 0 : uint64_t{rows.header(i)->frequency}) + batch.counts[i];
        *rows.header(i) = DeviceRowHeader{9, static_cast<uint32_t>(std::min<uint64_t>(frequency, 0xffffffffu)),
                                          static_cast<uint16_t>(device::kRowDirty | (provisional ? device::kRowNew : 0)), 0};
        created += provisional;
      }
      EXPECT_EQ(memory_->Down(on_device, rows.bytes.size()), rows.bytes)
          << c.rule << " " << c.hyper.size() << " dim " << dim << " " << DTypeName(options.value_dtype);
      EXPECT_EQ(memory_->Down(update.created, 1)[0], created);
    }
  }
}

TEST(DeviceRule, OtherRulesAreRefusedByName) {
  const std::vector<float> hyper(8, 0.1f);
  const std::set<std::string> refused = {"adadelta", "adagrad_decay", "adagrad_decay_v2", "adam_amsgrad", "adamax",
                                         "lion",     "nadam"};
  EXPECT_FALSE(DeviceRuleOf(**FindUpdateRule("sgd+weight_decay"), hyper.data()).ok());
  for (const UpdateRule* rule : AllUpdateRules()) {
    const std::string name = rule->name();
    const bool runs = refused.count(name) == 0;
    const auto found = DeviceRuleOf(*rule, hyper.data());
    EXPECT_EQ(found.ok(), runs) << name;
    if (!runs) {
      EXPECT_NE(found.status().message().find(name), std::string::npos) << found.status().ToString();
    }
  }
}

}  // namespace
}  // namespace multitier::hbm::device_rule_test
