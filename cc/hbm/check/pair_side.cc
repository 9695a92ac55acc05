#include "cc/hbm/check/pair_side.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cc/row/value_column.h"

namespace multitier::hbm {

using device::DeviceRowHeader;

namespace {

constexpr uint32_t kSlots = 3;  // at most, of a rule

uint32_t ValueBytes(const PairCheckOptions& options) { return (options.dim * 4 + 15) / 16 * 16; }

// Every other table has rows with something behind the slots.
uint32_t RowBytes(const PairCheckOptions& options, size_t table) {
  return ValueBytes(options) * (1 + kSlots) + (table % 2 == 0 ? 0 : 16);
}

}  // namespace

Span<const PairSide::Step> PairSide::Steps() {
  static constexpr Step kSteps[] = {
      {"reset", &PairSide::Reset},
      {"widen", &PairSide::Widen},
      {"pieces", &PairSide::Pieces},
      {"dedup", &PairSide::Dedup},
      {"find", &PairSide::Find},
      {"compact", &PairSide::Compact},
      {"stage", &PairSide::Stage},
      {"chain", &PairSide::Chain},
      {"place", &PairSide::Place},
      {"reclaim", &PairSide::Reclaim},
      {"exchange", &PairSide::Exchange},
      {"bear", &PairSide::Bear},
      {"gather", &PairSide::Gather},
      {"localize", &PairSide::Localize},
      {"entry_rows", &PairSide::EntryRows},
      {"scales", &PairSide::Scales},
      {"values", &PairSide::Values},
      {"begins", &PairSide::Begins},
      {"gradients", &PairSide::Gradients},
      {"corrections", &PairSide::Corrections},
      {"update_members", &PairSide::UpdateMembers},
      {"sum", &PairSide::Sum},
      {"update", &PairSide::Update},
      {"pin", &PairSide::Pin},
      {"sweep_pins", &PairSide::SweepPins},
      {"list_dirty", &PairSide::ListDirty},
      {"take_listed", &PairSide::TakeListed},
      {"mark", &PairSide::Mark},
      {"take_out", &PairSide::TakeOut},
      {"forget", &PairSide::Forget},
      {"count_forgotten", &PairSide::CountForgotten},
      {"renumber", &PairSide::Renumber},
      {"move_index", &PairSide::MoveIndex},
      {"move_rows", &PairSide::MoveRows},
  };
  return Span<const Step>(kSteps, std::size(kSteps));
}

PairSide::PairSide(std::shared_ptr<device::Device> device, const PairCheckOptions& options)
    : device_(std::move(device)), kernels_(device_->kernels()), options_(options) {}

PairSide::~PairSide() {
  if (stream_.native == nullptr) return;
  (void)device_->Synchronize(stream_);
  device_->Delete(stream_);
}

Status PairSide::Make() {
  MT_ASSIGN_OR_RETURN(stream_, device_->NewStream());
  for (size_t t = 0; t < kMemberForms.size(); ++t) {
    const uint32_t row_bytes = RowBytes(options_, t);
    tables_.emplace_back();
    MT_ASSIGN_OR_RETURN(tables_.back(),
                        DeviceTable::Create(device_, row_bytes, uint64_t{options_.rows} * row_bytes, kMemberForms[t].rank_by));
    MT_RETURN_IF_ERROR(tables_.back()->Reset(device_.get(), stream_));
    stride_ = std::max(stride_, static_cast<uint32_t>(tables_.back()->stride()));
  }
  return device_->Synchronize(stream_);
}

void PairSide::Begin(const PairBatch* batch) {
  batch_ = batch;
  work_ = std::make_unique<Work>(device_, stream_);
  work_->members.resize(batch->members.size());
}

Status PairSide::Run(const Step& step, PairArrays* out) {
  out_ = out;
  return (this->*step.run)();
}

Status PairSide::End() {
  const Status done = device_->Synchronize(stream_);  // before the memory goes
  work_ = nullptr;
  return done;
}

Status PairSide::ReadCount(const char* name, const uint32_t* from, uint32_t most, uint32_t* count) {
  *count = Read(name, from, 1)[0];
  if (*count <= most) return OkStatus();
  return DataLossError(name, ": expected at most ", most, ", found ", *count);
}

void PairSide::ReadArrays(const DeviceTable& table) {
  for (const device::Buffer& array : table.arrays()) Read("array of a table", array.as<uint8_t>(), array.bytes());
}

void PairSide::ReadTable(const DeviceTable& table) {
  ReadArrays(table);
  const device::Table& view = table.view();
  const std::vector<uint32_t> slot_of_row = memory().Down(view.slot_of_row, view.capacity);
  for (uint32_t begin = 0, end = 0; begin < view.capacity; begin = end) {
    const bool used = slot_of_row[begin] != device::kNone;
    for (end = begin + 1; end < view.capacity && (slot_of_row[end] != device::kNone) == used;) ++end;
    const size_t stride = view.row_stride;
    if (used) Read("rows of a table", view.rows + begin * stride, (end - begin) * stride);
  }
}

void PairSide::ReadTables() {
  for (const auto& table : tables_) ReadTable(*table);
}

// In the first batch all tables are as new.
Status PairSide::Reset() {
  if (batch_->number % 4 != 0) return OkStatus();
  const DeviceTable& table = *tables_.back();
  const device::Table& view = table.view();
  MT_RETURN_IF_ERROR(device_->Fill(stream_, view.digests, 0, size_t{view.buckets} * device::kBucketSlots));
  MT_RETURN_IF_ERROR(device_->Fill(stream_, view.heads, 0xff, view.buckets * sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(kernels_.reset(stream_, device::ResetArgs{table.on_device(), view.capacity}));
  ReadTables();
  return OkStatus();
}

Status PairSide::Widen() {
  const std::vector<int32_t> narrow(batch_->keys.begin(), batch_->keys.end());
  auto* const wide = memory().New<int64_t>(narrow.size());
  MT_RETURN_IF_ERROR(kernels_.widen(stream_, device::WidenArgs{memory().Up(narrow), wide, batch_->n()}));
  Read("wide keys", wide, narrow.size());
  return OkStatus();
}

// The keys, in pieces of other lengths, in reverse.
Status PairSide::Pieces() {
  const auto words = static_cast<uint32_t>(batch_->keys.size() * 2);
  const auto* const from = reinterpret_cast<const uint32_t*>(memory().Up(batch_->keys));
  auto* const to = memory().New<uint32_t>(words);
  std::vector<device::Piece> pieces;
  for (uint32_t begin = 0, n = 0; begin < words; begin += n) {
    n = std::min<uint32_t>(words - begin, static_cast<uint32_t>(pieces.size() * 13 + 1));
    pieces.push_back(device::Piece{from + begin, to + words - begin - n, n});
  }
  MT_RETURN_IF_ERROR(kernels_.pieces(stream_, device::PiecesArgs{memory().Up(pieces), static_cast<uint32_t>(pieces.size())}));
  Read("pieces", to, words);
  return OkStatus();
}

Status PairSide::Dedup() {
  const uint32_t n = batch_->n();
  device::TestMemory& m = memory();
  device::DedupArgs& d = work_->dedup;
  d.keys = m.Up(batch_->keys);
  d.n = n;
  d.ends = m.Up(batch_->ends);
  d.num_tables = static_cast<uint32_t>(batch_->ends.size());
  for (d.set_size = 2; d.set_size < 2 * n;) d.set_size *= 2;
  d.set = m.Filled<uint32_t>(d.set_size, 0xff);
  d.places = m.New<uint32_t>(n);
  d.numbers = m.New<uint32_t>(n);
  d.scan.words = Scan(n);
  d.distinct = m.New<int64_t>(n);
  d.distinct_tables = m.New<uint32_t>(n);
  d.counts = m.Filled<uint32_t>(n, 0);
  d.inverse = m.New<uint32_t>(n);
  d.num_distinct = m.New<uint32_t>(1);
  d.entries = m.New<uint64_t>(n);
  MT_RETURN_IF_ERROR(kernels_.dedup(stream_, d));
  MT_RETURN_IF_ERROR(ReadCount("distinct", d.num_distinct, n, &work_->distinct));
  Read("distinct keys", d.distinct, work_->distinct);
  work_->tables = Read("their tables", d.distinct_tables, work_->distinct);
  Read("counts", d.counts, n);
  Read("inverse", d.inverse, n);
  Read("entries", d.entries, n);
  return OkStatus();
}

Status PairSide::Find() {
  const uint32_t n = batch_->n();
  device::TestMemory& m = memory();
  std::vector<device::Table> views;
  for (const auto& table : tables_) views.push_back(table->view());
  device::FindArgs& find = work_->find;
  find = device::FindArgs{m.Up(views),       work_->dedup.distinct, work_->dedup.distinct_tables, work_->dedup.num_distinct, n,
                          batch_->operation, /*stamp=*/true,        m.New<uint8_t*>(n),           m.New<uint32_t>(n)};
  find.used_pins = m.Filled<uint32_t>(views.size() * 2, 0);
  find.used_pins_stride = 2;
  MT_RETURN_IF_ERROR(kernels_.find(stream_, find));
  Read("missed", find.missed, work_->distinct);
  Read("used pins", find.used_pins, views.size() * 2);
  ReadTables();
  return OkStatus();
}

device::CompactArgs PairSide::CompactOf(const uint32_t* marked, const uint32_t* num_keys, uint32_t max_keys) {
  return device::CompactArgs{
      marked, num_keys, max_keys, {Scan(max_keys)}, memory().New<uint32_t>(max_keys), memory().New<uint32_t>(1)};
}

Status PairSide::Compact() {
  const uint32_t n = batch_->n();
  device::CompactArgs& missed = work_->missed;
  missed = CompactOf(work_->find.missed, work_->find.num_keys, n);
  missed.keys = work_->find.keys;
  missed.counts = work_->dedup.counts;
  missed.listed_keys = memory().New<int64_t>(n);
  missed.listed_counts = memory().New<uint32_t>(n);
  missed.ranks = memory().Filled<uint32_t>(n, 0);
  MT_RETURN_IF_ERROR(kernels_.compact(stream_, missed));
  MT_RETURN_IF_ERROR(ReadCount("misses", missed.length, work_->distinct, &work_->misses));
  work_->missed_list = Read("list of misses", missed.list, work_->misses);
  work_->missed_keys = Read("keys of misses", missed.listed_keys, work_->misses);
  Read("counts of misses", missed.listed_counts, work_->misses);
  Read("ranks of misses", missed.ranks, n);
  return OkStatus();
}

// Rows as the host stages them. apart: each table has its own stride. A third of the keys have no row yet; every third batch is
// a lookup that makes no rows of these.
std::vector<device::StagedMember> PairSide::StageMembers(bool apart, std::vector<uint8_t>* rows) const {
  std::vector<device::StagedMember> members;
  uint32_t rank = 0;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const uint32_t stride = apart ? tables_[t]->view().row_stride : stride_;
    const auto offset = static_cast<int64_t>(rows->size()) - static_cast<int64_t>(rank) * stride;
    members.push_back(device::StagedMember{offset, stride, /*insert=*/true, batch_->number % 3 != 2});
    for (; rank < work_->misses && work_->tables[work_->missed_list[rank]] == t; ++rank) {
      const int64_t key = work_->missed_keys[rank];
      const bool provisional = key % 3 == 0;
      const DeviceRowHeader header{provisional ? -1 : 5, provisional ? 0u : 7u,
                                   static_cast<uint16_t>(provisional ? device::kRowProvisional : 0), 0};
      std::vector<float> data(ValueBytes(options_) * (1 + kSlots) / 4);
      for (size_t d = 0; d < data.size(); ++d) {
        data[d] = static_cast<float>((static_cast<uint64_t>(key) * 31 + d * 17) % 1000) / 700.0f + 0.1f;
      }
      rows->resize(rows->size() + stride, 0);
      uint8_t* const row = rows->data() + rows->size() - stride;
      std::memcpy(row, &header, sizeof(header));
      std::memcpy(row + sizeof(header), data.data(), data.size() * sizeof(float));
      WriteColumn(kMemberForms[t].value_dtype, data.data(), options_.dim, row + sizeof(header));
    }
  }
  return members;
}

// By turns as of several tables, and as of one.
Status PairSide::Stage() {
  if (work_->misses == 0) return OkStatus();
  const uint32_t n = batch_->n();
  const device::FindArgs& find = work_->find;
  device::InsertArgs& insert = work_->insert;
  std::vector<uint8_t> rows;
  const bool apart = batch_->number % 2 == 0;
  const std::vector<device::StagedMember> members = StageMembers(apart, &rows);
  insert.staged_rows = memory().Up(rows);
  insert.staged_stride = stride_;
  insert.staged_ranks = work_->missed.ranks;
  insert.placed = memory().Filled<device::PlacedCounts>(tables_.size(), 0);
  device::StageArgs stage{find.num_keys, n,    work_->missed.ranks,           insert.staged_rows,
                          stride_,       true, members[0].insert_provisional, find.rows,
                          find.missed};
  if (apart) {
    stage.members = insert.staged_members = memory().Up(members);
    stage.key_tables = find.key_tables;
    stage.counts = work_->dedup.counts;
    stage.placed = insert.placed;
  }
  MT_RETURN_IF_ERROR(kernels_.stage(stream_, stage));
  Read("misses to place", find.missed, work_->distinct);
  Read("staged counts", insert.placed, tables_.size());
  work_->to_place = CompactOf(find.missed, find.num_keys, n);
  MT_RETURN_IF_ERROR(kernels_.compact(stream_, work_->to_place));
  MT_RETURN_IF_ERROR(ReadCount("to place", work_->to_place.length, work_->misses, &work_->placed));
  Read("list of those to place", work_->to_place.list, work_->placed);
  return OkStatus();
}

Status PairSide::Chain() {
  const uint32_t misses = work_->placed, tables = static_cast<uint32_t>(tables_.size());
  if (misses == 0) return OkStatus();
  device::TestMemory& m = memory();
  device::InsertArgs& insert = work_->insert;
  insert.tables = work_->find.tables;
  insert.num_tables = tables;
  insert.keys = work_->find.keys;
  insert.key_tables = work_->find.key_tables;
  insert.missed = work_->to_place.list;
  insert.num_missed = work_->to_place.length;
  insert.max_missed = misses;
  insert.operation = insert.floor = batch_->operation;
  for (uint32_t** each : {&insert.begins, &insert.ends, &insert.bases}) *each = m.Filled<uint32_t>(tables, 0);
  for (uint32_t** each : {&insert.next, &insert.offered, &insert.consumed, &insert.returned, &insert.outbox}) {
    *each = m.New<uint32_t>(misses);
  }
  insert.scan.words = Scan(misses);
  insert.rows = work_->find.rows;
  insert.victims = m.New<device::Victim>(misses);
  insert.num_dirty = m.New<uint32_t>(1);
  MT_RETURN_IF_ERROR(kernels_.chain(stream_, insert));
  Read("begins", insert.begins, tables);
  Read("ends", insert.ends, tables);
  Read("no victims yet", insert.victims, misses);
  Read("none consumed yet", insert.consumed, misses);
  return OkStatus();
}

Status PairSide::Place() {
  const uint32_t misses = work_->placed;
  if (misses == 0) return OkStatus();
  const device::InsertArgs& insert = work_->insert;
  MT_RETURN_IF_ERROR(kernels_.place(stream_, insert));
  Read("victims", insert.victims, misses);
  Read("offered rows", insert.offered, misses);
  Read("consumed", insert.consumed, misses);
  Read("bases", insert.bases, tables_.size());
  return OkStatus();
}

Status PairSide::Reclaim() {
  const uint32_t misses = work_->placed;
  if (misses == 0) return OkStatus();
  uint32_t dirty;
  MT_RETURN_IF_ERROR(kernels_.reclaim(stream_, work_->insert));
  MT_RETURN_IF_ERROR(ReadCount("dirty victims", work_->insert.num_dirty, misses, &dirty));
  Read("places in the outbox", work_->insert.outbox, misses);
  Read("returned rows", work_->insert.returned, misses);
  for (const auto& table : tables_) ReadArrays(*table);
  return OkStatus();
}

Status PairSide::Exchange() {
  const uint32_t misses = work_->placed;
  if (misses == 0) return OkStatus();
  device::TestMemory& m = memory();
  device::ExchangeArgs& exchange = work_->exchange;
  exchange = device::ExchangeArgs{work_->insert, m.Filled<uint8_t>(size_t{misses} * stride_, 0), stride_,
                                  m.New<int64_t>(misses), m.New<uint32_t>(misses)};
  MT_RETURN_IF_ERROR(kernels_.exchange(stream_, exchange));
  const uint32_t dirty = m.Down(work_->insert.num_dirty, 1)[0];
  Read("keys in the outbox", exchange.outbox_keys, dirty);
  Read("tables in the outbox", exchange.outbox_tables, dirty);
  Read("rows in the outbox", exchange.outbox_rows, size_t{dirty} * stride_);
  Read("placed", work_->insert.placed, tables_.size());
  ReadTables();
  return OkStatus();
}

// New keys of the last table, which has columns of each distribution, as far as it has free rows and slots.
Status PairSide::Bear() {
  constexpr uint32_t kNew = 7;
  device::TestMemory& m = memory();
  const DeviceTable& table = *tables_.back();
  std::vector<int64_t> keys;
  for (uint32_t i = 0; i < kNew; ++i) keys.push_back(int64_t{1} << 40 | int64_t{batch_->number} << 8 | i);
  std::vector<uint32_t> positions(kNew);
  std::iota(positions.begin(), positions.end(), 0u);
  std::vector<uint8_t> row(table.stride(), 0x3c);
  *reinterpret_cast<DeviceRowHeader*>(row.data()) = DeviceRowHeader{-1, 0, device::kRowProvisional, 0};
  device::Birth birth{};
  birth.dim = options_.dim;
  birth.value_dtype = static_cast<DType>(batch_->number % 3);
  birth.row = m.Up(row);
  for (uint32_t c = 0; c < device::Birth::kMostColumns; ++c) {
    birth.columns[c] = ComputedColumns{static_cast<Distribution>((c + batch_->number) % 4), options_.dim * (c + 1) / 4,
                                       RandomParameters{c, 7, -0.5f, 1.5f, 0.875f}};
  }
  device::InsertArgs insert{};
  insert.tables = table.on_device();
  insert.num_tables = 1;
  insert.keys = m.Up(keys);
  insert.key_tables = m.Filled<uint32_t>(kNew, 0);
  insert.missed = m.Up(positions);
  insert.num_missed = m.Up(std::vector<uint32_t>{kNew});
  insert.max_missed = kNew;
  insert.operation = batch_->operation;
  insert.evicts = false;
  insert.staged_rows = birth.row;
  for (uint32_t** one : {&insert.begins, &insert.ends, &insert.bases}) *one = m.Filled<uint32_t>(1, 0);
  for (uint32_t** each : {&insert.next, &insert.offered, &insert.consumed, &insert.returned, &insert.outbox}) {
    *each = m.New<uint32_t>(kNew);
  }
  insert.scan.words = Scan(kNew);
  insert.rows = m.New<uint8_t*>(kNew);
  insert.victims = m.New<device::Victim>(kNew);
  insert.num_dirty = m.New<uint32_t>(1);
  auto* const missed = m.Up(std::vector<uint32_t>(kNew, 1));
  auto* const counted = m.Filled<uint32_t>(3, 0);
  MT_RETURN_IF_ERROR(kernels_.chain(stream_, insert));
  MT_RETURN_IF_ERROR(kernels_.place(stream_, insert));
  MT_RETURN_IF_ERROR(kernels_.reclaim(stream_, insert));
  MT_RETURN_IF_ERROR(kernels_.bear(stream_, device::BearArgs{insert, m.Up(std::vector<device::Birth>{birth}), m.Up(positions),
                                                             missed, counted, counted + 1, counted + 2, 3}));
  Read("keys without a row", missed, kNew);
  Read("new rows", counted, 3);
  ReadTables();
  return OkStatus();
}

Status PairSide::Gather() {
  const uint32_t n = batch_->n(), dim = batch_->smallest_dim;
  auto* const values = memory().New<float>(size_t{n} * dim);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {  // of each row, whatever it has
    const device::GatherArgs args{work_->find.rows, work_->dedup.inverse, n, dim, values, dtype};
    MT_RETURN_IF_ERROR(kernels_.gather(stream_, args));
    Read("values", values, size_t{n} * dim);
  }
  return OkStatus();
}

Result<const uint64_t*> PairSide::Sorted(const device::DedupArgs& dedup) {
  auto* const sorted = memory().New<uint64_t>(dedup.n);
  auto* const scratch = memory().New<uint8_t>(device_->SortScratchBytes(dedup.n));
  MT_RETURN_IF_ERROR(device_->SortByUpper(stream_, dedup.entries, sorted, dedup.n, 31, scratch));
  Read("sorted entries", sorted, dedup.n);
  return static_cast<const uint64_t*>(sorted);
}

Status PairSide::Sum() {
  const uint32_t n = batch_->n(), dim = batch_->smallest_dim, distinct = work_->distinct;
  device::TestMemory& m = memory();
  std::vector<int64_t> occurrences(n);
  for (uint32_t i = 0; i < n; ++i) occurrences[i] = i % 4;
  device::SumArgs& sum = work_->sum;
  MT_ASSIGN_OR_RETURN(sum.entries, Sorted(work_->dedup));
  sum.n = n;
  sum.num_keys = work_->find.num_keys;
  sum.max_keys = distinct;
  sum.counts = work_->dedup.counts;
  sum.grads = m.Up(batch_->grads);
  sum.dim = dim;
  if (batch_->number % 2 == 1) sum.entry_occurrences = m.Up(occurrences);
  sum.begins = m.New<uint32_t>(distinct);
  sum.sums = m.New<float>(size_t{distinct} * dim);
  sum.occurrences = m.New<uint64_t>(distinct);
  sum.pieces = m.New<float>(size_t{device::LaterPieces(n)} * dim);
  sum.piece_occurrences = m.New<uint64_t>(device::LaterPieces(n));
  MT_RETURN_IF_ERROR(kernels_.sum(stream_, sum));
  Read("sums", sum.sums, size_t{distinct} * dim);
  Read("occurrences", sum.occurrences, distinct);
  return OkStatus();
}

device::UpdateArgs PairSide::UpdateOf(size_t table, uint32_t dim, uint32_t max_keys) {
  device::UpdateArgs update{};
  if (tables_[table]->view().ranks != nullptr) update.ranked = tables_[table]->on_device();
  update.max_keys = max_keys;
  update.dim = dim;
  for (uint32_t s = 0; s < kSlots; ++s) update.slot_offsets[s] = (1 + s) * ValueBytes(options_);
  for (int h = 0; h < device::UpdateArgs::kMaxHyper; ++h) update.hyper[h] = 0.1f + 0.05f * static_cast<float>(h);
  update.version = batch_->operation;
  update.skip_provisional = batch_->number % 3 == 2;
  update.created = memory().Filled<uint32_t>(1, 0);
  update.value_dtype = kMemberForms[table].value_dtype;
  update.stochastic = (batch_->number / 2 + table) % 2 == 0;
  update.step = batch_->operation;
  return update;
}

Status PairSide::Update() {
  const auto table = static_cast<uint32_t>(batch_->number % tables_.size());
  const auto [begin, end] = std::equal_range(work_->tables.begin(), work_->tables.end(), table);
  const auto first = static_cast<size_t>(begin - work_->tables.begin());
  const auto n = static_cast<uint32_t>(end - begin);
  const uint32_t dim = batch_->smallest_dim;
  device::UpdateArgs update = UpdateOf(table, dim, n);
  update.num_keys = memory().Up(std::vector<uint32_t>{n});
  update.rows = work_->find.rows + first;
  update.sums = work_->sum.sums + first * dim;
  update.occurrences = work_->sum.occurrences + first;
  update.keys = work_->find.keys + first;
  MT_RETURN_IF_ERROR(kernels_.update(stream_, batch_->rule, update));
  Read("created rows", update.created, 1);
  ReadTables();
  return OkStatus();
}

}  // namespace multitier::hbm
