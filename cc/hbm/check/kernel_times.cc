#include "cc/hbm/check/kernel_times.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "cc/device/kernels/kernels.h"
#include "cc/hbm/check/launch_times.h"
#include "cc/hbm/device_table.h"

namespace multitier::hbm {
namespace {

using device::Buffer;
using device::ScanScratch;

// A table, and the memory of a batch of distinct keys. Rows that are placed
// have arbitrary data.
class Bench {
 public:
  Bench(std::shared_ptr<device::Device> device, uint32_t batch) : device_(std::move(device)), n_(batch) {}
  ~Bench() {
    if (stream_.native == nullptr) return;
    (void)device_->Synchronize(stream_);
    device_->Delete(stream_);
  }

  Status Make(uint32_t rows, uint32_t dim) {
    MT_ASSIGN_OR_RETURN(stream_, device_->NewStream());
    times_ = std::make_unique<LaunchTimes>(device_, stream_);
    const size_t row_bytes = (size_t{dim} * 4 + 15) / 16 * 16;
    MT_ASSIGN_OR_RETURN(table_, DeviceTable::Create(device_, row_bytes, uint64_t{rows} * row_bytes, device::RankBy::kNothing));
    MT_RETURN_IF_ERROR(table_->Reset(device_.get(), stream_));
    dim_ = dim;
    MT_RETURN_IF_ERROR(Take(&keys_));
    for (uint32_t** each : {&key_tables_, &counts_, &inverse_, &missed_, &list_, &ranks_, &next_, &offered_, &consumed_,
                            &returned_, &outbox_, &outbox_tables_}) {
      MT_RETURN_IF_ERROR(Take(each));
    }
    for (uint32_t** one : {&begins_, &ends_, &bases_, &dirty_, &distinct_, &length_}) MT_RETURN_IF_ERROR(Take(one, 1));
    MT_RETURN_IF_ERROR(Take(&rows_));
    MT_RETURN_IF_ERROR(Take(&victims_));
    MT_RETURN_IF_ERROR(Take(&outbox_keys_));
    MT_RETURN_IF_ERROR(Take(&scan_, ScanScratch::Words(n_)));
    MT_RETURN_IF_ERROR(Take(&staged_, size_t{n_} * table_->stride()));
    MT_RETURN_IF_ERROR(Take(&outbox_rows_, size_t{n_} * table_->stride()));
    MT_RETURN_IF_ERROR(Take(&values_, size_t{n_} * dim));
    MT_ASSIGN_OR_RETURN(pinned_keys_, Buffer::Pinned(device_, n_ * sizeof(int64_t)));
    MT_ASSIGN_OR_RETURN(pinned_, Buffer::Pinned(device_, n_ * sizeof(uint32_t)));
    std::iota(pinned_.as<uint32_t>(), pinned_.as<uint32_t>() + n_, 0u);
    MT_RETURN_IF_ERROR(device_->Copy(stream_, inverse_, pinned_.as<void>(), n_ * sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(device_->Copy(stream_, distinct_, pinned_.as<uint32_t>() + n_ - 1, sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(device_->Fill(stream_, key_tables_, 0, n_ * sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(device_->Fill(stream_, staged_, 0, size_t{n_} * table_->stride()));
    return device_->Synchronize(stream_);
  }

  // The keys [first, first + n - 1). The last place of a batch is not used.
  Status SetKeys(int64_t first) {
    return CopyKeys([&](uint32_t i) { return first + i; });
  }
  // Of the keys [0, capacity) as many, at random places [first, first + n - 1) of
  // a permutation. absent_of_ten of ten keys are replaced by ones without a row.
  Status SetRandomKeys(int64_t first, uint32_t absent_of_ten) {
    return CopyKeys([&](uint32_t i) {
      const int64_t key = Permuted(static_cast<uint64_t>(first + i) % capacity());
      return i % 10 < absent_of_ten ? -1 - key : key;
    });
  }
  template <typename KeyOf>
  Status CopyKeys(KeyOf key_of) {
    auto* const keys = pinned_keys_.as<int64_t>();
    for (uint32_t i = 0; i < n_; ++i) keys[i] = key_of(i);
    MT_RETURN_IF_ERROR(device_->Copy(stream_, keys_, keys, n_ * sizeof(int64_t)));
    return device_->Synchronize(stream_);
  }

  Status Find() {
    return device_->kernels().find(
        stream_, device::FindArgs{table_->on_device(), keys_, key_tables_, distinct_, n_, ++operation_, true, rows_, missed_});
  }

  // Rows for the keys that Find missed.
  Status Insert() {
    const device::DeviceKernels& kernels = device_->kernels();
    MT_RETURN_IF_ERROR(device_->Fill(stream_, scan_, 0, ScanScratch::Words(n_) * sizeof(uint64_t)));
    device::CompactArgs compact{missed_, distinct_, n_, {scan_}, list_, length_};
    compact.ranks = ranks_;
    MT_RETURN_IF_ERROR(kernels.compact(stream_, compact));
    MT_RETURN_IF_ERROR(device_->Fill(stream_, scan_, 0, ScanScratch::Words(n_) * sizeof(uint64_t)));
    device::InsertArgs insert{};
    insert.tables = table_->on_device();
    insert.num_tables = 1;
    insert.keys = keys_;
    insert.key_tables = key_tables_;
    insert.missed = list_;
    insert.num_missed = length_;
    insert.max_missed = n_;
    insert.operation = insert.floor = operation_;
    insert.staged_rows = staged_;
    insert.staged_stride = static_cast<uint32_t>(table_->stride());
    insert.begins = begins_;
    insert.ends = ends_;
    insert.bases = bases_;
    insert.next = next_;
    insert.offered = offered_;
    insert.consumed = consumed_;
    insert.returned = returned_;
    insert.scan.words = scan_;
    insert.rows = rows_;
    insert.victims = victims_;
    insert.outbox = outbox_;
    insert.num_dirty = dirty_;
    insert.staged_ranks = ranks_;
    MT_RETURN_IF_ERROR(kernels.chain(stream_, insert));
    MT_RETURN_IF_ERROR(kernels.place(stream_, insert));
    MT_RETURN_IF_ERROR(kernels.reclaim(stream_, insert));
    return kernels.exchange(stream_,
                            device::ExchangeArgs{insert, outbox_rows_, insert.staged_stride, outbox_keys_, outbox_tables_});
  }

  Status Gather() { return device_->kernels().gather(stream_, device::GatherArgs{rows_, inverse_, n_ - 1, dim_, values_}); }
  Status CopyValues() {  // as many bytes as Gather moves, for comparison
    return device_->Copy(stream_, outbox_rows_, values_, std::min(size_t{n_} * dim_ * 4, size_t{n_} * table_->stride()));
  }

  LaunchTimes* times() { return times_.get(); }
  uint32_t capacity() const { return table_->view().capacity; }
  double misses_a_bucket() const { return static_cast<double>(n_ - 1) / table_->view().buckets; }
  uint32_t row_stride() const { return static_cast<uint32_t>(table_->stride()); }

 private:
  // One to one in [0, capacity). Each step is one to one in [0, 2^bits), and
  // places behind the capacity go on until they fall below.
  int64_t Permuted(uint64_t place) const {
    int bits = 2;
    while (uint64_t{1} << bits < capacity()) ++bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    do {
      place = (place * 0x9e3779b97f4a7c15ull + 0x7f4a7c15ull) & mask;
      place ^= place >> (bits / 2);
      place = (place * 0xc2b2ae3d27d4eb4full) & mask;
      place ^= place >> (bits / 2);
    } while (place >= capacity());
    return static_cast<int64_t>(place);
  }

  template <typename T>
  Status Take(T** memory, size_t n = 0) {
    MT_ASSIGN_OR_RETURN(Buffer buffer, Buffer::OnDevice(device_, (n == 0 ? n_ : n) * sizeof(T)));
    *memory = buffer.as<T>();
    buffers_.push_back(std::move(buffer));
    return OkStatus();
  }

  const std::shared_ptr<device::Device> device_;
  const uint32_t n_;
  device::Stream stream_;
  std::unique_ptr<LaunchTimes> times_;
  std::unique_ptr<DeviceTable> table_;
  uint32_t dim_ = 0, operation_ = 0;
  std::vector<Buffer> buffers_;
  Buffer pinned_keys_, pinned_;
  int64_t *keys_ = nullptr, *outbox_keys_ = nullptr;
  uint32_t *key_tables_, *counts_, *inverse_, *missed_, *list_, *ranks_, *next_, *offered_, *consumed_, *returned_, *outbox_,
      *outbox_tables_, *begins_, *ends_, *bases_, *dirty_, *distinct_, *length_;
  uint8_t **rows_ = nullptr, *staged_ = nullptr, *outbox_rows_ = nullptr;
  device::Victim* victims_ = nullptr;
  uint64_t* scan_ = nullptr;
  float* values_ = nullptr;
};

// Fills the table with the keys [0, capacity), as far as buckets have room.
Status FillTable(Bench* bench, uint32_t batch) {
  for (int64_t first = 0; first < bench->capacity(); first += batch) {
    MT_RETURN_IF_ERROR(bench->SetKeys(first));
    MT_RETURN_IF_ERROR(bench->Find());
    MT_RETURN_IF_ERROR(bench->Insert());
  }
  return OkStatus();
}

constexpr double kSector = 32;
constexpr double kKey = sizeof(int64_t), kNumber = sizeof(uint32_t), kRowPointer = sizeof(uint8_t*);
constexpr double kMember = kKey + kNumber;  // a key and the number of its table

}  // namespace

double FindBytes(double hits) {
  const double arrays = kMember + kRowPointer + kNumber;  // row and missed
  const double digests = device::kBucketSlots * sizeof(uint8_t);
  const double slot = 3 * kSector;  // its key and row are read, its last use is read and written
  return arrays + digests + hits * slot;
}

double InsertBytes(double misses_a_bucket, uint32_t row_stride) {
  const double compact = 3 * kNumber;  // marked; list and rank
  const double chain = kMember + 4 * kNumber + sizeof(device::Victim) + kRowPointer;
  const double place = kMember + 3 * kNumber + sizeof(device::Victim) + kRowPointer;
  const double reclaim = kMember + 5 * kNumber + sizeof(device::Victim);
  const double exchange = 7 * kNumber + kRowPointer + 2.0 * row_stride;
  // Scattered: the head of the bucket (exchanged, read, cleared); the slot (read
  // and written), its last use, the header of the victim and the slot of its row.
  const double scattered = (6 + 3) * kSector;
  const double bucket = device::kBucketSlots * (2 * sizeof(uint8_t) + sizeof(uint32_t));  // digests, and last uses
  const double buckets_a_miss = (1 - std::exp(-misses_a_bucket)) / misses_a_bucket;       // those with any, of misses at random
  return compact + chain + place + reclaim + exchange + scattered + buckets_a_miss * bucket;
}

double GatherBytes(uint32_t dim) { return kNumber + kRowPointer + 2.0 * dim * sizeof(float); }

Result<std::string> MeasureKernels(const std::shared_ptr<device::Device>& device, const KernelTimesOptions& options) {
  JsonMembers json;
  const double keys = options.batch - 1;
  const auto measure = [&](const char* name, double bytes_a_key, const auto& prepare, Bench* bench, const auto& call) {
    MT_ASSIGN_OR_RETURN(const double seconds, bench->times()->Measure(options.repeats, prepare, call));
    json.Add(name, TimesOf(seconds, keys, bytes_a_key));
    return OkStatus();
  };
  {
    Bench bench(device, options.batch);
    MT_RETURN_IF_ERROR(bench.Make(options.index_rows, 4));
    MT_RETURN_IF_ERROR(FillTable(&bench, options.batch));
    const int64_t batches = std::max<int64_t>(1, bench.capacity() / options.batch);
    for (const uint32_t absent : {0u, 4u}) {
      MT_RETURN_IF_ERROR(measure(
          absent == 0 ? "find_all" : "find_60_percent", FindBytes(1 - absent / 10.0),
          [&](int i) { return bench.SetRandomKeys(i % batches * options.batch, absent); }, &bench,
          [&](int) { return bench.Find(); }));
    }
    MT_RETURN_IF_ERROR(measure(
        "insert_and_evict", InsertBytes(bench.misses_a_bucket(), bench.row_stride()),
        [&](int i) {
          MT_RETURN_IF_ERROR(bench.SetKeys((batches + 1 + i) * options.batch));
          return bench.Find();
        },
        &bench, [&](int) { return bench.Insert(); }));
  }
  Bench bench(device, options.batch);
  MT_RETURN_IF_ERROR(bench.Make(options.value_rows, options.value_dim));
  MT_RETURN_IF_ERROR(FillTable(&bench, options.batch));
  const int64_t batches = std::max<int64_t>(1, bench.capacity() / options.batch);
  const auto find = [&](int i) {
    MT_RETURN_IF_ERROR(bench.SetRandomKeys(i % batches * options.batch, 0));
    MT_RETURN_IF_ERROR(bench.Find());
    return bench.Insert();  // a key that another one has evicted
  };
  MT_RETURN_IF_ERROR(measure("gather", GatherBytes(options.value_dim), find, &bench, [&](int) { return bench.Gather(); }));
  MT_RETURN_IF_ERROR(measure(
      "copy", options.value_dim * 8.0, [](int) { return OkStatus(); }, &bench, [&](int) { return bench.CopyValues(); }));
  return json.text();
}

}  // namespace multitier::hbm
