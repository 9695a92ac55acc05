// Births in a group: the kernels make the rows of new keys of all tables, between find and values. hbm_table.h ("Births") says
// when a table bears rows; the group does if each of its tables may. A member of which a key got no place goes on alone.

#include "cc/hbm/group_find.h"
#include "cc/hbm/insertion.h"

namespace multitier::hbm {

using device::ScanScratch;
using Operation = HbmTable::Operation;

// The turns of the tables of a group that bears rows, if all of them were free.
class GroupFind::FreeTurns {
 public:
  explicit FreeTurns(const std::vector<Missing>& members) MT_NO_THREAD_SAFETY_ANALYSIS {  // a loop over objects
    for (const Missing& one : members) {
      if (!one.table->turn_.try_lock()) break;
      held_.push_back(&one.table->turn_);
    }
    if (held_.size() < members.size()) Release();
  }
  ~FreeTurns() { Release(); }
  FreeTurns(const FreeTurns&) = delete;
  FreeTurns& operator=(const FreeTurns&) = delete;

  bool held() const { return !held_.empty(); }
  void Release() MT_NO_THREAD_SAFETY_ANALYSIS {
    for (Mutex* const turn : held_) turn->unlock();
    held_.clear();
  }

 private:
  std::vector<Mutex*> held_;
};

void GroupFind::ListBearing() {
  bool expects = false;
  for (const Member& member : members_) {
    if (member.op == nullptr) continue;
    HbmTable* const table = member.output->table();
    member.op->may_bear = training_ && table->table_->birth() != nullptr && member.output->tables().empty();
    expects = expects || (member.op->may_bear && table->expects_new_keys_);
    Missing one{};
    one.table = table;
    one.op = member.op.get();
    bearing_.push_back(one);
  }
  bool bears = expects;
  for (const Missing& one : bearing_) bears = bears && one.op->may_bear;
  if (bears) {
    turns_ = std::make_shared<FreeTurns>(bearing_);
    bears = turns_->held();
  }
  for (const Missing& one : bearing_) bears = bears && one.table->broken().ok() && one.table->MayBear(*one.op);
  if (!bears) BearNone();
}

void GroupFind::BearNone() {
  turns_ = nullptr;
  bearing_.clear();
}

size_t GroupFind::RoomOfBirths() const {
  if (bearing_.empty()) return 0;
  const size_t members = members_.size();
  return Upload::Room<device::Birth>(members) + Upload::Room<device::StagedMember>(members) +
         Upload::Room<device::PlacedCounts>(members);
}

// Without memory for it, the group bears no rows.
Status GroupFind::TakeBirths() {
  const size_t members = members_.size();
  Scratch& s = *scratch_;
  placed_ = s.Pinned<device::PlacedCounts>(members);
  device::InsertArgs& insert = bear_.insert = TakeInsertion(members, n_, &s);
  insert.scan.words = s.OnDevice<uint64_t>(ScanScratch::Words(n_));
  auto* const numbers = s.OnDevice<uint32_t>(2);
  localize_.length = numbers;
  insert.num_dirty = numbers + 1;
  if (s.GotAll()) return OkStatus();
  localize_.length = nullptr;
  BearNone();
  return s.status();
}

void GroupFind::DescribeBirths(Upload* upload) {
  std::vector<device::Birth> births(members_.size());
  std::vector<device::StagedMember> staged(members_.size());
  device::InsertArgs& insert = bear_.insert;
  insert.staged_rows = bearing_[0].table->table_->new_row();
  for (size_t m = 0; m < members_.size(); ++m) {
    if (members_[m].op == nullptr) continue;
    const DeviceTable& table = *members_[m].output->table()->table_;
    births[m] = table.birth_on_host();
    staged[m].offset = reinterpret_cast<intptr_t>(table.new_row()) - reinterpret_cast<intptr_t>(insert.staged_rows);
  }
  bear_.births = upload->Add(births);
  insert.staged_members = upload->Add(staged);
  insert.placed = upload->Add(std::vector<device::PlacedCounts>(members_.size()));
  InsertKeysOf(find_, localize_.list, localize_.length, &insert);
  insert.evicts = false;
  bear_.counts = localize_.dedup.counts;
  bear_.missed = find_.missed;
  bear_.born = &localize_.members->born;
  bear_.born_entries = &localize_.members->born_entries;
  bear_.misses = &localize_.members->misses;
  bear_.table_stride = sizeof(device::MemberCounts) / sizeof(uint32_t);
}

Status GroupFind::EnqueueBirths() {
  const device::InsertArgs& insert = bear_.insert;
  MT_RETURN_IF_ERROR(device_->Fill(stream_, insert.scan.words, 0, ScanScratch::Words(n_) * sizeof(uint64_t)));
  EnqueueInsertion(kernels_, stream_, insert, [&](auto call) { Insist(bearing_, call); });
  Insist(bearing_, [&] { return kernels_.bear(stream_, bear_); });
  Insist(bearing_,
         [&] { return device_->Copy(stream_, placed_, insert.placed, members_.size() * sizeof(device::PlacedCounts)); });
  born_ = failed_.ok();
  return failed_;
}

// REQUIRES: the device is done
void GroupFind::NoteRows() {
  for (size_t m = 0; born_ && m < members_.size(); ++m) {
    if (members_[m].op == nullptr || placed_[m].to_place == 0) continue;
    HbmTable* const table = members_[m].output->table();
    table->rows_ = static_cast<int64_t>(table->table_->view().capacity) - placed_[m].free_rows;
  }
  turns_ = nullptr;
}

}  // namespace multitier::hbm
