// GroupFind: looks up many members, each of a table of its own, in one set of launches.
//
//   entry rows, dedup, find, localize, scales, values    as many launches as for one table
//   numbers of all members come down                     one wait for the device
//
// Then each member has an Operation as if its keys had been looked for alone: a slice of the group's arrays. Members without
// misses have their values. Members with misses begin again alone, since rows have to come up from below. Members without keys
// need no table: their values are zeros.
//
// The operations share the group's arrays. Used by one thread.

#ifndef CC_HBM_GROUP_FIND_H_
#define CC_HBM_GROUP_FIND_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/gate.h"
#include "cc/hbm/member_output.h"

namespace multitier::hbm {

class GroupFind {
 public:
  struct Member {
    MemberOutput* output = nullptr;
    std::shared_ptr<HbmTable::Operation> op;  // null: it has no keys
  };

  // REQUIRES: at least one member; each that has keys has a table of its own
  GroupFind(std::vector<MemberOutput*> outputs, bool training);

  GroupFind(const GroupFind&) = delete;
  GroupFind& operator=(const GroupFind&) = delete;

  // False: the members must go on one at a time. While this object exists, no row leaves HBM otherwise than as a victim.
  bool Run();
  std::vector<Member>& members() { return members_; }
  // Why Run gave false: OK if a gate is closed.
  const Status& status() const { return status_; }
  // For the gradients of the members: see DevicePlan::State::Batch.
  uint32_t n() const { return n_; }
  uint32_t distinct() const { return distinct_; }
  const uint64_t* entries() const { return localize_.dedup.entries; }
  uint32_t first(size_t member) const { return counts_[member].first; }
  uint32_t first_entry(size_t member) const { return member == 0 ? 0 : ends_[member - 1]; }

 private:
  bool EnterGates();
  void TakeArrays();
  void Describe();
  void NewOperations();
  Status DescribeOutputs();
  Status Enqueue();
  void Slice();

  DeviceQueue* const queue_;
  const device::Stream stream_;
  device::Device* const device_;
  const bool training_;
  Status status_;
  std::vector<std::unique_ptr<MaybeInsideGate>> gates_;  // until the values are enqueued
  std::vector<Member> members_;
  std::shared_ptr<Scratch> scratch_;
  OutputGroup outputs_;
  uint32_t n_ = 0, distinct_ = 0;

  // In pinned memory, and on the device.
  device::KeySource* sources_ = nullptr;
  uint32_t* ends_ = nullptr;
  device::Table* tables_ = nullptr;
  device::MemberCounts* counts_ = nullptr;
  uint32_t* bad_ = nullptr;
  HbmTable::Operation::Numbers* numbers_ = nullptr;  // [members], for their operations
  device::DedupArgs dedup_{};
  device::FindArgs find_{};
  device::LocalizeArgs localize_{};
  device::Table* tables_on_device_ = nullptr;
  uint32_t* bad_on_device_ = nullptr;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_GROUP_FIND_H_
