// Ops that make and train embedding variables.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/tensorflow/ops/option_attrs.h"
#include "cc/tensorflow/ops/shape_functions.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace multitier {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeAndType;
using tensorflow::shape_inference::ShapeHandle;

// The handle's data has float32, whatever the type of the variable's values: TensorFlow makes gradients of that type where a
// branch of tf.cond does not use the variable.
absl::Status HandleOfShape(InferenceContext* c) {
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(VariableShape(c, &shape));
  c->set_output(0, c->Scalar());
  c->set_output_handle_shapes_and_types(0, std::vector<ShapeAndType>{{shape, tensorflow::DT_FLOAT}});
  return absl::OkStatus();
}

absl::Status HandleShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckOptions(c));
  return HandleOfShape(c);
}

absl::Status OwnedHandleShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  return HandleOfShape(c);
}

absl::Status InitializeShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckOptions(c));
  TF_RETURN_IF_ERROR(HandleOnly(c));
  ShapeHandle shape, matrix;
  TF_RETURN_IF_ERROR(VariableShape(c, &shape));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 2, &matrix));
  DimensionHandle dim;
  return c->Merge(c->Dim(shape, 1), c->Dim(matrix, 1), &dim);
}

// AddSlots and Apply: their list attrs are parallel.
absl::Status SameLength(const char* a, size_t a_size, const char* b, size_t b_size) {
  if (a_size == b_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(b, ": expected ", a_size, " entries, one for each of ", a, ", found ", b_size));
}

absl::Status AddSlotsShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(HandleOnly(c));
  std::vector<std::string> names;
  std::vector<int64_t> dims;
  std::vector<float> initial_values;
  TF_RETURN_IF_ERROR(c->GetAttr("slot_names", &names));
  TF_RETURN_IF_ERROR(c->GetAttr("slot_dims", &dims));
  TF_RETURN_IF_ERROR(c->GetAttr("slot_initial_values", &initial_values));
  TF_RETURN_IF_ERROR(SameLength("slot_names", names.size(), "slot_dims", dims.size()));
  return SameLength("slot_names", names.size(), "slot_initial_values", initial_values.size());
}

absl::Status ApplyShape(InferenceContext* c) {
  DimensionHandle dim, unused_dim;
  TF_RETURN_IF_ERROR(EmbeddingDim(c, 0, &dim));
  ShapeHandle keys, grads, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &keys));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 2, &grads));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(keys, 0), c->Dim(grads, 0), &unused_dim));
  TF_RETURN_IF_ERROR(c->Merge(dim, c->Dim(grads, 1), &unused_dim));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(3), 1, &unused));
  int tables = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("T", &tables));
  TF_RETURN_IF_ERROR(StepAndHyper(c, 4, c->num_inputs() - tables));
  if (tables > 0) TF_RETURN_IF_ERROR(c->Merge(keys, c->input(c->num_inputs() - 1), &unused));
  std::vector<std::string> names;
  std::vector<float> initial_values;
  TF_RETURN_IF_ERROR(c->GetAttr("slot_names", &names));
  TF_RETURN_IF_ERROR(c->GetAttr("slot_initial_values", &initial_values));
  return SameLength("slot_names", names.size(), "slot_initial_values", initial_values.size());
}

#define MULTITIER_HANDLE_OP(name)             \
  REGISTER_OP(name)                           \
      .Output("handle: resource")             \
      .Attr("container: string = ''")         \
      .Attr("shared_name: string = ''")       \
      .MULTITIER_OPTION_ATTRS.SetIsStateful() \
      .SetShapeFn(HandleShape)

// Its type names the package in the error of a process that loads a function and lacks the ops.
REGISTER_OP("Multitier_import_tf_multitier").SetShapeFn(tensorflow::shape_inference::NoOutputs).Doc(R"doc(
Does nothing.

The first of this package's ops in each function. In a process without the package, TensorFlow's error then names it.
)doc");

MULTITIER_HANDLE_OP("MultitierEmbeddingVariableHandle").Doc(R"doc(
Creates the handle of an embedding variable.

MultitierInitialize or MultitierRestore creates the variable itself. Handles with equal container and shared_name refer to the
same variable, in sessions that share a resource manager. The node's name replaces an empty shared_name. The attrs are the
options of MultitierInitialize, so that the graph contains the full description of the variable.

handle: scalar; its static shape is [0, dim].
dtype: of the values in every tier. Slots are float32, and so are the values that ops take and give.
key_dtype: of the variable's keys. Ops take int64, or int32, which they widen. Python gives uint64 as its bits, uint32 as int64.
shape: [0, dim], dim >= 1.
options: a JSON object with the version of its form and the options that are not at their defaults: cc/options/option_list.cc has
  all of them. Their values are checked when the op is built.
partition_index: the number of this partition of a partitioned variable.
num_partitions: the number of partitions.
)doc");

MULTITIER_HANDLE_OP("MultitierHbmEmbeddingVariableHandle").Doc(R"doc(
Creates the handle of an embedding variable whose storage type has HBM. It has a kernel for GPUs.

TensorFlow puts all ops of a variable on one device. If a GPU is the device of this op, or if no device is given and there is a
GPU, the variable's ops run on that GPU. The ops of a MultitierEmbeddingVariableHandle always run on a CPU.

For the output and the attrs see MultitierEmbeddingVariableHandle.
)doc");

#define MULTITIER_OWNED_HANDLE_OP(name)                  \
  REGISTER_OP(name)                                      \
      .Input("variable_name: string")                    \
      .Output("handle: resource")                        \
      .Attr("dtype: {float, half, bfloat16} = DT_FLOAT") \
      .Attr("shape: shape")                              \
      .SetIsStateful()                                   \
      .SetShapeFn(OwnedHandleShape)

MULTITIER_OWNED_HANDLE_OP("MultitierOwnedEmbeddingVariableHandle").Doc(R"doc(
Creates an embedding variable that belongs to its handle, for eager execution.

Every run creates another variable, also for the same name. MultitierInitialize or MultitierRestore creates its table. The table is
deleted by MultitierDestroy, or with the last copy of the handle.

variable_name: scalar: the variable's name in messages.
handle: scalar; its static shape is [0, dim].
dtype, shape: see MultitierEmbeddingVariableHandle.
)doc");

MULTITIER_OWNED_HANDLE_OP("MultitierOwnedHbmEmbeddingVariableHandle").Doc(R"doc(
MultitierOwnedEmbeddingVariableHandle of a variable whose storage type has HBM. It has a kernel for GPUs.

For the input, the output and the attrs see MultitierOwnedEmbeddingVariableHandle.
)doc");

REGISTER_OP("MultitierDestroy").Input("handle: resource").SetIsStateful().SetShapeFn(HandleOnly).Doc(R"doc(
Deletes the variable's table with its memory and files. Does nothing if there is none.

Operations that are running on the table finish on it.
)doc");

REGISTER_OP("MultitierInitialize")
    .Input("handle: resource")
    .Input("matrix: float")
    .MULTITIER_OPTION_ATTRS.SetIsStateful()
    .SetShapeFn(InitializeShape)
    .Doc(R"doc(
Creates the variable's table, empty. Replaces an existing table.

Operations that are running on the old table finish on it.

matrix: [initializer.matrix_rows, dim] if the initializer is matrix: key k starts with row k mod matrix_rows. Else [0, dim].
)doc");

REGISTER_OP("MultitierAddSlots")
    .Input("handle: resource")
    .Attr("slot_names: list(string)")
    .Attr("slot_dims: list(int)")
    .Attr("slot_initial_values: list(float)")
    .SetIsStateful()
    .SetShapeFn(AddSlotsShape)
    .Doc(R"doc(
Adds these optimizer slots to every row unless they exist. In existing rows a new slot has its initial value.

slot_names: column names, unique in the variable.
slot_dims: number of elements of each slot.
slot_initial_values: initial value of the elements of each slot.
)doc");

REGISTER_OP("MultitierIsInitialized")
    .Input("handle: resource")
    .Output("is_initialized: bool")
    .SetIsStateful()
    .SetShapeFn(HandleToScalar)
    .Doc("Whether the variable has a table.");

REGISTER_OP("MultitierApply")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Input("grads: dtype")
    .Input("counts: int64")
    .Input("global_step: int64")
    .Input("hyper: H * float")
    .Input("tables: T * int64")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .Attr("H: int >= 0")
    .Attr("T: int >= 0 = 0")
    .Attr("rule: string")
    .Attr("slot_names: list(string)")
    .Attr("slot_initial_values: list(float)")
    .Attr("use_locking: bool = false")
    .SetIsStateful()
    .SetShapeFn(ApplyShape)
    .Doc(R"doc(
Updates each distinct key once with the sum of its gradients. Keys without a row get one first.

The update is atomic.

keys: [n], repeats allowed.
grads: [n, dim].
counts: [n] number of occurrences of each entry, which is added to the key's frequency; or [0]: one each.
global_step: the step, which is the new version of the rows unless the variable's score is another; -1: the table's own count of
  applies.
hyper: scalars of the rule, in the rule's order; for adam_catch_up then [steps]: alpha of the steps before.
tables: nothing, or one tensor [n]: the table of each key; -1: not known. A key without a row, of a variable with a list of
  initializers, needs it.
rule: name of the update rule: sgd, adagrad, ...
slot_names: columns that serve as the rule's slots, in the rule's order.
slot_initial_values: parallel to slot_names, for columns that do not exist yet.
use_locking: accepted for compatibility; updates of a row are always exclusive.
)doc");

REGISTER_OP("MultitierBeginStep")
    .Input("variables: N * resource")
    .Output("step: int64")
    .Attr("N: int >= 1")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Begins a step, which is in flight as long as its tensor lives: give it to the updates of the step.

variables: int64 scalars on the CPU whose values the updates may write as versions.
step: the value of the first.
)doc");

REGISTER_OP("MultitierLeastInFlight")
    .Input("variable: resource")
    .Output("least: int64")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc("The least of a variable's value and of what the steps in flight read of it (MultitierBeginStep).");

}  // namespace
}  // namespace multitier
