// The exchange: a grouped lookup of tables that have their rows elsewhere, on servers or in other processes (their *homes*).
//
//   asker   Route --requests--> Serve   home      one tensor for each home
//           Pool  <--rows------
//           PoolGrad --sums---> ServeGrad --> MultitierGroupLookupGrad, MultitierGroupApply on Serve's plan
//
// Between processes of a world, collectives carry the tensors. Watch and Watched bound the time that each of them takes.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/ops/group_shapes.h"
#include "cc/tensorflow/ops/shape_functions.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"

namespace multitier {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status Vectors(InferenceContext* c, int first_input, int count) {
  ShapeHandle unused;
  for (int i = 0; i < count; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(first_input + i), 1, &unused));
  return absl::OkStatus();
}

void GiveVectors(InferenceContext* c, int first_output, int count) {
  for (int i = 0; i < count; ++i) c->set_output(first_output + i, c->Vector(c->UnknownDim()));
}

absl::Status RouteShape(InferenceContext* c) {
  int num_homes, num_indices, num_shapes, num_weights, num_tables;
  TF_RETURN_IF_ERROR(c->GetAttr("H", &num_homes));
  TF_RETURN_IF_ERROR(c->GetAttr("I", &num_indices));
  TF_RETURN_IF_ERROR(c->GetAttr("S", &num_shapes));
  TF_RETURN_IF_ERROR(c->GetAttr("W", &num_weights));
  TF_RETURN_IF_ERROR(c->GetAttr("B", &num_tables));
  std::vector<std::string> names, forms, combiners;
  std::vector<int> units, homes, dims, tables;
  std::vector<bool> weighted;
  std::vector<float> max_norms;
  TF_RETURN_IF_ERROR(c->GetAttr("members", &names));
  const size_t n = names.size();
  TF_RETURN_IF_ERROR(ListOf(c, "units", n, &units));
  TF_RETURN_IF_ERROR(ListOf(c, "forms", n, &forms));
  TF_RETURN_IF_ERROR(ListOf(c, "combiners", n, &combiners));
  TF_RETURN_IF_ERROR(ListOf(c, "dims", n, &dims));
  TF_RETURN_IF_ERROR(ListOf(c, "weighted", n, &weighted));
  TF_RETURN_IF_ERROR(ListOf(c, "max_norms", n, &max_norms));
  TF_RETURN_IF_ERROR(c->GetAttr("num_tables", &tables));
  if (!tables.empty()) TF_RETURN_IF_ERROR(ExpectTotal("num_tables", static_cast<int>(n), static_cast<int>(tables.size())));
  int given = 0;
  for (const int its : tables) given += its > 0;
  TF_RETURN_IF_ERROR(ExpectTotal("tables", given, num_tables));
  size_t parts = 0;
  int weights = 0;
  for (size_t i = 0; i < n; ++i) {
    if (units[i] < 1 || dims[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(names[i], ": expected units and dim of at least 1, found ", units[i], " and ", dims[i]));
    }
    parts += static_cast<size_t>(units[i]);
    weights += weighted[i];
  }
  TF_RETURN_IF_ERROR(ListOf(c, "homes", parts, &homes, "part"));
  for (const int home : homes) {
    if (home >= 0 && home < num_homes) continue;
    return absl::InvalidArgumentError(absl::StrCat("homes: expected numbers in [0, ", num_homes, "), found ", home));
  }
  const int num_members = static_cast<int>(n);
  const int num_entries = c->num_inputs() - num_tables;
  TF_RETURN_IF_ERROR(ExpectTotal("keys", num_members, num_entries - num_indices - num_shapes - num_weights));
  TF_RETURN_IF_ERROR(CheckEntries(forms, num_indices, num_shapes));
  TF_RETURN_IF_ERROR(ExpectTotal("weights", weights, num_weights));
  TF_RETURN_IF_ERROR(Vectors(c, num_entries - num_weights, num_weights));
  GiveVectors(c, 0, num_homes);
  c->set_output(num_homes, c->Vector(num_homes));
  c->set_output(num_homes + 1, c->Scalar());
  return absl::OkStatus();
}

absl::Status ServeShape(InferenceContext* c) {
  int num_units, num_askers;
  TF_RETURN_IF_ERROR(c->GetAttr("U", &num_units));
  TF_RETURN_IF_ERROR(c->GetAttr("A", &num_askers));
  std::vector<std::string> names;
  std::vector<int> dims;
  TF_RETURN_IF_ERROR(ListOf(c, "names", static_cast<size_t>(num_units), &names, "handle"));
  TF_RETURN_IF_ERROR(ListOf(c, "dims", static_cast<size_t>(num_units), &dims, "handle"));
  for (int u = 0; u < num_units; ++u) {
    DimensionHandle dim;
    TF_RETURN_IF_ERROR(EmbeddingDim(c, u, &dim));
    TF_RETURN_IF_ERROR(c->Merge(dim, c->MakeDim(dims[static_cast<size_t>(u)]), &dim));
  }
  TF_RETURN_IF_ERROR(Vectors(c, num_units, num_askers));
  GiveVectors(c, 0, num_askers);
  c->set_output(num_askers, c->Scalar());
  return absl::OkStatus();
}

absl::Status ServeGradShape(InferenceContext* c) {
  int num_units;
  TF_RETURN_IF_ERROR(c->GetAttr("U", &num_units));
  std::vector<int> dims;
  TF_RETURN_IF_ERROR(ListOf(c, "dims", static_cast<size_t>(num_units), &dims, "gradient"));
  TF_RETURN_IF_ERROR(Vectors(c, 0, c->num_inputs()));
  for (int u = 0; u < num_units; ++u) c->set_output(u, c->Matrix(c->UnknownDim(), dims[static_cast<size_t>(u)]));
  return absl::OkStatus();
}

absl::Status PlanTablesShape(InferenceContext* c) {
  int number;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &number));
  std::vector<int> units;
  TF_RETURN_IF_ERROR(ListOf(c, "units", static_cast<size_t>(number), &units, "output"));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  GiveVectors(c, 0, number);
  return absl::OkStatus();
}

absl::Status PoolShape(InferenceContext* c) {
  int num_values, num_homes, num_indices, num_shapes;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &num_values));
  TF_RETURN_IF_ERROR(c->GetAttr("H", &num_homes));
  TF_RETURN_IF_ERROR(c->GetAttr("I", &num_indices));
  TF_RETURN_IF_ERROR(c->GetAttr("S", &num_shapes));
  std::vector<std::string> names, forms;
  std::vector<int> dims, joins;
  TF_RETURN_IF_ERROR(c->GetAttr("members", &names));
  TF_RETURN_IF_ERROR(ListOf(c, "forms", names.size(), &forms));
  TF_RETURN_IF_ERROR(ListOf(c, "dims", names.size(), &dims));
  TF_RETURN_IF_ERROR(Joins(c, num_values, names.size(), &joins));
  TF_RETURN_IF_ERROR(CheckEntries(forms, num_indices, num_shapes));
  int num_weights;
  TF_RETURN_IF_ERROR(c->GetAttr("W", &num_weights));
  const int keys = 1 + num_homes;
  TF_RETURN_IF_ERROR(
      ExpectTotal("keys", static_cast<int>(names.size()), c->num_inputs() - keys - num_indices - num_shapes - num_weights));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  TF_RETURN_IF_ERROR(Vectors(c, 1, num_homes));
  TF_RETURN_IF_ERROR(ValuesOfMembers(c, keys, num_indices, names, forms, dims, joins));
  c->set_output(num_values, c->Scalar());
  return absl::OkStatus();
}

absl::Status PoolGradShape(InferenceContext* c) {
  int num_homes, num_grads, num_weights;
  TF_RETURN_IF_ERROR(c->GetAttr("H", &num_homes));
  TF_RETURN_IF_ERROR(c->GetAttr("G", &num_grads));
  TF_RETURN_IF_ERROR(c->GetAttr("W", &num_weights));
  std::vector<int> members, joins;
  std::vector<bool> weighted;
  TF_RETURN_IF_ERROR(c->GetAttr("members", &members));
  TF_RETURN_IF_ERROR(Joins(c, num_grads, members.size(), &joins));
  TF_RETURN_IF_ERROR(ListOf(c, "weighted", members.size(), &weighted));
  int weights = 0;
  for (const bool w : weighted) weights += w;
  TF_RETURN_IF_ERROR(ExpectTotal("weights", weights, num_weights));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
  for (int g = 0; g < num_grads; ++g) TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1 + g), 1, &unused));
  GiveVectors(c, 0, num_homes + num_weights);
  return absl::OkStatus();
}

REGISTER_OP("MultitierRoute")
    .Input("keys: Tkeys")
    .Input("indices: I * int64")
    .Input("shapes: S * int64")
    .Input("weights: W * float")
    .Input("tables: B * int64")
    .Output("requests: H * int64")
    .Output("elements: int64")
    .Output("plan: variant")
    .Attr("H: int >= 1")
    .Attr("I: int >= 0")
    .Attr("S: int >= 0")
    .Attr("W: int >= 0")
    .Attr("B: int >= 0 = 0")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Attr("Tkeys: list({int64, int32}) >= 1")
    .Attr("members: list(string)")
    .Attr("units: list(int)")
    .Attr("homes: list(int)")
    .Attr("forms: list({'dense', 'sparse', 'sequence', 'ragged', 'ragged_sequence'})")
    .Attr("combiners: list({'sum', 'mean', 'sqrtn'})")
    .Attr("dims: list(int)")
    .Attr("weighted: list(bool)")
    .Attr("max_norms: list(float)")
    .Attr("num_tables: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(RouteShape)
    .Doc(R"doc(
The first half of a grouped lookup whose rows are elsewhere: a request for each home.

tables: of each member that has num_tables, in the shape of its keys: the numbers of their initializers, below num_tables.
num_tables: of each member; 0: it has no tables. Empty: no member has some.
requests: [words] of each home: the distinct keys of its parts and how often each occurs.
elements: [H] the number of elements of each home's rows.
plan: input of MultitierPool. A plan is pooled once.
units: number of parts of each member, an embedding variable. A key goes to its part by hash.
homes: the home of each part, in the order of members and parts.
T: the type in which rows cross.
For the other inputs and attrs see MultitierGroupLookup.
)doc");

REGISTER_OP("MultitierServe")
    .Input("handles: U * resource")
    .Input("requests: A * int64")
    .Output("rows: A * T")
    .Output("plan: variant")
    .Attr("U: int >= 0")
    .Attr("A: int >= 1")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Attr("names: list(string)")
    .Attr("dims: list(int)")
    .Attr("training: bool = true")
    .SetIsStateful()
    .SetShapeFn(ServeShape)
    .Doc(R"doc(
What a home answers to the requests of its askers.

handles: of the parts of this home, in the order of MultitierRoute.
requests: [words] of each asker, by MultitierRoute. Words after the end of a request are ignored.
rows: [elements] of each asker: the rows that its request asks for.
plan: as that of MultitierGroupLookup; the members are the parts. Computed only if an op uses it.
names: of the parts, for messages.
dims: the embedding dimension of each part.
training: see MultitierGroupLookup.
)doc");

REGISTER_OP("MultitierServeGrad")
    .Input("requests: A * int64")
    .Input("grads: A * T")
    .Output("member_grads: U * float")
    .Attr("A: int >= 1")
    .Attr("U: int >= 1")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Attr("dims: list(int)")
    .SetIsStateful()
    .SetShapeFn(ServeGradShape)
    .Doc(R"doc(
The gradients of MultitierServe's parts: input of MultitierGroupLookupGrad and MultitierGroupApply on its plan.

requests: as in MultitierServe.
grads: [elements] of each asker, the sums of its MultitierPoolGrad. Elements after those of its request are ignored.
member_grads: [rows, dim] of each part: those of the first asker first.
)doc");

REGISTER_OP("MultitierPlanTables")
    .Input("plan: variant")
    .Output("tables: N * int64")
    .Attr("N: int >= 1")
    .Attr("units: list(int)")
    .SetShapeFn(PlanTablesShape)
    .Doc(R"doc(
The table numbers of keys in a plan of MultitierServe, in the order of MultitierGroupLookupGrad's keys.

units: the parts of the plan.
tables: [u] of each part; -1: not known.
)doc");

REGISTER_OP("MultitierPool")
    .Input("plan: variant")
    .Input("rows: H * T")
    .Input("keys: Tkeys")
    .Input("indices: I * int64")
    .Input("shapes: S * int64")
    .Input("weights: W * float")
    .Output("values: N * float")
    .Output("finished: variant")
    .Attr("N: int >= 1")
    .Attr("H: int >= 1")
    .Attr("I: int >= 0")
    .Attr("S: int >= 0")
    .Attr("W: int >= 0")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Attr("Tkeys: list({int64, int32}) >= 1")
    .Attr("members: list(string)")
    .Attr("forms: list({'dense', 'sparse', 'sequence', 'ragged', 'ragged_sequence'})")
    .Attr("dims: list(int)")
    .Attr("joins: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(PoolShape)
    .Doc(R"doc(
The second half of a grouped lookup whose rows are elsewhere: the values of its members.

plan: of MultitierRoute.
rows: [elements] of each home, by MultitierServe. Elements after those of the request are ignored.
keys, indices, shapes: as in MultitierRoute; only their shapes are used.
weights: as in MultitierRoute. They are not read here: their gradient is that of this op.
values: see MultitierGroupLookup.
finished: input of MultitierPoolGrad.
)doc");

REGISTER_OP("MultitierPoolGrad")
    .Input("plan: variant")
    .Input("grads: G * float")
    .Output("sums: H * T")
    .Output("weights_grads: W * float")
    .Attr("G: int >= 1")
    .Attr("H: int >= 1")
    .Attr("W: int >= 0")
    .Attr("T: {float, bfloat16, half} = DT_FLOAT")
    .Attr("members: list(int)")
    .Attr("weighted: list(bool)")
    .Attr("joins: list(int) = []")
    .SetIsStateful()
    .SetShapeFn(PoolGradShape)
    .Doc(R"doc(
Gradient of MultitierPool: what each home gets back.

plan: `finished` of MultitierPool.
sums: [elements] of each home, as its rows: the sum of each key's gradients. Zeros for members that are not in `members`.
For grads, weights_grads and the other attrs see MultitierGroupLookupGrad.
)doc");

REGISTER_OP("MultitierWatch")
    .Input("tokens: N * resource")
    .Output("watch: int64")
    .Attr("N: int >= 0")
    .Attr("seconds: float")
    .Attr("message: string")
    .Attr("cure: string")
    .Attr("processes: list(string)")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
Begins a watch. If it lasts longer than `seconds`, the collectives of this step fail. MultitierWatched ends it.

watch: the watch also ends when nothing holds this tensor any more.

tokens: the ordering token of the collective that comes next.
seconds: at most 1e9.
message, cure: of the DeadlineExceeded error: "<message> (collective 12 of this process, no answer from rank 1)<cure>".
processes: those of the world, which are asked then.
)doc");

REGISTER_OP("MultitierWatched")
    .Input("value: T")
    .Input("watch: int64")
    .Output("same: T")
    .Attr("T: type")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnchangedShape)
    .Doc("Ends a watch: gives what its collective gave. It runs where nobody uses that, too.");

REGISTER_OP("MultitierProgress")
    .Output("progress: int64")
    .Attr("ends: bool = false")
    .Attr("error: string = ''")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->Vector(5));
      return absl::OkStatus();
    })
    .Doc(R"doc(
What the process of this device has done.

progress: the number of watches that it has begun, that of those whose collectives succeeded, 1 if its program has ended, the number
  of watches that wait, and 1 if a watch has ended its collective.
ends: the program ends now.
error: if it is not empty, the collectives that the process still waits for ten seconds later fail with this message.
)doc");

}  // namespace
}  // namespace multitier
