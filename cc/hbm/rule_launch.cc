#include "cc/hbm/rule_launch.h"

#include <map>
#include <tuple>

namespace multitier::hbm {

using Kept = HbmTable::KeptUpdate;

size_t RoomOfUpdates(size_t updates) {
  return Upload::Room<device::UpdateArgs>(updates) + (updates + 1) * Upload::Room<uint32_t>(1) +
         2 * Upload::Room<uint32_t>(updates);
}

std::vector<RuleLaunch> DescribeByRule(const std::vector<std::shared_ptr<Kept>>& kept, Upload* upload) {
  std::map<std::tuple<int, device::DeviceRule, bool>, std::vector<Kept*>> by_rule;
  std::map<const HbmTable*, int> before;  // updates of the table
  for (const auto& one : kept) {
    const bool halves = one->args.value_dtype != DType::kFloat32;
    by_rule[{before[one->table()]++, one->rule, halves}].push_back(one.get());
  }
  std::vector<device::UpdateArgs> args;
  for (const auto& [kind, updates] : by_rule) {
    for (const Kept* one : updates) args.push_back(one->args);
  }
  const device::UpdateArgs* on_device = upload->Add(args);
  std::vector<RuleLaunch> launches;
  for (const auto& [kind, updates] : by_rule) {
    std::vector<uint32_t> ends;
    uint32_t end = 0;
    for (const Kept* one : updates) ends.push_back(end += one->args.max_keys);
    const auto members = static_cast<uint32_t>(updates.size());
    const auto& [turn, rule, halves] = kind;
    launches.push_back({rule, {on_device, upload->Add(ends), members, end, halves}, updates});
    on_device += members;
  }
  return launches;
}

void EnqueueByRule(DeviceQueue* queue, const device::DeviceKernels& kernels, const std::vector<RuleLaunch>& launches) {
  MutexLock lock(queue->enqueue());
  for (const RuleLaunch& launch : launches) {
    const Status status = Repeated([&] { return kernels.update_members(queue->stream(), launch.rule, launch.args); });
    for (Kept* one : launch.updates) one->Note(status);
  }
}

}  // namespace multitier::hbm
