#include "cc/hbm/group_find.h"

#include <algorithm>
#include <utility>

namespace multitier::hbm {

using device::ScanScratch;
using Operation = HbmTable::Operation;

GroupFind::GroupFind(std::vector<MemberOutput*> outputs, bool training)
    : queue_(outputs[0]->table()->queue()),
      stream_(queue_->stream()),
      device_(outputs[0]->table()->device()),
      training_(training),
      scratch_(outputs[0]->table()->NewScratch()) {
  for (MemberOutput* output : outputs) {
    members_.push_back(Member{output, nullptr});
    n_ += static_cast<uint32_t>(output->keys().n);
  }
}

bool GroupFind::EnterGates() {
  for (const Member& member : members_) {
    if (member.output->keys().n == 0) continue;
    gates_.push_back(member.output->table()->TryEnter());
    if (gates_.back() == nullptr) return false;
  }
  return true;
}

void GroupFind::TakeArrays() {
  const size_t members = members_.size();
  const auto num_members = static_cast<uint32_t>(members);
  Scratch& s = *scratch_;
  sources_ = s.Pinned<device::KeySource>(members);
  ends_ = s.Pinned<uint32_t>(members);
  tables_ = s.Pinned<device::Table>(members);
  counts_ = s.Pinned<device::MemberCounts>(members);
  bad_ = s.Pinned<uint32_t>(members);
  numbers_ = s.Pinned<Operation::Numbers>(members);
  tables_on_device_ = s.OnDevice<device::Table>(members);
  bad_on_device_ = s.OnDevice<uint32_t>(members);
  uint32_t set_size = 2;
  while (set_size < 2 * n_) set_size *= 2;
  auto* const keys = s.OnDevice<int64_t>(n_);
  dedup_.keys = dedup_.copied = keys;
  dedup_.n = n_;
  dedup_.ends = s.OnDevice<uint32_t>(members);
  dedup_.num_tables = num_members;
  dedup_.set = s.OnDevice<uint32_t>(set_size);
  dedup_.set_size = set_size;
  dedup_.places = s.OnDevice<uint32_t>(n_);
  dedup_.numbers = s.OnDevice<uint32_t>(n_);
  dedup_.scan.words = s.OnDevice<uint64_t>(ScanScratch::Words(n_));
  dedup_.distinct = s.OnDevice<int64_t>(n_);
  dedup_.distinct_tables = s.OnDevice<uint32_t>(n_);
  dedup_.num_distinct = s.OnDevice<uint32_t>(1);
  dedup_.sources = s.OnDevice<device::KeySource>(members);
  find_ = device::FindArgs{tables_on_device_, dedup_.distinct,          dedup_.distinct_tables,  dedup_.num_distinct, n_, 0,
                           /*stamp=*/true,    s.OnDevice<uint8_t*>(n_), s.OnDevice<uint32_t>(n_)};
  localize_ = device::LocalizeArgs{dedup_, find_.missed, s.OnDevice<device::MemberCounts>(members)};
  find_.used_pins = localize_.members == nullptr ? nullptr : &localize_.members->used_pins;
  find_.used_pins_stride = sizeof(device::MemberCounts) / sizeof(uint32_t);
  localize_.dedup.inverse = s.OnDevice<uint32_t>(n_);
  localize_.dedup.counts = s.OnDevice<uint32_t>(n_);
  localize_.dedup.entries = s.OnDevice<uint64_t>(n_);
}

void GroupFind::Describe() {
  uint32_t end = 0;
  for (size_t m = 0; m < members_.size(); ++m) {
    const DeviceKeys& keys = members_[m].output->keys();
    sources_[m] = device::KeySource{keys.data, keys.is_int32};
    end += static_cast<uint32_t>(keys.n);
    ends_[m] = end;
    tables_[m] = device::Table{};
    counts_[m] = device::MemberCounts{};
    bad_[m] = device::kNone;
  }
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
    Operation& op = *members_[m].op;
    op.arrays = scratch_;
    op.training = training_;
    op.n = n;
    op.counted = &numbers_[m];
    *op.counted = Operation::Numbers();
    op.first_bad = bad_on_device_ + m;
    op.find.num_keys = op.dedup.num_distinct = &localize_.members[m].distinct;
    op.dedup.inverse = localize_.dedup.inverse + first_entry(m);
  }
}

Status GroupFind::DescribeOutputs() {
  std::vector<const MemberOutput*> outputs;
  for (size_t m = 0; m < members_.size(); ++m) {
    MemberOutput* const output = members_[m].output;
    const device::MemberCounts* const counts = localize_.members + m;
    const MemberOutput::Keys keys{find_.rows,
                                  &counts->first,
                                  &counts->distinct,
                                  &counts->misses,
                                  localize_.dedup.inverse + first_entry(m),
                                  bad_on_device_ + m,
                                  static_cast<uint32_t>(output->keys().n)};
    MT_RETURN_IF_ERROR(output->Describe(keys, training_, scratch_.get()));
    outputs.push_back(output);
  }
  return outputs_.Upload(outputs, scratch_.get());
}

Status GroupFind::Enqueue() {
  const size_t members = members_.size();
  device::Device& d = *device_;
  const device::DeviceKernels& kernels = d.kernels();
  MT_RETURN_IF_ERROR(d.Fill(stream_, bad_on_device_, 0xff, members * sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(d.Fill(stream_, localize_.members, 0, members * sizeof(device::MemberCounts)));
  MT_RETURN_IF_ERROR(outputs_.EnqueueRows());
  if (n_ > 0) {
    const auto* const up = &dedup_;
    MT_RETURN_IF_ERROR(
        d.Copy(stream_, const_cast<device::KeySource*>(up->sources), sources_, members * sizeof(device::KeySource)));
    MT_RETURN_IF_ERROR(d.Copy(stream_, const_cast<uint32_t*>(up->ends), ends_, members * sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(d.Copy(stream_, tables_on_device_, tables_, members * sizeof(device::Table)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, dedup_.set, 0xff, dedup_.set_size * sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, localize_.dedup.counts, 0, n_ * sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(d.Fill(stream_, dedup_.scan.words, 0, ScanScratch::Words(n_) * sizeof(uint64_t)));
    MT_RETURN_IF_ERROR(kernels.dedup(stream_, dedup_));
    MT_RETURN_IF_ERROR(kernels.find(stream_, find_));
    MT_RETURN_IF_ERROR(kernels.localize(stream_, localize_));
  }
  MT_RETURN_IF_ERROR(outputs_.EnqueueValues());
  MT_RETURN_IF_ERROR(d.Copy(stream_, counts_, localize_.members, members * sizeof(device::MemberCounts)));
  return d.Copy(stream_, bad_, bad_on_device_, members * sizeof(uint32_t));
}

// What a batch of the member alone would have. Where its distinct keys begin is known only after the device has counted them.
void GroupFind::Slice() {
  for (size_t m = 0; m < members_.size(); ++m) {
    const device::MemberCounts& counted = counts_[m];
    distinct_ += counted.distinct;
    if (members_[m].op == nullptr) continue;
    Operation& op = *members_[m].op;
    op.counted->distinct = counted.distinct;
    op.counted->misses = counted.misses;
    op.counted->used_pins = counted.used_pins;
    op.NoteUsedPins();
    op.counted->first_bad = bad_[m];
    op.complete = counted.misses == 0;
    op.find.rows = find_.rows + counted.first;
    op.find.keys = dedup_.distinct + counted.first;
    op.dedup.distinct = dedup_.distinct + counted.first;
    op.dedup.counts = localize_.dedup.counts + counted.first;
  }
}

bool GroupFind::Run() {
  if (!EnterGates()) return false;
  TakeArrays();
  status_ = scratch_->status();
  if (!status_.ok()) return false;
  Describe();
  NewOperations();
  {
    MutexLock lock(queue_->enqueue());
    for (const Member& member : members_) {
      if (member.op != nullptr) member.op->NoteSweeps();
    }
    status_ = DescribeOutputs();
    if (status_.ok()) status_ = Enqueue();
  }
  const Status done = device_->Synchronize(stream_);
  if (!done.ok()) {
    scratch_->Bury();
    if (status_.ok()) status_ = done;
  }
  if (!status_.ok()) return false;
  Slice();
  return true;
}

}  // namespace multitier::hbm
