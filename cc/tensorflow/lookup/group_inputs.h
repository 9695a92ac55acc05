// The members of a group as inputs of an op: keys, rows and weights.

#ifndef CC_TENSORFLOW_LOOKUP_GROUP_INPUTS_H_
#define CC_TENSORFLOW_LOOKUP_GROUP_INPUTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "cc/group_lookup/group_lookup.h"
#include "cc/tensorflow/lookup/group_specs.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace multitier {

struct GroupInputs {
  std::vector<GroupMember> members;  // without units and outputs
  std::vector<std::unique_ptr<KeyInput>> keys;
  std::vector<std::vector<uint16_t>> tables;    // of each member
  std::vector<tensorflow::Tensor> weights;      // of the members that have some
  std::vector<tensorflow::TensorShape> shapes;  // of each member's values
};

// Inputs from `first` on: the keys of each member, then all indices, dense shapes, weights, and table numbers. InvalidArgument,
// with the member's name: their shapes do not match, or a table number is out of range.
absl::Status ParseMembers(tensorflow::OpKernelContext* context, const std::vector<MemberSpec>& specs, int first, bool training,
                          GroupInputs* inputs);

}  // namespace multitier

#endif  // CC_TENSORFLOW_LOOKUP_GROUP_INPUTS_H_
