// EmbeddingVariable: the resource behind a handle, and what every kernel needs to reach its table.
//
//   handle op           makes the handle; no resource yet
//   Initialize/Restore  make the resource where there is none, build a table, and put it in
//   other kernels       take a copy of the shared table, so that a replaced table lives until its last operation is done
//
// Lookups and applies are synchronous kernels. With rows in DRAM they wait for nothing but short holds of a shard's lock, and
// for an Export, AddSlots or Clear of the same table, which closes its gate for as long as it runs. With rows below DRAM they
// wait for the reads of their own batch: these are issued together, so one kernel keeps the disk busy, and an asynchronous one
// would pay for each step's hand-over to another thread where nothing is missed. What is meant to wait is asynchronous:
// MultitierPrefetch, which is how a step never waits, MultitierDrain and MultitierCompact.
//
// Owned by the resource manager under (container, shared_name); sessions of one server share it.
//
// Thread-safe: all methods.

#ifndef CC_KERNELS_EMBEDDING_VARIABLE_H_
#define CC_KERNELS_EMBEDDING_VARIABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cc/base/span.h"
#include "cc/storage/storage.h"
#include "cc/table/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace multitier {

// A table with what TensorFlow's side keeps about it. Immutable but for the table's content.
struct VariableState {
  std::shared_ptr<EmbeddingTable> table;
  int64_t partition_index = 0;
  int64_t num_partitions = 1;
};

class EmbeddingVariable : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override;

  // Null until the variable is initialised.
  std::shared_ptr<VariableState> state() const;
  void set_state(std::shared_ptr<VariableState> state);

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<VariableState> state_;  // guarded by mutex_
};

// The options of a variable as the attrs of an op give them (ops/option_attrs.h).
struct VariableOptions {
  TableOptions table;  // without name, matrix and tiers
  StorageSpec storage;
  int64_t default_value_dim = 0;
  int64_t partition_index = 0;
  int64_t num_partitions = 1;

  // A new, empty table of that name and initializer, in tiers of its own.
  absl::Status MakeTable(const std::string& name, InitializerSpec initializer, std::unique_ptr<EmbeddingTable>* table) const;

  // InvalidArgument where an attr is out of range, Unimplemented where its storage type needs a GPU; both name it.
  static absl::Status FromAttrs(tensorflow::OpKernelConstruction* context, VariableOptions* options);
};

// The state of the variable whose handle is input `input`. FailedPrecondition where it is not initialised.
absl::Status GetState(tensorflow::OpKernelContext* context, int input, std::shared_ptr<VariableState>* state);
// As GetState, but null where it is not initialised.
absl::Status FindState(tensorflow::OpKernelContext* context, int input, std::shared_ptr<VariableState>* state);
// Replaces the state of the variable, making the resource where there is none.
absl::Status SetState(tensorflow::OpKernelContext* context, int input, std::shared_ptr<VariableState> state);

// Integer keys of any width as int64. Refers to the tensor where it can.
class KeyInput {
 public:
  // REQUIRES: dtype int64 or int32, as the op's registration makes sure
  explicit KeyInput(const tensorflow::Tensor& keys);
  Span<const int64_t> keys() const { return keys_; }

 private:
  std::vector<int64_t> widened_;
  Span<const int64_t> keys_;
};

// The elements of a tensor.
template <typename T>
Span<const T> Elements(const tensorflow::Tensor& tensor) {
  return Span<const T>(tensor.flat<T>().data(), static_cast<size_t>(tensor.NumElements()));
}

// InvalidArgument naming the op's input and both shapes unless the tensor has that rank.
absl::Status CheckRank(tensorflow::OpKernelContext* context, const char* input, const tensorflow::Tensor& tensor, int rank);

}  // namespace multitier

#endif  // CC_KERNELS_EMBEDDING_VARIABLE_H_
