// Ops that export, save and restore the whole contents of an embedding variable.

#include "absl/status/status.h"
#include "cc/tensorflow/ops/option_attrs.h"
#include "cc/tensorflow/ops/shape_functions.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace multitier {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status ExportShape(InferenceContext* c) {
  DimensionHandle dim;
  TF_RETURN_IF_ERROR(EmbeddingDim(c, 0, &dim));
  DimensionHandle n = c->UnknownDim();
  c->set_output(0, c->Vector(n));
  c->set_output(1, c->Matrix(n, dim));
  c->set_output(2, c->Vector(n));
  c->set_output(3, c->Vector(n));
  return absl::OkStatus();
}

absl::Status ExportRowsShape(InferenceContext* c) {
  DimensionHandle dim;
  TF_RETURN_IF_ERROR(EmbeddingDim(c, 0, &dim));
  DimensionHandle n = c->UnknownDim();
  c->set_output(0, c->Scalar());
  c->set_output(1, c->Vector(n));
  c->set_output(2, c->Matrix(n, c->UnknownDim()));
  c->set_output(3, c->Vector(n));
  c->set_output(4, c->Vector(n));
  c->set_output(5, c->Matrix(c->UnknownDim(), c->MakeDim(3)));
  c->set_output(6, c->Matrix(c->UnknownDim(), dim));
  c->set_output(7, c->Vector(c->UnknownDim()));
  return absl::OkStatus();
}

absl::Status SavePartShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(HandleToScalar(c));
  ShapeHandle prefix;
  return c->WithRank(c->input(1), 0, &prefix);
}

absl::Status GroupAloneShape(InferenceContext* c) {
  ShapeHandle scalar;
  return c->WithRank(c->input(0), 0, &scalar);
}

absl::Status SaveGroupShape(InferenceContext* c) {
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

// Inputs: the group, and a handle or a prefix.
absl::Status OfSaveGroupShape(InferenceContext* c) {
  ShapeHandle scalar;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &scalar));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &scalar));
  if (c->num_outputs() > 0) c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

absl::Status ApplyDeltaShape(InferenceContext* c) {
  ShapeHandle scalar;
  for (int i = 0; i < 3; ++i) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &scalar));
  return absl::OkStatus();
}

absl::Status RestoreShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(CheckOptions(c));
  TF_RETURN_IF_ERROR(HandleOnly(c));
  ShapeHandle shape, prefix;
  TF_RETURN_IF_ERROR(VariableShape(c, &shape));
  return c->WithRank(c->input(1), 0, &prefix);
}

absl::Status ReadPartShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(RestoreShape(c));
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

absl::Status ReplaceTableShape(InferenceContext* c) {
  ShapeHandle table;
  TF_RETURN_IF_ERROR(HandleOnly(c));
  return c->WithRank(c->input(1), 0, &table);
}

REGISTER_OP("MultitierExport")
    .Input("handle: resource")
    .Output("keys: int64")
    .Output("values: dtype")
    .Output("versions: int64")
    .Output("frequencies: int64")
    .Attr("dtype: {float} = DT_FLOAT")
    .SetIsStateful()
    .SetShapeFn(ExportShape)
    .Doc(R"doc(
Returns every key that has a row, as a consistent snapshot, in increasing order of keys.

keys: [n].
values: [n, dim].
versions: [n] global step of the last update.
frequencies: [n] number of occurrences in training.
)doc");

REGISTER_OP("MultitierExportRows")
    .Input("handle: resource")
    .Output("manifest: string")
    .Output("keys: int64")
    .Output("rows: float")
    .Output("frequencies: int64")
    .Output("versions: int64")
    .Output("counted: int64")
    .Output("initial_matrix: float")
    .Output("filter_counters: uint8")
    .Attr("dtype: {float} = DT_FLOAT")
    .SetIsStateful()
    .SetShapeFn(ExportRowsShape)
    .Doc(R"doc(
Returns the contents of a checkpoint of this variable (or partition), as a consistent snapshot, in memory.

manifest: JSON object: format version, columns, number of rows, partition, count of applies, initializer.
keys: [n], increasing.
rows: [n, sum of the columns' dims] value and slots of each key, back to back.
frequencies: [n].
versions: [n].
counted: [m, 3] key, count and version of keys that a filter counts and has not admitted.
initial_matrix: [default_value_dim, dim] if the initializer is matrix, else [0, dim].
filter_counters: [bytes] geometry and counters of the Bloom filter, [0] without one.
)doc");

REGISTER_OP("MultitierSavePart")
    .Input("handle: resource")
    .Input("prefix: string")
    .Output("manifest: string")
    .SetIsStateful()
    .SetShapeFn(SavePartShape)
    .Doc(R"doc(
Writes the contents of a checkpoint of this variable (or partition), as a consistent snapshot, to a file next to the checkpoint.

First removes the rows that are expired at the newest step of the table (options steps_to_live, l2_weight_threshold). Memory
use does not grow with the table. The file is new. Its name is `<prefix>.data-?????-of-?????` with letters for the question
marks, so that tools that delete or copy a checkpoint include it. On an error the file is removed. Other operations run
while the op writes. MultitierSaveGroup saves several variables as of one moment.

prefix: of the checkpoint, as passed to the saver.
manifest: JSON object: format version, columns, number of rows, partition, count of applies, initializer, name of the file.
)doc");

REGISTER_OP("MultitierSaveGroup").Output("group: variant").SetIsStateful().SetShapeFn(SaveGroupShape).Doc(R"doc(
Makes the group of the variables (or partitions) that one save writes as of one moment.

group: a scalar. It belongs to one run of the graph and cannot leave its process.
)doc");

REGISTER_OP("MultitierJoinSaveGroup")
    .Input("group: variant")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(OfSaveGroupShape)
    .Doc(R"doc(
Adds the variable (or partition) to the group, which must not have been written.
)doc");

REGISTER_OP("MultitierWriteSaveGroup")
    .Input("group: variant")
    .Input("prefix: string")
    .Attr("kind: {'full', 'base', 'delta'} = 'full'")
    .Attr("frozen: {'', 'float32', 'float16', 'bfloat16'} = ''")
    .Attr("until_kept: bool = false")
    .Attr("columns: {'', 'all', 'value'} = ''")
    .Attr("write_down: bool = false")
    .SetIsStateful()
    .SetShapeFn(OfSaveGroupShape)
    .Doc(R"doc(
Writes every variable of the group, all as of one moment, to files next to the checkpoint.

First removes the rows that are expired at the newest step of each table (options steps_to_live, l2_weight_threshold). Then it
holds operations on all variables of the group back for the moment. Afterwards operations run while it writes; those that change
rows faster than they are written wait. Memory use does not grow with the tables or their number. Each variable has a new file.
Its name is `<prefix>.data-?????-of-?????` with letters for the question marks, so that tools that delete or copy a checkpoint
include it. On an error all files are removed.

prefix: of the checkpoint, as passed to the saver.
kind: base: from the moment on the tables track what changes. delta: writes what changed since the last save of kind base or delta,
  and tracks on; FailedPrecondition if the changes are not known.
frozen: the dtype of the values in parts for serving, which have keys and values alone. Empty: other parts, with everything.
until_kept: of frozen parts: the files are removed at the end of the run, unless MultitierKeepSaveGroup was run.
columns: writes arrays (checkpoint_files/column_files.h) in place of part files: of all columns, or all but the slots. Their paths
  begin with the prefix. On an error the caller removes them. MultitierSavedPart then gives what ColumnFiles::Describe gives.
write_down: where files of the last tier are linked, the rows of DRAM that it has no record of are first written down to it.
)doc");

REGISTER_OP("MultitierKeepSaveGroup").Input("group: variant").SetIsStateful().SetShapeFn(GroupAloneShape).Doc(R"doc(
Keeps the files of a group that was written with until_kept. Run it once the checkpoint's index is written.
)doc");

REGISTER_OP("MultitierApplyDelta")
    .Input("handle: resource")
    .Input("prefix: string")
    .Input("previous: string")
    .Attr("variable_name: string")
    .Attr("convert: bool = false")
    .SetIsStateful()
    .SetShapeFn(ApplyDeltaShape)
    .Doc(R"doc(
Changes the variable (or partition), which has the content of one save, to that of the delta that continues it.

Reads `<variable_name>/part_<i>-of-<n>/delta` and its file for all n saved parts, for any current number of partitions. Reads and
checks all data before it changes the variable.

prefix: of the delta.
previous: prefix of the save that it continues, a base or a delta. DataLoss if it continues another.
variable_name: the variable's name in the checkpoint, without partition suffix.
convert: accept another type of values, which are rounded. Otherwise it is InvalidArgument.
)doc");

REGISTER_OP("MultitierSavedPart")
    .Input("group: variant")
    .Input("handle: resource")
    .Output("manifest: string")
    .SetIsStateful()
    .SetShapeFn(OfSaveGroupShape)
    .Doc(R"doc(
Returns what the group has written for the variable (or partition).

manifest: JSON object: format version, columns, number of rows, partition, count of applies, initializer, name of the file.
)doc");

REGISTER_OP("MultitierRestore")
    .Input("handle: resource")
    .Input("prefix: string")
    .Attr("variable_name: string")
    .Attr("resize: bool = false")
    .Attr("convert: bool = false")
    .Attr("rename_slots: bool = false")
    .MULTITIER_OPTION_ATTRS.SetIsStateful()
    .SetShapeFn(RestoreShape)
    .Doc(R"doc(
Replaces the contents of the variable (or partition) by those of a checkpoint.

Reads `<variable_name>/part_<i>-of-<n>/manifest` and its file for all n saved parts, for any current number of partitions, and
keeps the keys that belong to this partition. Reads and checks all data before it changes the variable. The checkpoint's
initializer replaces the one in the attrs. A slot that the variable has and the checkpoint lacks gets its initial value. If the
rows do not fit into the first tier, those with the highest frequencies are there afterwards.

prefix: of the checkpoint, as passed to the saver. Of a delta: its base with the deltas up to that one.
variable_name: the variable's name in the checkpoint, without partition suffix.
resize: the checkpoint may have another dim: values and slots are cut, or filled from the initializer and the slots' initial
  values.
convert: the checkpoint may have values of another dtype: they are rounded to the variable's.
rename_slots: in the names of slots, what the first one has before its last slash becomes the variable's name. Otherwise
  variable_name becomes it.
)doc");

REGISTER_OP("MultitierReadPart")
    .Input("handle: resource")
    .Input("prefix: string")
    .Output("table: variant")
    .Attr("variable_name: string")
    .Attr("resize: bool = false")
    .Attr("convert: bool = false")
    .Attr("rename_slots: bool = false")
    .Attr("check_only: bool = false")
    .MULTITIER_OPTION_ATTRS.SetIsStateful()
    .SetShapeFn(ReadPartShape)
    .Doc(R"doc(
Reads what MultitierRestore reads, and changes nothing.

Variables are restored together: MultitierReplaceTable of each runs after MultitierReadPart of all of them. So an error leaves all
as they were. If the variable has rows, this op checks the files, and MultitierReplaceTable reads them again: so not all new tables
are in memory next to all old ones.

prefix, variable_name, resize, convert, rename_slots: see MultitierRestore.
check_only: check the files in any case.
table: scalar, for MultitierReplaceTable of the same handle in the same step.
)doc");

REGISTER_OP("MultitierReplaceTable")
    .Input("handle: resource")
    .Input("table: variant")
    .SetIsStateful()
    .SetShapeFn(ReplaceTableShape)
    .Doc("Replaces the contents of the variable (or partition) by a table that MultitierReadPart read or checked.");

REGISTER_OP("MultitierProcessState")
    .Output("state: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape)
    .Doc(R"doc(
What this process restores and shares, over all sessions.

state: JSON object. restored_rows: rows of all restores since the process started: done (read), total (read and to be read by
  restores that run). shared_tables: tables of read-only variables: variable, checkpoint, rows, users (the variables and running
  operations that hold the table).
)doc");

}  // namespace
}  // namespace multitier
