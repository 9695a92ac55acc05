// EmbeddingVariable: the resource of a handle, and the functions with which kernels access its table.
//
//   handle op           makes the handle, but no resource
//   Initialize/Restore  make the resource if there is none, build a table, and store the table in it
//   other kernels       copy the shared pointer to the table. So a replaced table lives until its last operation is done
//
// Lookups and applies are synchronous kernels. If all rows are in DRAM, they wait only for short holds of a shard's lock, and
// for an AddSlots or Clear of the same table, which closes its gate while it runs. If rows are in lower tiers, they wait for
// the reads of their batch. These reads are issued together, so one kernel keeps the disk busy. An asynchronous kernel would
// have to switch threads in every step, also if no row is missing. Ops that are expected to wait are asynchronous:
// MultitierPrefetch, MultitierDrain and MultitierCompact. With MultitierPrefetch a step need not wait for reads.
//
// In graphs, the resource manager owns the resource under (container, shared_name). Sessions of one server share it. A variable
// of eager execution belongs to its handle, which counts references.
//
// Keys are int64 in every op but those with the attr Tkeys, which also take int32, and in the table. The attr key_dtype says
// what the variable's user gives. Python turns unsigned keys into int64 before an op and back after it: uint64 as its 64 bits,
// uint32 extended by zeros (_src/options/key_types.py). Here the type is a property of the variable alone, which files repeat.
//
// Thread-safe: all methods.

#ifndef CC_TENSORFLOW_VARIABLE_EMBEDDING_VARIABLE_H_
#define CC_TENSORFLOW_VARIABLE_EMBEDDING_VARIABLE_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cc/base/span.h"
#include "cc/storage_types/storage.h"
#include "cc/table/api/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace multitier {

class KeptTable;

// A table, and the properties that the TensorFlow side needs. Immutable, except for the table's content and what was warned of.
struct VariableState {
  VariableState();
  ~VariableState();  // closes a kept table, and one over an external storage
  VariableState(const VariableState&) = delete;
  VariableState& operator=(const VariableState&) = delete;

  // Logs once that new keys got no row (OnFull::kRefuse).
  void WarnOfRefused(int64_t refused);

  std::unique_ptr<KeptTable> kept;  // null unless the table's files are kept; deleted after the table
  std::shared_ptr<EmbeddingTable> table;
  int64_t partition_index = 0;
  int64_t num_partitions = 1;
  std::atomic<bool> warned_full{false};
  bool read_only = false;  // its rows never change; other variables may share it (shared_tables.h)
  const pid_t pid;         // of the process that made it
  // A variable has it, and no other has taken its place: then its rows are those of its external storage.
  std::atomic<bool> in_variable{false};
};

class EmbeddingVariable : public tensorflow::ResourceBase {
 public:
  std::string DebugString() const override;

  // Null until the variable is initialised.
  std::shared_ptr<VariableState> state() const;
  // Returns the state that was there. Its table, if the caller is its last user, is destroyed outside of the lock.
  std::shared_ptr<VariableState> Exchange(std::shared_ptr<VariableState> state);

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<VariableState> state_ ABSL_GUARDED_BY(mutex_);
};

// The options of a variable, from the attrs of an op (ops/option_attrs.h).
struct VariableOptions {
  TableOptions table;  // name, matrix and tiers are not set
  Opening opening;
  int64_t partition_index = 0;
  int64_t num_partitions = 1;

  // Makes the state of a variable with a new, empty table of this name and initializer, and its own tiers. replaced: the state
  // that the variable has now, or null.
  absl::Status MakeState(const std::string& name, InitializerSpec initializer, const VariableState* replaced,
                         std::shared_ptr<VariableState>* state) const;
  // With another opening. instance: as of ComposeStorage.
  absl::Status MakeStateOf(const Opening& its_opening, const std::string& name, InitializerSpec initializer,
                           std::shared_ptr<InstanceDirectory>* instance, std::shared_ptr<VariableState>* state) const;

  // InvalidArgument if an attr or option is wrong, Unimplemented if the storage type needs a GPU. The message names it.
  static absl::Status FromAttrs(tensorflow::OpKernelConstruction* context, VariableOptions* options);
};

// The message for a variable that has no table.
std::string NoTable(const tensorflow::ResourceHandle& handle);
// The state of the variable whose handle is input `input`. FailedPrecondition if it is not initialised.
absl::Status GetState(tensorflow::OpKernelContext* context, int input, std::shared_ptr<VariableState>* state);
// GetState for an operation that changes rows. FailedPrecondition if the variable is read-only. A kept table
// notes a change now, and another one when the operation lets go of the state: a save may begin in between.
absl::Status GetStateToChange(tensorflow::OpKernelContext* context, int input, std::shared_ptr<VariableState>* state);
// The same for an operation that changes no row that a checkpoint would give otherwise.
absl::Status GetTrainableState(tensorflow::OpKernelContext* context, int input, std::shared_ptr<VariableState>* state);
// GetState, but null if the variable is not initialised.
absl::Status FindState(tensorflow::OpKernelContext* context, int input, std::shared_ptr<VariableState>* state);
// Replaces the state of the variable. Makes the resource if there is none. The files of a kept table that is replaced go.
absl::Status SetState(tensorflow::OpKernelContext* context, int input, std::shared_ptr<VariableState> state);

// The name of a type of keys, for messages.
const char* KeysOf(KeyType key_dtype);
// InvalidArgument, with both types, if the keys in checkpoint `prefix` are of another type than those of the variable.
absl::Status CheckKeyType(const std::string& variable, KeyType expected, KeyType found, const std::string& prefix);

// Logs, if the table has rows, that these slots begin with their initial values in them.
void LogFreshSlots(const EmbeddingTable& table, const std::vector<ColumnSpec>& slots);

// Keys as int64. int64 keys are not copied.
class KeyInput {
 public:
  // REQUIRES: dtype int64 or int32, which the op's registration ensures
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

// InvalidArgument, with the op's input, the rank and the shape, unless the tensor has that rank.
absl::Status CheckRank(tensorflow::OpKernelContext* context, const char* input, const tensorflow::Tensor& tensor, int rank);

}  // namespace multitier

#endif  // CC_TENSORFLOW_VARIABLE_EMBEDDING_VARIABLE_H_
