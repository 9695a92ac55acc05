#include "cc/hbm/group_find.h"

#include <algorithm>
#include <utility>

namespace multitier::hbm {

using device::ScanScratch;
using Operation = HbmTable::Operation;

namespace {

// The missed keys that come down with the numbers. If there are more, they need a wait of their own.
constexpr uint32_t kEagerKeys = 8192;

}  // namespace

GroupFind::GroupFind(std::vector<MemberOutput*> outputs, bool training)
    : queue_(outputs[0]->table()->queue()),
      stream_(queue_->stream()),
      device_(outputs[0]->table()->device()),
      kernels_(device_->kernels()),
      training_(training),
      scratch_(outputs[0]->table()->NewScratch()),
      tables_(outputs.size()) {
  for (MemberOutput* output : outputs) {
    members_.push_back(Member{output, nullptr});
    n_ += static_cast<uint32_t>(output->keys().n);
    ends_.push_back(n_);
  }
}

bool GroupFind::EnterGates() {
  for (const Member& member : members_) {
    if (member.output->keys().n > 0) member.output->table()->AwaitGate();
  }
  for (const Member& member : members_) {
    if (member.output->keys().n == 0) continue;
    gates_.push_back(member.output->table()->TryEnter());
    if (gates_.back() == nullptr) return false;
  }
  return true;
}

void GroupFind::NewOperations() {
  uint64_t number;
  {
    MutexLock lock(queue_->enqueue());
    number = queue_->NextOperation();
  }
  find_.operation = static_cast<uint32_t>(number);
  for (size_t m = 0; m < members_.size(); ++m) {
    const auto n = static_cast<uint32_t>(members_[m].output->keys().n);
    if (n == 0) continue;
    members_[m].op = members_[m].output->table()->NewOperation(number, &tables_[m]);
    members_[m].op->arrays = scratch_;
    members_[m].op->training = training_;
    members_[m].op->n = n;
  }
}

Status GroupFind::TakeArrays() {
  const size_t members = members_.size();
  Scratch& s = *scratch_;
  eager_keys_ = std::min(n_, kEagerKeys);
  counts_ = s.Pinned<device::MemberCounts>(members);
  numbers_ = s.Pinned<Operation::Numbers>(members);
  missed_keys_ = s.Pinned<int64_t>(eager_keys_);
  uint32_t set_size = 2;
  while (set_size < 2 * n_) set_size *= 2;
  const size_t scan_words = ScanScratch::Words(n_), count_words = (size_t{n_} + 1) / 2;
  zero_words_ = count_words + 2 * scan_words;
  zeros_ = s.OnDevice<uint64_t>(zero_words_);
  dedup_.copied = s.OnDevice<int64_t>(n_);
  dedup_.keys = dedup_.copied;
  dedup_.n = n_;
  dedup_.num_tables = static_cast<uint32_t>(members);
  dedup_.set = s.OnDevice<uint32_t>(set_size);
  dedup_.set_size = set_size;
  dedup_.places = s.OnDevice<uint32_t>(n_);
  dedup_.numbers = s.OnDevice<uint32_t>(n_);
  dedup_.distinct = s.OnDevice<int64_t>(n_);
  dedup_.distinct_tables = s.OnDevice<uint32_t>(n_);
  dedup_.num_distinct = s.OnDevice<uint32_t>(1);
  find_.rows = s.OnDevice<uint8_t*>(n_);
  find_.missed = s.OnDevice<uint32_t>(n_);
  localize_.listed_keys = s.OnDevice<int64_t>(n_);
  localize_.list = s.OnDevice<uint32_t>(n_);
  localize_.ranks = s.OnDevice<uint32_t>(n_);
  localize_.dedup.inverse = s.OnDevice<uint32_t>(n_);
  localize_.dedup.entries = s.OnDevice<uint64_t>(n_);
  MT_RETURN_IF_ERROR(s.status());
  localize_.dedup.counts = reinterpret_cast<uint32_t*>(zeros_);
  dedup_.scan.words = zeros_ + count_words;
  localize_.scan.words = dedup_.scan.words + scan_words;
  return OkStatus();
}

// What goes up, and what the kernels get.
Status GroupFind::DescribeAll(Upload* upload) {
  std::vector<device::KeySource> sources;
  device::MemberCounts nothing{};
  nothing.first_bad = device::kNone;
  for (const Member& member : members_) {
    sources.push_back(device::KeySource{member.output->keys().data, member.output->keys().is_int32});
  }
  dedup_.sources = upload->Add(sources);
  dedup_.ends = upload->Add(ends_);
  find_.tables = upload->Add(tables_);
  localize_.members = upload->Add(std::vector<device::MemberCounts>(members_.size(), nothing));
  find_.keys = dedup_.distinct;
  find_.key_tables = dedup_.distinct_tables;
  find_.num_keys = dedup_.num_distinct;
  find_.max_keys = n_;
  find_.stamp = true;
  find_.used_pins = &localize_.members->used_pins;
  find_.used_pins_stride = sizeof(device::MemberCounts) / sizeof(uint32_t);
  const device::DedupArgs outs = std::exchange(localize_.dedup, dedup_);
  localize_.dedup.inverse = outs.inverse;
  localize_.dedup.counts = outs.counts;
  localize_.dedup.entries = outs.entries;
  localize_.rows = find_.rows;
  localize_.missed = find_.missed;
  std::vector<const MemberOutput*> outputs;
  for (size_t m = 0; m < members_.size(); ++m) {
    MemberOutput* const output = members_[m].output;
    device::MemberCounts* const counts = localize_.members + m;
    const MemberOutput::Keys keys{find_.rows,
                                  &counts->first,
                                  &counts->distinct,
                                  &counts->misses,
                                  localize_.dedup.inverse + first_entry(m),
                                  &counts->first_bad,
                                  static_cast<uint32_t>(output->keys().n)};
    MT_RETURN_IF_ERROR(output->Describe(keys, training_, scratch_.get()));
    outputs.push_back(output);
    if (members_[m].op == nullptr) continue;
    Operation& op = *members_[m].op;
    op.counted = &numbers_[m];
    *op.counted = Operation::Numbers();
    op.first_bad = keys.first_bad;
    op.find.num_keys = op.dedup.num_distinct = &counts->distinct;
    op.dedup.inverse = localize_.dedup.inverse + first_entry(m);
  }
  return outputs_.Describe(outputs, /*brought_up=*/false, upload);
}

Status GroupFind::Enqueue(const Upload& upload) {
  device::Device& d = *device_;
  MT_RETURN_IF_ERROR(upload.Send());
  MT_RETURN_IF_ERROR(outputs_.EnqueueRows());
  if (n_ > 0) {
    MT_RETURN_IF_ERROR(d.Fill(stream_, dedup_.set, 0xff, dedup_.set_size * sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, zeros_, 0, zero_words_ * sizeof(uint64_t)));
    MT_RETURN_IF_ERROR(kernels_.dedup(stream_, dedup_));
    MT_RETURN_IF_ERROR(kernels_.find(stream_, find_));
    MT_RETURN_IF_ERROR(kernels_.localize(stream_, localize_));
    if (!bearing_.empty()) MT_RETURN_IF_ERROR(EnqueueBirths());
  }
  MT_RETURN_IF_ERROR(outputs_.EnqueueValues());
  MT_RETURN_IF_ERROR(d.Copy(stream_, missed_keys_, localize_.listed_keys, eager_keys_ * sizeof(int64_t)));
  return d.Copy(stream_, counts_, localize_.members, members_.size() * sizeof(device::MemberCounts));
}

// What a batch of the member alone would have. Where its distinct keys begin is known only after the device has counted them.
void GroupFind::Slice() {
  for (size_t m = 0; m < members_.size(); ++m) {
    const device::MemberCounts& counted = counts_[m];
    distinct_ += counted.distinct;
    misses_ += counted.misses;
    members_[m].looked_up = counted.misses == 0;
    if (members_[m].op == nullptr) continue;
    Operation& op = *members_[m].op;
    op.counted->distinct = counted.distinct;
    op.counted->misses = counted.misses;
    op.counted->used_pins = counted.used_pins;
    op.NoteUsedPins();
    op.counted->first_bad = counted.first_bad;
    op.complete = counted.misses == 0;
    op.can_create = counted.provisional + counted.born;
    if (op.may_bear) op.table->expects_new_keys_ = counted.born + counted.misses > 0;
    op.counted->born = counted.born;
    op.counted->born_entries = counted.born_entries;
    op.find.rows = find_.rows + counted.first;
    op.find.keys = dedup_.distinct + counted.first;
    op.dedup.distinct = dedup_.distinct + counted.first;
    op.dedup.counts = localize_.dedup.counts + counted.first;
  }
}

bool GroupFind::Run() {
  if (!EnterGates()) return false;
  NewOperations();
  ListBearing();
  status_ = TakeArrays();
  if (status_.ok() && !bearing_.empty()) status_ = TakeBirths();
  if (!status_.ok()) return false;
  const size_t members = members_.size();
  Upload upload(queue_, scratch_.get(),
                Upload::Room<device::KeySource>(members) + Upload::Room<uint32_t>(members) +
                    Upload::Room<device::Table>(members) + Upload::Room<device::MemberCounts>(members) +
                    OutputGroup::Room(members) + RoomOfBirths());
  status_ = upload.status();
  if (!status_.ok()) return false;
  status_ = DescribeAll(&upload);
  if (!status_.ok()) return false;
  if (!bearing_.empty()) DescribeBirths(&upload);
  {
    MutexLock lock(queue_->enqueue());
    for (const Member& member : members_) {
      if (member.op != nullptr) member.op->NoteSweeps();
    }
    status_ = Enqueue(upload);
  }
  Status done = queue_->Synchronize();
  if (!done.ok() && born_) {
    Insist(bearing_, [&] { return queue_->Synchronize(); });
    done = failed_;
  }
  if (done.ok()) NoteRows();
  if (!done.ok()) {
    scratch_->Bury();
    if (status_.ok()) status_ = done;
  }
  if (!status_.ok()) return false;
  Slice();
  return true;
}

}  // namespace multitier::hbm
