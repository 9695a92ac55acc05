// What the kernels of grouped lookups on the CPU and on GPUs have in common: the attrs of their ops, the shapes of values, and
// the gradients among an op's inputs.

#ifndef CC_TENSORFLOW_LOOKUP_GROUP_SPECS_H_
#define CC_TENSORFLOW_LOOKUP_GROUP_SPECS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/group_lookup/group_lookup.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace multitier {

enum class MemberSource { kTable, kVariable, kTensor };

// What the attrs of a grouped lookup state of one member.
struct MemberSpec {
  std::string name;
  MemberSource source;
  Routing routing;
  GroupForm form;
  Combiner combiner;
  int units, dim;
  bool weighted;
  float max_norm;
  int tables;  // its keys have table numbers below this; 0: they have none

  bool is_sequence() const { return form == GroupForm::kSequence || form == GroupForm::kRaggedSequence; }
  bool is_ragged() const { return form == GroupForm::kRagged || form == GroupForm::kRaggedSequence; }
  bool has_shape() const { return form == GroupForm::kSparse || form == GroupForm::kSequence; }
};

// The op's shape function has checked that each list has one entry per member, and that the inputs match the lists.
absl::Status ReadMemberSpecs(tensorflow::OpKernelConstruction* context, std::vector<MemberSpec>* specs);

// The error of a member: "expected ..., found shape ...".
absl::Status RefuseMember(const MemberSpec& spec, const std::string& expected, const tensorflow::Tensor& found);

// The shape of a member's values, [batch, dim] or [batch, steps, dim]. InvalidArgument if it does not fit in int64.
absl::Status ShapeOfRows(const MemberSpec& spec, int64_t batch, int64_t steps, tensorflow::TensorShape* shape);

// The shape of the values of `count` members, concatenated along the last axis. shapes: of their values. InvalidArgument, with
// the member's name, if leading dimensions differ.
absl::Status ShapeSideBySide(const MemberSpec* specs, const tensorflow::TensorShape* shapes, int count,
                             tensorflow::TensorShape* shape);

// Reads the attr `joins`: the number of members in each of `tensors` tensors.
absl::Status GetJoins(tensorflow::OpKernelConstruction* context, size_t members, int tensors, std::vector<int>* joins);

// Checks the ids, the indices or row splits, and the dense shape of a member that is not dense. Does not read them. shape: null
// if the form has none.
absl::Status CheckRows(const MemberSpec& spec, const tensorflow::Tensor& ids, const tensorflow::Tensor& rows,
                       const tensorflow::Tensor* shape);

// Checks that there is one weight for each id.
absl::Status CheckMemberWeights(const MemberSpec& spec, const tensorflow::Tensor& ids, const tensorflow::Tensor& weights);

// Allocates the outputs: output v has the values of joins[v] members side by side. shapes: of each member's values. Sets `out`
// and `stride` of the members.
template <typename Member>
absl::Status AllocateValues(tensorflow::OpKernelContext* context, const std::vector<MemberSpec>& specs,
                            const std::vector<int>& joins, const std::vector<tensorflow::TensorShape>& shapes,
                            std::vector<Member>* members) {
  size_t first = 0;
  for (size_t v = 0; v < joins.size(); first += static_cast<size_t>(joins[v++])) {
    tensorflow::TensorShape shape;
    TF_RETURN_IF_ERROR(ShapeSideBySide(&specs[first], &shapes[first], joins[v], &shape));
    tensorflow::Tensor* values = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(static_cast<int>(v), shape, &values));
    float* to = values->flat<float>().data();
    for (size_t i = first; i < first + static_cast<size_t>(joins[v]); to += specs[i++].dim) {
      (*members)[i].out = to;
      (*members)[i].stride = shape.dim_size(shape.dims() - 1);
    }
  }
  return absl::OkStatus();
}

// The values of one member of a plan.
struct MemberValues {
  int64_t rows;  // each step of a sequence counts as a row
  int dim;
};

// The gradients of members' values as inputs of an op. Attr `members`: the members, in order. Attr `joins`: the number of
// concatenated members in each input.
class GradientInputs {
 public:
  // REQUIRES: the op has `inputs` inputs with gradients
  absl::Status Init(tensorflow::OpKernelConstruction* context, int inputs);
  const std::vector<int>& members() const { return members_; }

  // Sets the address of the gradient of each member of the plan, and its row stride in elements. Null and 0 if the member is
  // not among the inputs from `first_input` on. Does not read the gradients. InvalidArgument, with the member's number, if an
  // input has another shape.
  absl::Status Point(tensorflow::OpKernelContext* context, int first_input, const std::vector<MemberValues>& plan,
                     std::vector<const float*>* grads, std::vector<int64_t>* strides) const;

 private:
  std::vector<int> members_, joins_;
};

// The attrs of the gradient of a grouped lookup. Outputs: keys, sums and counts of each unit, then the gradients of weights.
struct GroupGradAttrs {
  absl::Status Init(tensorflow::OpKernelConstruction* context);

  GradientInputs inputs;
  std::vector<int> units;      // of each member
  std::vector<bool> weighted;  // whether its weights get a gradient
  int num_units = 0;
};

}  // namespace multitier

#endif  // CC_TENSORFLOW_LOOKUP_GROUP_SPECS_H_
