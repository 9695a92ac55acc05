// Arguments of a launch for many members (OutputArgs and its like): the members on the device, and where the items of each end.

#ifndef CC_HBM_MEMBER_LAUNCH_H_
#define CC_HBM_MEMBER_LAUNCH_H_

#include <cstdint>
#include <vector>

#include "cc/base/status.h"
#include "cc/hbm/upload.h"

namespace multitier::hbm {

// Kernels step by as many items as they have threads: numbers of 32 bits must not wrap.
constexpr uint64_t kMostItems = UINT32_MAX - (1u << 20);

// items: of one member. on_device: where the members will be.
template <typename Member, typename Args>
Status DescribeLaunch(Upload* upload, const std::vector<Member>& members, const Member* on_device,
                      uint64_t (*items)(const Member&), Args* args) {
  std::vector<uint32_t> ends;
  uint64_t end = 0;
  for (const Member& member : members) {
    end += items(member);
    if (end > kMostItems) {
      return InvalidArgumentError("a group of ", members.size(), " members: expected at most ", kMostItems,
                                  " rows and keys, found more");
    }
    ends.push_back(static_cast<uint32_t>(end));
  }
  *args = Args{on_device, upload->Add(ends), static_cast<uint32_t>(ends.size()), static_cast<uint32_t>(end)};
  return OkStatus();
}

}  // namespace multitier::hbm

#endif  // CC_HBM_MEMBER_LAUNCH_H_
