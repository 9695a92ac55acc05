#include "cc/tensorflow/variable/embedding_variable.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/base/status.h"
#include "cc/options/names.h"
#include "cc/options/options.h"
#include "cc/partition/partition.h"
#include "cc/tensorflow/common/hbm_memory.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/kept_table.h"
#include "cc/tier/external/external_store.h"
#include "tensorflow/core/framework/partial_tensor_shape.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;

std::string EmbeddingVariable::DebugString() const {
  const std::shared_ptr<VariableState> now = state();
  if (now == nullptr) return "EmbeddingVariable, not initialized";
  return absl::StrCat("EmbeddingVariable '", now->table->options().name, "' of ", now->table->TotalCount(), " rows of dim ",
                      now->table->dim());
}

std::shared_ptr<VariableState> EmbeddingVariable::state() const {
  absl::MutexLock lock(&mutex_);
  return state_;
}

std::shared_ptr<VariableState> EmbeddingVariable::Exchange(std::shared_ptr<VariableState> state) {
  absl::MutexLock lock(&mutex_);
  state_.swap(state);
  return state;
}

namespace {

absl::Status CheckRange(const char* attr, int64_t value, int64_t minimum, int64_t maximum) {
  if (value >= minimum && value <= maximum) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(attr, ": expected ", minimum, " to ", maximum, ", found ", value));
}

DType ValuesOf(tensorflow::DataType dtype) {
  if (dtype == tensorflow::DT_HALF) return DType::kFloat16;
  return dtype == tensorflow::DT_BFLOAT16 ? DType::kBFloat16 : DType::kFloat32;
}

KeyType KeyTypeOf(tensorflow::DataType key_dtype) {
  if (key_dtype == tensorflow::DT_UINT64) return KeyType::kUint64;
  return key_dtype == tensorflow::DT_UINT32 ? KeyType::kUint32 : KeyType::kInt64;
}

}  // namespace

absl::Status VariableOptions::FromAttrs(OpKernelConstruction* context, VariableOptions* options) {
  tensorflow::PartialTensorShape shape;
  TF_RETURN_IF_ERROR(context->GetAttr("shape", &shape));
  if (shape.dims() != 2 || shape.dim_size(0) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape of an embedding variable: expected [0, dim], found ", shape.DebugString()));
  }
  TF_RETURN_IF_ERROR(CheckRange("dim", shape.dim_size(1), 1, 1 << 20));
  TF_RETURN_IF_ERROR(context->GetAttr("partition_index", &options->partition_index));
  TF_RETURN_IF_ERROR(context->GetAttr("num_partitions", &options->num_partitions));
  TF_RETURN_IF_ERROR(CheckRange("num_partitions", options->num_partitions, 1, kPartitionBuckets));
  TF_RETURN_IF_ERROR(CheckRange("partition_index", options->partition_index, 0, options->num_partitions - 1));
  tensorflow::DataType dtype, key_dtype;
  std::string record;
  TF_RETURN_IF_ERROR(context->GetAttr("dtype", &dtype));
  TF_RETURN_IF_ERROR(context->GetAttr("key_dtype", &key_dtype));
  TF_RETURN_IF_ERROR(context->GetAttr("options", &record));
  Result<Options> parsed = ParseOptions(record, kInVariable, ValuesOf(dtype));
  if (!parsed.ok()) return ToAbsl(parsed.status());
  TableOptions* const table = &options->table;
  static_cast<Options&>(*table) = *std::move(parsed);
  table->dim = static_cast<int>(shape.dim_size(1));
  table->key_dtype = KeyTypeOf(key_dtype);
  table->keep = table->keep && !table->read_only;  // its rows are the checkpoint's, always
  options->opening.hbm_memory = HbmMemoryOf(context);
  return ToAbsl(CheckTiersExist(*table));
}

absl::Status VariableOptions::MakeState(const std::string& name, InitializerSpec initializer, const VariableState* replaced,
                                        std::shared_ptr<VariableState>* state) const {
  if (table.keep) return MakeKept(*this, name, std::move(initializer), replaced, state);
  return MakeStateOf(opening, name, std::move(initializer), nullptr, state);
}

absl::Status VariableOptions::MakeStateOf(const Opening& its_opening, const std::string& name, InitializerSpec initializer,
                                          std::shared_ptr<InstanceDirectory>* instance,
                                          std::shared_ptr<VariableState>* state) const {
  TableOptions options = table;
  options.name = name;
  options.initializer = std::move(initializer);
  const Status composed = ComposeStorage(its_opening, &options, instance);
  if (!composed.ok()) return ToAbsl(Status(composed.code(), StrCat("embedding variable '", name, "': ", composed.message())));
  Result<std::unique_ptr<EmbeddingTable>> created = EmbeddingTable::Create(std::move(options));
  if (!created.ok()) return ToAbsl(created.status());
  auto made = std::make_shared<VariableState>();
  made->table = *std::move(created);
  made->partition_index = partition_index;
  made->num_partitions = num_partitions;
  made->read_only = table.read_only;
  *state = std::move(made);
  return absl::OkStatus();
}

VariableState::VariableState() : pid(::getpid()) {}

void VariableState::WarnOfRefused(int64_t refused) {
  const TableOptions& options = table->options();
  if (refused == 0 || options.on_full != OnFull::kRefuse || warned_full.exchange(true)) return;
  LOG(WARNING) << StrCat("embedding variable '", options.name, "' is full with ", table->TotalCount(), " rows: ", refused,
                         " new keys of an update got no row; `refused` in the statistics counts them");
}

namespace {

// Writes the rows that are above the external storage of a table to it. Logs an error.
void CloseExternal(EmbeddingTable* table) {
  const Status flushed = table->Flush();
  if (flushed.ok()) return;
  LOG(ERROR) << StrCat("embedding variable '", table->options().name,
                       "': it was closed, and rows that its external storage does not have are lost: ", flushed.ToString());
}

}  // namespace

VariableState::~VariableState() {
  if (kept != nullptr) kept->Close(table.get());
  if (table == nullptr || table->options().external_storage.empty() || ::getpid() != pid) return;
  // The thread may have a lock that the storage needs where another thread waits for it: Python deletes variables under the
  // GIL.
  const std::string storage = table->options().external_storage;
  RunUnlocked(storage,
              [its = std::make_shared<std::shared_ptr<EmbeddingTable>>(std::move(table)), closes = in_variable.load()] {
                const std::shared_ptr<EmbeddingTable> last = std::move(*its);
                if (closes) CloseExternal(last.get());
              });
}

absl::Status FindState(OpKernelContext* context, int input, std::shared_ptr<VariableState>* state) {
  state->reset();
  const Tensor& handles = context->input(input);
  if (handles.dtype() != tensorflow::DT_RESOURCE || handles.NumElements() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(context->op_kernel().type_string(), ": input ", input,
                                                   ": expected the handle of an embedding variable, found ",
                                                   handles.DebugString()));
  }
  // Where it is: a copy of its strings costs a group more than the look at its tables.
  const tensorflow::ResourceHandle& handle = handles.flat<tensorflow::ResourceHandle>()(0);
  tensorflow::core::RefCountPtr<EmbeddingVariable> variable;
  const absl::Status found = tensorflow::LookupResource(context, handle, &variable);
  if (found.ok()) *state = variable->state();
  return absl::IsNotFound(found) ? absl::OkStatus() : found;
}

std::string NoTable(const tensorflow::ResourceHandle& handle) {
  const std::string variable = absl::StrCat("embedding variable '", handle.name(), "' ");
  if (handle.IsRefCounting()) {
    return absl::StrCat(variable,
                        "has no table any more, because its Python object was deleted: keep the object, for example as ",
                        "an attribute of a tf.Module, as long as functions use it");
  }
  return absl::StrCat(variable, "is not initialized: run its initializer (tf.compat.v1.global_variables_initializer()) first");
}

absl::Status GetState(OpKernelContext* context, int input, std::shared_ptr<VariableState>* state) {
  TF_RETURN_IF_ERROR(FindState(context, input, state));
  if (*state != nullptr) return absl::OkStatus();
  tensorflow::ResourceHandle handle;
  TF_RETURN_IF_ERROR(tensorflow::HandleFromInput(context, input, &handle));
  return absl::FailedPreconditionError(NoTable(handle));
}

absl::Status GetStateToChange(OpKernelContext* context, int input, std::shared_ptr<VariableState>* state) {
  TF_RETURN_IF_ERROR(GetTrainableState(context, input, state));
  if ((*state)->kept == nullptr) return absl::OkStatus();
  (*state)->kept->NoteChange();
  VariableState* const changed = state->get();
  *state = std::shared_ptr<VariableState>(changed, [held = *state](VariableState*) { held->kept->NoteChange(); });
  return absl::OkStatus();
}

absl::Status GetTrainableState(OpKernelContext* context, int input, std::shared_ptr<VariableState>* state) {
  TF_RETURN_IF_ERROR(GetState(context, input, state));
  if (!(*state)->read_only) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(context->op_kernel().type_string(), ": embedding variable '",
                                                    tensorflow::HandleFromInput(context, input).name(),
                                                    "' is read-only: it cannot be trained, and its rows cannot be removed"));
}

absl::Status SetState(OpKernelContext* context, int input, std::shared_ptr<VariableState> state) {
  tensorflow::ResourceHandle handle;
  TF_RETURN_IF_ERROR(tensorflow::HandleFromInput(context, input, &handle));
  tensorflow::core::RefCountPtr<EmbeddingVariable> variable;
  if (handle.IsRefCounting()) {
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, handle, &variable));
  } else {
    TF_RETURN_IF_ERROR(
        tensorflow::LookupOrCreateResource<EmbeddingVariable>(context, handle, &variable, [](EmbeddingVariable** made) {
          *made = new EmbeddingVariable;
          return absl::OkStatus();
        }));
  }
  if (state != nullptr && state->kept != nullptr) TF_RETURN_IF_ERROR(ToAbsl(state->kept->Adopt()));
  if (state != nullptr) state->in_variable = true;
  const std::shared_ptr<VariableState> old = variable->Exchange(state);
  if (state == nullptr || old == nullptr || old == state) return absl::OkStatus();
  old->in_variable = false;
  if (old->kept != nullptr) old->kept->Discard();
  return absl::OkStatus();
}

const char* KeysOf(KeyType key_dtype) { return key_dtype == KeyType::kInt64 ? "int64 or int32" : NameOf(key_dtype); }

absl::Status CheckKeyType(const std::string& variable, KeyType expected, KeyType found, const std::string& prefix) {
  if (expected == found) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("embedding variable '", variable, "': expected keys of ", KeysOf(expected),
                                                 ", found ", KeysOf(found), " in checkpoint ", prefix,
                                                 ": create the variable with that key_dtype"));
}

void LogFreshSlots(const EmbeddingTable& table, const std::vector<ColumnSpec>& slots) {
  const int64_t rows = table.TotalCount();
  if (rows == 0 || slots.empty()) return;
  const std::string names =
      absl::StrJoin(slots, ", ", [](std::string* out, const ColumnSpec& slot) { absl::StrAppend(out, slot.name); });
  LOG(INFO) << StrCat("embedding variable '", table.options().name, "': its ", rows, " rows had no ", names,
                      ": these slots begin with their initial values");
}

KeyInput::KeyInput(const Tensor& keys) {
  if (keys.dtype() == tensorflow::DT_INT64) {
    keys_ = Elements<int64_t>(keys);
    return;
  }
  const Span<const int32_t> narrow = Elements<int32_t>(keys);
  widened_.assign(narrow.begin(), narrow.end());
  keys_ = widened_;
}

absl::Status CheckRank(OpKernelContext* context, const char* input, const Tensor& tensor, int rank) {
  if (tensor.dims() == rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(context->op_kernel().type_string(), ": ", input, ": expected rank ", rank,
                                                 ", found shape ", tensor.shape().DebugString()));
}

}  // namespace multitier
