// tf_multitier._engine: EmbeddingTable for NumPy, without TensorFlow. tf_multitier/engine.py is its public face and does the
// conversions: every array that arrives here is contiguous and has the dtype and shape that the signatures name.
//
// The GIL is released while the engine works.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/env/env.h"
#include "cc/env/instance_dir.h"
#include "cc/lookup/group_lookup.h"
#include "cc/optimizer/update_rule.h"
#include "cc/python/exceptions.h"
#include "cc/storage/storage.h"
#include "cc/table/embedding_table.h"
#include "cc/table/option_names.h"
#include "cc/table/stats_json.h"
#include "cc/tier/ssdhash/salvage.h"

namespace multitier {
namespace {

namespace py = pybind11;

template <typename T>
using Array = py::array_t<T, py::array::c_style>;
using ColumnTuple = std::tuple<std::string, int, float>;  // name, dim, initial value

template <typename T>
Span<const T> View(const Array<T>& array) {
  return Span<const T>(array.data(), static_cast<size_t>(array.size()));
}

// Gives a vector to NumPy without a copy.
template <typename T>
py::array Own(std::vector<T> values, std::vector<py::ssize_t> shape) {
  auto owner = std::make_unique<std::vector<T>>(std::move(values));
  const T* data = owner->data();
  py::capsule free(owner.get(), [](void* p) { delete static_cast<std::vector<T>*>(p); });
  owner.release();
  return py::array_t<T>(std::move(shape), data, free);
}

template <typename T>
py::array Own(std::vector<T> values) {
  const auto n = static_cast<py::ssize_t>(values.size());
  return Own(std::move(values), {n});
}

std::vector<ColumnSpec> ToSpecs(const std::vector<ColumnTuple>& columns) {
  std::vector<ColumnSpec> specs;
  for (const auto& [name, dim, initial_value] : columns) {
    specs.push_back(ColumnSpec{name, DType::kFloat32, dim, initial_value});
  }
  return specs;
}

std::vector<ColumnTuple> ToTuples(const std::vector<ColumnSpec>& columns) {
  std::vector<ColumnTuple> tuples;
  for (const ColumnSpec& column : columns) tuples.emplace_back(column.name, column.dim, column.initial_value);
  return tuples;
}

py::dict ToDict(Rows rows) {
  const auto n = static_cast<py::ssize_t>(rows.keys.size());
  const auto elements = static_cast<py::ssize_t>(rows.row_elements());
  py::dict out;
  out["columns"] = ToTuples(rows.columns);
  out["keys"] = Own(std::move(rows.keys));
  out["frequencies"] = Own(std::move(rows.frequencies));
  out["versions"] = Own(std::move(rows.versions));
  out["data"] = Own(std::move(rows.data), {n, elements});
  out["counted_keys"] = Own(std::move(rows.counted_keys));
  out["counted_frequencies"] = Own(std::move(rows.counted_frequencies));
  out["counted_versions"] = Own(std::move(rows.counted_versions));
  return out;
}

template <typename T>
std::vector<T> VectorOf(const py::dict& dict, const char* name) {
  const auto array = dict[name].cast<Array<T>>();
  return std::vector<T>(array.data(), array.data() + array.size());
}

Rows FromDict(const py::dict& dict) {
  Rows rows;
  rows.columns = ToSpecs(dict["columns"].cast<std::vector<ColumnTuple>>());
  rows.keys = VectorOf<int64_t>(dict, "keys");
  rows.frequencies = VectorOf<int64_t>(dict, "frequencies");
  rows.versions = VectorOf<int64_t>(dict, "versions");
  rows.data = VectorOf<float>(dict, "data");
  rows.counted_keys = VectorOf<int64_t>(dict, "counted_keys");
  rows.counted_frequencies = VectorOf<int64_t>(dict, "counted_frequencies");
  rows.counted_versions = VectorOf<int64_t>(dict, "counted_versions");
  return rows;
}

// Member `name` of the options dict, which engine.py fills completely.
template <typename T>
T Get(const py::dict& options, const char* name) {
  return options[name].cast<T>();
}

// What stands beside the tiers' files of a kept table, so that it can be made again.
using Files = std::vector<std::pair<std::string, std::string>>;  // name, content

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

// A kept instance whose owner is gone: locked until it is released, or a table has taken it and is gone.
class PyInstance {
 public:
  explicit PyInstance(const std::string& path) : held_(ValueOrThrow(InstanceDirectory::Open(path, /*keep=*/true))) {}

  std::shared_ptr<InstanceDirectory> Take() { return std::move(held_); }
  void Release() { held_.reset(); }

 private:
  std::shared_ptr<InstanceDirectory> held_;
};

TableOptions ToOptions(const py::dict& dict) {
  TableOptions options;
  options.name = Get<std::string>(dict, "name");
  options.dim = Get<int>(dict, "dim");
  options.initializer.kind = ValueOrThrow(ParseInitializerKind(Get<std::string>(dict, "initializer")));
  options.initializer.a = Get<float>(dict, "a");
  options.initializer.b = Get<float>(dict, "b");
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
  options.default_value_no_permission = Get<float>(dict, "default_value_no_permission");
  options.expiry.steps_to_live = Get<int64_t>(dict, "steps_to_live");
  options.expiry.l2_weight_threshold = Get<float>(dict, "l2_weight_threshold");
  options.num_shards = Get<int>(dict, "num_shards");
  return options;
}

StorageSpec ToStorage(const py::dict& dict) {
  StorageSpec storage;
  storage.type = Get<std::string>(dict, "storage_type");
  storage.path = Get<std::string>(dict, "storage_path");
  storage.sizes = Get<std::vector<int64_t>>(dict, "storage_sizes");
  storage.cache_strategy = ValueOrThrow(ParseCacheStrategy(Get<std::string>(dict, "cache_strategy")));
  storage.drop_coldest = Get<bool>(dict, "drop_coldest");
  storage.keep = Get<bool>(dict, "keep");
  storage.on_corruption = ValueOrThrow(ParseOnCorruption(Get<std::string>(dict, "on_corruption")));
  if (!dict["recover"].is_none()) storage.recover = Get<PyInstance*>(dict, "recover")->Take();
  return storage;
}

// One EmbeddingTable, its methods without the GIL. Close waits for the operations that run, and ends all later ones.
class PyTable {
 public:
  // `recover`: a PyInstance to make it from, or None. `files`: to be written beside its own where they are kept.
  explicit PyTable(const py::dict& dict) {
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
  ~PyTable() {
    py::gil_scoped_release release;
    table_.reset();
    instance_.reset();
  }

  int dim() const { return dim_; }
  std::string name() const { return name_; }
  std::string path() const { return path_; }

  std::vector<ColumnTuple> Columns() {
    std::shared_ptr<const RowLayout> layout;
    Run([&] {
      layout = table_->layout();
      return OkStatus();
    });
    std::vector<ColumnTuple> columns;
    for (const Column& column : layout->columns()) columns.emplace_back(column.name, column.dim, column.initial_value);
    return columns;
  }

  py::array Lookup(const Array<int64_t>& keys) {
    Array<float> out(std::vector<py::ssize_t>{keys.size(), dim()});
    Run([&, data = out.mutable_data()] { return table_->Lookup(View(keys), data); });
    return out;
  }

  void Apply(const std::string& rule, const Array<int64_t>& keys, const Array<float>& grads,
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
    Run([&] { return table_->Apply(request); });
  }

  void AddSlots(const std::vector<ColumnTuple>& slots) {
    const std::vector<ColumnSpec> specs = ToSpecs(slots);
    Run([&] { return table_->AddSlots(specs); });
  }

  template <typename T, Status (EmbeddingTable::*Method)(Span<const int64_t>, T*)>
  py::array PerKey(const Array<int64_t>& keys) {
    Array<T> out(keys.size());
    Run([&, data = out.mutable_data()] { return (table_.get()->*Method)(View(keys), data); });
    return out;
  }

  int64_t Remove(const Array<int64_t>& keys) {
    int64_t removed = 0;
    Run([&] { return table_->Remove(View(keys), &removed); });
    return removed;
  }

  int64_t Expire(int64_t step) {
    int64_t expired = 0;
    Run([&] { return table_->Expire(step, &expired); });
    return expired;
  }

  void Clear() {
    Run([&] { return table_->Clear(); });
  }

  py::dict Export(bool all_columns) {
    Rows rows;
    Run([&] { return Take(table_->Export(all_columns), &rows); });
    return ToDict(std::move(rows));
  }

  std::pair<py::dict, uint64_t> Scan(uint64_t cursor, int64_t max_rows, bool all_columns) {
    Rows rows;
    uint64_t next = 0;
    Run([&] { return Take(table_->Scan(cursor, max_rows, all_columns, &next), &rows); });
    return {ToDict(std::move(rows)), next};
  }

  void Import(const py::dict& dict) {
    const Rows rows = FromDict(dict);
    Run([&] { return table_->Import(rows); });
  }

  int64_t TotalCount() {
    int64_t count = 0;
    Run([&] {
      count = table_->TotalCount();
      return OkStatus();
    });
    return count;
  }

  std::string StatsJson() {
    std::string text;
    Run([&] {
      text = StatsToJson(table_->Stats());
      return OkStatus();
    });
    return text;
  }

  void Drain() {
    Run([&] { return table_->Drain(); });
  }

  void Flush() {
    Run([&] { return table_->Flush(); });
  }

  int64_t Prefetch(const Array<int64_t>& keys, uint64_t timeout_us) {
    int64_t pinned = 0;
    Run([&] { return table_->Prefetch(View(keys), timeout_us, &pinned); });
    return pinned;
  }

  void ReleasePrefetched() {
    Run([&] {
      table_->ReleasePrefetched();
      return OkStatus();
    });
  }

  py::array PopDropped() {
    std::vector<int64_t> keys;
    Run([&] {
      keys = table_->PopDropped();
      return OkStatus();
    });
    return Own(std::move(keys));
  }

  void Close() {
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

  static Status Take(Result<Rows> result, Rows* rows) {
    MT_RETURN_IF_ERROR(result.status());
    *rows = *std::move(result);
    return OkStatus();
  }

  Status Make(StorageSpec storage, const Files& files, TableOptions options) {
    MT_RETURN_IF_ERROR(ComposeStorage(storage, &options, &instance_));
    MT_ASSIGN_OR_RETURN(table_, EmbeddingTable::Create(std::move(options)));
    if (instance_ == nullptr) return OkStatus();
    path_ = instance_->path();
    MT_RETURN_IF_ERROR(WriteFiles(path_, files));
    return storage.keep || storage.recover != nullptr ? instance_->SetKeep(storage.keep) : OkStatus();
  }

  // Before any lock: a thread that a forked child does not have may hold it.
  Status CheckProcess() const {
    if (::getpid() == pid_) return OkStatus();
    return FailedPreconditionError("table '", name_, "' belongs to process ", pid_, "; a forked child (here ", ::getpid(),
                                   ") cannot use it");
  }

  template <typename Operation>
  void Run(const Operation& operation) {
    Status status = CheckProcess();
    if (status.ok()) {
      py::gil_scoped_release release;
      std::shared_lock<std::shared_mutex> lock(mutex_);
      status = table_ == nullptr ? FailedPreconditionError("table '", name_, "' is closed") : operation();
    }
    ThrowIfError(status);
  }

  friend class PyGroup;

  // The same with several tables, which may be named more than once: operation() runs while all of them are open.
  template <typename Operation>
  static void RunAll(const std::vector<std::shared_ptr<PyTable>>& tables, const Operation& operation) {
    std::vector<PyTable*> distinct;
    for (const auto& table : tables) distinct.push_back(table.get());
    std::sort(distinct.begin(), distinct.end());
    distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    Status status;
    for (const PyTable* table : distinct) {
      if (status.ok()) status = table->CheckProcess();
    }
    if (status.ok()) {
      py::gil_scoped_release release;
      std::vector<std::shared_lock<std::shared_mutex>> locks;
      for (PyTable* table : distinct) {
        locks.emplace_back(table->mutex_);
        if (table->table_ == nullptr && status.ok()) status = FailedPreconditionError("table '", table->name_, "' is closed");
      }
      if (status.ok()) status = operation();
    }
    ThrowIfError(status);
  }

  const pid_t pid_ = ::getpid();
  std::string name_;
  std::string path_;  // of the instance; empty: no files
  int dim_ = 0;
  std::shared_mutex mutex_;  // exclusive: Close
  std::shared_ptr<InstanceDirectory> instance_;
  std::unique_ptr<EmbeddingTable> table_;
};

// Records as rows of all columns; those that a record was written without hold their initial value.
Status AppendSalvaged(const Salvage& found, Rows* rows) {
  for (const ColumnSpec& column : found.columns) {
    if (column.dtype != DType::kFloat32) return UnimplementedError("salvage: column '", column.name, "' is not float32");
  }
  for (size_t i = 0; i < found.headers.size(); ++i) {
    const RecordHeader& header = found.headers[i];
    rows->keys.push_back(header.key);
    rows->frequencies.push_back(header.frequency);
    rows->versions.push_back(header.version);
    const uint8_t* data = found.row_data.data() + i * found.row_bytes;
    for (size_t c = 0; c < found.columns.size(); ++c) {
      const auto dim = static_cast<size_t>(found.columns[c].dim);
      const size_t at = rows->data.size();
      rows->data.resize(at + dim, found.columns[c].initial_value);
      if (c < header.num_columns) std::memcpy(rows->data.data() + at, data, dim * sizeof(float));
      data += (dim * sizeof(float) + 15) / 16 * 16;
    }
  }
  return OkStatus();
}

// What SalvageSegments found: "rows" as Table.export gives them, and what it says of the damage.
py::dict SalvageDirectory(const std::string& directory) {
  Salvage found;
  Status status;
  Rows rows;
  {
    py::gil_scoped_release release;
    status = [&] {
      MT_ASSIGN_OR_RETURN(found, SalvageSegments(Env::Posix(), directory));
      rows.columns = found.columns;
      return AppendSalvaged(found, &rows);
    }();
  }
  ThrowIfError(status);
  py::dict out;
  out["rows"] = ToDict(std::move(rows));
  out["stale_keys"] = Own(std::move(found.stale_keys));
  out["lost_keys"] = Own(std::move(found.lost_keys));
  out["segments"] = found.segments;
  out["records"] = found.records;
  out["damaged_records"] = found.damaged_records;
  out["damage"] = found.damage;
  return out;
}

// A grouped lookup of NumPy arrays, and the update that follows it. Keeps what its plan points to.
class PyGroup {
 public:
  PyGroup(std::vector<std::shared_ptr<PyTable>> tables, std::vector<Array<int64_t>> keys, std::vector<Array<int64_t>> row_splits,
          const std::vector<std::string>& combiners, std::vector<std::optional<Array<float>>> weights,
          const std::vector<float>& max_norms, bool train)
      : tables_(std::move(tables)), weights_(std::move(weights)) {
    std::vector<GroupUnit> units(tables_.size());
    std::vector<GroupMember> members(tables_.size());
    for (size_t i = 0; i < tables_.size(); ++i) {
      GroupMember& member = members[i];
      member.name = StrCat("member ", i, " ('", tables_[i]->name(), "')");
      member.units = Span<const GroupUnit>(&units[i], 1);
      member.dim = tables_[i]->dim();
      member.combiner = ValueOrThrow(ParseCombiner(combiners[i]));
      member.max_norm = max_norms[i];
      member.form = GroupForm::kRagged;
      member.keys = View(keys[i]);
      member.indices = View(row_splits[i]);
      if (weights_[i]) member.weights = View(*weights_[i]);
      member.batch = row_splits[i].size() - 1;
      values_.emplace_back(std::vector<py::ssize_t>{static_cast<py::ssize_t>(member.batch), member.dim});
      member.out = values_.back().mutable_data();
    }
    PyTable::RunAll(tables_, [&] {
      for (size_t i = 0; i < units.size(); ++i) units[i].table = tables_[i]->table_.get();
      return LookupGroup(members, train ? &plan_ : nullptr);
    });
  }

  std::vector<Array<float>> Values() const { return values_; }
  py::array Keys(int member) const { return Copy(plan_.keys(member)); }
  py::array Counts(int member) const { return Copy(plan_.counts(member)); }

  // slot_columns: of each table.
  void Apply(const std::string& rule, const std::vector<Array<float>>& grads, const std::vector<float>& hyper,
             const std::vector<std::vector<std::string>>& slot_columns, int64_t global_step) {
    const UpdateRule* const found = ValueOrThrow(FindUpdateRule(rule));
    std::vector<std::vector<float>> sums(tables_.size());
    std::vector<const float*> from;
    std::vector<float*> to;
    for (size_t i = 0; i < tables_.size(); ++i) {
      sums[i].resize(plan_.keys(static_cast<int>(i)).size() * static_cast<size_t>(tables_[i]->dim()));
      from.push_back(grads[i].data());
      to.push_back(sums[i].data());
    }
    PyTable::RunAll(tables_, [&] {
      GroupGradients gradients;
      gradients.grads = Span<const float* const>(from.data(), from.size());
      gradients.sums = Span<float* const>(to.data(), to.size());
      GradientOfGroup(plan_, gradients);
      for (size_t i = 0; i < tables_.size(); ++i) {
        ApplyRequest request;
        request.keys = plan_.keys(static_cast<int>(i));
        request.counts = plan_.counts(static_cast<int>(i));
        request.places = plan_.places(static_cast<int>(i));
        request.distinct = true;
        request.grads = sums[i].data();
        request.rule = found;
        request.hyper = hyper;
        request.slot_columns = slot_columns[i];
        request.global_step = global_step;
        MT_RETURN_IF_ERROR(tables_[i]->table_->Apply(request));
      }
      return OkStatus();
    });
  }

 private:
  static py::array Copy(Span<const int64_t> values) { return Own(std::vector<int64_t>(values.begin(), values.end())); }

  std::vector<std::shared_ptr<PyTable>> tables_;
  std::vector<std::optional<Array<float>>> weights_;
  std::vector<Array<float>> values_;
  GroupPlan plan_;
};

// Name -> {"slots": [(name, per_row, default initial value)], "hyperparameters": [name]}
py::dict UpdateRules() {
  py::dict out;
  for (const UpdateRule* rule : AllUpdateRules()) {
    std::vector<std::tuple<std::string, bool, float>> slots;
    for (const SlotSpec& slot : rule->slots()) slots.emplace_back(slot.name, slot.per_row, slot.default_initial_value);
    std::vector<std::string> hyper;
    for (const char* name : rule->hyperparameters()) hyper.emplace_back(name);
    py::dict entry;
    entry["slots"] = slots;
    entry["hyperparameters"] = hyper;
    out[rule->name()] = entry;
  }
  return out;
}

}  // namespace

PYBIND11_MODULE(_engine, module) {
  module.doc() = "The embedding table engine for NumPy; use tf_multitier.engine.";
  RegisterExceptions(&module);
  module.def("update_rules", &UpdateRules);
  module.def("salvage", &SalvageDirectory);
  module.def("path_of_name", &InstanceDirectory::PathOfName);
  py::class_<PyInstance>(module, "Instance")
      .def(py::init<const std::string&>())
      .def("release", &PyInstance::Release);
  py::class_<PyGroup>(module, "Group")
      .def(py::init<std::vector<std::shared_ptr<PyTable>>, std::vector<Array<int64_t>>, std::vector<Array<int64_t>>,
                    const std::vector<std::string>&, std::vector<std::optional<Array<float>>>, const std::vector<float>&, bool>())
      .def("values", &PyGroup::Values)
      .def("keys", &PyGroup::Keys)
      .def("counts", &PyGroup::Counts)
      .def("apply", &PyGroup::Apply);

  py::class_<PyTable, std::shared_ptr<PyTable>>(module, "Table")
      .def(py::init<const py::dict&>())
      .def_property_readonly("dim", &PyTable::dim)
      .def_property_readonly("name", &PyTable::name)
      .def_property_readonly("path", &PyTable::path)
      .def("columns", &PyTable::Columns)
      .def("lookup", &PyTable::Lookup)
      .def("apply", &PyTable::Apply)
      .def("add_slots", &PyTable::AddSlots)
      .def("frequency", &PyTable::PerKey<int64_t, &EmbeddingTable::Frequency>)
      .def("version", &PyTable::PerKey<int64_t, &EmbeddingTable::Version>)
      .def("lookup_tier", &PyTable::PerKey<int32_t, &EmbeddingTable::LookupTier>)
      .def("remove", &PyTable::Remove)
      .def("expire", &PyTable::Expire)
      .def("clear", &PyTable::Clear)
      .def("export", &PyTable::Export)
      .def("scan", &PyTable::Scan)
      .def("import_rows", &PyTable::Import)
      .def("total_count", &PyTable::TotalCount)
      .def("stats_json", &PyTable::StatsJson)
      .def("drain", &PyTable::Drain)
      .def("flush", &PyTable::Flush)
      .def("close", &PyTable::Close)
      .def("prefetch", &PyTable::Prefetch)
      .def("release_prefetched", &PyTable::ReleasePrefetched)
      .def("pop_dropped", &PyTable::PopDropped);
}

}  // namespace multitier
