// DevicePlan of a grouped lookup as a tensor: a scalar variant in host memory that the lookup passes to its gradient and to the
// updates.
//
// Owns what the plan's pointers point to: the inputs of the lookup and its variables. The plan may be used by one operation at
// a time, and TensorFlow may run several ops that take it at once: each takes its turn (Use, Release). Thread-safe.

#ifndef CC_TENSORFLOW_DEVICE_DEVICE_PLAN_H_
#define CC_TENSORFLOW_DEVICE_DEVICE_PLAN_H_

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cc/hbm/device_operations.h"
#include "cc/tensorflow/lookup/group_specs.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace multitier {

class KeptDevicePlan {
 public:
  std::vector<std::shared_ptr<VariableState>> states;  // outlive the plan
  std::vector<tensorflow::Tensor> inputs;
  hbm::DevicePlan plan;
  std::vector<bool> weighted;  // of each member

  // Runs the work when no other operation uses the plan: at once, or on the thread of the Release before.
  void Use(std::function<void()> work);
  void Release();

 private:
  absl::Mutex mutex_;
  bool used_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
};

class DevicePlanVariant {
 public:
  DevicePlanVariant() = default;
  explicit DevicePlanVariant(std::shared_ptr<KeptDevicePlan> kept) : kept_(std::move(kept)) {}

  // Null if the tensor has no plan.
  const std::shared_ptr<KeptDevicePlan>& kept() const { return kept_; }

  std::string TypeName() const { return "tf_multitier::DevicePlan"; }
  std::string DebugString() const { return "the plan of a grouped lookup on a GPU"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

 private:
  std::shared_ptr<KeptDevicePlan> kept_;
};

// The values of each member.
std::vector<MemberValues> ValuesOf(const hbm::DevicePlan& plan);

// The plan in input `input`. InvalidArgument if there is none.
absl::Status GetDevicePlan(tensorflow::OpKernelContext* context, int input, std::shared_ptr<KeptDevicePlan>* kept);

}  // namespace multitier

#endif  // CC_TENSORFLOW_DEVICE_DEVICE_PLAN_H_
