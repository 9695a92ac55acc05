#include "cc/tensorflow/device/device_plan.h"

#include "cc/hbm/hbm_table.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/lookup/plan_input.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/framework/variant_op_registry.h"

namespace multitier {

std::vector<MemberValues> ValuesOf(const hbm::DevicePlan& plan) {
  std::vector<MemberValues> values(static_cast<size_t>(plan.num_members()));
  for (int i = 0; i < plan.num_members(); ++i) {
    values[static_cast<size_t>(i)] = MemberValues{plan.rows(i), plan.table(i)->dim()};
  }
  return values;
}

void KeptDevicePlan::Use(std::function<void()> work) {
  {
    absl::MutexLock lock(&mutex_);
    if (used_) {
      waiting_.push_back(std::move(work));
      return;
    }
    used_ = true;
  }
  work();
}

void KeptDevicePlan::Release() {
  std::function<void()> next;
  {
    absl::MutexLock lock(&mutex_);
    used_ = !waiting_.empty();
    if (!used_) return;
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  next();
}

absl::Status GetDevicePlan(OpKernelContext* context, int input, std::shared_ptr<KeptDevicePlan>* kept) {
  return PlanInput<DevicePlanVariant>(context, input, "the plan of a grouped lookup on a GPU", kept);
}

namespace {

// As for GroupPlanVariant: a tape around a tf.function asks for zeros of each output of the function.
absl::Status NoDevicePlan(OpKernelContext*, const DevicePlanVariant&, DevicePlanVariant* zeros) {
  *zeros = DevicePlanVariant();
  return absl::OkStatus();
}

using tensorflow::TypeIndex;  // the macro expects the name here
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP, tensorflow::DEVICE_CPU, DevicePlanVariant,
                                         NoDevicePlan);
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP, tensorflow::DEVICE_GPU, DevicePlanVariant,
                                         NoDevicePlan);

[[maybe_unused]] const HostVariant<DevicePlanVariant> host_device_plan;

}  // namespace
}  // namespace multitier
