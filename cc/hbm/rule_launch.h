// Updates of several tables that are to be enqueued: one launch for each rule, and one more for values of 16 bits.

#ifndef CC_HBM_RULE_LAUNCH_H_
#define CC_HBM_RULE_LAUNCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/hbm/device_plan.h"
#include "cc/hbm/kept_update.h"
#include "cc/hbm/upload.h"

namespace multitier::hbm {

struct RuleLaunch {
  device::DeviceRule rule;
  device::UpdateMembersArgs args;
  std::vector<HbmTable::KeptUpdate*> updates;
};

// Of DescribeByRule, and of an array of as many numbers.
size_t RoomOfUpdates(size_t updates);
// One launch for each rule, of tables that differ. A table that is there again is updated in a later launch: two updates of
// one row must not run at the same time.
std::vector<RuleLaunch> DescribeByRule(const std::vector<std::shared_ptr<HbmTable::KeptUpdate>>& kept, Upload* upload);
void EnqueueByRule(DeviceQueue* queue, const device::DeviceKernels& kernels, const std::vector<RuleLaunch>& launches);

// Repeats a call after which an operation cannot be undone, or whose tables have counted it.
template <typename Call>
Status Repeated(Call call) {
  Status status;
  for (int tries = 0; tries < HbmTable::kTries; ++tries) {
    status = call();
    if (status.ok()) break;
  }
  return status;
}

}  // namespace multitier::hbm

#endif  // CC_HBM_RULE_LAUNCH_H_
