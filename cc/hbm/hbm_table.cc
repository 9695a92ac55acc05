// Creation, lookups, and what is asked of keys.

#include "cc/hbm/hbm_table.h"

#include <unistd.h>

#include <algorithm>

#include "cc/hbm/kept_update.h"
#include "cc/hbm/operation.h"
#include "cc/hbm/pins.h"

namespace multitier::hbm {

using device::DeviceRowHeader;

namespace {

device::RankBy RankByOf(const TableOptions& options) {
  if (options.cache_strategy == Replacement::kLfu) return device::RankBy::kFrequency;
  if (options.cache_strategy != Replacement::kScore) return device::RankBy::kNothing;
  return options.score == Score::kFrequency ? device::RankBy::kFrequency : device::RankBy::kVersion;
}

bool LastTierHasSize(const TableOptions& options) {
  return (options.lower_tiers.empty() ? options.dram_budget() : options.lower_tiers.back().budget()).bounded();
}

}  // namespace

HbmTable::HbmTable(const HbmOptions& options, std::shared_ptr<DeviceQueue> queue, std::unique_ptr<TableBelow> below)
    : device_(options.device),
      kernels_(options.device->kernels()),
      source_(options.memory),
      budget_(options.budget),
      hand_down_bytes_(options.hand_down_bytes),
      grows_(options.grows_from_rows != 0),
      below_(std::move(below)),
      filters_(!below_->options().filter.admits_all()),
      bounded_below_(LastTierHasSize(below_->options())),
      drops_(below_->options().drop_coldest),
      new_keys_below_(filters_ || drops_ || below_->options().on_full == OnFull::kRefuse),
      keeps_provisional_(!filters_ && !bounded_below_ && below_->absent_values().are_initial(ReadFor::kEvaluation) &&
                         !below_->absent_values().have_tables()),
      pid_(getpid()),
      queue_(std::move(queue)),
      stream_(queue_->stream()),
      pool_(queue_->PoolOf(source_)),
      rows_below_(below_.get()),
      pins_(std::make_unique<Pins>(this)),
      unsettled_(std::make_unique<Unsettled>()),
      enqueue_(queue_->enqueue()) {
  queue_->SkipTo(options.first_operation);
}

Result<std::unique_ptr<HbmTable>> HbmTable::Create(const HbmOptions& options, std::unique_ptr<TableBelow> below) {
  const std::string name = StrCat("table '", below->options().name, "': ");
  if (options.device == nullptr) return InvalidArgumentError(name, "expected a device for tier hbm, found none");
  MT_ASSIGN_OR_RETURN(std::shared_ptr<DeviceQueue> queue, DeviceQueue::Of(options.device));
  std::unique_ptr<HbmTable> table(new HbmTable(options, std::move(queue), std::move(below)));
  const size_t row_bytes = table->layout()->row_bytes();
  const uint64_t first = table->grows_ ? options.grows_from_rows * row_bytes : options.budget.bytes(row_bytes);
  const uint64_t bytes = std::min<uint64_t>(options.budget.bytes(row_bytes), first);
  MT_ASSIGN_OR_RETURN(table->table_, table->NewDeviceTable(row_bytes, bytes));
  table->resident_bytes_ = static_cast<int64_t>(table->table_->bytes());
  table->SetBirth(*table->layout(), table->table_.get());
  MT_RETURN_IF_ERROR(table->table_->Reset(options.device.get(), table->stream_));
  MT_RETURN_IF_ERROR(options.device->Synchronize(table->stream_));
  return table;
}

Result<std::unique_ptr<DeviceTable>> HbmTable::NewDeviceTable(size_t row_bytes, uint64_t bytes) const {
  auto table = DeviceTable::Create(memory(), row_bytes, bytes, RankByOf(options()),
                                   grows_ ? SlotsOfTable::kTwiceTheRows : SlotsOfTable::kFew);
  if (table.ok()) return table;
  return Status(table.status().code(), StrCat("table '", options().name, "': ", table.status().message()));
}

HbmTable::~HbmTable() {
  if (getpid() != pid_) {  // nothing of the device may be touched
    (void)new std::shared_ptr<ScratchPool>(pool_);
    (void)table_.release();
    (void)other_.release();
    (void)new std::shared_ptr<device::Device>(device_);
    (void)new std::shared_ptr<DeviceQueue>(queue_);
    return;
  }
  AwaitSettled();
  if (table_ != nullptr && options().keep && broken().ok()) {
    MutexLock turn(turn_);
    (void)HandDownAll();  // an error is not seen: TableOptions::keep
  }
  for (int i = 0; i < 3; ++i) {
    if (device_->Synchronize(stream_).ok()) break;
  }
}

Status HbmTable::Check() const {
  if (getpid() == pid_) return broken();
  return FailedPreconditionError("table '", options().name, "' belongs to process ", pid_, "; a forked child (here ", getpid(),
                                 ") cannot use it");
}

// Values that go to host memory.
class HbmTable::HostOutput : public HbmTable::Output {
 public:
  Status Take(Operation* op) override {
    const auto dim = static_cast<size_t>(op->table->dim());
    bytes_ = op->n * dim * sizeof(float);
    gather_ = device::GatherArgs{op->find.rows,
                                 op->dedup.inverse,
                                 op->n,
                                 static_cast<uint32_t>(dim),
                                 op->scratch.OnDevice<float>(op->n * dim),
                                 op->table->options().value_dtype};
    pinned_ = op->scratch.Pinned<float>(op->n * dim);
    return op->scratch.status();
  }
  bool comes_down() const override { return true; }
  Status Enqueue(const Operation& op) override {
    MT_RETURN_IF_ERROR(op.table->kernels_.gather(op.table->stream_, gather_));
    return op.table->device_->Copy(op.table->stream_, pinned_, gather_.out, bytes_);
  }
  // REQUIRES: the device is done
  void Write(int64_t stride, float* out) const {
    const size_t dim = gather_.dim, step = stride != 0 ? static_cast<size_t>(stride) : dim;
    for (size_t i = 0; i < gather_.n; ++i) std::copy_n(pinned_ + i * dim, dim, out + i * step);
  }

 private:
  device::GatherArgs gather_{};
  float* pinned_ = nullptr;
  size_t bytes_ = 0;
};

Status HbmTable::Find(Operation* op, Span<const int64_t> keys) { return FindKeys(op, keys, /*stamp=*/true); }

Status HbmTable::FinishLookup(Operation* op, float* out, int64_t stride, ReadFor reason) {
  HostOutput output;
  MT_RETURN_IF_ERROR(output.Take(op));
  MT_RETURN_IF_ERROR(FinishLookup(op, &output, reason));
  if (op->asks_for_rows == 0) output.Write(stride, out);
  return OkStatus();
}

Status HbmTable::FinishLookup(Operation* op, Output* output, ReadFor reason) {
  const uint32_t misses = op->counted->misses;
  if (misses == 0) return FinishFound(op, output);
  MutexLock turn(turn_);
  const bool may_place = rows_below_.Retry().ok();
  MT_RETURN_IF_ERROR(CopyOutMisses(op, CopyOutAs::kUse, reason));
  ReleasePinsInTime();
  if (may_place && AsksForRows(op, /*creates=*/false)) return OkStatus();
  if (may_place) MT_RETURN_IF_ERROR(MakeRoomForPlacing(op));
  // A table that grows keeps provisional rows only where no row has to leave for them.
  const bool room = !grows_ || static_cast<uint64_t>(rows_.load()) + misses <= table_->view().capacity;
  {
    MutexLock lock(enqueue_);
    op->busy = true;
    MT_RETURN_IF_ERROR(
        FindAgain(op, /*stamp=*/true, may_place, /*insert_provisional=*/op->training && keeps_provisional_ && room));
    if (may_place) PlaceMisses(op);
    Insist([&] { return output->Enqueue(*op); });
  }
  ComeDown(op);
  MT_RETURN_IF_ERROR(broken());
  int64_t missed = 0, absent = 0;
  for (uint32_t i = 0; i < misses; ++i) {
    const auto* header = reinterpret_cast<const DeviceRowHeader*>(op->staged_below + i * table_->stride());
    missed += op->missed_counts[i];
    if ((header->flags & device::kRowProvisional) != 0) absent += op->missed_counts[i];
  }
  NoteFound(*op);  // and then what was missed
  hits_ -= missed;
  misses_ += missed;
  absent_ += absent;
  brought_up_ += op->counted->placed.to_place;
  return OkStatus();
}

Status HbmTable::FinishFound(Operation* op, Output* output) {
  op->busy = true;
  MT_RETURN_IF_ERROR(output->Enqueue(*op));
  if (output->comes_down()) MT_RETURN_IF_ERROR(Synchronize(op));
  op->busy = false;
  NoteFound(*op);
  return OkStatus();
}

void HbmTable::NoteFound(const Operation& op) {
  lookups_ += op.n;
  hits_ += op.n;
  NoteBorn(op);
}

void HbmTable::NoteBorn(const Operation& op) {
  const uint32_t born = op.counted->born_entries;
  hits_ -= born;
  misses_ += born;
  absent_ += born;
  brought_up_ += op.counted->born;
}

std::unique_ptr<MaybeInsideGate> HbmTable::TryEnter() {
  auto inside = std::make_unique<MaybeInsideGate>(&gate_);
  return inside->inside() && Check().ok() ? std::move(inside) : nullptr;
}

std::shared_ptr<HbmTable::Operation> HbmTable::NewOperation(uint64_t number, device::Table* view) {
  auto op = std::make_shared<Operation>(this, number);
  op->epoch = epoch_;
  *view = table_->view();
  return op;
}

Status HbmTable::Lookup(Span<const int64_t> keys, float* out, Executor*, uint32_t* places, int64_t stride, ReadFor reason,
                        Span<const uint16_t> tables) {
  MT_RETURN_IF_ERROR(CheckTables(tables, keys.size()));
  if (places != nullptr) std::fill_n(places, keys.size(), kNoPlace);
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  MT_RETURN_IF_ERROR(Check());
  if (keys.empty()) return OkStatus();
  return RunGrowing({keys, tables}, nullptr, [&](Operation* op) { return FinishLookup(op, out, stride, reason); });
}

Status HbmTable::LookupTo(const BatchKeys& keys, Output* output, ReadFor reason, std::shared_ptr<Operation>* kept,
                          uint64_t number) {
  MT_RETURN_IF_ERROR(Check());
  return RunGrowing(keys, output, [&](Operation* op) { return FinishLookup(op, output, reason); }, kept, number);
}

Status HbmTable::Peek(Span<const int64_t> keys, float* out, Span<const uint16_t> tables) {
  MT_RETURN_IF_ERROR(CheckTables(tables, keys.size()));
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  MT_RETURN_IF_ERROR(Check());
  if (keys.empty()) return OkStatus();
  Inside inside(this);
  MutexLock turn(turn_);  // no stamp keeps the rows that are found
  Operation op(this);
  MT_RETURN_IF_ERROR(FindKeys(&op, {keys, tables}, /*stamp=*/false));
  HostOutput output;
  MT_RETURN_IF_ERROR(output.Take(&op));
  if (op.counted->misses > 0) {
    MT_RETURN_IF_ERROR(CopyOutMisses(&op, CopyOutAs::kPeek, ReadFor::kTraining));
    MutexLock lock(enqueue_);
    MT_RETURN_IF_ERROR(FindAgain(&op, /*stamp=*/false, /*insert=*/false, /*insert_provisional=*/false));
  }
  op.busy = true;
  MT_RETURN_IF_ERROR(output.Enqueue(op));
  MT_RETURN_IF_ERROR(Synchronize(&op));
  output.Write(0, out);
  return OkStatus();
}

Status HbmTable::ListInHbm(Operation* op, Span<const int64_t> keys, device::Marked which, device::CompactArgs* listed) {
  MT_RETURN_IF_ERROR(FindKeys(op, keys, /*stamp=*/false));
  Scratch& s = op->scratch;
  const uint32_t n = op->n;
  auto* const marked = s.OnDevice<uint32_t>(n);
  auto* const list = s.OnDevice<uint32_t>(n);
  auto* const scan = s.OnDevice<uint64_t>(device::ScanScratch::Words(n));
  MT_RETURN_IF_ERROR(s.status());
  const auto* const begin = table_->view().rows;
  const auto* const end = begin + size_t{table_->view().capacity} * table_->stride();
  const device::MarkArgs mark{op->find.num_keys, n, op->find.rows, begin, end, which, marked};
  *listed = device::CompactArgs{marked, op->find.num_keys, n, {scan}, list, &op->counted_on_device->changed};
  op->busy = true;
  MT_RETURN_IF_ERROR(device_->Fill(stream_, scan, 0, device::ScanScratch::Words(n) * sizeof(uint64_t)));
  MT_RETURN_IF_ERROR(kernels_.mark(stream_, mark));
  return kernels_.compact(stream_, *listed);
}

Status HbmTable::HeadersInHbm(Operation* op, Span<const int64_t> keys, device::Marked which, Headers* headers) {
  MT_RETURN_IF_ERROR(ListInHbm(op, keys, which, &headers->list));
  Scratch& s = op->scratch;
  const uint32_t n = op->n;
  auto* const header_rows = s.OnDevice<DeviceRowHeader>(n);
  auto* const listed_keys = s.OnDevice<int64_t>(n);
  auto* const pinned_headers = s.Pinned<DeviceRowHeader>(n);
  auto* const pinned_keys = s.Pinned<int64_t>(n);
  MT_RETURN_IF_ERROR(s.status());
  const device::TakeOutArgs take_out{
      headers->list.list, headers->list.length,    n,       op->find.rows,
      op->find.keys,      sizeof(DeviceRowHeader), nullptr, reinterpret_cast<uint8_t*>(header_rows),
      listed_keys};
  MT_RETURN_IF_ERROR(kernels_.take_out(stream_, take_out));
  MT_RETURN_IF_ERROR(device_->Copy(stream_, op->counted, op->counted_on_device, sizeof(Operation::Numbers)));
  MT_RETURN_IF_ERROR(Synchronize(op));
  const uint32_t found = op->counted->changed;
  op->busy = true;
  MT_RETURN_IF_ERROR(device_->Copy(stream_, pinned_headers, header_rows, found * sizeof(DeviceRowHeader)));
  MT_RETURN_IF_ERROR(device_->Copy(stream_, pinned_keys, listed_keys, found * sizeof(int64_t)));
  MT_RETURN_IF_ERROR(Synchronize(op));
  headers->keys.assign(pinned_keys, pinned_keys + found);
  headers->headers.assign(pinned_headers, pinned_headers + found);
  return OkStatus();
}

Status HbmTable::Fact(Span<const int64_t> keys, int64_t (*of)(const DeviceRowHeader&),
                      Status (EmbeddingTable::*below)(Span<const int64_t>, int64_t*), int64_t* out) {
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  MT_RETURN_IF_ERROR(Check());
  if (keys.empty()) return OkStatus();
  Inside inside(this);
  MutexLock turn(turn_);
  std::vector<int64_t> elsewhere, found;
  std::vector<size_t> positions;
  const auto report = [&](size_t i, const DeviceRowHeader& header, bool) { out[i] = of(header); };
  MT_RETURN_IF_ERROR(Facts(keys, report, &elsewhere, &positions));
  found.resize(elsewhere.size());
  MT_RETURN_IF_ERROR((below_.get()->*below)(elsewhere, found.data()));
  for (size_t i = 0; i < found.size(); ++i) out[positions[i]] = found[i];
  return OkStatus();
}

Status HbmTable::Frequency(Span<const int64_t> keys, int64_t* out) {
  return Fact(keys, [](const DeviceRowHeader& header) { return int64_t{header.frequency}; }, &EmbeddingTable::Frequency, out);
}

Status HbmTable::Version(Span<const int64_t> keys, int64_t* out) {
  return Fact(keys, [](const DeviceRowHeader& header) { return header.version; }, &EmbeddingTable::Version, out);
}

Result<std::vector<int64_t>> HbmTable::RemovedSince(int64_t version) {
  MT_ASSIGN_OR_RETURN(std::vector<int64_t> keys, below_->RemovedSince(version));
  MT_RETURN_IF_ERROR(DropPresent(&keys));
  return keys;
}

Status HbmTable::LookupTier(Span<const int64_t> keys, int32_t* out) {
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  MT_RETURN_IF_ERROR(Check());
  if (keys.empty()) return OkStatus();
  Inside inside(this);
  MutexLock turn(turn_);
  std::vector<int64_t> elsewhere;
  std::vector<int32_t> found;
  std::vector<size_t> positions;
  // A pending row (rows_below.h) is on its way to the first tier below.
  const auto report = [&](size_t i, const DeviceRowHeader&, bool in_hbm) { out[i] = in_hbm ? 0 : 1; };
  MT_RETURN_IF_ERROR(Facts(keys, report, &elsewhere, &positions));
  found.resize(elsewhere.size());
  MT_RETURN_IF_ERROR(below_->LookupTier(elsewhere, found.data()));
  for (size_t i = 0; i < found.size(); ++i) out[positions[i]] = found[i] < 0 ? -1 : found[i] + 1;
  return OkStatus();
}

}  // namespace multitier::hbm
