// GroupFind::BringUp: rows that a group missed come up from the tables below, for all members together.

#include <algorithm>
#include <functional>
#include <utility>

#include "cc/hbm/group_find.h"
#include "cc/hbm/insertion.h"
#include "cc/hbm/workers.h"
#include "cc/table/marks/current_snapshot.h"

namespace multitier::hbm {

using device::DeviceRowHeader;
using device::ScanScratch;
using Operation = HbmTable::Operation;

namespace {

// Victims that come down with the numbers, whatever their number is. If there are more, they need a wait of their own.
constexpr size_t kEagerVictimBytes = size_t{256} << 10;

}  // namespace

std::vector<GroupFind::Missing> GroupFind::ListMissing() {
  std::vector<Missing> missing;
  uint32_t first = 0;
  size_t offset = 0;
  for (size_t m = 0; m < members_.size(); first += counts_[m].misses, ++m) {
    MemberOutput* const output = members_[m].output;
    if (counts_[m].misses == 0 || !output->tables().empty()) continue;
    HbmTable* const table = output->table();
    const size_t stride = table->table_->stride();
    missing.push_back(Missing{table, members_[m].op.get(), output, m, first, counts_[m].misses, stride, offset});
    offset += counts_[m].misses * stride;
  }
  return missing;
}

// Those that did not come down with the numbers.
Status GroupFind::BringKeysDown() {
  if (misses_ <= eager_keys_) return OkStatus();
  missed_keys_ = scratch_->Pinned<int64_t>(misses_);
  MT_RETURN_IF_ERROR(scratch_->status());
  Status status = device_->Copy(stream_, missed_keys_, localize_.listed_keys, misses_ * sizeof(int64_t));
  const Status done = queue_->Synchronize();
  if (!done.ok()) scratch_->Bury();
  return status.ok() ? done : status;
}

Status GroupFind::CopyOut(std::vector<Missing>* missing) MT_NO_THREAD_SAFETY_ANALYSIS {  // the turns of all
  staged_ = scratch_->Pinned<uint8_t>(missing->back().offset + missing->back().misses * missing->back().stride);
  MT_RETURN_IF_ERROR(scratch_->status());
  std::vector<Status> statuses(missing->size());
  std::vector<char> alone(missing->size(), 0);  // not bool: written side by side
  RunSideBySide(missing->size(), [&](size_t i) {
    const WithoutAwait without_await;
    const Missing& one = (*missing)[i];
    RowsBelow& below = one.table->rows_below_;
    alone[i] = !one.table->broken().ok() || !below.Retry().ok();
    if (alone[i]) return;
    statuses[i] = below.CopyOut(Span<const int64_t>(missed_keys_ + one.first, one.misses), {}, CopyOutAs::kUse,
                                one.output->reason(), one.stride, staged_ + one.offset);
  });
  for (const Status& status : statuses) MT_RETURN_IF_ERROR(status);
  std::vector<Missing> together;
  for (size_t i = 0; i < missing->size(); ++i) {
    Missing& one = (*missing)[i];
    if (alone[i]) continue;
    HbmTable* const table = one.table;
    one.op->staged_below = staged_ + one.offset;
    one.op->missed_keys = missed_keys_ + one.first;
    table->ReleasePinsInTime();
    one.op->may_ask = table->grows_;
    if (table->AsksForRows(one.op, /*creates=*/false)) continue;
    const bool below_trains =
        training_ && table->new_keys_below_ && !table->drops_ && table->options().filter.kind != AdmissionKind::kBloom;
    for (uint32_t r = 0; r < one.misses; ++r) {
      const auto* header = reinterpret_cast<const DeviceRowHeader*>(one.op->staged_below + r * one.stride);
      if ((header->flags & device::kRowProvisional) == 0) continue;
      ++one.absent;
      if (below_trains) one.filtered.push_back(r);
    }
    filters_ = filters_ || !one.filtered.empty();
    // A table that grows keeps provisional rows only where no row has to leave for them.
    const bool room =
        !table->grows_ || static_cast<uint64_t>(table->rows_.load()) + one.misses <= table->table_->view().capacity;
    one.provisional = training_ && table->keeps_provisional_ && room;
    one.places = one.absent < one.misses || one.provisional;
    together.push_back(one);
  }
  *missing = std::move(together);
  return OkStatus();
}

// Memory of all that follows, taken before anything changes.
Status GroupFind::TakePlaces(const std::vector<Missing>& missing) {
  Scratch& s = *scratch_;
  const size_t members = members_.size();
  size_t staged_bytes = 0;
  for (const Missing& one : missing) {
    places_ = places_ || one.places;
    outbox_stride_ = std::max(outbox_stride_, one.stride);
    staged_bytes = one.offset + one.misses * one.stride;
  }
  placed_ = s.Pinned<device::PlacedCounts>(members + 1);
  if (filters_) list_ = s.Pinned<uint32_t>(misses_);
  auto* const staged = s.OnDevice<uint8_t>(staged_bytes);
  stage_.num_keys = find_.num_keys;
  stage_.max_keys = n_;
  stage_.ranks = localize_.ranks;
  stage_.staged_rows = staged;
  stage_.rows = find_.rows;
  stage_.missed = find_.missed;
  stage_.key_tables = find_.key_tables;
  stage_.counts = localize_.dedup.counts;
  if (!places_) return s.status();
  const size_t scan_words = ScanScratch::Words(n_);
  zero_words_ = scan_words + ScanScratch::Words(misses_);
  zeros_ = s.OnDevice<uint64_t>(zero_words_);
  to_place_.marked = find_.missed;
  to_place_.num_keys = find_.num_keys;
  to_place_.max_keys = n_;
  to_place_.list = s.OnDevice<uint32_t>(n_);
  device::InsertArgs& insert = exchange_.insert = TakeInsertion(members, misses_, &s);
  exchange_.outbox_rows = s.OnDevice<uint8_t>(misses_ * outbox_stride_);
  exchange_.outbox_keys = s.OnDevice<int64_t>(misses_);
  exchange_.outbox_tables = s.OnDevice<uint32_t>(misses_);
  exchange_.outbox_stride = static_cast<uint32_t>(outbox_stride_);
  outbox_scratch_ = members_[missing[0].member].output->table()->NewScratch();
  outbox_rows_ = outbox_scratch_->Pinned<uint8_t>(misses_ * outbox_stride_);
  outbox_keys_ = s.Pinned<int64_t>(misses_);
  outbox_tables_ = s.Pinned<uint32_t>(misses_);
  MT_RETURN_IF_ERROR(outbox_scratch_->status());
  MT_RETURN_IF_ERROR(s.status());
  to_place_.scan.words = zeros_;
  insert.scan.words = zeros_ + scan_words;
  insert.staged_rows = staged;
  insert.staged_ranks = localize_.ranks;
  return OkStatus();
}

Status GroupFind::DescribeStaged(const std::vector<Missing>& missing, Upload* upload) {
  std::vector<device::StagedMember> staged(members_.size());
  std::vector<const MemberOutput*> outputs;
  for (const Missing& one : missing) {
    staged[one.member] = device::StagedMember{
        static_cast<int64_t>(one.offset) - static_cast<int64_t>(one.first) * static_cast<int64_t>(one.stride),
        static_cast<uint32_t>(one.stride), /*insert=*/true, one.provisional};
    outputs.push_back(one.output);
  }
  stage_.members = upload->Add(staged);
  stage_.placed = upload->Add(std::vector<device::PlacedCounts>(members_.size() + 1));
  device::PlacedCounts* const of_all = stage_.placed + members_.size();
  to_place_.length = &of_all->to_place;
  device::InsertArgs& insert = exchange_.insert;
  InsertKeysOf(find_, to_place_.list, to_place_.length, &insert);
  insert.num_dirty = &of_all->dirty_victims;
  insert.staged_members = stage_.members;
  insert.placed = stage_.placed;
  return outputs_of_missing_.Describe(outputs, /*brought_up=*/true, upload);
}

Status GroupFind::EnqueueStaged(const std::vector<Missing>& missing, const Upload& upload) {
  device::Device& d = *device_;
  const Missing& last = missing.back();
  MT_RETURN_IF_ERROR(upload.Send());
  MT_RETURN_IF_ERROR(d.Copy(stream_, stage_.staged_rows, staged_, last.offset + last.misses * last.stride));
  if (places_) MT_RETURN_IF_ERROR(d.Fill(stream_, zeros_, 0, zero_words_ * sizeof(uint64_t)));
  for (const Member& member : members_) {
    if (member.op != nullptr) member.op->NoteSweeps();
  }
  MT_RETURN_IF_ERROR(kernels_.find(stream_, find_));
  return kernels_.stage(stream_, stage_);
}

// Behind the point of no return.
void GroupFind::EnqueuePlaced(const std::vector<Missing>& missing) MT_NO_THREAD_SAFETY_ANALYSIS {  // enqueue() has many names
  device::Device& d = *device_;
  device::InsertArgs& insert = exchange_.insert;
  if (places_) {
    insert.floor = missing[0].table->Floor();  // the oldest of all: a row that may stay for one table stays
    for (const Missing& one : missing) {
      if (static_cast<int32_t>(one.table->Floor() - insert.floor) < 0) insert.floor = one.table->Floor();
    }
    Insist(missing, [&] { return kernels_.compact(stream_, to_place_); });
    EnqueueInsertion(kernels_, stream_, insert, [&](auto call) { Insist(missing, call); });
    Insist(missing, [&] { return kernels_.exchange(stream_, exchange_); });
  }
  Insist(missing, [&] { return outputs_of_missing_.EnqueueValues(); });
  Insist(missing,
         [&] { return d.Copy(stream_, placed_, stage_.placed, (members_.size() + 1) * sizeof(device::PlacedCounts)); });
  Insist(missing, [&] { return d.Copy(stream_, counts_, localize_.members, members_.size() * sizeof(device::MemberCounts)); });
  if (filters_) {
    Insist(missing, [&] { return d.Copy(stream_, list_, localize_.list, misses_ * sizeof(uint32_t)); });
  }
  if (!places_) return;
  victims_ = std::min(misses_, static_cast<uint32_t>(kEagerVictimBytes / outbox_stride_));
  EnqueueVictims(missing);
}

void GroupFind::EnqueueVictims(const std::vector<Missing>& missing) {
  device::Device& d = *device_;
  Insist(missing, [&] { return d.Copy(stream_, outbox_rows_, exchange_.outbox_rows, victims_ * outbox_stride_); });
  Insist(missing, [&] { return d.Copy(stream_, outbox_keys_, exchange_.outbox_keys, victims_ * sizeof(int64_t)); });
  Insist(missing, [&] { return d.Copy(stream_, outbox_tables_, exchange_.outbox_tables, victims_ * sizeof(uint32_t)); });
}

void GroupFind::NotePlaced(const Missing& one) {
  const device::PlacedCounts& placed = placed_[one.member];
  const device::MemberCounts& counted = counts_[one.member];
  HbmTable* const table = one.table;
  Operation& op = *one.op;
  op.complete = placed.to_place == one.misses - one.filtered.size() && placed.unplaced == 0;
  for (const uint32_t r : one.filtered) {
    op.absent.push_back({missed_keys_[one.first + r], list_[one.first + r] - counted.first});
  }
  if (one.provisional) op.can_create += one.absent;
  if (placed.to_place > 0) {
    table->rows_ = static_cast<int64_t>(table->table_->view().capacity) - placed.free_rows;
    table->surely_in_hbm_ += placed.rows;
  }
  table->lookups_ += op.n;
  table->hits_ += op.n - counted.missed_entries;
  table->misses_ += counted.missed_entries;
  table->absent_ += placed.absent_entries;
  table->brought_up_ += placed.to_place;
  members_[one.member].looked_up = true;
}

// Victims are in batch order: those of a table are neighbours.
void GroupFind::HandDownVictims(const std::vector<Missing>& missing) {
  const uint32_t out = places_ ? placed_[members_.size()].dirty_victims : 0;
  if (out > victims_) {
    victims_ = out;
    EnqueueVictims(missing);
    Insist(missing, [&] { return queue_->Synchronize(); });
    if (!failed_.ok()) return;
  }
  std::vector<std::pair<const Missing*, uint32_t>> from;  // a table and its first victim
  for (uint32_t i = 0; i < out; ++i) {
    if (i > 0 && outbox_tables_[i] == outbox_tables_[i - 1]) continue;
    const auto is_table = [&](const Missing& one) { return one.member == outbox_tables_[i]; };
    from.emplace_back(&*std::find_if(missing.begin(), missing.end(), is_table), i);
  }
  RunSideBySide(from.size(), [&](size_t i) {
    const WithoutAwait without_await;
    const auto [one, begin] = from[i];
    const uint32_t end = i + 1 < from.size() ? from[i + 1].second : out;
    one->table->handed_down_ += end - begin;
    one->table->rows_below_.PutBack(Span<const int64_t>(outbox_keys_ + begin, end - begin), one->stride, outbox_stride_,
                                    outbox_rows_ + begin * outbox_stride_, [this] { return outbox_scratch_; });
  });
}

// A group needs memory for the rows of all tables at the same time. Where there is none, nothing has changed, and each table
// goes on alone.
Status GroupFind::BringUp() {
  if (born_) return OkStatus();  // the list has keys that have rows now: members that miss the others go on alone
  const Status status = BringUpTogether();
  return status.code() == StatusCode::kResourceExhausted ? OkStatus() : status;
}

Status GroupFind::BringUpTogether() {
  std::vector<Missing> missing = ListMissing();
  if (missing.empty()) return OkStatus();
  MT_RETURN_IF_ERROR(BringKeysDown());
  const WithoutAwait without_await;
  std::vector<HbmTable*> tables;
  for (const Missing& one : missing) tables.push_back(one.table);
  const HbmTable::Turns turns(tables);
  MT_RETURN_IF_ERROR(CopyOut(&missing));
  if (missing.empty()) return OkStatus();
  MT_RETURN_IF_ERROR(TakePlaces(missing));
  const size_t members = members_.size();
  Upload upload(queue_, scratch_.get(),
                Upload::Room<device::StagedMember>(members) + Upload::Room<device::PlacedCounts>(members + 1) +
                    OutputGroup::Room(missing.size()));
  MT_RETURN_IF_ERROR(upload.status());
  Status status;
  {
    MutexLock lock(queue_->enqueue());
    status = DescribeStaged(missing, &upload);
    if (status.ok()) status = EnqueueStaged(missing, upload);
    if (status.ok()) EnqueuePlaced(missing);
  }
  if (status.ok()) {
    Insist(missing, [&] { return queue_->Synchronize(); });
    if (failed_.ok()) HandDownVictims(missing);
  } else {
    failed_ = queue_->Synchronize();  // nothing has changed
  }
  if (!failed_.ok()) {
    scratch_->Bury();
    if (outbox_scratch_ != nullptr) outbox_scratch_->Bury();
  }
  if (!status.ok()) return status;
  for (const Missing& one : missing) MT_RETURN_IF_ERROR(one.table->broken());
  for (size_t m = 0; m < members; ++m) {
    if (members_[m].op == nullptr) continue;
    members_[m].op->counted->used_pins = counts_[m].used_pins;
    members_[m].op->NoteUsedPins();
  }
  for (const Missing& one : missing) NotePlaced(one);
  return OkStatus();
}

}  // namespace multitier::hbm
