// DevicePlan::State: what a training lookup keeps, and the launches behind it.
//
//   plan_gradient.cc    the gradients of the values, summed by distinct key
//   plan_update.cc      the updates of the rows
//
// Thread-compatible.

#ifndef CC_HBM_DEVICE_PLAN_H_
#define CC_HBM_DEVICE_PLAN_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/device/kernels/member_items.h"
#include "cc/hbm/device_operations.h"
#include "cc/hbm/member_output.h"

namespace multitier::hbm {

struct DevicePlan::State {
  // Keys that were looked for together: of a group, or of one member. Its arrays are those of the members' operations.
  struct Batch {
    uint32_t n = 0, distinct = 0;
    const uint64_t* entries = nullptr;  // on the device [n]
    const uint64_t* sorted = nullptr;   // by distinct key; null: not yet
    uint32_t* begins = nullptr;         // [distinct] where the entries of each key begin
  };
  struct Member {
    std::unique_ptr<MemberOutput> output;
    std::shared_ptr<HbmTable::Operation> op;  // null: the member has no keys
    uint64_t number = 0;                      // of the operation, once its group has looked
    std::shared_ptr<Batch> batch;             // of op
    uint32_t first = 0, first_entry = 0;      // of the member, in the batch: distinct key and entry
    int64_t distinct() const { return op == nullptr ? 0 : op->counted->distinct; }
  };

  // Sorts the entries of the member's batch, unless that was done.
  Status Sort(Member* member);
  // What the kernels must know of a member's gradient.
  Status Describe(const DeviceGradient& gradient, device::GradientMember* described);
  // One set of launches for all.
  Status EnqueueGradients(const std::vector<device::GradientMember>& gradients);
  struct Remaining;  // an update that needs the host
  struct Filtered;   // an update of which the table below trains some keys
  struct Left;
  // Enqueues what can be enqueued. The first error; the updates without one were enqueued, or are left.
  Status EnqueueUpdates(const std::vector<DeviceUpdate>& updates, Left* left);
  // Those with keys. sums: of each, by distinct key. gradients: of the sums that are not given
  Status EnqueueKept(const std::vector<const DeviceUpdate*>& updates, const std::vector<const float*>& sums,
                     const std::vector<device::GradientMember>& gradients, Left* left);
  Status Remain(const Member& member, const ApplyRequest& request, const float* sums, std::vector<Remaining>* remaining);
  // --- filtered_update.cc
  // On a worker. Those whose keys must all be looked for again remain.
  Status UpdateFiltered(std::vector<Filtered> updates, std::vector<Remaining>* remaining);
  // Of tables that differ.
  Status UpdateFilteredTogether(const std::vector<Filtered>& updates, std::vector<Remaining>* remaining);

  std::vector<Member> members;
  std::shared_ptr<Scratch> scratch;  // of what was enqueued behind the lookup
};

// The launches of the gradients of members.
class GradientGroup {
 public:
  static size_t Room(size_t members);
  // given_values: every entry has a value of its own (GradientMember).
  Status Describe(const std::vector<device::GradientMember>& gradients, bool given_values, Upload* upload);
  // Once the upload was sent.
  Status Enqueue(device::Stream stream, const device::DeviceKernels& kernels) const;

 private:
  device::GradientArgs sums_{}, corrections_{};
};

struct DevicePlan::State::Remaining {
  HbmTable* table;
  DeviceKeys keys;
  HbmTable::BatchGrads grads;
  ApplyRequest request;
  std::shared_ptr<HbmTable::Operation> owner;  // of keys and grads, or null
  std::vector<uint16_t> tables = {};           // of keys, or empty
};

struct DevicePlan::State::Filtered {
  const Member* member;
  const float* sums;
  ApplyRequest request;
};

struct DevicePlan::State::Left {
  std::vector<Remaining> remaining;
  std::vector<Filtered> filtered;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_DEVICE_PLAN_H_
