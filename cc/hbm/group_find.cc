#include "cc/hbm/group_find.h"

#include <algorithm>
#include <utility>

namespace multitier::hbm {

using device::ScanScratch;
using Operation = HbmTable::Operation;

GroupFind::GroupFind(std::vector<MemberOutput*> outputs, bool training)
    : stream_(outputs[0]->table()->queue()->stream()),
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
    gates_.push_back(member.output->table()->TryEnter());
    if (gates_.back() == nullptr) return false;
  }
  return true;
}

void GroupFind::TakeArrays() {
  const size_t members = members_.size();
  Scratch& s = *scratch_;
  keys_ = s.Pinned<device::ConcatArgs::Keys>(members);
  ends_ = s.Pinned<uint32_t>(members);
  tables_ = s.Pinned<device::Table>(members);
  counts_ = s.Pinned<device::MemberCounts>(members);
  bad_ = s.Pinned<uint32_t>(members);
  numbers_ = s.Pinned<Operation::Numbers>(members);
  tables_on_device_ = s.OnDevice<device::Table>(members);
  bad_on_device_ = s.OnDevice<uint32_t>(members);
  auto* const ends = s.OnDevice<uint32_t>(members);
  auto* const keys = s.OnDevice<int64_t>(n_);
  concat_ = device::ConcatArgs{s.OnDevice<device::ConcatArgs::Keys>(members), ends, static_cast<uint32_t>(members), n_, keys};
  uint32_t set_size = 2;
  while (set_size < 2 * n_) set_size *= 2;
  dedup_ = device::DedupArgs{keys,
                             n_,
                             ends,
                             static_cast<uint32_t>(members),
                             s.OnDevice<uint32_t>(set_size),
                             set_size,
                             s.OnDevice<uint32_t>(n_),
                             s.OnDevice<uint32_t>(n_),
                             {s.OnDevice<uint64_t>(ScanScratch::Words(n_))},
                             s.OnDevice<int64_t>(n_),
                             s.OnDevice<uint32_t>(n_),
                             s.OnDevice<uint32_t>(n_),
                             s.OnDevice<uint32_t>(n_),
                             s.OnDevice<uint32_t>(1)};
  find_ = device::FindArgs{tables_on_device_, dedup_.distinct,          dedup_.distinct_tables,  dedup_.num_distinct, n_, 0,
                           /*stamp=*/true,    s.OnDevice<uint8_t*>(n_), s.OnDevice<uint32_t>(n_)};
  localize_ = device::LocalizeArgs{ends,
                                   static_cast<uint32_t>(members),
                                   n_,
                                   dedup_.num_distinct,
                                   dedup_.distinct_tables,
                                   find_.missed,
                                   dedup_.inverse,
                                   s.OnDevice<uint64_t>(n_),
                                   s.OnDevice<device::MemberCounts>(members)};
}

void GroupFind::Describe() {
  uint32_t end = 0;
  for (size_t m = 0; m < members_.size(); ++m) {
    const DeviceKeys& keys = members_[m].output->keys();
    keys_[m] = device::ConcatArgs::Keys{keys.data, keys.is_int32};
    end += static_cast<uint32_t>(keys.n);
    ends_[m] = end;
  }
}

Status GroupFind::Enqueue() {
  const size_t members = members_.size();
  device::Device& d = *device_;
  const device::DeviceKernels& kernels = d.kernels();
  auto* const keys = const_cast<device::ConcatArgs::Keys*>(concat_.keys);
  MT_RETURN_IF_ERROR(d.Copy(stream_, keys, keys_, members * sizeof(*keys)));
  MT_RETURN_IF_ERROR(d.Copy(stream_, const_cast<uint32_t*>(concat_.ends), ends_, members * sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(d.Copy(stream_, tables_on_device_, tables_, members * sizeof(device::Table)));
  MT_RETURN_IF_ERROR(d.Fill(stream_, bad_on_device_, 0xff, members * sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(d.Fill(stream_, dedup_.set, 0xff, dedup_.set_size * sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(d.Fill(stream_, dedup_.counts, 0, n_ * sizeof(uint32_t)));
  MT_RETURN_IF_ERROR(d.Fill(stream_, dedup_.scan.words, 0, ScanScratch::Words(n_) * sizeof(uint64_t)));
  MT_RETURN_IF_ERROR(kernels.concat(stream_, concat_));
  MT_RETURN_IF_ERROR(kernels.dedup(stream_, dedup_));
  MT_RETURN_IF_ERROR(kernels.find(stream_, find_));
  MT_RETURN_IF_ERROR(kernels.localize(stream_, localize_));
  for (Member& member : members_) MT_RETURN_IF_ERROR(member.output->Prepare(member.op.get()));
  MT_RETURN_IF_ERROR(d.Copy(stream_, counts_, localize_.counts, members * sizeof(device::MemberCounts)));
  return d.Copy(stream_, bad_, bad_on_device_, members * sizeof(uint32_t));
}

// What a batch of the member alone would have. Where its distinct keys begin is known only after the device has counted them.
void GroupFind::Slice() {
  for (size_t m = 0; m < members_.size(); ++m) {
    Operation& op = *members_[m].op;
    const device::MemberCounts& counted = counts_[m];
    op.counted->distinct = counted.distinct;
    op.counted->misses = counted.misses;
    op.counted->first_bad = bad_[m];
    op.complete = counted.misses == 0;
    op.find.rows = find_.rows + counted.first;
    op.find.keys = dedup_.distinct + counted.first;
    op.dedup.distinct = dedup_.distinct + counted.first;
    op.dedup.counts = dedup_.counts + counted.first;
    members_[m].output->RowsAre(op);
  }
}

bool GroupFind::Run() {
  if (!EnterGates()) return false;
  TakeArrays();
  if (!scratch_->status().ok()) return false;
  Describe();
  DeviceQueue* const queue = members_[0].output->table()->queue();
  uint64_t number;
  {
    MutexLock lock(queue->enqueue());
    number = queue->NextOperation();
  }
  find_.operation = static_cast<uint32_t>(number);
  for (size_t m = 0; m < members_.size(); ++m) {
    members_[m].op = members_[m].output->table()->NewOperation(number, &tables_[m]);
    Operation& op = *members_[m].op;
    const uint32_t begin = m == 0 ? 0 : ends_[m - 1];
    op.arrays = scratch_;
    op.training = training_;
    op.n = ends_[m] - begin;
    op.counted = &numbers_[m];
    *op.counted = Operation::Numbers();
    op.first_bad = bad_on_device_ + m;
    op.find.num_keys = op.dedup.num_distinct = &localize_.counts[m].distinct;
    op.dedup.inverse = dedup_.inverse + begin;
    op.dedup.entries = localize_.entries + begin;
  }
  Status status;
  {
    MutexLock lock(queue->enqueue());
    status = Enqueue();
  }
  if (device_->Synchronize(stream_).ok()) {
    if (status.ok()) Slice();
    return status.ok();
  }
  scratch_->Bury();
  return false;
}

}  // namespace multitier::hbm
