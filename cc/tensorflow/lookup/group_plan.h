// GroupPlan as a tensor: a scalar variant that the grouped lookup passes to its gradient and to the updates.
//
// The variants share one immutable plan by reference counts. The plan also keeps the weights alive to which it points. A plan
// cannot leave the process: the ops that take it are placed on the device of the lookup.

#ifndef CC_TENSORFLOW_LOOKUP_GROUP_PLAN_H_
#define CC_TENSORFLOW_LOOKUP_GROUP_PLAN_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cc/group_lookup/group_lookup.h"
#include "cc/tensorflow/lookup/group_specs.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace multitier {

struct KeptPlan {
  GroupPlan plan;
  std::vector<tensorflow::Tensor> weights;
};

// Plans that nothing refers to any more, with their memory. A step takes the plan that an earlier step returned, and so usually
// neither allocates memory nor causes page faults. The pool keeps one plan for each step that ran at the same time, at most
// four. Thread-safe.
template <typename Kept>
class PlanPool : public std::enable_shared_from_this<PlanPool<Kept>> {
 public:
  // A plan to fill. When its last reference is released, it returns to the pool.
  std::shared_ptr<Kept> Take() {
    std::unique_ptr<Kept> plan;
    {
      absl::MutexLock lock(&mutex_);
      if (!free_.empty()) {
        plan = std::move(free_.back());
        free_.pop_back();
      }
    }
    if (plan == nullptr) plan = std::make_unique<Kept>();
    return std::shared_ptr<Kept>(plan.release(),
                                 [pool = this->shared_from_this()](Kept* given) { pool->Give(std::unique_ptr<Kept>(given)); });
  }

 private:
  void Give(std::unique_ptr<Kept> plan) {
    constexpr size_t kMostKept = 4;
    plan->weights.clear();
    absl::MutexLock lock(&mutex_);
    if (free_.size() < kMostKept) free_.push_back(std::move(plan));
  }

  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Kept>> free_ ABSL_GUARDED_BY(mutex_);
};

class GroupPlanVariant {
 public:
  GroupPlanVariant() = default;
  explicit GroupPlanVariant(std::shared_ptr<const KeptPlan> kept) : kept_(std::move(kept)) {}

  // Null if the tensor has no plan.
  const std::shared_ptr<const KeptPlan>& kept() const { return kept_; }

  std::string TypeName() const { return "tf_multitier::GroupPlan"; }
  std::string DebugString() const { return "a grouped lookup's plan"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

 private:
  std::shared_ptr<const KeptPlan> kept_;
};

// The values of each member.
std::vector<MemberValues> ValuesOf(const GroupPlan& plan);

// The plan in input `input`. InvalidArgument if there is none.
absl::Status GetPlan(tensorflow::OpKernelContext* context, int input, std::shared_ptr<const KeptPlan>* kept);

}  // namespace multitier

#endif  // CC_TENSORFLOW_LOOKUP_GROUP_PLAN_H_
