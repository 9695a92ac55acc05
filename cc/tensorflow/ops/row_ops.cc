// Ops that move rows between a variable and the program: in pieces, out, and in.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/ops/shape_functions.h"
#include "tensorflow/core/framework/op.h"

namespace multitier {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// column_names, which must be as many as the attr N.
absl::Status ColumnNames(InferenceContext* c, std::vector<std::string>* names) {
  int n = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("column_names", names));
  TF_RETURN_IF_ERROR(c->GetAttr("N", &n));
  if (static_cast<int>(names->size()) == n) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected ", n, " column_names, found ", names->size()));
}

absl::Status ScanShape(InferenceContext* c) {
  DimensionHandle dim;
  TF_RETURN_IF_ERROR(EmbeddingDim(c, 0, &dim));
  ShapeHandle unused;
  for (int i = 1; i < 4; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &unused));
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(ColumnNames(c, &names));
  const DimensionHandle n = c->UnknownDim();
  int output = 0;
  c->set_output(output++, c->Vector(n));
  for (const std::string& name : names) c->set_output(output++, c->Matrix(n, name == "value" ? dim : c->UnknownDim()));
  c->set_output(output++, c->Vector(n));
  c->set_output(output++, c->Vector(n));
  c->set_output(output, c->Scalar());
  return absl::OkStatus();
}

absl::Status PopDroppedRowsShape(InferenceContext* c) {
  DimensionHandle dim;
  TF_RETURN_IF_ERROR(EmbeddingDim(c, 0, &dim));
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(ColumnNames(c, &names));
  const DimensionHandle n = c->UnknownDim();
  int output = 0;
  c->set_output(output++, c->Vector(n));
  for (const std::string& name : names) c->set_output(output++, c->Matrix(n, name == "value" ? dim : c->UnknownDim()));
  c->set_output(output++, c->Vector(n));
  c->set_output(output, c->Vector(n));
  return absl::OkStatus();
}

absl::Status UpsertShape(InferenceContext* c) {
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(ColumnNames(c, &names));
  ShapeHandle keys, unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &keys));
  for (size_t i = 0; i < names.size(); ++i) {
    ShapeHandle column;
    DimensionHandle rows;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(2 + static_cast<int>(i)), 2, &column));
    TF_RETURN_IF_ERROR(c->Merge(c->Dim(column, 0), c->Dim(keys, 0), &rows));
  }
  for (int i = 0; i < 2; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(c->num_inputs() - 1 - i), 1, &unused));
  return HandleToScalar(c);
}

REGISTER_OP("MultitierScan")
    .Input("handle: resource")
    .Input("cursor: int64")
    .Input("min_version: int64")
    .Input("min_frequency: int64")
    .Output("keys: int64")
    .Output("columns: N * float")
    .Output("frequencies: int64")
    .Output("versions: int64")
    .Output("next_cursor: int64")
    .Attr("N: int >= 0")
    .Attr("column_names: list(string)")
    .Attr("max_rows: int >= 1")
    .SetIsStateful()
    .SetShapeFn(ScanShape)
    .Doc(R"doc(
Returns a piece of the table: about max_rows rows from the cursor on.

A key that has a row during the whole scan is returned exactly once. No row moves between tiers.

cursor: 0 first, then next_cursor of the piece before.
min_version: rows with an older version are left out.
min_frequency: rows with a lower frequency are left out.
keys: [n].
columns: [n, dim of the column] each.
frequencies: [n] number of occurrences in training.
versions: [n] global step of the last update.
next_cursor: 0 at the end.
column_names: 'value', and names of slots.
)doc");

REGISTER_OP("MultitierPopDroppedRows")
    .Input("handle: resource")
    .Output("keys: int64")
    .Output("columns: N * float")
    .Output("frequencies: int64")
    .Output("versions: int64")
    .Attr("N: int >= 0")
    .Attr("column_names: list(string)")
    .SetIsStateful()
    .SetShapeFn(PopDroppedRowsShape)
    .Doc(R"doc(
What MultitierPopDropped returns, with the rows. The variable must have dropped='rows'.

keys: [n], the oldest first.
columns: [n, dim of the column] each; NaN for a row that was damaged.
frequencies: [n]; 0 for a row that was damaged.
versions: [n]; -1 for a row that was damaged.
column_names: 'value', and names of slots.
)doc");

REGISTER_OP("MultitierUpsert")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Input("columns: N * float")
    .Input("frequencies: int64")
    .Input("versions: int64")
    .Output("written: int64")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .Attr("N: int >= 0")
    .Attr("column_names: list(string)")
    .Attr("if_exists: {'replace', 'keep', 'error'} = 'replace'")
    .Attr("repeats: {'error', 'last'} = 'error'")
    .Attr("check_finite: bool = false")
    .Attr("check_only: bool = false")
    .SetIsStateful()
    .SetShapeFn(UpsertShape)
    .Doc(R"doc(
Writes rows. Keys without a row get one, whatever the filter says. All rows are written, or none.

What is not given stays as it is in a row that exists; a new row then has initial values, frequency 0 and the newest step.

keys: [n].
columns: [n, dim of the column] each.
frequencies: [n], or [0]: not given.
versions: [n], or [0]: not given.
written: number of rows written.
column_names: 'value', and names of slots.
if_exists: for a key that has a row: replace what is given, keep the row, or fail with AlreadyExists.
repeats: what repeated keys do: fail, or the last one counts.
check_finite: fail if a column has an infinity or a NaN.
check_only: write nothing; fail where the op without it would fail now.
)doc");

REGISTER_OP("MultitierClear")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(HandleOnly)
    .Doc("Removes all keys, and what filters have counted.");

REGISTER_OP("MultitierSetBudget")
    .Input("handle: resource")
    .Input("size: int64")
    .Attr("in_rows: bool = false")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
      return HandleOnly(c);
    })
    .Doc(R"doc(
Changes the size of the DRAM tier. A smaller size is reached in the background: MultitierDrain waits for it.

size: bytes of row data, or rows; at least one row.
in_rows: size is a number of rows, which stays when slots are added.
)doc");

}  // namespace
}  // namespace multitier
