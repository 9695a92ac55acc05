// Ops of tf_multitier.data.

#include "cc/tensorflow/ops/shape_functions.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace multitier {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

absl::Status GatherStringsShape(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 1, &unused));
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
  c->set_output(0, c->input(2));
  return absl::OkStatus();
}

REGISTER_OP("MultitierGatherStrings")
    .Input("offsets: int64")
    .Input("bytes: uint8")
    .Input("positions: int32")
    .Output("strings: string")
    .SetShapeFn(GatherStringsShape)
    .Doc(R"doc(
Gathers strings from an array in Arrow's layout. Each call checks the positions and offsets that it uses.

offsets: [n + 1] string i is bytes[offsets[i]:offsets[i + 1]]: ascending, within bytes.
bytes: [m] the strings, one after the other.
positions: any shape; each in [0, n).
strings: positions.shape.
)doc");

}  // namespace
}  // namespace multitier
