#include "cc/tensorflow/ops/group_shapes.h"

namespace multitier {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

// Merges the shape of a member's values into `joined`, the shape of an output that members share (unknown rank before the
// first). elements: the number of columns of the output
absl::Status Join(InferenceContext* c, const std::string& member, const std::string& form, ShapeHandle values, int elements,
                  ShapeHandle* joined) {
  if (form == "sequence" || form == "ragged_sequence") {
    return absl::InvalidArgumentError(
        absl::StrCat(member, ": expected pooled or dense values where members are joined, found a ", form));
  }
  if (c->RankKnown(*joined)) TF_RETURN_IF_ERROR(c->ReplaceDim(*joined, -1, c->MakeDim(elements), joined));
  if (!c->RankKnown(values)) return absl::OkStatus();
  ShapeHandle wide;
  TF_RETURN_IF_ERROR(c->ReplaceDim(values, -1, c->MakeDim(elements), &wide));
  return c->Merge(*joined, wide, joined);
}

}  // namespace

absl::Status ExpectTotal(const char* what, int expected, int found) {
  if (expected == found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the members have ", expected, " ", what, ", found ", found));
}

absl::Status Joins(InferenceContext* c, int tensors, size_t members, std::vector<int>* joins) {
  TF_RETURN_IF_ERROR(c->GetAttr("joins", joins));
  if (joins->empty()) joins->assign(members, 1);
  int64_t total = 0;
  for (const int joined : *joins) {
    if (joined < 1) return absl::InvalidArgumentError(absl::StrCat("joins: expected numbers of at least 1, found ", joined));
    total += joined;
  }
  if (static_cast<int>(joins->size()) == tensors && total == static_cast<int64_t>(members)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("joins: expected ", members, " members in ", tensors, " tensors, found ", total, " in ", joins->size()));
}

absl::Status CheckEntries(const std::vector<std::string>& forms, int num_indices, int num_shapes) {
  int indices = 0, shapes = 0;
  for (const std::string& form : forms) {
    indices += form != "dense";
    shapes += form == "sparse" || form == "sequence";
  }
  TF_RETURN_IF_ERROR(ExpectTotal("indices", indices, num_indices));
  return ExpectTotal("shapes", shapes, num_shapes);
}

absl::Status ValuesOfMembers(InferenceContext* c, int keys, int num_indices, const std::vector<std::string>& names,
                             const std::vector<std::string>& forms, const std::vector<int>& dims,
                             const std::vector<int>& joins) {
  ShapeHandle unused;
  const int num_members = static_cast<int>(names.size());
  int at_indices = keys + num_members, at_shape = at_indices + num_indices;
  int value = 0, joined = 0, elements = 0;  // of the output that the member goes to
  ShapeHandle side_by_side = c->UnknownShape();
  for (int i = 0; i < num_members; ++i) {
    const std::string& form = forms[static_cast<size_t>(i)];
    const DimensionHandle dim = c->MakeDim(dims[static_cast<size_t>(i)]);
    ShapeHandle member_keys = c->input(keys + i), out;
    if (form == "dense") {
      TF_RETURN_IF_ERROR(c->Concatenate(member_keys, c->Vector(dim), &out));
    } else {
      TF_RETURN_IF_ERROR(c->WithRank(member_keys, 1, &unused));
      DimensionHandle batch = c->UnknownDim(), steps = c->UnknownDim();
      const bool ragged = form == "ragged" || form == "ragged_sequence";
      ShapeHandle rows;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(at_indices++), ragged ? 1 : 2, &rows));
      if (ragged) {
        if (c->ValueKnown(c->Dim(rows, 0))) TF_RETURN_IF_ERROR(c->Subtract(c->Dim(rows, 0), 1, &batch));
      } else {
        ShapeHandle dense;
        TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(at_shape++, &dense));
        TF_RETURN_IF_ERROR(c->WithRank(dense, 2, &dense));
        batch = c->Dim(dense, 0);
        steps = c->Dim(dense, 1);
      }
      out = form == "sparse" || form == "ragged" ? c->Matrix(batch, dim) : c->MakeShape({batch, steps, dim});
    }
    elements += dims[static_cast<size_t>(i)];
    if (joins[static_cast<size_t>(value)] > 1) {
      TF_RETURN_IF_ERROR(Join(c, names[static_cast<size_t>(i)], form, out, elements, &side_by_side));
      out = side_by_side;
    }
    if (++joined < joins[static_cast<size_t>(value)]) continue;
    c->set_output(value++, out);
    joined = elements = 0;
    side_by_side = c->UnknownShape();
  }
  return absl::OkStatus();
}

}  // namespace multitier
