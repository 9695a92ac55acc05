#include "cc/tensorflow/ops/shape_functions.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "cc/options/options.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace multitier {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status VariableShape(InferenceContext* c, ShapeHandle* shape) {
  tensorflow::PartialTensorShape attr;
  TF_RETURN_IF_ERROR(c->GetAttr("shape", &attr));
  if (attr.dims() != 2 || attr.dim_size(0) != 0 || attr.dim_size(1) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape of an embedding variable: expected [0, dim] with dim >= 1, found ", attr.DebugString()));
  }
  return c->MakeShapeFromPartialTensorShape(attr, shape);
}

absl::Status CheckOptions(InferenceContext* c) {
  tensorflow::DataType dtype;
  std::string record;
  TF_RETURN_IF_ERROR(c->GetAttr("dtype", &dtype));
  TF_RETURN_IF_ERROR(c->GetAttr("options", &record));
  const DType values = dtype == tensorflow::DT_HALF       ? DType::kFloat16
                       : dtype == tensorflow::DT_BFLOAT16 ? DType::kBFloat16
                                                          : DType::kFloat32;
  const Status status = ParseOptions(record, kInVariable, values).status();
  return absl::Status(static_cast<absl::StatusCode>(static_cast<int>(status.code())), status.message());
}

absl::Status EmbeddingDim(InferenceContext* c, int input, DimensionHandle* dim) {
  ShapeHandle handle;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(input), 0, &handle));
  *dim = c->UnknownDim();
  const auto* data = c->input_handle_shapes_and_types(input);
  if (data == nullptr || data->empty()) return absl::OkStatus();
  const tensorflow::DataType dtype = (*data)[0].dtype;
  if (dtype != tensorflow::DT_INVALID && dtype != tensorflow::DT_FLOAT && dtype != tensorflow::DT_HALF &&
      dtype != tensorflow::DT_BFLOAT16) {
    return absl::InvalidArgumentError(absl::StrCat("expected an embedding variable of float32, bfloat16 or float16, found ",
                                                   tensorflow::DataTypeString(dtype)));
  }
  ShapeHandle shape;
  TF_RETURN_IF_ERROR(c->WithRank((*data)[0].shape, 2, &shape));
  *dim = c->Dim(shape, 1);
  return absl::OkStatus();
}

absl::Status HandleOnly(InferenceContext* c) {
  ShapeHandle handle;
  return c->WithRank(c->input(0), 0, &handle);
}

absl::Status HandleToScalar(InferenceContext* c) {
  TF_RETURN_IF_ERROR(HandleOnly(c));
  c->set_output(0, c->Scalar());
  return absl::OkStatus();
}

absl::Status HandleToVector(InferenceContext* c) {
  TF_RETURN_IF_ERROR(HandleOnly(c));
  c->set_output(0, c->Vector(InferenceContext::kUnknownDim));
  return absl::OkStatus();
}

absl::Status HandleAndKeysToKeysShape(InferenceContext* c) {
  TF_RETURN_IF_ERROR(HandleOnly(c));
  c->set_output(0, c->input(1));
  return absl::OkStatus();
}

absl::Status StepAndHyper(InferenceContext* c, int first, int end) {
  std::string rule;
  TF_RETURN_IF_ERROR(c->GetAttr("rule", &rule));
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(first), 0, &unused));
  const int most = rule == "adam_catch_up" ? 1 : 0;
  for (int i = first + 1; i < end; ++i) TF_RETURN_IF_ERROR(c->WithRankAtMost(c->input(i), most, &unused));
  return absl::OkStatus();
}

}  // namespace multitier
