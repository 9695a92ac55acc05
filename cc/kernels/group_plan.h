// GroupPlan as a tensor: a scalar variant that the grouped lookup gives to its gradient and to the updates.
//
// Counted references to one immutable plan; the weights it points into are kept alive with it. Cannot leave the process: the
// ops that take it are placed with the lookup.

#ifndef CC_KERNELS_GROUP_PLAN_H_
#define CC_KERNELS_GROUP_PLAN_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cc/lookup/group_lookup.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace multitier {

struct KeptPlan {
  GroupPlan plan;
  std::vector<tensorflow::Tensor> weights;
};

// Plans that nothing refers to any more, each with its memory: a step takes the one that the step before gave back, and as a
// rule neither allocates nor faults pages in. Keeps as many as there were steps at once, four at most. Thread-safe.
class PlanPool : public std::enable_shared_from_this<PlanPool> {
 public:
  // A plan to be filled; the last reference gives it back.
  std::shared_ptr<KeptPlan> Take();

 private:
  void Give(std::unique_ptr<KeptPlan> plan);

  absl::Mutex mutex_;
  std::vector<std::unique_ptr<KeptPlan>> free_;  // guarded by mutex_
};

class GroupPlanVariant {
 public:
  GroupPlanVariant() = default;
  explicit GroupPlanVariant(std::shared_ptr<const KeptPlan> kept) : kept_(std::move(kept)) {}

  // Null where the tensor holds no plan.
  const std::shared_ptr<const KeptPlan>& kept() const { return kept_; }

  std::string TypeName() const { return "tf_multitier::GroupPlan"; }
  std::string DebugString() const { return "a grouped lookup's plan"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

 private:
  std::shared_ptr<const KeptPlan> kept_;
};

// The plan in input `input`; InvalidArgument where there is none.
absl::Status GetPlan(tensorflow::OpKernelContext* context, int input, std::shared_ptr<const KeptPlan>* kept);

// Gradients of members' values as inputs of an op: which members (attr `members`) and how many, side by side, an input is of
// (attr `joins`).
class GradientInputs {
 public:
  // REQUIRES: the op has `inputs` of them
  absl::Status Init(tensorflow::OpKernelConstruction* context, int inputs);
  const std::vector<int>& members() const { return members_; }

  // Finds where the gradient of each member of the plan begins, and the elements from one of its rows to the next: 0 where it
  // is not among the inputs from `first_input` on. InvalidArgument naming the member where an input is of another shape.
  absl::Status Point(tensorflow::OpKernelContext* context, int first_input, const GroupPlan& plan,
                     std::vector<const float*>* grads, std::vector<int64_t>* strides) const;

 private:
  std::vector<int> members_, joins_;
};

// The attr `joins`: how many of `members` each of `tensors` is of.
absl::Status GetJoins(tensorflow::OpKernelConstruction* context, size_t members, int tensors, std::vector<int>* joins);

}  // namespace multitier

#endif  // CC_KERNELS_GROUP_PLAN_H_
