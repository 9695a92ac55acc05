#include "cc/hbm/check/pair_check.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "cc/device/kernels/test_memory.h"
#include "cc/hbm/device_table.h"

namespace multitier::hbm {
namespace {

using device::DeviceRowHeader;
using device::ScanScratch;

constexpr uint32_t kSlots = 3;  // at most, of a rule

uint32_t ValueBytes(const PairCheckOptions& options) { return (options.dim * 4 + 15) / 16 * 16; }
uint32_t RowBytes(const PairCheckOptions& options) { return ValueBytes(options) * (1 + kSlots); }

// What the host knows of one batch. Staged rows follow from the keys.
struct Batch {
  std::vector<int64_t> keys;
  std::vector<float> grads;
  uint32_t operation;
};

// Bytes of named arrays, in the order in which they were read.
struct Readout {
  std::vector<std::pair<std::string, std::vector<uint8_t>>> arrays;

  template <typename T>
  void Add(const std::string& name, const std::vector<T>& values) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
    arrays.emplace_back(name, std::vector<uint8_t>(bytes, bytes + values.size() * sizeof(T)));
  }
};

// One of the two: a table on a device, and the steps of a batch.
class Side {
 public:
  Side(std::shared_ptr<device::Device> device, const PairCheckOptions& options)
      : device_(std::move(device)), kernels_(device_->kernels()), options_(options) {}
  ~Side() {
    if (stream_.native == nullptr) return;
    (void)device_->Synchronize(stream_);
    device_->Delete(stream_);
  }

  Status Make() {
    MT_ASSIGN_OR_RETURN(stream_, device_->NewStream());
    const uint64_t budget = uint64_t{options_.rows} * RowBytes(options_);
    MT_ASSIGN_OR_RETURN(table_, DeviceTable::Create(device_, RowBytes(options_), budget, options_.rank_by));
    MT_RETURN_IF_ERROR(table_->Reset(device_.get(), stream_));
    return device_->Synchronize(stream_);
  }

  Status Run(const Batch& batch, Readout* out) {
    device::TestMemory memory(device_, stream_);
    Step step(&memory);
    const Status status = Steps(batch, &step, out);
    const Status done = device_->Synchronize(stream_);  // before the memory goes
    return status.ok() ? done : status;
  }

 private:
  struct Step {
    explicit Step(device::TestMemory* m) : memory(m) {}
    device::TestMemory* const memory;
    device::DedupArgs dedup{};
    device::FindArgs find{};
    device::CompactArgs missed{}, to_place{};
    device::StageArgs stage{};
    device::InsertArgs insert{};
    uint32_t distinct = 0, misses = 0;
  };

  uint64_t* Scan(Step* step, uint32_t n) { return step->memory->Filled<uint64_t>(ScanScratch::Words(n), 0); }

  Status Steps(const Batch& batch, Step* step, Readout* out) {
    MT_RETURN_IF_ERROR(Find(batch, step, out));
    if (step->misses > 0) MT_RETURN_IF_ERROR(Insert(batch, step, out));
    MT_RETURN_IF_ERROR(Gather(batch, step, out));
    MT_RETURN_IF_ERROR(Update(batch, step, out));
    return ReadTable(step, out);
  }

  Status Find(const Batch& batch, Step* step, Readout* out) {
    device::TestMemory& m = *step->memory;
    const auto n = static_cast<uint32_t>(batch.keys.size());
    uint32_t set_size = 2;
    while (set_size < 2 * n) set_size *= 2;
    device::DedupArgs& dedup = step->dedup;
    dedup.keys = m.Up(batch.keys);
    dedup.n = n;
    dedup.ends = m.Up(std::vector<uint32_t>{n});
    dedup.num_tables = 1;
    dedup.set = m.Filled<uint32_t>(set_size, 0xff);
    dedup.set_size = set_size;
    dedup.places = m.Filled<uint32_t>(n, 0);
    dedup.numbers = m.Filled<uint32_t>(n, 0);
    dedup.scan.words = Scan(step, n);
    dedup.distinct = m.Filled<int64_t>(n, 0);
    dedup.distinct_tables = m.Filled<uint32_t>(n, 0);
    dedup.counts = m.Filled<uint32_t>(n, 0);
    dedup.inverse = m.Filled<uint32_t>(n, 0);
    dedup.num_distinct = m.Filled<uint32_t>(1, 0);
    dedup.entries = m.Filled<uint64_t>(n, 0);
    MT_RETURN_IF_ERROR(kernels_.dedup(stream_, dedup));
    uint8_t** const rows = m.Filled<uint8_t*>(n, 0);
    uint32_t* const missed = m.Filled<uint32_t>(n, 0);
    step->find = device::FindArgs{
        table_->on_device(), dedup.distinct, dedup.distinct_tables, dedup.num_distinct, n, batch.operation, true, rows, missed};
    MT_RETURN_IF_ERROR(kernels_.find(stream_, step->find));
    step->missed = device::CompactArgs{missed,
                                       dedup.num_distinct,
                                       n,
                                       {Scan(step, n)},
                                       m.Filled<uint32_t>(n, 0),
                                       m.Filled<uint32_t>(1, 0),
                                       dedup.distinct,
                                       dedup.counts,
                                       m.Filled<int64_t>(n, 0),
                                       m.Filled<uint32_t>(n, 0),
                                       m.Filled<uint32_t>(n, 0)};
    MT_RETURN_IF_ERROR(kernels_.compact(stream_, step->missed));
    step->distinct = m.Down(dedup.num_distinct, 1)[0];
    step->misses = m.Down(step->missed.length, 1)[0];
    out->Add("distinct keys", m.Down(dedup.distinct, n));
    out->Add("counts", m.Down(dedup.counts, n));
    out->Add("inverse", m.Down(dedup.inverse, n));
    out->Add("entries", m.Down(dedup.entries, n));
    out->Add("missed", m.Down(missed, n));
    out->Add("keys of misses", m.Down(step->missed.listed_keys, step->misses));
    return OkStatus();
  }

  // A third of the keys have no row yet.
  std::vector<uint8_t> StagedRows(const std::vector<int64_t>& keys) const {
    const uint32_t stride = static_cast<uint32_t>(table_->stride());
    std::vector<uint8_t> rows(keys.size() * stride);
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool provisional = keys[i] % 3 == 0;
      const DeviceRowHeader header{provisional ? -1 : 5, provisional ? 0u : 7u,
                                   static_cast<uint16_t>(provisional ? device::kRowProvisional : 0), 0};
      std::memcpy(rows.data() + i * stride, &header, sizeof(header));
      std::vector<float> data(RowBytes(options_) / 4);
      for (size_t d = 0; d < data.size(); ++d) {
        data[d] = static_cast<float>((static_cast<uint64_t>(keys[i]) * 31 + d * 17) % 1000) / 700.0f + 0.1f;
      }
      std::memcpy(rows.data() + i * stride + sizeof(header), data.data(), RowBytes(options_));
    }
    return rows;
  }

  Status Insert(const Batch& batch, Step* step, Readout* out) {
    device::TestMemory& m = *step->memory;
    const uint32_t n = step->find.max_keys, misses = step->misses, stride = static_cast<uint32_t>(table_->stride());
    const std::vector<int64_t> missed_keys = m.Down(step->missed.listed_keys, misses);
    uint8_t* const staged = m.Up(StagedRows(missed_keys));
    step->stage = device::StageArgs{step->find.num_keys, n, step->missed.ranks, staged, stride, true, true, step->find.rows,
                                    step->find.missed};
    MT_RETURN_IF_ERROR(kernels_.stage(stream_, step->stage));
    step->to_place = device::CompactArgs{step->find.missed, step->find.num_keys,      n,
                                         {Scan(step, n)},   m.Filled<uint32_t>(n, 0), m.Filled<uint32_t>(1, 0)};
    MT_RETURN_IF_ERROR(kernels_.compact(stream_, step->to_place));
    device::InsertArgs& insert = step->insert;
    insert.tables = table_->on_device();
    insert.num_tables = 1;
    insert.keys = step->find.keys;
    insert.key_tables = step->find.key_tables;
    insert.missed = step->to_place.list;
    insert.num_missed = step->to_place.length;
    insert.max_missed = misses;
    insert.operation = batch.operation;
    insert.floor = batch.operation;
    insert.staged_rows = staged;
    insert.staged_stride = stride;
    for (uint32_t** one : {&insert.begins, &insert.ends, &insert.bases, &insert.num_dirty}) *one = m.Filled<uint32_t>(1, 0);
    for (uint32_t** each : {&insert.next, &insert.offered, &insert.consumed, &insert.returned, &insert.outbox}) {
      *each = m.Filled<uint32_t>(misses, 0);
    }
    insert.scan.words = Scan(step, misses);
    insert.rows = step->find.rows;
    insert.victims = m.Filled<device::Victim>(misses, 0);
    insert.staged_ranks = step->missed.ranks;
    MT_RETURN_IF_ERROR(kernels_.chain(stream_, insert));
    MT_RETURN_IF_ERROR(kernels_.place(stream_, insert));
    MT_RETURN_IF_ERROR(kernels_.reclaim(stream_, insert));
    const device::ExchangeArgs exchange{insert, m.Filled<uint8_t>(size_t{misses} * stride, 0), stride,
                                        m.Filled<int64_t>(misses, 0), m.Filled<uint32_t>(misses, 0)};
    MT_RETURN_IF_ERROR(kernels_.exchange(stream_, exchange));
    const uint32_t dirty = m.Down(insert.num_dirty, 1)[0];
    out->Add("victims", m.Down(insert.victims, misses));
    out->Add("places in the outbox", m.Down(insert.outbox, misses));
    out->Add("keys in the outbox", m.Down(exchange.outbox_keys, dirty));
    out->Add("rows in the outbox", m.Down(exchange.outbox_rows, size_t{dirty} * stride));
    return OkStatus();
  }

  Status Gather(const Batch& batch, Step* step, Readout* out) {
    device::TestMemory& m = *step->memory;
    const auto n = static_cast<uint32_t>(batch.keys.size());
    float* const values = m.Filled<float>(size_t{n} * options_.dim, 0);
    MT_RETURN_IF_ERROR(
        kernels_.gather(stream_, device::GatherArgs{step->find.rows, step->dedup.inverse, n, options_.dim, values}));
    out->Add("values", m.Down(values, size_t{n} * options_.dim));
    return OkStatus();
  }

  Status Update(const Batch& batch, Step* step, Readout* out) {
    device::TestMemory& m = *step->memory;
    const auto n = static_cast<uint32_t>(batch.keys.size());
    uint64_t* const sorted = m.Filled<uint64_t>(n, 0);
    MT_RETURN_IF_ERROR(
        device_->SortByUpper(stream_, step->dedup.entries, sorted, n, 31, m.Filled<uint8_t>(device_->SortScratchBytes(n), 0)));
    device::SumArgs sum{};
    sum.entries = sorted;
    sum.n = n;
    sum.num_keys = step->find.num_keys;
    sum.max_keys = step->distinct;
    sum.counts = step->dedup.counts;
    sum.grads = m.Up(batch.grads);
    sum.dim = options_.dim;
    sum.begins = m.Filled<uint32_t>(step->distinct, 0);
    sum.sums = m.Filled<float>(size_t{step->distinct} * options_.dim, 0);
    sum.occurrences = m.Filled<uint64_t>(step->distinct, 0);
    MT_RETURN_IF_ERROR(kernels_.sum(stream_, sum));
    device::UpdateArgs update{};
    update.rows = step->find.rows;
    update.num_keys = step->find.num_keys;
    update.max_keys = step->distinct;
    update.sums = sum.sums;
    update.occurrences = sum.occurrences;
    update.dim = options_.dim;
    for (uint32_t s = 0; s < kSlots; ++s) update.slot_offsets[s] = (1 + s) * ValueBytes(options_);
    for (int h = 0; h < device::UpdateArgs::kMaxHyper; ++h) update.hyper[h] = 0.1f + 0.05f * static_cast<float>(h);
    update.version = batch.operation;
    if (table_->view().ranks != nullptr) update.ranked = table_->on_device();
    update.created = m.Filled<uint32_t>(1, 0);
    MT_RETURN_IF_ERROR(kernels_.update(stream_, options_.rule, update));
    out->Add("sorted entries", m.Down(sorted, n));
    out->Add("sums", m.Down(sum.sums, size_t{step->distinct} * options_.dim));
    out->Add("occurrences", m.Down(sum.occurrences, step->distinct));
    out->Add("created rows", m.Down(update.created, 1));
    return OkStatus();
  }

  // The table, without what is behind empty slots and in free rows.
  Status ReadTable(Step* step, Readout* out) {
    device::TestMemory& m = *step->memory;
    const device::Table& view = table_->view();
    const size_t slots = size_t{view.buckets} * device::kBucketSlots, stride = table_->stride();
    const std::vector<uint8_t> digests = m.Down(view.digests, slots);
    std::vector<device::Slot> used = m.Down(view.slots, slots);
    std::vector<uint32_t> last_used = m.Down(view.last_used, slots);
    std::vector<uint64_t> ranks = view.ranks == nullptr ? std::vector<uint64_t>() : m.Down(view.ranks, slots);
    for (size_t s = 0; s < slots; ++s) {
      if (digests[s] != 0) continue;
      used[s] = device::Slot{0, 0, 0};
      last_used[s] = 0;
      if (!ranks.empty()) ranks[s] = 0;
    }
    const std::vector<uint32_t> slot_of_row = m.Down(view.slot_of_row, view.capacity);
    std::vector<uint8_t> rows = m.Down(view.rows, view.capacity * stride);
    for (size_t r = 0; r < view.capacity; ++r) {
      if (slot_of_row[r] == device::kNone) std::memset(rows.data() + r * stride, 0, stride);
    }
    const uint32_t free = m.Down(view.num_free, 1)[0];
    out->Add("digests", digests);
    out->Add("slots", used);
    out->Add("last uses", last_used);
    out->Add("ranks", ranks);
    out->Add("slots of rows", slot_of_row);
    out->Add("rows", rows);
    out->Add("free rows", m.Down(view.free_rows, free));
    return OkStatus();
  }

  const std::shared_ptr<device::Device> device_;
  const device::DeviceKernels& kernels_;
  const PairCheckOptions options_;
  device::Stream stream_;
  std::unique_ptr<DeviceTable> table_;
};

Batch NextBatch(const PairCheckOptions& options, uint32_t number, std::mt19937_64* random) {
  Batch batch;
  batch.operation = number + 1;
  batch.keys.resize(1 + (*random)() % options.batch);
  for (int64_t& key : batch.keys) key = static_cast<int64_t>(std::min((*random)() % options.keys, (*random)() % options.keys));
  batch.grads.resize(batch.keys.size() * options.dim);
  for (float& grad : batch.grads) grad = static_cast<float>((*random)() % 2001) / 700.0f - 1.0f;
  return batch;
}

Status Compare(const Readout& a, const Readout& b, uint32_t batch) {
  if (a.arrays.size() != b.arrays.size()) {
    return DataLossError("batch ", batch, ": expected ", a.arrays.size(), " arrays, found ", b.arrays.size());
  }
  for (size_t i = 0; i < a.arrays.size(); ++i) {
    const auto& [name, x] = a.arrays[i];
    const std::vector<uint8_t>& y = b.arrays[i].second;
    if (x.size() != y.size()) {
      return DataLossError("batch ", batch, ", ", name, ": expected ", x.size(), " bytes, found ", y.size());
    }
    const auto differs = std::mismatch(x.begin(), x.end(), y.begin());
    if (differs.first == x.end()) continue;
    return DataLossError("batch ", batch, ", ", name, ", byte ", differs.first - x.begin(), " of ", x.size(), ": expected ",
                         static_cast<int>(*differs.first), ", found ", static_cast<int>(*differs.second));
  }
  return OkStatus();
}

}  // namespace

Status CheckPair(const std::shared_ptr<device::Device>& a, const std::shared_ptr<device::Device>& b,
                 const PairCheckOptions& options) {
  Side x(a, options), y(b, options);
  MT_RETURN_IF_ERROR(x.Make());
  MT_RETURN_IF_ERROR(y.Make());
  std::mt19937_64 random(options.seed);
  for (uint32_t number = 0; number < options.batches; ++number) {
    const Batch batch = NextBatch(options, number, &random);
    Readout from_x, from_y;
    MT_RETURN_IF_ERROR(x.Run(batch, &from_x));
    MT_RETURN_IF_ERROR(y.Run(batch, &from_y));
    MT_RETURN_IF_ERROR(Compare(from_x, from_y, number));
  }
  return OkStatus();
}

}  // namespace multitier::hbm
