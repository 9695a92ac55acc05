#include "cc/python/py_table.h"

#include <algorithm>
#include <type_traits>

#include "cc/env/env.h"
#include "cc/optimizer/update_rule.h"
#include "cc/options/options.h"
#include "cc/table/api/stats_json.h"

namespace multitier {
namespace {

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

// What Python gets of what an operation gives.
template <typename T>
py::object ToPython(T value) {
  return py::cast(std::move(value));
}
py::object ToPython(Rows rows) { return ToDict(std::move(rows)); }
py::object ToPython(std::vector<int64_t> values) { return Own(std::move(values)); }
py::object ToPython(std::pair<Rows, uint64_t> piece) { return py::make_tuple(ToDict(std::move(piece.first)), piece.second); }
template <typename T>
py::object ToPython(Result<T> result) {
  return ToPython(*std::move(result));
}

template <typename T>
Status StatusOf(const T&) {
  return OkStatus();
}
template <typename T>
Status StatusOf(const Result<T>& result) {
  return result.status();
}

// Runs operation(table), which gives a Status, a Result or a value.
template <typename Function>
auto Call(PyTable* self, const Function& operation) {
  using Given = decltype(operation(self->table()));
  if constexpr (std::is_same_v<Given, Status>) {
    self->Run(operation);
  } else {
    std::optional<Given> given;
    self->Run([&](EmbeddingTable* table) { return StatusOf(given.emplace(operation(table))); });
    return ToPython(*std::move(given));
  }
}

// A method of Table: one of EmbeddingTable that takes and gives what Python can, or a function of an EmbeddingTable and such
// arguments.
template <typename Given, typename Base, typename... Args>
auto Operation(Given (Base::*method)(Args...)) {
  return [method](PyTable* self, Args... args) {
    return Call(self, [&](EmbeddingTable* table) { return (table->*method)(args...); });
  };
}
template <typename Given, typename... Args>
auto Operation(Given (*function)(EmbeddingTable*, Args...)) {
  return [function](PyTable* self, Args... args) {
    return Call(self, [&](EmbeddingTable* table) { return function(table, args...); });
  };
}
template <typename Function, typename Given, typename... Args>
auto OperationOf(const Function& function, Given (Function::*)(EmbeddingTable*, Args...) const) {
  return [function](PyTable* self, Args... args) {
    return Call(self, [&](EmbeddingTable* table) { return function(table, args...); });
  };
}
template <typename Function>
auto Operation(const Function& function) {
  return OperationOf(function, &Function::operator());
}

// A method of Table that gives one number for each key.
template <typename T>
auto PerKey(Status (EmbeddingTable::*method)(Span<const int64_t>, T*)) {
  return [method](PyTable* self, const Array<int64_t>& keys) {
    Array<T> out(keys.size());
    self->Run([&, data = out.mutable_data()](EmbeddingTable* table) { return (table->*method)(View(keys), data); });
    return out;
  };
}

// What call(&value) sets.
template <typename T, typename Function>
Result<T> Out(const Function& call) {
  T value{};
  MT_RETURN_IF_ERROR(call(&value));
  return value;
}

std::vector<ColumnTuple> Columns(PyTable* self) {
  std::shared_ptr<const RowLayout> layout;
  self->Run([&](EmbeddingTable* table) {
    layout = table->layout();
    return OkStatus();
  });
  std::vector<ColumnTuple> columns;
  for (const Column& column : layout->columns()) columns.emplace_back(column.name, column.dim, column.initial_value);
  return columns;
}

// tables: of the keys, or empty.
py::array Lookup(PyTable* self, const Array<int64_t>& keys, bool training, const Array<uint16_t>& tables) {
  const ReadFor reason = training ? ReadFor::kTraining : ReadFor::kEvaluation;
  Array<float> out(std::vector<py::ssize_t>{keys.size(), self->dim()});
  self->Run([&, data = out.mutable_data()](EmbeddingTable* table) {
    return table->Lookup(View(keys), data, nullptr, nullptr, 0, reason, View(tables));
  });
  return out;
}

py::array Peek(PyTable* self, const Array<int64_t>& keys, const Array<uint16_t>& tables) {
  Array<float> out(std::vector<py::ssize_t>{keys.size(), self->dim()});
  self->Run([&, data = out.mutable_data()](EmbeddingTable* table) { return table->Peek(View(keys), data, View(tables)); });
  return out;
}

// Gives the number of new keys that got no row.
Result<int64_t> Apply(EmbeddingTable* table, const std::string& rule, const Array<int64_t>& keys, const Array<float>& grads,
                      const std::optional<Array<int64_t>>& counts, const std::vector<float>& hyper,
                      const std::vector<std::string>& slot_columns, int64_t global_step, const Array<uint16_t>& tables) {
  ApplyRequest request;
  request.keys = View(keys);
  request.tables = View(tables);
  request.grads = grads.data();
  if (counts) request.counts = View(*counts);
  MT_ASSIGN_OR_RETURN(request.rule, FindUpdateRule(rule));
  request.hyper = hyper;
  request.slot_columns = slot_columns;
  request.global_step = global_step;
  int64_t refused = 0;
  request.refused = &refused;
  MT_RETURN_IF_ERROR(table->Apply(request));
  return refused;
}

// Columns by name, [n, dim] each. Empty facts: not given. Gives the number of rows written.
Result<int64_t> Upsert(EmbeddingTable* table, const Array<int64_t>& keys,
                       const std::vector<std::pair<std::string, Array<float>>>& columns, const Array<int64_t>& frequencies,
                       const Array<int64_t>& versions, const std::string& if_exists, bool last_of_repeats) {
  UpsertRequest request;
  request.keys = View(keys);
  for (const auto& [name, data] : columns) {
    request.columns.push_back({name, static_cast<int>(data.shape(1)), data.data()});
  }
  request.frequencies = View(frequencies);
  request.versions = View(versions);
  request.if_exists = if_exists == "keep" ? IfExists::kKeep : if_exists == "error" ? IfExists::kError : IfExists::kReplace;
  request.last_of_repeats = last_of_repeats;
  return table->Upsert(request);
}

Result<std::pair<Rows, uint64_t>> Scan(EmbeddingTable* table, uint64_t cursor, int64_t max_rows,
                                       const std::vector<std::string>& columns, int64_t min_version, int64_t min_frequency) {
  std::pair<Rows, uint64_t> piece;
  MT_ASSIGN_OR_RETURN(piece.first,
                      table->Scan(ScanRequest{cursor, max_rows, columns, min_version, min_frequency}, &piece.second));
  return piece;
}

void Import(PyTable* self, const py::dict& dict) {
  Rows rows;
  FromDict(dict, &rows);
  self->Run([&](EmbeddingTable* table) { return table->Import(rows); });
}

}  // namespace

PyTable::PyTable(const std::string& record, const std::optional<Array<float>>& matrix, PyInstance* recover,
                 const Files& files) {
  TableOptions options;
  static_cast<Options&>(options) = ValueOrThrow(ParseOptions(record, kInTable));
  if (matrix) {
    options.initializer.matrix = std::make_shared<const std::vector<float>>(matrix->data(), matrix->data() + matrix->size());
  }
  Opening opening;
  if (recover != nullptr) opening.recover = recover->Take();
  name_ = options.name;
  dim_ = options.dim;
  Status status;
  {
    py::gil_scoped_release release;
    status = Make(opening, files, std::move(options));
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

void PyTable::Close(bool deleted) {
  Status status = CheckProcess();
  if (status.ok()) {
    py::gil_scoped_release release;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    if (table_ == nullptr) return;
    if (table_->options().keep || !table_->options().external_storage.empty()) status = table_->Flush();
    if (status.ok() || deleted) {
      table_.reset();
      instance_.reset();
    }
  }
  ThrowIfError(status);
}

Status PyTable::Make(const Opening& opening, const Files& files, TableOptions options) {
  const bool keep = options.keep;
  MT_RETURN_IF_ERROR(ComposeStorage(opening, &options, &instance_));
  if (opening.recover != nullptr) recovery_ = options.lower_tiers.back().tier->recovery();
  MT_ASSIGN_OR_RETURN(table_, EmbeddingTable::Create(std::move(options)));
  if (instance_ == nullptr) return OkStatus();
  path_ = instance_->path();
  MT_RETURN_IF_ERROR(WriteFiles(path_, files));
  return keep || opening.recover != nullptr ? instance_->SetKeep(keep) : OkStatus();
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

void DefineTable(py::module_* module) {
  using Table = EmbeddingTable;
  using Keys = Array<int64_t>;
  py::class_<PyTable, std::shared_ptr<PyTable>>(*module, "Table")
      .def(py::init<const std::string&, const std::optional<Array<float>>&, PyInstance*, const Files&>())
      .def_property_readonly("dim", &PyTable::dim)
      .def_property_readonly("name", &PyTable::name)
      .def_property_readonly("path", [](const PyTable& table) { return py::bytes(table.path()); })
      .def_property_readonly("recovery", &PyTable::Recovery)
      .def("close", &PyTable::Close, py::arg("deleted") = false)
      .def("columns", &Columns)
      .def("add_slots", Operation([](Table* t, const std::vector<ColumnTuple>& slots) { return t->AddSlots(ToSpecs(slots)); }))
      .def("lookup", &Lookup)
      .def("peek", &Peek)
      .def("apply", Operation(&Apply))
      .def("frequency", PerKey(&Table::Frequency))
      .def("version", PerKey(&Table::Version))
      .def("score", PerKey(&Table::ScoreOf))
      .def("lookup_tier", PerKey(&Table::LookupTier))
      // Whether it is the first score that is less than the one before it.
      .def("set_score", Operation([](Table* t, int64_t score) {
             return Out<bool>([&](bool* decreased) { return t->SetScore(score, decreased); });
           }))
      .def("remove", Operation([](Table* t, const Keys& keys) {
             return Out<int64_t>([&](int64_t* removed) { return t->Remove(View(keys), removed); });
           }))
      .def("expire", Operation([](Table* t, int64_t step) {
             return Out<int64_t>([&](int64_t* expired) { return t->Expire(step, expired); });
           }))
      .def("prefetch", Operation([](Table* t, const Keys& keys, uint64_t timeout_us) {
             return Out<int64_t>([&](int64_t* pinned) { return t->Prefetch(View(keys), timeout_us, pinned); });
           }))
      .def("release_prefetched", Operation([](Table* t) {
             t->ReleasePrefetched();
             return OkStatus();
           }))
      .def("clear", Operation(&Table::Clear))
      .def("export", Operation(&Table::Export))
      .def("scan", Operation(&Scan))
      .def("import_rows", &Import)
      .def("upsert", Operation(&Upsert))
      .def("pop_dropped", Operation(&Table::PopDropped))
      .def("pop_dropped_rows", Operation(&Table::PopDroppedRows))
      .def("removed_since", Operation(&Table::RemovedSince))
      .def("total_count", Operation([](Table* t) { return t->TotalCount(); }))
      .def("stats_json", Operation([](Table* t) { return StatsToJson(t); }))
      .def("drain", Operation(&Table::Drain))
      .def("flush", Operation(&Table::Flush))
      .def("compact", Operation(&Table::Compact))
      .def("reserve", Operation(&Table::Reserve))
      .def("set_budget", Operation([](Table* t, uint64_t size, bool in_rows) {
             return t->SetDramBudget(in_rows ? Budget::Rows(size) : Budget::Bytes(size));
           }));
}

}  // namespace multitier
