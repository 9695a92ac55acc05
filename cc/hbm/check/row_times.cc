#include "cc/hbm/check/row_times.h"

#include <algorithm>
#include <random>
#include <vector>

#include "cc/device/kernels/member_items.h"
#include "cc/device/kernels/test_memory.h"
#include "cc/hbm/check/launch_times.h"

namespace multitier::hbm {
namespace {

using device::DeviceRowHeader;
using device::DeviceRule;
using device::ScanScratch;

constexpr int kInputs = 3;  // that launches take in turns

// Entries of one batch on the device, by distinct key. Number k is that of the k-th key.
struct Entries {
  uint32_t n = 0, distinct = 0;
  uint64_t* entries = nullptr;  // distinct key << 32 | position
  uint64_t* sorted = nullptr;
  uint32_t* begins = nullptr;
  uint32_t* counts = nullptr;
  uint32_t* inverse = nullptr;
};

class RowBench {
 public:
  RowBench(std::shared_ptr<device::Device> device, device::Stream stream, const RowTimesOptions& options)
      : device_(std::move(device)),
        kernels_(device_->kernels()),
        stream_(stream),
        options_(options),
        times_(device_, stream),
        memory_(device_, stream) {}

  Status Run(JsonMembers* json) {
    for (int i = 0; i < kInputs; ++i) inputs_.push_back(SomeEntries(options_.entries, 0));
    MT_RETURN_IF_ERROR(Dedup(json));
    MT_RETURN_IF_ERROR(Sort(json));
    for (const uint32_t dim : {8u, 16u, 64u, 128u}) MT_RETURN_IF_ERROR(Values(dim, json));
    MT_RETURN_IF_ERROR(Gradients("gradients_uniform", inputs_, json));
    std::vector<Entries> hot;
    for (int i = 0; i < kInputs; ++i) hot.push_back(SomeEntries(options_.hot_entries, options_.hot_entries / 10 * 9));
    MT_RETURN_IF_ERROR(Gradients("gradients_one_key_of_90_percent", hot, json));
    MT_RETURN_IF_ERROR(Update("update_sgd", DeviceRule::kSgd, 0, json));
    MT_RETURN_IF_ERROR(Update("update_adagrad", DeviceRule::kAdagrad, 1, json));
    return Update("update_adam", DeviceRule::kAdam, 2, json);
  }

 private:
  // The first `of_one` entries are of one key.
  Entries SomeEntries(uint32_t n, uint32_t of_one) {
    Entries made;
    std::vector<uint32_t> number(options_.distinct, device::kNone), counts, inverse(n);
    std::vector<uint64_t> entries(n), sorted;
    for (uint32_t i = 0; i < n; ++i) {
      uint32_t& of_key = number[i < of_one ? 0 : random_() % options_.distinct];
      if (of_key == device::kNone) {
        of_key = static_cast<uint32_t>(counts.size());
        counts.push_back(0);
      }
      ++counts[of_key];
      inverse[i] = of_key;
      entries[i] = uint64_t{of_key} << 32 | i;
    }
    sorted = entries;
    std::stable_sort(sorted.begin(), sorted.end(), [](uint64_t a, uint64_t b) { return a >> 32 < b >> 32; });
    std::vector<uint32_t> begins(counts.size());
    for (size_t k = 1; k < counts.size(); ++k) begins[k] = begins[k - 1] + counts[k - 1];
    made.n = n;
    made.distinct = static_cast<uint32_t>(counts.size());
    made.entries = memory_.Up(entries);
    made.sorted = memory_.Up(sorted);
    made.begins = memory_.Up(begins);
    made.counts = memory_.Up(counts);
    made.inverse = memory_.Up(inverse);
    return made;
  }

  // Rows of distinct keys, drawn from all rows. They are zeros.
  std::vector<uint8_t**> SomeRows(device::TestMemory* memory, uint32_t stride) {
    auto* const rows = memory->Filled<uint8_t>(size_t{options_.rows} * stride, 0);
    std::vector<uint8_t**> of_inputs;
    for (const Entries& input : inputs_) {
      std::vector<uint8_t*> places;
      // Distinct: an odd number steps through all of 2^k rows.
      const uint32_t first = static_cast<uint32_t>(random_());
      for (uint32_t k = 0; k < input.distinct; ++k) {
        places.push_back(rows + size_t{(first + k * 2654435761u) % options_.rows} * stride);
      }
      of_inputs.push_back(memory->Up(places));
    }
    return of_inputs;
  }

  template <typename Args, typename M>
  Args One(device::TestMemory* memory, const M& member, uint64_t items) {
    const auto n = static_cast<uint32_t>(items);
    return Args{memory->Up(std::vector<M>{member}), memory->Up(std::vector<uint32_t>{n}), 1, n};
  }

  Status Dedup(JsonMembers* json) {
    const uint32_t n = options_.entries;
    device::TestMemory m(device_, stream_);
    device::DedupArgs d{};
    std::vector<uint32_t> ends;
    for (uint32_t t = 0; t < options_.tables; ++t) {
      ends.push_back(static_cast<uint32_t>(uint64_t{n} * (t + 1) / options_.tables));
    }
    std::vector<const int64_t*> keys;
    for (int i = 0; i < kInputs; ++i) {
      std::vector<int64_t> batch(n);
      for (int64_t& key : batch) key = static_cast<int64_t>(random_() % std::max(1u, options_.distinct / options_.tables));
      keys.push_back(m.Up(batch));
    }
    d.n = n;
    d.ends = m.Up(ends);
    d.num_tables = options_.tables;
    for (d.set_size = 2; d.set_size < 2 * n;) d.set_size *= 2;
    d.set = m.New<uint32_t>(d.set_size);
    d.places = m.New<uint32_t>(n);
    d.numbers = m.New<uint32_t>(n);
    d.scan.words = m.New<uint64_t>(ScanScratch::Words(n));
    d.distinct = m.New<int64_t>(n);
    d.distinct_tables = m.New<uint32_t>(n);
    d.counts = m.New<uint32_t>(n);
    d.inverse = m.New<uint32_t>(n);
    d.num_distinct = m.New<uint32_t>(1);
    d.entries = m.New<uint64_t>(n);
    return Measure(
        "dedup", n, 0, json,
        [&](int i) {
          d.keys = keys[static_cast<size_t>(i % kInputs)];
          MT_RETURN_IF_ERROR(device_->Fill(stream_, d.set, 0xff, d.set_size * sizeof(uint32_t)));
          MT_RETURN_IF_ERROR(device_->Fill(stream_, d.counts, 0, n * sizeof(uint32_t)));
          return device_->Fill(stream_, d.scan.words, 0, ScanScratch::Words(n) * sizeof(uint64_t));
        },
        [&](int) { return kernels_.dedup(stream_, d); });
  }

  Status Sort(JsonMembers* json) {
    device::TestMemory m(device_, stream_);
    const uint32_t n = options_.entries;
    auto* const to = m.New<uint64_t>(n);
    auto* const scratch = m.New<uint8_t>(device_->SortScratchBytes(n));
    int bits = 1;
    while (options_.distinct > uint64_t{1} << bits) ++bits;
    return Measure("sort", n, 2 * sizeof(uint64_t), json, Ready, [&](int i) {
      return device_->SortByUpper(stream_, inputs_[static_cast<size_t>(i % kInputs)].entries, to, n, bits, scratch);
    });
  }

  Status Values(uint32_t dim, JsonMembers* json) {
    device::TestMemory m(device_, stream_);
    const auto stride = static_cast<uint32_t>(sizeof(DeviceRowHeader) + dim * sizeof(float));
    const std::vector<uint8_t**> rows = SomeRows(&m, stride);
    auto* const out = m.New<float>(size_t{options_.entries} * dim);
    std::vector<device::OutputArgs> args;
    for (size_t i = 0; i < kInputs; ++i) {
      device::OutputMember o{};
      o.rows = rows[i];
      o.num_keys = m.Up(std::vector<uint32_t>{inputs_[i].distinct});
      o.max_keys = inputs_[i].distinct;
      o.inverse = inputs_[i].inverse;
      o.entries = o.num_rows = inputs_[i].n;
      o.max_norm = -1;
      o.dim = o.stride = dim;
      o.out = out;
      args.push_back(One<device::OutputArgs>(&m, o, device::ValueItems(o)));
    }
    return Measure(StrCat("values_dim_", dim), options_.entries, 4.0 + 8 + 2.0 * dim * sizeof(float), json, Ready,
                   [&](int i) { return kernels_.values(stream_, args[static_cast<size_t>(i % kInputs)]); });
  }

  Status Gradients(const char* name, const std::vector<Entries>& inputs, JsonMembers* json) {
    device::TestMemory m(device_, stream_);
    const uint32_t dim = options_.dim, n = inputs[0].n;
    auto* const grads = m.Filled<float>(size_t{n} * dim, 0);
    auto* const sums = m.New<float>(size_t{n} * dim);
    auto* const pieces = m.New<float>(size_t{device::LaterPieces(n)} * dim);
    std::vector<device::GradientArgs> args, corrections;
    for (const Entries& input : inputs) {
      device::GradientMember g{};
      g.output.entries = g.output.num_rows = n;
      g.output.dim = dim;
      g.output.max_norm = -1;
      g.entries = input.sorted;
      g.begins = input.begins;
      g.counts = input.counts;
      g.num_keys = input.distinct;
      g.grads = grads;
      g.stride = dim;
      g.sums = sums;
      if (device::LaterPieces(n) > 0) g.pieces = pieces;
      args.push_back(One<device::GradientArgs>(&m, g, device::GradientItems(g)));
      args.back().most_dim = dim;
      corrections.push_back(One<device::GradientArgs>(&m, g, device::CorrectionItems(g)));
    }
    return Measure(name, n, 8.0 + dim * sizeof(float), json, Ready, [&](int i) {
      const auto input = static_cast<size_t>(i % kInputs);
      MT_RETURN_IF_ERROR(kernels_.gradients(stream_, args[input]));
      return corrections[input].items == 0 ? OkStatus() : kernels_.corrections(stream_, corrections[input]);
    });
  }

  // bytes: gradient, value and slots; the last two are read and written.
  Status Update(const char* name, DeviceRule rule, uint32_t slots, JsonMembers* json) {
    device::TestMemory m(device_, stream_);
    const uint32_t dim = options_.dim, value_bytes = (dim * 4 + 15) / 16 * 16;
    const std::vector<uint8_t**> rows =
        SomeRows(&m, static_cast<uint32_t>(sizeof(DeviceRowHeader)) + value_bytes * (1 + slots));
    std::vector<device::UpdateMembersArgs> args;
    for (size_t i = 0; i < kInputs; ++i) {
      device::UpdateArgs update{};
      update.rows = rows[i];
      update.max_keys = inputs_[i].distinct;
      update.sums = m.Filled<float>(size_t{update.max_keys} * dim, 0);
      update.counts = inputs_[i].counts;
      update.dim = dim;
      for (uint32_t s = 0; s < slots; ++s) update.slot_offsets[s] = (1 + s) * value_bytes;
      for (float& h : update.hyper) h = 0.1f;
      update.version = 1;
      update.created = m.Filled<uint32_t>(1, 0);
      args.push_back(One<device::UpdateMembersArgs>(&m, update, update.max_keys));
    }
    return Measure(name, inputs_[0].distinct, 2 * sizeof(DeviceRowHeader) + (1.0 + 2 * (1 + slots)) * dim * sizeof(float), json,
                   Ready,
                   [&](int i) { return kernels_.update_members(stream_, rule, args[static_cast<size_t>(i % kInputs)]); });
  }

  static Status Ready(int) { return OkStatus(); }

  template <typename Prepare, typename Call>
  Status Measure(const std::string& name, double keys, double bytes, JsonMembers* json, Prepare prepare, Call call) {
    MT_ASSIGN_OR_RETURN(const double seconds, times_.Measure(options_.repeats, prepare, call));
    json->Add(name, TimesOf(seconds, keys, bytes));
    return OkStatus();
  }

  const std::shared_ptr<device::Device> device_;
  const device::DeviceKernels& kernels_;
  const device::Stream stream_;
  const RowTimesOptions options_;
  LaunchTimes times_;
  device::TestMemory memory_;
  std::mt19937_64 random_{1};
  std::vector<Entries> inputs_;
};

}  // namespace

Result<std::string> MeasureRows(const std::shared_ptr<device::Device>& device, const RowTimesOptions& options) {
  MT_ASSIGN_OR_RETURN(const device::Stream stream, device->NewStream());
  JsonMembers json;
  Status status;
  {
    RowBench bench(device, stream, options);
    status = bench.Run(&json);
    const Status done = device->Synchronize(stream);  // before the memory goes
    if (status.ok()) status = done;
  }
  device->Delete(stream);
  if (!status.ok()) return status;
  return json.text();
}

}  // namespace multitier::hbm
