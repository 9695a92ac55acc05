#include "cc/kernels/embedding_variable.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cc/kernels/hbm_memory.h"
#include "cc/kernels/kept_table.h"
#include "cc/kernels/status_bridge.h"
#include "cc/partition/partition.h"
#include "cc/table/option_names.h"
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

absl::Status StorageFromAttrs(OpKernelConstruction* context, StorageSpec* storage) {
  std::string strategy, on_corruption, on_full, dropped;
  TF_RETURN_IF_ERROR(context->GetAttr("storage_type", &storage->type));
  TF_RETURN_IF_ERROR(context->GetAttr("storage_path", &storage->path));
  TF_RETURN_IF_ERROR(context->GetAttr("storage_sizes", &storage->sizes));
  TF_RETURN_IF_ERROR(context->GetAttr("storage_rows", &storage->rows));
  TF_RETURN_IF_ERROR(context->GetAttr("initial_rows", &storage->initial_rows));
  TF_RETURN_IF_ERROR(context->GetAttr("on_full", &on_full));
  TF_RETURN_IF_ERROR(context->GetAttr("dropped", &dropped));
  TF_RETURN_IF_ERROR(context->GetAttr("dropped_bytes", &storage->dropped_bytes));
  TF_RETURN_IF_ERROR(context->GetAttr("removed_bytes", &storage->removed_bytes));
  TF_RETURN_IF_ERROR(context->GetAttr("cache_strategy", &strategy));
  TF_RETURN_IF_ERROR(context->GetAttr("drop_coldest", &storage->drop_coldest));
  TF_RETURN_IF_ERROR(context->GetAttr("refuse_colder", &storage->refuse_colder));
  TF_RETURN_IF_ERROR(context->GetAttr("on_corruption", &on_corruption));
  TF_RETURN_IF_ERROR(context->GetAttr("keep", &storage->keep));
  const Result<Replacement> parsed = ParseCacheStrategy(strategy);
  if (!parsed.ok()) return ToAbsl(parsed.status());
  storage->cache_strategy = *parsed;
  const Result<KeepDropped> keep_dropped = ParseKeepDropped(dropped);
  if (!keep_dropped.ok()) return ToAbsl(keep_dropped.status());
  storage->keep_dropped = *keep_dropped;
  const Status full = ParseOnFull(on_full, storage);
  if (!full.ok()) return ToAbsl(full);
  const Result<OnCorruption> corruption = ParseOnCorruption(on_corruption);
  if (!corruption.ok()) return ToAbsl(corruption.status());
  storage->on_corruption = *corruption;
  return ToAbsl(ValidateStorage(*storage));
}

absl::Status DTypeFromAttrs(OpKernelConstruction* context, TableOptions* table) {
  tensorflow::DataType dtype;
  TF_RETURN_IF_ERROR(context->GetAttr("dtype", &dtype));
  if (dtype == tensorflow::DT_HALF) table->value_dtype = DType::kFloat16;
  if (dtype == tensorflow::DT_BFLOAT16) table->value_dtype = DType::kBFloat16;
  return context->GetAttr("stochastic_rounding", &table->stochastic_rounding);
}

absl::Status KeyTypeFromAttrs(OpKernelConstruction* context, std::string* key_dtype) {
  tensorflow::DataType dtype;
  TF_RETURN_IF_ERROR(context->GetAttr("key_dtype", &dtype));
  if (dtype == tensorflow::DT_UINT64) *key_dtype = "uint64";
  if (dtype == tensorflow::DT_UINT32) *key_dtype = "uint32";
  return absl::OkStatus();
}

absl::Status AdmissionFromAttrs(OpKernelConstruction* context, TableOptions* table) {
  std::string kind;
  int64_t filter_freq, counter_bits;
  float false_positive, probability;
  TF_RETURN_IF_ERROR(context->GetAttr("filter", &kind));
  TF_RETURN_IF_ERROR(context->GetAttr("filter_freq", &filter_freq));
  TF_RETURN_IF_ERROR(context->GetAttr("filter_max_elements", &table->admission.max_element_size));
  TF_RETURN_IF_ERROR(context->GetAttr("filter_false_positive", &false_positive));
  TF_RETURN_IF_ERROR(context->GetAttr("filter_counter_bits", &counter_bits));
  TF_RETURN_IF_ERROR(context->GetAttr("filter_probability", &probability));
  TF_RETURN_IF_ERROR(context->GetAttr("filter_max_keys", &table->admission.max_keys));
  const Result<AdmissionKind> parsed = ParseAdmissionKind(kind);
  if (!parsed.ok()) return ToAbsl(parsed.status());
  TF_RETURN_IF_ERROR(CheckRange("filter_freq", filter_freq, 0, 0xffffffffLL));
  TF_RETURN_IF_ERROR(CheckRange("filter_counter_bits", counter_bits, 8, 64));
  table->admission.kind = *parsed;
  table->admission.filter_freq = static_cast<uint32_t>(filter_freq);
  table->admission.false_positive_probability = false_positive;
  table->admission.counter_bits = static_cast<int>(counter_bits);
  table->admission.probability = probability;
  table->admission.seed = table->initializer.seed;
  return ToAbsl(ValidateAdmission(table->admission));
}

absl::Status InitializerFromAttrs(OpKernelConstruction* context, VariableOptions* options) {
  InitializerSpec* spec = &options->table.initializer;
  std::string kind;
  int64_t seed;
  TF_RETURN_IF_ERROR(context->GetAttr("initializer", &kind));
  TF_RETURN_IF_ERROR(context->GetAttr("initializer_a", &spec->a));
  TF_RETURN_IF_ERROR(context->GetAttr("initializer_b", &spec->b));
  TF_RETURN_IF_ERROR(context->GetAttr("initializer_lower", &spec->lower));
  TF_RETURN_IF_ERROR(context->GetAttr("initializer_upper", &spec->upper));
  TF_RETURN_IF_ERROR(context->GetAttr("seed", &seed));
  TF_RETURN_IF_ERROR(context->GetAttr("default_value_dim", &options->default_value_dim));
  const Result<InitializerKind> parsed = ParseInitializerKind(kind);
  if (!parsed.ok()) return ToAbsl(parsed.status());
  TF_RETURN_IF_ERROR(CheckRange("default_value_dim", options->default_value_dim, 0, int64_t{1} << 40));
  spec->kind = *parsed;
  spec->seed = static_cast<uint64_t>(seed);
  return absl::OkStatus();
}

// An initializer whose attrs begin with `attr`. Out: none if its name is empty.
absl::Status InitializerNamed(OpKernelConstruction* context, const std::string& attr, std::optional<InitializerSpec>* spec) {
  std::string kind;
  std::vector<float> parameters;
  int64_t seed;
  TF_RETURN_IF_ERROR(context->GetAttr(attr, &kind));
  TF_RETURN_IF_ERROR(context->GetAttr(attr + "_parameters", &parameters));
  TF_RETURN_IF_ERROR(context->GetAttr(attr + "_seed", &seed));
  if (kind.empty()) return absl::OkStatus();
  const Result<InitializerKind> parsed = ParseInitializerKind(kind, attr.c_str());
  if (!parsed.ok()) return ToAbsl(parsed.status());
  if (*parsed == InitializerKind::kMatrix || parameters.size() != 4) {
    return absl::InvalidArgumentError(absl::StrCat(attr, ": expected an initializer without a matrix, and 4 parameters; found ",
                                                   kind, " with ", parameters.size()));
  }
  *spec = InitializerSpec();
  (*spec)->kind = *parsed;
  (*spec)->a = parameters[0];
  (*spec)->b = parameters[1];
  (*spec)->lower = parameters[2];
  (*spec)->upper = parameters[3];
  (*spec)->seed = static_cast<uint64_t>(seed);
  return absl::OkStatus();
}

absl::Status AbsentFromAttrs(OpKernelConstruction* context, TableOptions* table) {
  std::optional<InitializerSpec> not_admitted;
  TF_RETURN_IF_ERROR(InitializerNamed(context, "not_admitted", &not_admitted));
  TF_RETURN_IF_ERROR(InitializerNamed(context, "evaluation", &table->evaluation));
  if (not_admitted.has_value()) {
    table->not_admitted = *not_admitted;
    return absl::OkStatus();
  }
  return context->GetAttr("default_value_no_permission", &table->not_admitted.a);
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
  options->table.dim = static_cast<int>(shape.dim_size(1));
  TF_RETURN_IF_ERROR(DTypeFromAttrs(context, &options->table));
  TF_RETURN_IF_ERROR(KeyTypeFromAttrs(context, &options->key_dtype));
  TF_RETURN_IF_ERROR(context->GetAttr("steps_to_live", &options->table.expiry.steps_to_live));
  TF_RETURN_IF_ERROR(context->GetAttr("l2_weight_threshold", &options->table.expiry.l2_weight_threshold));
  TF_RETURN_IF_ERROR(CheckRange("steps_to_live", options->table.expiry.steps_to_live, 0, INT64_MAX));
  TF_RETURN_IF_ERROR(context->GetAttr("partition_index", &options->partition_index));
  TF_RETURN_IF_ERROR(context->GetAttr("num_partitions", &options->num_partitions));
  TF_RETURN_IF_ERROR(CheckRange("num_partitions", options->num_partitions, 1, kPartitionBuckets));
  TF_RETURN_IF_ERROR(CheckRange("partition_index", options->partition_index, 0, options->num_partitions - 1));
  TF_RETURN_IF_ERROR(context->GetAttr("read_only", &options->read_only));
  TF_RETURN_IF_ERROR(context->GetAttr("in_place", &options->in_place));
  if (options->in_place && !options->read_only) {
    return absl::InvalidArgumentError("in_place: expected a variable with read_only, found one without");
  }
  TF_RETURN_IF_ERROR(InitializerFromAttrs(context, options));
  TF_RETURN_IF_ERROR(AbsentFromAttrs(context, &options->table));
  TF_RETURN_IF_ERROR(AdmissionFromAttrs(context, &options->table));
  TF_RETURN_IF_ERROR(StorageFromAttrs(context, &options->storage));
  options->storage.hbm_memory = HbmMemoryOf(context);
  std::string score;
  TF_RETURN_IF_ERROR(context->GetAttr("score", &score));
  const Result<Score> parsed = ParseScore(score);
  if (!parsed.ok()) return ToAbsl(parsed.status());
  options->table.score = *parsed;
  options->storage.keep = options->storage.keep && !options->read_only;  // its rows are the checkpoint's, always
  options->storage.read_only = options->in_place;
  return ToAbsl(ValidateStorage(options->storage));
}

absl::Status VariableOptions::MakeState(const std::string& name, InitializerSpec initializer, const VariableState* replaced,
                                        std::shared_ptr<VariableState>* state) const {
  if (storage.keep) return MakeKept(*this, name, std::move(initializer), replaced, state);
  return MakeStateOf(storage, name, std::move(initializer), nullptr, state);
}

absl::Status VariableOptions::MakeStateOf(const StorageSpec& spec, const std::string& name, InitializerSpec initializer,
                                          std::shared_ptr<InstanceDirectory>* instance,
                                          std::shared_ptr<VariableState>* state) const {
  TableOptions options = table;
  options.name = name;
  options.initializer = std::move(initializer);
  const Status composed = ComposeStorage(spec, &options, instance);
  if (!composed.ok()) return ToAbsl(Status(composed.code(), StrCat("embedding variable '", name, "': ", composed.message())));
  Result<std::unique_ptr<EmbeddingTable>> created = EmbeddingTable::Create(std::move(options));
  if (!created.ok()) return ToAbsl(created.status());
  auto made = std::make_shared<VariableState>();
  made->table = *std::move(created);
  made->key_dtype = key_dtype;
  made->partition_index = partition_index;
  made->num_partitions = num_partitions;
  made->read_only = read_only;
  *state = std::move(made);
  return absl::OkStatus();
}

VariableState::VariableState() = default;

VariableState::~VariableState() {
  if (kept != nullptr) kept->Close(table.get());
}

absl::Status FindState(OpKernelContext* context, int input, std::shared_ptr<VariableState>* state) {
  state->reset();
  tensorflow::ResourceHandle handle;
  TF_RETURN_IF_ERROR(tensorflow::HandleFromInput(context, input, &handle));
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
  const std::shared_ptr<VariableState> old = variable->Exchange(state);
  if (state != nullptr && old != nullptr && old != state && old->kept != nullptr) old->kept->Discard();
  return absl::OkStatus();
}

absl::Status CheckKeyType(const std::string& variable, const std::string& expected, const std::string& found,
                          const std::string& prefix) {
  if (expected == found) return absl::OkStatus();
  const auto name = [](const std::string& key_dtype) { return key_dtype.empty() ? "int64 or int32" : key_dtype; };
  return absl::InvalidArgumentError(absl::StrCat("embedding variable '", variable, "': expected keys of ", name(expected),
                                                 ", found ", name(found), " in checkpoint ", prefix,
                                                 ": create the variable with that key_dtype"));
}

void LogFreshSlots(const EmbeddingTable& table, const std::vector<ColumnSpec>& slots) {
  const int64_t rows = table.TotalCount();
  if (rows == 0 || slots.empty()) return;
  const std::string names =
      absl::StrJoin(slots, ", ", [](std::string* out, const ColumnSpec& slot) { absl::StrAppend(out, slot.name); });
  LOG(INFO) << "embedding variable '" << table.options().name << "': its " << rows << " rows had no " << names
            << ": these slots begin with their initial values";
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
