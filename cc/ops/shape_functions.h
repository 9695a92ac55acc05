// Shape functions that the ops share. A handle carries the static shape [0, dim] and dtype of its variable, so that the last
// dimension of everything looked up in it is known when the graph is built; where the handle says nothing (it came through a
// placeholder), that dimension is unknown.

#ifndef CC_OPS_SHAPE_FUNCTIONS_H_
#define CC_OPS_SHAPE_FUNCTIONS_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace multitier {

// Checks the attr "shape" of an op that declares a variable: InvalidArgument unless it is [0, dim] with dim >= 1.
absl::Status VariableShape(tensorflow::shape_inference::InferenceContext* c,
                           tensorflow::shape_inference::ShapeHandle* shape);

// The embedding dimension of the variable behind input `input` (a scalar handle), unknown where the handle does not say.
// InvalidArgument where the input is not a scalar, or its dtype is known and is not the op's attr "dtype".
absl::Status EmbeddingDim(tensorflow::shape_inference::InferenceContext* c, int input,
                          tensorflow::shape_inference::DimensionHandle* dim);

// Checks that input 0 is a scalar handle. For ops without outputs.
absl::Status HandleOnly(tensorflow::shape_inference::InferenceContext* c);
// ... and output 0 is a scalar.
absl::Status HandleToScalar(tensorflow::shape_inference::InferenceContext* c);
// ... and output 0 is a vector.
absl::Status HandleToVector(tensorflow::shape_inference::InferenceContext* c);
// ... and output 0 has the shape of input 1, the keys.
absl::Status HandleAndKeysToKeysShape(tensorflow::shape_inference::InferenceContext* c);

}  // namespace multitier

#endif  // CC_OPS_SHAPE_FUNCTIONS_H_
