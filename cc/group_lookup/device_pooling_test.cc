// Pooling and its gradient on the emulated device give the bits of cc/group_lookup/pooling.h.

#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "cc/device/emulated_device.h"
#include "cc/device/kernels/kernels.h"
#include "cc/device/kernels/member_items.h"
#include "cc/device/kernels/test_memory.h"
#include "cc/group_lookup/pooling.h"
#include "cc/row/value_column.h"

namespace multitier::device_pooling_test {
namespace {

using device::DeviceRowHeader;

// A batch of entries over some distinct keys, on both sides.
struct Sample {
  Sample(int64_t batch, uint32_t n, uint32_t distinct, int dim, bool weighted, std::mt19937_64* random)
      : keys(distinct), values(distinct * static_cast<size_t>(dim)), counts(distinct, 0) {
    const auto some = [&] { return static_cast<float>(static_cast<int>((*random)() % 2001) - 1000) / 300.0f; };
    for (float& x : values) x = some();
    if (distinct > 1) std::fill_n(values.begin(), dim, 0.0f);  // a norm of zero
    for (uint32_t i = 0; i < n; ++i) {
      indices.push_back(static_cast<int64_t>((*random)() % static_cast<uint64_t>(batch)));
      inverse.push_back(i < distinct ? i : static_cast<uint32_t>((*random)() % distinct));
      ++counts[inverse.back()];
      if (weighted) weights.push_back(i % 5 == 0 ? 0.0f : some());
    }
    std::sort(indices.begin(), indices.end());
  }
  uint32_t keys;
  std::vector<float> values;  // [keys, dim]
  std::vector<uint32_t> counts, inverse;
  std::vector<int64_t> indices;
  std::vector<float> weights;
};

struct PoolCase {
  int64_t batch;
  uint32_t entries, distinct;
  int dim;
};

class DevicePooling : public testing::TestWithParam<PoolCase> {
 protected:
  DevicePooling() {
    device_ = std::make_shared<device::EmulatedDevice>(device::EmulatedDevice::Options(), &device::EmulatedKernels());
    stream_ = *device_->NewStream();
    memory_ = std::make_unique<device::TestMemory>(device_, stream_);
  }

  // The launches of a group of this one member.
  template <typename Args, typename Member>
  Args One(const Member& member, uint64_t items) {
    return Args{memory_->Up(std::vector<Member>{member}), memory_->Up(std::vector<uint32_t>{static_cast<uint32_t>(items)}), 1,
                static_cast<uint32_t>(items)};
  }

  device::OutputMember MemberOf(const Sample& sample, int64_t batch, int dim, DType dtype, int64_t stride, Combiner combiner,
                                float max_norm) {
    const size_t row_bytes = sizeof(DeviceRowHeader) + RowLayout::Create(dim, dtype)->row_bytes();
    std::vector<uint8_t> rows(sample.keys * row_bytes, 0);
    for (uint32_t k = 0; k < sample.keys; ++k) {
      WriteColumn(dtype, sample.values.data() + k * static_cast<size_t>(dim), static_cast<size_t>(dim),
                  rows.data() + k * row_bytes + sizeof(DeviceRowHeader));
    }
    uint8_t* const on_device = memory_->Up(rows);
    std::vector<uint8_t*> places;
    for (uint32_t k = 0; k < sample.keys; ++k) places.push_back(on_device + k * row_bytes);
    const auto b = static_cast<uint32_t>(batch);
    device::OutputMember m{};
    m.rows = memory_->Up(places);
    m.num_keys = memory_->Up(std::vector<uint32_t>{sample.keys});
    m.max_keys = sample.keys;
    m.value_dtype = dtype;
    m.inverse = memory_->Up(sample.inverse);
    m.entries = static_cast<uint32_t>(sample.indices.size());
    m.pooled = true;
    m.indices = memory_->Up(sample.indices);
    m.columns = 1;
    m.batch = m.num_rows = b;
    m.first_bad = memory_->Filled<uint32_t>(1, 0xff);
    m.entry_rows = memory_->Filled<int64_t>(m.entries, 0x5c);
    m.weights = sample.weights.empty() ? nullptr : memory_->Up(sample.weights);
    m.dim = static_cast<uint32_t>(dim);
    m.stride = static_cast<uint32_t>(stride);
    m.combiner = static_cast<device::PoolCombiner>(combiner);
    m.max_norm = max_norm;
    m.norms = max_norm >= 0 ? memory_->Filled<float>(sample.keys, 0x5c) : nullptr;
    m.splits = memory_->Filled<uint32_t>(b + 1, 0x5c);
    m.divisors = memory_->Filled<float>(b, 0x5c);
    m.factors = memory_->Filled<float>(b, 0x5c);
    m.out = memory_->Filled<float>(static_cast<size_t>(batch * stride), 0);
    return m;
  }

  std::shared_ptr<device::EmulatedDevice> device_;
  device::Stream stream_;
  std::unique_ptr<device::TestMemory> memory_;
};

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  ASSERT_FALSE(a.empty());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

TEST_P(DevicePooling, ValuesAndGradientsAreTheCpusBitForBit) {
  const PoolCase c = GetParam();
  std::mt19937_64 random(c.entries + 3);
  const auto dim = static_cast<size_t>(c.dim);
  constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  size_t number = 0;
  for (const Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
    for (const bool weighted : {false, true}) {
      for (const float max_norm : {-1.0f, 2.5f}) {
        const DType dtype = kTypes[(number++ + c.entries) % 3];
        Sample sample(c.batch, c.entries, c.distinct, c.dim, weighted, &random);
        const int64_t stride = c.dim + (weighted ? 3 : 0);
        SparseBatch batch{sample.indices, sample.weights, c.batch, c.dim, combiner, stride};
        RoundValues(dtype, sample.values.data(), sample.values.size());
        const device::OutputMember m = MemberOf(sample, c.batch, c.dim, dtype, stride, combiner, max_norm);
        const device::DeviceKernels& kernels = device_->kernels();
        ASSERT_TRUE(kernels.entry_rows(stream_, One<device::OutputArgs>(m, device::EntryItems(m))).ok());
        ASSERT_TRUE(kernels.scales(stream_, One<device::OutputArgs>(m, device::ScaleItems(m))).ok());
        auto values_args = One<device::OutputArgs>(m, device::AllValueItems(m));
        values_args.halves = dtype != DType::kFloat32;
        ASSERT_TRUE(kernels.values(stream_, values_args).ok());
        std::vector<float> values = sample.values, out(static_cast<size_t>(c.batch * stride), 0.0f);
        if (max_norm >= 0) ClipByNorm(values.data(), sample.keys, c.dim, max_norm);
        const std::vector<int32_t> places(sample.inverse.begin(), sample.inverse.end());
        Pool(batch, EntryValues{values.data(), places.data()}, out.data());
        const std::string what = "combiner " + std::to_string(static_cast<int>(combiner)) + (weighted ? " weighted" : "");
        ExpectSameBits(memory_->Down(m.out, out.size()), out, what);

        std::vector<float> grads(out.size());
        for (float& g : grads) g = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 700.0f;
        std::vector<float> of_entries(c.entries * dim), sums(c.distinct * dim);
        PoolGradient(batch, grads.data(), of_entries.data());
        std::vector<std::vector<float>> pieces(c.distinct);  // of each key, the sums of 256 entries
        std::vector<uint32_t> seen(c.distinct);
        std::vector<uint64_t> numbers;
        for (uint32_t i = 0; i < c.entries; ++i) {
          const uint32_t k = sample.inverse[i];
          numbers.push_back(uint64_t{k} << 32 | i);
          const float* const of_entry = &of_entries[i * dim];
          if (seen[k]++ % device::kPieceEntries == 0) {
            pieces[k].insert(pieces[k].end(), of_entry, of_entry + dim);
          } else {
            for (size_t d = 0; d < dim; ++d) pieces[k][pieces[k].size() - dim + d] += of_entry[d];
          }
        }
        for (size_t k = 0; k < c.distinct; ++k) {
          std::copy_n(pieces[k].begin(), pieces[k].empty() ? 0 : dim, &sums[k * dim]);
          for (size_t at = dim; at < pieces[k].size(); ++at) sums[k * dim + at % dim] += pieces[k][at];
        }
        uint64_t* const sorted = memory_->Filled<uint64_t>(c.entries, 0x5c);
        ASSERT_TRUE(
            device_->SortByUpper(stream_, memory_->Up(numbers), sorted, c.entries, 20, memory_->Filled<uint64_t>(c.entries, 0))
                .ok());
        device::GradientMember g{};
        g.output = m;
        g.output.max_norm = -1.0f;  // the gradient of clipping is not in it
        g.entries = sorted;
        uint32_t* const begins = memory_->Filled<uint32_t>(c.distinct, 0x5c);
        ASSERT_TRUE(kernels.begins(stream_, device::BeginsArgs{sorted, c.entries, begins}).ok());
        g.begins = begins;
        g.counts = memory_->Up(sample.counts);
        g.num_keys = c.distinct;
        g.grads = memory_->Up(grads);
        g.stride = static_cast<uint32_t>(stride);
        g.sums = memory_->Filled<float>(sums.size(), 0x5c);
        g.counts_out = memory_->Filled<int64_t>(c.distinct, 0x5c);
        g.pieces = memory_->Filled<float>(device::LaterPieces(c.entries) * dim, 0x5c);
        ASSERT_TRUE(device_->Synchronize(stream_).ok());
        const uint64_t chain = device_->stats().chain;
        auto gradients = One<device::GradientArgs>(g, device::GradientItems(g));
        gradients.most_dim = weighted ? 0 : static_cast<uint32_t>(c.dim);
        ASSERT_TRUE(kernels.gradients(stream_, gradients).ok());
        if (const uint64_t items = device::CorrectionItems(g); items > 0) {
          ASSERT_TRUE(kernels.corrections(stream_, One<device::GradientArgs>(g, items)).ok());
        }
        ExpectSameBits(memory_->Down(g.sums, sums.size()), sums, "gradient, " + what);
        if (c.dim < 32) {
          EXPECT_LE(device_->stats().chain - chain, device::kPieceEntries + c.entries / device::kPieceEntries);
        }
        EXPECT_EQ(memory_->Down(g.counts_out, c.distinct), std::vector<int64_t>(sample.counts.begin(), sample.counts.end()));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, DevicePooling,
                         testing::Values(PoolCase{1, 1, 1, 1}, PoolCase{4, 40, 9, 3}, PoolCase{300, 200, 120, 16},
                                         PoolCase{20, 300, 2, 40}, PoolCase{7, 50, 50, 100}, PoolCase{9, 60, 25, 299},
                                         PoolCase{30, 1500, 3, 8}, PoolCase{30, 1200, 3, 7}, PoolCase{9, 61, 25, 255}),
                         [](const auto& info) { return "Entries" + std::to_string(info.param.entries); });

}  // namespace
}  // namespace multitier::device_pooling_test
