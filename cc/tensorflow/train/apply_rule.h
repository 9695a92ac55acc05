// ApplyRule: what the kernels of updates have in common: the rule, its slots and hyperparameters.
//
// Immutable after Init. Thread-safe.

#ifndef CC_TENSORFLOW_TRAIN_APPLY_RULE_H_
#define CC_TENSORFLOW_TRAIN_APPLY_RULE_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cc/optimizer/update_rule.h"
#include "cc/table/api/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {

class ApplyRule {
 public:
  // Reads the attrs of an op that updates this number of tables.
  absl::Status Init(tensorflow::OpKernelConstruction* context, size_t tables);

  // Input `step`: the global step. The inputs after it: the hyperparameters, of all tables or of each. All in host memory.
  absl::Status ParseStep(tensorflow::OpKernelContext* context, int step, const EmbeddingTable& table, size_t which,
                         ApplyRequest* request) const;

  // The inputs of an update of one table up to its hyperparameters.
  int inputs() const { return 5 + static_cast<int>(num_hyper_); }

  // Checks that the input has a gradient for each of n keys, and gives its address. Does not read it.
  static absl::Status ParseGradients(tensorflow::OpKernelContext* context, int input, const EmbeddingTable& table, size_t n,
                                     const float** grads);

  // Checks the shapes of the inputs of an update of one table: handle, keys, grads, counts. Gives the address of the gradients.
  // Reads none of them.
  static absl::Status CheckShapes(tensorflow::OpKernelContext* context, const EmbeddingTable& table, const float** grads);

  // The slots of the table that is number `which` of the op. The first apply of an optimizer whose slots were not declared
  // widens the rows.
  absl::Status FindSlots(EmbeddingTable* table, size_t which, ApplyRequest* request) const;

 private:
  absl::Status CheckCount(const char* what, size_t expected, size_t found) const;

  const UpdateRule* rule_ = nullptr;
  std::vector<std::string> slot_names_;
  std::vector<float> slot_initial_values_;
  size_t num_hyper_ = 0;
};

}  // namespace multitier

#endif  // CC_TENSORFLOW_TRAIN_APPLY_RULE_H_
