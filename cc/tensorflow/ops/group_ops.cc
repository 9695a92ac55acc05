// The grouped lookup: one op for the lookups of many variables, the op of its gradient, and the op of the update.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/ops/group_shapes.h"
#include "cc/tensorflow/ops/shape_functions.h"
#include "tensorflow/core/framework/op.h"

namespace multitier {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status Count(InferenceContext* c, const char* attr, int* n) { return c->GetAttr(attr, n); }

absl::Status GroupLookupShape(InferenceContext* c) {
  int num_values, num_handles, num_matrices, num_indices, num_shapes, num_weights;
  TF_RETURN_IF_ERROR(Count(c, "N", &num_values));
  TF_RETURN_IF_ERROR(Count(c, "H", &num_handles));
  TF_RETURN_IF_ERROR(Count(c, "M", &num_matrices));
  TF_RETURN_IF_ERROR(Count(c, "I", &num_indices));
  TF_RETURN_IF_ERROR(Count(c, "S", &num_shapes));
  TF_RETURN_IF_ERROR(Count(c, "W", &num_weights));
  std::vector<std::string> names, sources, strategies, forms, combiners;
  std::vector<int> units, dims, joins;
  std::vector<bool> weighted;
  std::vector<float> max_norms;
  TF_RETURN_IF_ERROR(c->GetAttr("members", &names));
  const size_t n = names.size();
  const int num_members = static_cast<int>(n);
  TF_RETURN_IF_ERROR(Joins(c, num_values, n, &joins));
  TF_RETURN_IF_ERROR(ListOf(c, "sources", n, &sources));
  TF_RETURN_IF_ERROR(ListOf(c, "strategies", n, &strategies));
  TF_RETURN_IF_ERROR(ListOf(c, "units", n, &units));
  TF_RETURN_IF_ERROR(ListOf(c, "forms", n, &forms));
  TF_RETURN_IF_ERROR(ListOf(c, "combiners", n, &combiners));
  TF_RETURN_IF_ERROR(ListOf(c, "dims", n, &dims));
  TF_RETURN_IF_ERROR(ListOf(c, "weighted", n, &weighted));
  TF_RETURN_IF_ERROR(ListOf(c, "max_norms", n, &max_norms));
  const int keys = num_handles + num_matrices;
  int handles = 0, matrices = 0, weights = 0;
  for (size_t i = 0; i < n; ++i) {
    if (units[i] < 1 || dims[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(names[i], ": expected units and dim of at least 1, found ", units[i], " and ", dims[i]));
    }
    (sources[i] == "tensor" ? matrices : handles) += units[i];
    weights += weighted[i];
  }
  TF_RETURN_IF_ERROR(ExpectTotal("handles", handles, num_handles));
  TF_RETURN_IF_ERROR(ExpectTotal("matrices", matrices, num_matrices));
  TF_RETURN_IF_ERROR(CheckEntries(forms, num_indices, num_shapes));
  TF_RETURN_IF_ERROR(ExpectTotal("weights", weights, num_weights));
  TF_RETURN_IF_ERROR(ExpectTotal("keys", num_members, c->num_inputs() - keys - num_indices - num_shapes - num_weights));
  ShapeHandle unused;
  for (int i = 0; i < num_handles; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  for (int i = 0; i < num_matrices; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(num_handles + i), 2, &unused));
  TF_RETURN_IF_ERROR(ValuesOfMembers(c, keys, num_indices, names, forms, dims, joins));
  c->set_output(num_values, c->Scalar());
  return absl::OkStatus();
}

absl::Status GroupLookupGradShape(InferenceContext* c) {
  int num_grads, num_units, num_weights;
  TF_RETURN_IF_ERROR(Count(c, "G", &num_grads));
  TF_RETURN_IF_ERROR(Count(c, "U", &num_units));
  TF_RETURN_IF_ERROR(Count(c, "W", &num_weights));
  std::vector<int> members, units, joins;
  std::vector<bool> weighted;
  TF_RETURN_IF_ERROR(c->GetAttr("members", &members));
  TF_RETURN_IF_ERROR(Joins(c, num_grads, members.size(), &joins));
  TF_RETURN_IF_ERROR(ListOf(c, "units", members.size(), &units));
  TF_RETURN_IF_ERROR(ListOf(c, "weighted", members.size(), &weighted));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  int unit = 0, weights = 0;
  size_t member = 0;
  for (int g = 0; g < num_grads; ++g) {
    ShapeHandle grad;
    TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1 + g), 1, &grad));
    const int joined = joins[static_cast<size_t>(g)];
    for (int j = 0; j < joined; ++j, ++member) {
      const DimensionHandle dim = joined > 1 ? c->UnknownDim() : c->Dim(grad, -1);
      for (int u = 0; u < units[member] && unit < num_units; ++u, ++unit) {
        const DimensionHandle n = c->UnknownDim();
        c->set_output(unit, c->Vector(n));
        c->set_output(num_units + unit, c->Matrix(n, dim));
        c->set_output(2 * num_units + unit, c->Vector(n));
      }
      weights += weighted[member];
    }
  }
  int total = 0;
  for (const int u : units) total += u;
  TF_RETURN_IF_ERROR(ExpectTotal("units", total, num_units));
  TF_RETURN_IF_ERROR(ExpectTotal("weights", weights, num_weights));
  for (int w = 0; w < num_weights; ++w) c->set_output(3 * num_units + w, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

absl::Status GroupApplyShape(InferenceContext* c) {
  int num_units, num_sums, num_grads;
  TF_RETURN_IF_ERROR(Count(c, "U", &num_units));
  TF_RETURN_IF_ERROR(Count(c, "S", &num_sums));
  TF_RETURN_IF_ERROR(Count(c, "G", &num_grads));
  const size_t n = static_cast<size_t>(num_units);
  std::vector<int> units, members, joins;
  std::vector<bool> summed;
  std::vector<std::string> names;
  std::vector<float> initial_values;
  TF_RETURN_IF_ERROR(ListOf(c, "units", n, &units));
  TF_RETURN_IF_ERROR(ListOf(c, "summed", n, &summed));
  TF_RETURN_IF_ERROR(c->GetAttr("members", &members));
  TF_RETURN_IF_ERROR(Joins(c, num_grads, members.size(), &joins));
  TF_RETURN_IF_ERROR(c->GetAttr("slot_names", &names));
  TF_RETURN_IF_ERROR(c->GetAttr("slot_initial_values", &initial_values));
  TF_RETURN_IF_ERROR(ExpectTotal("sums", static_cast<int>(std::count(summed.begin(), summed.end(), true)), num_sums));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(num_units), 0, &unused));
  int sums = num_units + 1;
  for (int u = 0; u < num_units; ++u) {
    DimensionHandle dim, unused_dim;
    TF_RETURN_IF_ERROR(EmbeddingDim(c, u, &dim));
    if (!summed[static_cast<size_t>(u)]) continue;
    ShapeHandle of_unit;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(sums++), 2, &of_unit));
    TF_RETURN_IF_ERROR(c->Merge(dim, c->Dim(of_unit, 1), &unused_dim));
  }
  for (int i = 0; i < num_grads; ++i) TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(sums + i), 1, &unused));
  TF_RETURN_IF_ERROR(StepAndHyper(c, sums + num_grads, c->num_inputs()));
  if (names.size() == n * initial_values.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("slot_names: expected ", n * initial_values.size(),
                                                 " entries, as many for each unit as slot_initial_values has, found ",
                                                 names.size()));
}

absl::Status CheckSideBySideShape(InferenceContext* c) {
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(ListOf(c, "names", static_cast<size_t>(c->num_inputs()), &names));
  ShapeHandle unused;
  for (int i = 0; i < c->num_inputs(); ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 1, &unused));
  return absl::OkStatus();
}

#define MULTITIER_GROUP_LOOKUP_OP(name)                                                  \
  REGISTER_OP(name)                                                                      \
      .Input("handles: H * resource")                                                    \
      .Input("matrices: M * dtype")                                                      \
      .Input("keys: Tkeys")                                                              \
      .Input("indices: I * int64")                                                       \
      .Input("shapes: S * int64")                                                        \
      .Input("weights: W * dtype")                                                       \
      .Output("values: N * dtype")                                                       \
      .Output("plan: variant")                                                           \
      .Attr("N: int >= 1")                                                               \
      .Attr("H: int >= 0")                                                               \
      .Attr("M: int >= 0")                                                               \
      .Attr("I: int >= 0")                                                               \
      .Attr("S: int >= 0")                                                               \
      .Attr("W: int >= 0")                                                               \
      .Attr("dtype: {float} = DT_FLOAT")                                                 \
      .Attr("Tkeys: list({int64, int32}) >= 1")                                          \
      .Attr("members: list(string)")                                                     \
      .Attr("sources: list({'table', 'variable', 'tensor'})")                            \
      .Attr("strategies: list({'mod', 'div'})")                                          \
      .Attr("units: list(int)")                                                          \
      .Attr("forms: list({'dense', 'sparse', 'sequence', 'ragged', 'ragged_sequence'})") \
      .Attr("combiners: list({'sum', 'mean', 'sqrtn'})")                                 \
      .Attr("dims: list(int)")                                                           \
      .Attr("weighted: list(bool)")                                                      \
      .Attr("max_norms: list(float)")                                                    \
      .Attr("training: bool = true")                                                     \
      .Attr("joins: list(int) = []")                                                     \
      .SetIsStateful()                                                                   \
      .SetShapeFn(GroupLookupShape)

MULTITIER_GROUP_LOOKUP_OP("MultitierGroupLookup").Doc(R"doc(
The lookups of many variables as one op. Each member's values equal those of a lookup of its own.

An absent key of an embedding variable reads as its initial value; the op creates no key. A row without entries is zeros.

handles: of embedding variables (source table) and of resource variables (source variable), in the order of members,
  each member's parts in order.
matrices: [rows, dim] values of other variables (source tensor), likewise.
keys: of each member: [entries]; dense: any shape.
indices: of each member that is not dense: sparse [entries, 2] in row-major order, ragged row splits [batch + 1].
shapes: of each sparse member: [batch, steps].
weights: of each member that is weighted: [entries].
values: of each member: sparse and ragged [batch, dim], sequences [batch, steps, dim], dense keys.shape + [dim]. Joined members
  share one tensor: their values are concatenated along the last dimension; the other dimensions must be equal.
plan: input of the gradient and the update; computed only if an op uses it.
members: the names of the members, for messages.
strategies: how variables of several parts are partitioned, as in tf.nn.embedding_lookup; embedding variables route by hash.
units: number of parts of each member.
forms: the form of each member's keys; sequences are not pooled.
dims: the embedding dimensions.
max_norms: >= 0: a value with a larger norm is scaled to this norm first.
training: false: a key without a row reads the variable's eval_initializer, if it has one.
joins: the number of consecutive members that share each tensor of values; empty: one each. Sequences cannot be joined.
)doc");

MULTITIER_GROUP_LOOKUP_OP("MultitierHbmGroupLookup").Doc(R"doc(
MultitierGroupLookup of variables whose storage types have HBM: it has a kernel for GPUs.

Every source is "table". For the other inputs, outputs and attrs see MultitierGroupLookup.
)doc");

#define MULTITIER_GROUP_LOOKUP_GRAD_OP(name) \
  REGISTER_OP(name)                          \
      .Input("plan: variant")                \
      .Input("grads: G * dtype")             \
      .Output("keys: U * int64")             \
      .Output("sums: U * dtype")             \
      .Output("counts: U * int64")           \
      .Output("weights_grads: W * dtype")    \
      .Attr("G: int >= 1")                   \
      .Attr("U: int >= 1")                   \
      .Attr("W: int >= 0")                   \
      .Attr("dtype: {float} = DT_FLOAT")     \
      .Attr("members: list(int)")            \
      .Attr("units: list(int)")              \
      .Attr("weighted: list(bool)")          \
      .Attr("joins: list(int) = []")         \
      .SetShapeFn(GroupLookupGradShape)

MULTITIER_GROUP_LOOKUP_GRAD_OP("MultitierGroupLookupGrad").Doc(R"doc(
Gradient of MultitierGroupLookup: for each part of each member, the distinct keys and the sums of their gradients.

Computes only the outputs that another op uses.

grads: of each member, or of each tensor that members share; the shape is that of the values.
keys: [u] of each part.
sums: [u, dim], each key's in the order of entries.
counts: [u] occurrences.
weights_grads: of each of these members that is weighted: [entries].
members: the numbers of the members of grads, in order.
units: number of parts of each member.
weighted: whether each member has weights.
joins: the number of consecutive members that share each tensor of grads; empty: one each.
)doc");

MULTITIER_GROUP_LOOKUP_GRAD_OP("MultitierHbmGroupLookupGrad").Doc(R"doc(
Gradient of MultitierHbmGroupLookup. See MultitierGroupLookupGrad.
)doc");

#define MULTITIER_GROUP_APPLY_OP(name)          \
  REGISTER_OP(name)                             \
      .Input("handles: U * resource")           \
      .Input("plan: variant")                   \
      .Input("sums: S * dtype")                 \
      .Input("grads: G * dtype")                \
      .Input("global_step: int64")              \
      .Input("hyper: H * float")                \
      .Attr("U: int >= 1")                      \
      .Attr("S: int >= 0")                      \
      .Attr("G: int >= 0")                      \
      .Attr("H: int >= 0")                      \
      .Attr("dtype: {float} = DT_FLOAT")        \
      .Attr("units: list(int)")                 \
      .Attr("summed: list(bool)")               \
      .Attr("members: list(int) = []")          \
      .Attr("joins: list(int) = []")            \
      .Attr("rule: string")                     \
      .Attr("slot_names: list(string)")         \
      .Attr("slot_initial_values: list(float)") \
      .Attr("use_locking: bool = false")        \
      .SetIsStateful()                          \
      .SetShapeFn(GroupApplyShape)

MULTITIER_GROUP_APPLY_OP("MultitierGroupApply").Doc(R"doc(
MultitierApply for several variables, on the keys of a grouped lookup and their numbers of occurrences.

The update of one variable is atomic. If the update of one variable fails, those of other variables may already be done.

handles: of embedding variables, each once.
sums: [u, dim] for each variable for which `summed` is true, in the order of MultitierGroupLookupGrad's keys.
grads: as in MultitierGroupLookupGrad; the op sums the gradients of the other variables from them.
units: the part of the group that each variable is.
summed: whether `sums` has the gradient of the variable.
members: the numbers of the members of grads, in order.
joins: the number of consecutive members that share each tensor of grads; empty: one each.
slot_names: of each variable, those of the rule in order.
slot_initial_values: of the rule's slots.
hyper: the hyperparameters of the rule, in order, for all variables; or U times as many, in order for each variable.
For the other attrs see MultitierApply.
)doc");

MULTITIER_GROUP_APPLY_OP("MultitierHbmGroupApply").Doc(R"doc(
MultitierGroupApply on the keys of a MultitierHbmGroupLookup. See MultitierGroupApply.
)doc");

REGISTER_OP("MultitierCheckSideBySide")
    .Input("shapes: N * int32")
    .Attr("N: int >= 1")
    .Attr("names: list(string)")
    .SetIsStateful()
    .SetShapeFn(CheckSideBySideShape)
    .Doc(R"doc(
Checks that values of these shapes can be concatenated along the last dimension. The error states the first that cannot.

shapes: [rank] of each of the values; all numbers except the last must be equal.
names: the names of the values, for messages.
)doc");

}  // namespace
}  // namespace multitier
