// Ops of lookups, of their gradients, and of the routing of keys to partitions.

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "cc/tensorflow/ops/shape_functions.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace multitier {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The last input of an op, if it has it: the table of each key.
absl::Status MergeTables(InferenceContext* c, const ShapeHandle& keys, int input) {
  if (c->num_inputs() <= input) return absl::OkStatus();
  ShapeHandle unused;
  return c->Merge(keys, c->input(input), &unused);
}

absl::Status LookupShape(InferenceContext* c) {
  DimensionHandle dim;
  TF_RETURN_IF_ERROR(MergeTables(c, c->input(1), 2));
  TF_RETURN_IF_ERROR(EmbeddingDim(c, 0, &dim));
  ShapeHandle out;
  TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), c->Vector(dim), &out));
  c->set_output(0, out);
  return absl::OkStatus();
}

// Checks `N` handles (inputs 0 ... N - 1), then keys, indices and weights. *dim: the attr "dim"; *n: number of entries.
absl::Status SparseInputs(InferenceContext* c, int* next_input, DimensionHandle* dim, DimensionHandle* n) {
  int num_handles, attr_dim;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &num_handles));
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &attr_dim));
  *dim = c->MakeDim(attr_dim);
  for (int i = 0; i < num_handles; ++i) {
    DimensionHandle handle_dim;
    TF_RETURN_IF_ERROR(EmbeddingDim(c, i, &handle_dim));
    TF_RETURN_IF_ERROR(c->Merge(*dim, handle_dim, dim));
  }
  ShapeHandle keys, indices, weights;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(num_handles), 1, &keys));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(num_handles + 1), 1, &indices));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(num_handles + 2), 1, &weights));
  TF_RETURN_IF_ERROR(c->Merge(c->Dim(keys, 0), c->Dim(indices, 0), n));
  *next_input = num_handles + 3;
  return absl::OkStatus();
}

absl::Status LookupSparseShape(InferenceContext* c) {
  int batch_input;
  DimensionHandle dim, n, batch;
  TF_RETURN_IF_ERROR(SparseInputs(c, &batch_input, &dim, &n));
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(batch_input), 0, &scalar));
  TF_RETURN_IF_ERROR(c->MakeDimForScalarInput(batch_input, &batch));
  c->set_output(0, c->Matrix(batch, dim));
  return absl::OkStatus();
}

absl::Status LookupSparseGradShape(InferenceContext* c) {
  int grad_input;
  DimensionHandle dim, n, unused;
  bool has_weights;
  TF_RETURN_IF_ERROR(SparseInputs(c, &grad_input, &dim, &n));
  TF_RETURN_IF_ERROR(c->GetAttr("has_weights", &has_weights));
  ShapeHandle grad;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(grad_input), 2, &grad));
  TF_RETURN_IF_ERROR(c->Merge(dim, c->Dim(grad, 1), &unused));
  if (has_weights) TF_RETURN_IF_ERROR(c->Merge(n, c->Dim(c->input(grad_input - 1), 0), &n));
  c->set_output(0, c->Matrix(n, dim));
  c->set_output(1, c->Vector(has_weights ? n : c->MakeDim(0)));
  return absl::OkStatus();
}

// Of ops whose last inputs are values and, if `gradient`, their gradients.
absl::Status ClipShape(InferenceContext* c, bool gradient) {
  ShapeHandle values;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(c->num_inputs() - (gradient ? 2 : 1)), 1, &values));
  if (gradient) TF_RETURN_IF_ERROR(c->Merge(values, c->input(c->num_inputs() - 1), &values));
  float max_norm;
  TF_RETURN_IF_ERROR(c->GetAttr("max_norm", &max_norm));
  if (!(max_norm >= 0.0f)) {
    return absl::InvalidArgumentError(absl::StrCat("max_norm: expected at least 0, found ", max_norm));
  }
  c->set_output(0, values);
  return absl::OkStatus();
}
absl::Status ClipByNormShape(InferenceContext* c) { return ClipShape(c, /*gradient=*/false); }
absl::Status ClipByNormGradShape(InferenceContext* c) { return ClipShape(c, /*gradient=*/true); }

absl::Status PartitionKeysShape(InferenceContext* c) {
  ShapeHandle keys;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &keys));
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

absl::Status FillEmptyRowsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  const ShapeHandle filled = c->Vector(c->UnknownDim());
  c->set_output(0, filled);
  c->set_output(1, filled);
  return absl::OkStatus();
}

REGISTER_OP("MultitierLookup")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Input("tables: T * int64")
    .Output("values: dtype")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .Attr("T: int >= 0 = 0")
    .Attr("training: bool = true")
    .SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc(R"doc(
Reads the values of keys. Creates no key: an absent key reads as its initial value.

keys: any shape; every integer is a key.
tables: nothing, or one tensor, shaped as keys: the table of each key. A variable with a list of initializers needs it.
values: keys.shape + [dim].
training: false: a key without a row reads the variable's eval_initializer, if it has one.
)doc");

REGISTER_OP("MultitierPeek")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Input("tables: T * int64")
    .Output("values: dtype")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .Attr("T: int >= 0 = 0")
    .SetIsStateful()
    .SetShapeFn(LookupShape)
    .Doc(R"doc(
Reads the values of keys as MultitierLookup does. Moves no row between tiers, marks no row as used, and changes no statistics.

keys: any shape; every integer is a key.
tables: as in MultitierLookup.
values: keys.shape + [dim].
)doc");

REGISTER_OP("MultitierLookupSparse")
    .Input("handles: N * resource")
    .Input("keys: Tkeys")
    .Input("indices: int64")
    .Input("weights: dtype")
    .Input("batch: int64")
    .Output("pooled: dtype")
    .Attr("N: int >= 1")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'}")
    .Attr("dim: int >= 1")
    .Attr("has_weights: bool")
    .Attr("max_norm: float = -1.0")
    .Attr("training: bool = true")
    .SetIsStateful()
    .SetShapeFn(LookupSparseShape)
    .Doc(R"doc(
Reads the values of keys and pools the values of each row of the batch.

Values are added in the order of keys. A row without entries is zeros and reads no key.

handles: the partitions of one variable, in order; each key is routed to the partition that owns it.
keys: [nnz].
indices: [nnz] the row of the batch that each key belongs to, nondecreasing, in [0, batch).
weights: [nnz] factors of the values if has_weights, else [0]: all factors are 1.
batch: number of rows.
pooled: [batch, dim].
combiner: sum; mean: divided by the sum of the weights; sqrtn: divided by the square root of the sum of their squares.
dim: the embedding dimension.
max_norm: >= 0: a value with a larger norm is scaled to this norm before it is pooled.
training: false: a key without a row reads the variable's eval_initializer, if it has one.
)doc");

REGISTER_OP("MultitierLookupSparseGrad")
    .Input("handles: N * resource")
    .Input("keys: Tkeys")
    .Input("indices: int64")
    .Input("weights: dtype")
    .Input("grad: dtype")
    .Output("entry_grads: dtype")
    .Output("weight_grads: dtype")
    .Attr("N: int >= 1")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .Attr("combiner: {'sum', 'mean', 'sqrtn'}")
    .Attr("dim: int >= 1")
    .Attr("has_weights: bool")
    .Attr("max_norm: float = -1.0")
    .Attr("training: bool = true")
    .SetIsStateful()
    .SetShapeFn(LookupSparseGradShape)
    .Doc(R"doc(
Gradients of MultitierLookupSparse with respect to the value of each entry, and to its weights.

Looks up the values again if there is a max_norm, or if weight_grads is used: run it before the variable is updated.

handles, keys, indices, weights: as in MultitierLookupSparse, and all attrs.
grad: [batch, dim] gradient of pooled.
entry_grads: [nnz, dim].
weight_grads: [nnz] if has_weights, else [0].
)doc");

REGISTER_OP("MultitierClipByNorm")
    .Input("values: dtype")
    .Output("clipped: dtype")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("max_norm: float")
    .SetShapeFn(ClipByNormShape)
    .Doc(R"doc(
Scales values whose Euclidean norm is above max_norm to that norm, with the arithmetic of MultitierLookupSparse's max_norm.

values: any shape except a scalar; each vector along the last dimension is one value.
clipped: the same shape.
max_norm: >= 0.
)doc");

REGISTER_OP("MultitierClipByNormGrad")
    .Input("values: dtype")
    .Input("grad: dtype")
    .Output("value_grads: dtype")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("max_norm: float")
    .SetShapeFn(ClipByNormGradShape)
    .Doc(R"doc(
Gradient of MultitierClipByNorm.

values, max_norm: as in MultitierClipByNorm.
grad: gradient of clipped.
value_grads: the same shape.
)doc");

REGISTER_OP("MultitierHbmClipByNorm")
    .Input("handle: resource")
    .Input("values: dtype")
    .Output("clipped: dtype")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("max_norm: float")
    .SetIsStateful()
    .SetShapeFn(ClipByNormShape)
    .Doc(R"doc(
MultitierClipByNorm where the variable is, on a GPU or on the CPU.

handle: a variable with HBM; only its place is used. On a GPU, the last dimension of values is its dim.
values, clipped, max_norm: as in MultitierClipByNorm.
)doc");

REGISTER_OP("MultitierHbmClipByNormGrad")
    .Input("handle: resource")
    .Input("values: dtype")
    .Input("grad: dtype")
    .Output("value_grads: dtype")
    .Attr("dtype: {float} = DT_FLOAT")
    .Attr("max_norm: float")
    .SetIsStateful()
    .SetShapeFn(ClipByNormGradShape)
    .Doc(R"doc(
Gradient of MultitierHbmClipByNorm.

handle: as in MultitierHbmClipByNorm. The rest: as in MultitierClipByNormGrad.
)doc");

REGISTER_OP("MultitierFillEmptyRows")
    .Input("indices: int64")
    .Input("batch: int64")
    .Output("rows: int64")
    .Output("entries: int64")
    .SetShapeFn(FillEmptyRowsShape)
    .Doc(R"doc(
Adds one entry to each row of a sparse batch that has no entry.

indices: [nnz] the row of the batch that each entry belongs to, nondecreasing, in [0, batch).
batch: number of rows.
rows: [m] the row of each place: one place for each entry and for each row without one, nondecreasing.
entries: [m] the entry at each place; nnz if the row had none.
)doc");

REGISTER_OP("MultitierPartitionKeys")
    .Input("keys: Tkeys")
    .Output("positions: num_partitions * int32")
    .Output("part_keys: num_partitions * Tkeys")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .Attr("num_partitions: int >= 1")
    .SetShapeFn(PartitionKeysShape)
    .Doc(R"doc(
Splits keys by the partition that owns them. Ten bits of the key's hash are its bucket; partition p of P owns the buckets
[p * 1024 / P, (p + 1) * 1024 / P).

keys: [n].
positions: of each partition: the positions of its keys in `keys`, increasing.
part_keys: of each partition: its keys.
)doc");

}  // namespace
}  // namespace multitier
