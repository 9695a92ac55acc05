// What the shape functions of grouped lookups and of exchanges have in common.

#ifndef CC_TENSORFLOW_OPS_GROUP_SHAPES_H_
#define CC_TENSORFLOW_OPS_GROUP_SHAPES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace multitier {

// A list attr that has an entry for each of `n`. each: what an entry is of
template <typename T>
absl::Status ListOf(tensorflow::shape_inference::InferenceContext* c, const char* attr, size_t n, std::vector<T>* list,
                    const char* each = "member") {
  TF_RETURN_IF_ERROR(c->GetAttr(attr, list));
  if (list->size() == n) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(attr, ": expected ", n, " entries, one for each ", each, ", found ", list->size()));
}

// InvalidArgument unless the op has as many inputs of a kind as its members need.
absl::Status ExpectTotal(const char* what, int expected, int found);

// The attr `joins`: the number of consecutive members that share each of `tensors`. Empty: one member for each tensor.
absl::Status Joins(tensorflow::shape_inference::InferenceContext* c, int tensors, size_t members, std::vector<int>* joins);

// InvalidArgument unless there are as many indices and dense shapes as members of these forms need.
absl::Status CheckEntries(const std::vector<std::string>& forms, int num_indices, int num_shapes);

// Sets the shapes of outputs 0, 1, ...: the values of members, of which `joins` share each. Inputs from `keys` on: the keys of
// each member, num_indices indices, and dense shapes.
absl::Status ValuesOfMembers(tensorflow::shape_inference::InferenceContext* c, int keys, int num_indices,
                             const std::vector<std::string>& names, const std::vector<std::string>& forms,
                             const std::vector<int>& dims, const std::vector<int>& joins);

}  // namespace multitier

#endif  // CC_TENSORFLOW_OPS_GROUP_SHAPES_H_
