#include "cc/python/py_table.h"

#include <algorithm>

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

// Moves the value out of the result of an operation.
template <typename Value>
Status Take(Result<Value> result, Value* value) {
  MT_RETURN_IF_ERROR(result.status());
  *value = *std::move(result);
  return OkStatus();
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

py::array PyTable::Lookup(const Array<int64_t>& keys, bool training, const Array<uint16_t>& tables) {
  const ReadFor reason = training ? ReadFor::kTraining : ReadFor::kEvaluation;
  Array<float> out(std::vector<py::ssize_t>{keys.size(), dim()});
  Run([&, data = out.mutable_data()] { return table_->Lookup(View(keys), data, nullptr, nullptr, 0, reason, View(tables)); });
  return out;
}

py::array PyTable::Peek(const Array<int64_t>& keys, const Array<uint16_t>& tables) {
  Array<float> out(std::vector<py::ssize_t>{keys.size(), dim()});
  Run([&, data = out.mutable_data()] { return table_->Peek(View(keys), data, View(tables)); });
  return out;
}

int64_t PyTable::Apply(const std::string& rule, const Array<int64_t>& keys, const Array<float>& grads,
                       const std::optional<Array<int64_t>>& counts, const std::vector<float>& hyper,
                       const std::vector<std::string>& slot_columns, int64_t global_step, const Array<uint16_t>& tables) {
  ApplyRequest request;
  request.keys = View(keys);
  request.tables = View(tables);
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
  Rows rows;
  FromDict(dict, &rows);
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
    text = StatsToJson(table_.get());
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

}  // namespace multitier
