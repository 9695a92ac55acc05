// Shape functions that several ops use. A handle has the static shape [0, dim] and dtype of its variable. So the last dimension
// of values that are looked up is known when the graph is built. If the handle lacks this (it came through a placeholder), that
// dimension is unknown.

#ifndef CC_TENSORFLOW_OPS_SHAPE_FUNCTIONS_H_
#define CC_TENSORFLOW_OPS_SHAPE_FUNCTIONS_H_

#include "absl/status/status.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace multitier {

// Checks the attr "shape" of an op that declares a variable. InvalidArgument unless it is [0, dim] with dim >= 1.
absl::Status VariableShape(tensorflow::shape_inference::InferenceContext* c, tensorflow::shape_inference::ShapeHandle* shape);

// Checks the attr "options" of such an op: ParseOptions.
absl::Status CheckOptions(tensorflow::shape_inference::InferenceContext* c);

// The embedding dimension of the variable of input `input` (a scalar handle). Unknown if the handle does not have it.
// InvalidArgument if the input is not a scalar, or its dtype is known and not one of values.
absl::Status EmbeddingDim(tensorflow::shape_inference::InferenceContext* c, int input,
                          tensorflow::shape_inference::DimensionHandle* dim);

// Checks that input 0 is a scalar handle. For ops without outputs.
absl::Status HandleOnly(tensorflow::shape_inference::InferenceContext* c);
// HandleOnly, and output 0 is a scalar.
absl::Status HandleToScalar(tensorflow::shape_inference::InferenceContext* c);
// HandleOnly, and output 0 is a vector.
absl::Status HandleToVector(tensorflow::shape_inference::InferenceContext* c);
// HandleOnly, and output 0 has the shape of input 1, the keys.
absl::Status HandleAndKeysToKeysShape(tensorflow::shape_inference::InferenceContext* c);

// Checks the inputs [first, end) of an update: the step and hyperparameters, which are scalars. One of adam_catch_up is a
// vector; its kernel knows which.
absl::Status StepAndHyper(tensorflow::shape_inference::InferenceContext* c, int first, int end);

}  // namespace multitier

#endif  // CC_TENSORFLOW_OPS_SHAPE_FUNCTIONS_H_
