#include "cc/python/py_table.h"

#include <algorithm>

#include "cc/env/env.h"
#include "cc/optimizer/update_rule.h"
#include "cc/table/option_names.h"
#include "cc/table/stats_json.h"

namespace multitier {
namespace {

// Member `name` of the options dict, which tf_multitier/engine fills completely.
template <typename T>
T Get(const py::dict& options, const char* name) {
  return options[name].cast<T>();
}

Status WriteFiles(const std::string& directory, const Files& files) {
  Env* const env = Env::Posix();
  for (const auto& [name, content] : files) {
    MT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env->NewWritableFile(directory + "/" + name));
    MT_RETURN_IF_ERROR(file->Append(content.data(), content.size()));
    MT_RETURN_IF_ERROR(file->Sync());
    MT_RETURN_IF_ERROR(file->Close());
  }
  return OkStatus();
}

// None: no cut-off.
void SetCutOffs(const py::dict& dict, InitializerSpec* spec) {
  if (!dict["lower"].is_none()) spec->lower = Get<float>(dict, "lower");
  if (!dict["upper"].is_none()) spec->upper = Get<float>(dict, "upper");
}

// The initializer of the option, which is not None.
InitializerSpec ToInitializer(const py::dict& options, const char* option) {
  const auto dict = Get<py::dict>(options, option);
  InitializerSpec spec;
  spec.kind = ValueOrThrow(ParseInitializerKind(Get<std::string>(dict, "kind"), StrCat(option, "['kind']").c_str()));
  spec.a = Get<float>(dict, "a");
  spec.b = Get<float>(dict, "b");
  SetCutOffs(dict, &spec);
  spec.seed = Get<uint64_t>(dict, "seed");
  return spec;
}

TableOptions ToOptions(const py::dict& dict) {
  TableOptions options;
  options.name = Get<std::string>(dict, "name");
  options.dim = Get<int>(dict, "dim");
  options.value_dtype = ValueOrThrow(ParseDType(Get<std::string>(dict, "value_dtype")));
  options.stochastic_rounding = Get<bool>(dict, "stochastic_rounding");
  options.initializer.kind = ValueOrThrow(ParseInitializerKind(Get<std::string>(dict, "initializer")));
  options.initializer.a = Get<float>(dict, "a");
  options.initializer.b = Get<float>(dict, "b");
  SetCutOffs(dict, &options.initializer);
  options.initializer.seed = Get<uint64_t>(dict, "seed");
  if (!dict["matrix"].is_none()) {
    const auto matrix = Get<Array<float>>(dict, "matrix");
    options.initializer.matrix = std::make_shared<const std::vector<float>>(matrix.data(), matrix.data() + matrix.size());
    options.initializer.matrix_rows = matrix.shape(0);
  }
  options.slots = ToSpecs(Get<std::vector<ColumnTuple>>(dict, "slots"));
  options.admission.kind = ValueOrThrow(ParseAdmissionKind(Get<std::string>(dict, "filter")));
  options.admission.filter_freq = Get<uint32_t>(dict, "filter_freq");
  options.admission.max_element_size = Get<int64_t>(dict, "filter_max_elements");
  options.admission.false_positive_probability = Get<double>(dict, "filter_false_positive");
  options.admission.counter_bits = Get<int>(dict, "filter_counter_bits");
  options.admission.probability = Get<double>(dict, "filter_probability");
  options.admission.seed = options.initializer.seed;
  options.admission.max_keys = Get<int64_t>(dict, "filter_max_keys");
  options.not_admitted.a = Get<float>(dict, "default_value_no_permission");
  if (!dict["not_admitted"].is_none()) options.not_admitted = ToInitializer(dict, "not_admitted");
  if (!dict["evaluation"].is_none()) options.evaluation = ToInitializer(dict, "evaluation");
  options.expiry.steps_to_live = Get<int64_t>(dict, "steps_to_live");
  options.expiry.l2_weight_threshold = Get<float>(dict, "l2_weight_threshold");
  options.score = ValueOrThrow(ParseScore(Get<std::string>(dict, "score")));
  options.num_shards = Get<int>(dict, "num_shards");
  return options;
}

StorageSpec ToStorage(const py::dict& dict) {
  StorageSpec storage;
  storage.type = Get<std::string>(dict, "storage_type");
  storage.path = Get<std::string>(dict, "storage_path");
  storage.sizes = Get<std::vector<int64_t>>(dict, "storage_sizes");
  storage.rows = Get<std::vector<int64_t>>(dict, "storage_rows");
  storage.initial_rows = Get<int64_t>(dict, "initial_rows");
  storage.cache_strategy = ValueOrThrow(ParseCacheStrategy(Get<std::string>(dict, "cache_strategy")));
  storage.drop_coldest = Get<bool>(dict, "drop_coldest");
  storage.keep_dropped = ValueOrThrow(ParseKeepDropped(Get<std::string>(dict, "dropped")));
  storage.dropped_bytes = Get<int64_t>(dict, "dropped_bytes");
  storage.removed_bytes = Get<int64_t>(dict, "removed_bytes");
  ThrowIfError(ParseOnFull(Get<std::string>(dict, "on_full"), &storage));
  storage.refuse_colder = Get<bool>(dict, "refuse_colder");
  storage.keep = Get<bool>(dict, "keep");
  storage.device = Get<std::string>(dict, "device");
  storage.on_corruption = ValueOrThrow(ParseOnCorruption(Get<std::string>(dict, "on_corruption")));
  if (!dict["recover"].is_none()) storage.recover = Get<PyInstance*>(dict, "recover")->Take();
  return storage;
}

// Moves the value out of the result of an operation.
template <typename Value>
Status Take(Result<Value> result, Value* value) {
  MT_RETURN_IF_ERROR(result.status());
  *value = *std::move(result);
  return OkStatus();
}

}  // namespace

PyTable::PyTable(const py::dict& dict) {
  TableOptions options = ToOptions(dict);
  StorageSpec storage = ToStorage(dict);
  const Files files = Get<Files>(dict, "files");
  name_ = options.name;
  dim_ = options.dim;
  Status status;
  {
    py::gil_scoped_release release;
    status = Make(std::move(storage), files, std::move(options));
  }
  ThrowIfError(status);
}

PyTable::~PyTable() {
  py::gil_scoped_release release;
  table_.reset();
  instance_.reset();
}

py::object PyTable::Recovery() const {
  if (!recovery_) return py::none();
  py::dict counts;
  counts["files"] = recovery_->files;
  counts["listed_files"] = recovery_->listed_files;
  counts["unsealed_files"] = recovery_->unsealed_files;
  counts["lost_headers"] = recovery_->lost_headers;
  counts["records"] = recovery_->records;
  counts["damaged_records"] = recovery_->damaged_records;
  counts["first_damage"] = recovery_->first_damage;
  counts["rows"] = recovery_->rows;
  return std::move(counts);
}

std::vector<ColumnTuple> PyTable::Columns() {
  std::shared_ptr<const RowLayout> layout;
  Run([&] {
    layout = table_->layout();
    return OkStatus();
  });
  std::vector<ColumnTuple> columns;
  for (const Column& column : layout->columns()) columns.emplace_back(column.name, column.dim, column.initial_value);
  return columns;
}

py::array PyTable::Lookup(const Array<int64_t>& keys, bool training) {
  const ReadFor reason = training ? ReadFor::kTraining : ReadFor::kEvaluation;
  Array<float> out(std::vector<py::ssize_t>{keys.size(), dim()});
  Run([&, data = out.mutable_data()] { return table_->Lookup(View(keys), data, nullptr, nullptr, 0, reason); });
  return out;
}

py::array PyTable::Peek(const Array<int64_t>& keys) {
  Array<float> out(std::vector<py::ssize_t>{keys.size(), dim()});
  Run([&, data = out.mutable_data()] { return table_->Peek(View(keys), data); });
  return out;
}

int64_t PyTable::Apply(const std::string& rule, const Array<int64_t>& keys, const Array<float>& grads,
                       const std::optional<Array<int64_t>>& counts, const std::vector<float>& hyper,
                       const std::vector<std::string>& slot_columns, int64_t global_step) {
  ApplyRequest request;
  request.keys = View(keys);
  request.grads = grads.data();
  if (counts) request.counts = View(*counts);
  request.rule = ValueOrThrow(FindUpdateRule(rule));
  request.hyper = hyper;
  request.slot_columns = slot_columns;
  request.global_step = global_step;
  int64_t refused = 0;
  request.refused = &refused;
  Run([&] { return table_->Apply(request); });
  return refused;
}

void PyTable::AddSlots(const std::vector<ColumnTuple>& slots) {
  const std::vector<ColumnSpec> specs = ToSpecs(slots);
  Run([&] { return table_->AddSlots(specs); });
}

int64_t PyTable::Remove(const Array<int64_t>& keys) {
  int64_t removed = 0;
  Run([&] { return table_->Remove(View(keys), &removed); });
  return removed;
}

int64_t PyTable::Expire(int64_t step) {
  int64_t expired = 0;
  Run([&] { return table_->Expire(step, &expired); });
  return expired;
}

void PyTable::Clear() {
  Run([&] { return table_->Clear(); });
}

py::dict PyTable::Export(bool all_columns) {
  Rows rows;
  Run([&] { return Take(table_->Export(all_columns), &rows); });
  return ToDict(std::move(rows));
}

std::pair<py::dict, uint64_t> PyTable::Scan(uint64_t cursor, int64_t max_rows, const std::vector<std::string>& columns,
                                            int64_t min_version, int64_t min_frequency) {
  Rows rows;
  uint64_t next = 0;
  Run([&] { return Take(table_->Scan(ScanRequest{cursor, max_rows, columns, min_version, min_frequency}, &next), &rows); });
  return {ToDict(std::move(rows)), next};
}

int64_t PyTable::Upsert(const Array<int64_t>& keys, const std::vector<std::pair<std::string, Array<float>>>& columns,
                        const Array<int64_t>& frequencies, const Array<int64_t>& versions, const std::string& if_exists,
                        bool last_of_repeats) {
  UpsertRequest request;
  request.keys = View(keys);
  for (const auto& [name, data] : columns) {
    request.columns.push_back({name, static_cast<int>(data.shape(1)), data.data()});
  }
  request.frequencies = View(frequencies);
  request.versions = View(versions);
  request.if_exists = if_exists == "keep" ? IfExists::kKeep : if_exists == "error" ? IfExists::kError : IfExists::kReplace;
  request.last_of_repeats = last_of_repeats;
  int64_t written = 0;
  Run([&] {
    const Result<int64_t> result = table_->Upsert(request);
    if (result.ok()) written = *result;
    return result.status();
  });
  return written;
}

void PyTable::Import(const py::dict& dict) {
  const Rows rows = FromDict(dict);
  Run([&] { return table_->Import(rows); });
}

bool PyTable::SetScore(int64_t score) {
  bool decreased = false;
  Run([&] { return table_->SetScore(score, &decreased); });
  return decreased;
}

int64_t PyTable::TotalCount() {
  int64_t count = 0;
  Run([&] {
    count = table_->TotalCount();
    return OkStatus();
  });
  return count;
}

std::string PyTable::StatsJson() {
  std::string text;
  Run([&] {
    text = StatsToJson(table_->Stats());
    return OkStatus();
  });
  return text;
}

void PyTable::Drain() {
  Run([&] { return table_->Drain(); });
}

void PyTable::Flush() {
  Run([&] { return table_->Flush(); });
}

void PyTable::SetDramBudget(uint64_t size, bool in_rows) {
  Run([&] { return table_->SetDramBudget(in_rows ? Budget::Rows(size) : Budget::Bytes(size)); });
}

void PyTable::Reserve(uint64_t rows) {
  Run([&] { return table_->Reserve(rows); });
}

void PyTable::Compact() {
  Run([&] { return table_->Compact(); });
}

int64_t PyTable::Prefetch(const Array<int64_t>& keys, uint64_t timeout_us) {
  int64_t pinned = 0;
  Run([&] { return table_->Prefetch(View(keys), timeout_us, &pinned); });
  return pinned;
}

void PyTable::ReleasePrefetched() {
  Run([&] {
    table_->ReleasePrefetched();
    return OkStatus();
  });
}

py::dict PyTable::PopDroppedRows() {
  Rows rows;
  Run([&] { return Take(table_->PopDroppedRows(), &rows); });
  return ToDict(std::move(rows));
}

py::array PyTable::PopDropped() {
  std::vector<int64_t> keys;
  Run([&] {
    keys = table_->PopDropped();
    return OkStatus();
  });
  return Own(std::move(keys));
}

py::array PyTable::RemovedSince(int64_t version) {
  std::vector<int64_t> keys;
  Run([&] { return Take(table_->RemovedSince(version), &keys); });
  return Own(std::move(keys));
}

void PyTable::Close() {
  Status status = CheckProcess();
  if (status.ok()) {
    py::gil_scoped_release release;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    if (table_ == nullptr) return;
    if (table_->options().keep) status = table_->Flush();
    if (status.ok()) {
      table_.reset();
      instance_.reset();
    }
  }
  ThrowIfError(status);
}

Status PyTable::Make(StorageSpec storage, const Files& files, TableOptions options) {
  MT_RETURN_IF_ERROR(ComposeStorage(storage, &options, &instance_));
  if (storage.recover != nullptr) recovery_ = options.lower_tiers.back().tier->recovery();
  MT_ASSIGN_OR_RETURN(table_, EmbeddingTable::Create(std::move(options)));
  if (instance_ == nullptr) return OkStatus();
  path_ = instance_->path();
  MT_RETURN_IF_ERROR(WriteFiles(path_, files));
  return storage.keep || storage.recover != nullptr ? instance_->SetKeep(storage.keep) : OkStatus();
}

Status PyTable::CheckProcess() const {
  if (::getpid() == pid_) return OkStatus();
  return FailedPreconditionError("table '", name_, "' belongs to process ", pid_, "; a forked child (here ", ::getpid(),
                                 ") cannot use it");
}

Result<std::vector<std::shared_lock<std::shared_mutex>>> PyTable::LockAll(const std::vector<std::shared_ptr<PyTable>>& tables) {
  std::vector<PyTable*> distinct;
  for (const auto& table : tables) distinct.push_back(table.get());
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::vector<std::shared_lock<std::shared_mutex>> locks;
  for (PyTable* table : distinct) {
    locks.emplace_back(table->mutex_);
    if (table->table_ == nullptr) return table->Closed();
  }
  return locks;
}

}  // namespace multitier
