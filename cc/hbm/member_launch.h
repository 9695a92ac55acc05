// Arguments of a launch for many members (OutputArgs and its like): the members on the device, and where the items of each end.

#ifndef CC_HBM_MEMBER_LAUNCH_H_
#define CC_HBM_MEMBER_LAUNCH_H_

#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/hbm/device_queue.h"
#include "cc/hbm/scratch.h"

namespace multitier::hbm {

// Copies the members to memory of the scratch.
template <typename Member>
Status CopyMembersUp(DeviceQueue* queue, Scratch* scratch, const std::vector<Member>& members, const Member** on_device) {
  auto* const to = scratch->OnDevice<Member>(members.size());
  MT_RETURN_IF_ERROR(scratch->status());
  *on_device = to;
  return queue->CopyUp(to, members.data(), members.size() * sizeof(Member));
}

// items: of one member.
template <typename Member, typename Args>
Status DescribeLaunch(DeviceQueue* queue, Scratch* scratch, const std::vector<Member>& members, const Member* on_device,
                      uint64_t (*items)(const Member&), Args* args) {
  std::vector<uint32_t> ends;
  uint64_t end = 0;
  for (const Member& member : members) {
    end += items(member);
    if (end > UINT32_MAX) {
      return InvalidArgumentError("a group of ", members.size(), " members: expected at most ", UINT32_MAX,
                                  " rows and keys, found more");
    }
    ends.push_back(static_cast<uint32_t>(end));
  }
  auto* const to = scratch->OnDevice<uint32_t>(ends.size());
  MT_RETURN_IF_ERROR(scratch->status());
  *args = Args{on_device, to, static_cast<uint32_t>(ends.size()), static_cast<uint32_t>(end)};
  return queue->CopyUp(to, ends.data(), ends.size() * sizeof(uint32_t));
}

}  // namespace multitier::hbm

#endif  // CC_HBM_MEMBER_LAUNCH_H_
