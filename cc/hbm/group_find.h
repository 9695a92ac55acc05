// GroupFind: looks for the keys of many members, each of a table of its own, in one set of launches.
//
//   concat, dedup, find, localize        as many launches as for one table
//   numbers of all members come down     one wait for the device
//
// Then each member has an Operation as if its keys had been looked for alone: a slice of the group's arrays. Members without
// misses go on with it. Members with misses begin again alone, since rows have to come up from below.
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
    std::shared_ptr<HbmTable::Operation> op;
  };

  // REQUIRES: at least one member; each has keys and a table of its own
  GroupFind(std::vector<MemberOutput*> outputs, bool training);

  GroupFind(const GroupFind&) = delete;
  GroupFind& operator=(const GroupFind&) = delete;

  // False: the members must go on one at a time. While this object exists, no row leaves HBM otherwise than as a victim.
  bool Run();
  std::vector<Member>& members() { return members_; }

 private:
  bool EnterGates();
  void TakeArrays();
  void Describe();
  Status Enqueue();
  void Slice();

  const device::Stream stream_;
  device::Device* const device_;
  const bool training_;
  std::vector<std::unique_ptr<MaybeInsideGate>> gates_;  // until the values are enqueued
  std::vector<Member> members_;
  std::shared_ptr<Scratch> scratch_;
  uint32_t n_ = 0;

  // In pinned memory, and on the device.
  device::ConcatArgs::Keys* keys_ = nullptr;
  uint32_t* ends_ = nullptr;
  device::Table* tables_ = nullptr;
  device::MemberCounts* counts_ = nullptr;
  uint32_t* bad_ = nullptr;
  HbmTable::Operation::Numbers* numbers_ = nullptr;  // [members], for their operations
  device::ConcatArgs concat_{};
  device::DedupArgs dedup_{};
  device::FindArgs find_{};
  device::LocalizeArgs localize_{};
  device::Table* tables_on_device_ = nullptr;
  uint32_t* bad_on_device_ = nullptr;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_GROUP_FIND_H_
