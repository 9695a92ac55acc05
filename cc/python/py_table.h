// PyTable: an EmbeddingTable as a Python object. PyInstance: an instance directory from which a table can be opened.

#ifndef CC_PYTHON_PY_TABLE_H_
#define CC_PYTHON_PY_TABLE_H_

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <string>
#include <utility>
#include <vector>

#include "cc/env/instance_dir.h"
#include "cc/python/arrays.h"
#include "cc/python/exceptions.h"
#include "cc/storage_types/storage.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {

// A kept instance of a process that has ended. It is locked until it is released, or until the table that took it is destroyed.
class PyInstance {
 public:
  explicit PyInstance(const std::string& path) : held_(ValueOrThrow(InstanceDirectory::Open(path, /*keep=*/true))) {}

  std::shared_ptr<InstanceDirectory> Take() { return std::move(held_); }
  void Release() { held_.reset(); }

 private:
  std::shared_ptr<InstanceDirectory> held_;
};

// Additional files in the instance directory of a kept table. They have its options, for opening it again.
using Files = std::vector<std::pair<std::string, std::string>>;  // name, content

// One EmbeddingTable. Its methods run without the GIL. Close waits for running operations; later operations fail.
class PyTable {
 public:
  // options: a record (cc/options). matrix: of the initializer matrix, or none. recover: the instance to open, or null. files:
  // to write into the instance directory of a kept table.
  PyTable(const std::string& options, const std::optional<Array<float>>& matrix, PyInstance* recover, const Files& files);
  ~PyTable();

  int dim() const { return dim_; }
  std::string name() const { return name_; }
  std::string path() const { return path_; }
  // What the last tier found in its files. None if the table was not opened from an instance.
  py::object Recovery() const;

  std::vector<ColumnTuple> Columns();
  // tables: of the keys, or empty.
  py::array Lookup(const Array<int64_t>& keys, bool training, const Array<uint16_t>& tables);
  py::array Peek(const Array<int64_t>& keys, const Array<uint16_t>& tables);
  // Number of new keys that got no row.
  int64_t Apply(const std::string& rule, const Array<int64_t>& keys, const Array<float>& grads,
                const std::optional<Array<int64_t>>& counts, const std::vector<float>& hyper,
                const std::vector<std::string>& slot_columns, int64_t global_step, const Array<uint16_t>& tables);
  void AddSlots(const std::vector<ColumnTuple>& slots);

  // Calls a method of EmbeddingTable that returns one number per key.
  template <typename T, Status (EmbeddingTable::*Method)(Span<const int64_t>, T*)>
  py::array PerKey(const Array<int64_t>& keys) {
    Array<T> out(keys.size());
    Run([&, data = out.mutable_data()] { return (table_.get()->*Method)(View(keys), data); });
    return out;
  }

  int64_t Remove(const Array<int64_t>& keys);
  int64_t Expire(int64_t step);
  void Clear();
  py::dict Export(bool all_columns);
  std::pair<py::dict, uint64_t> Scan(uint64_t cursor, int64_t max_rows, const std::vector<std::string>& columns,
                                     int64_t min_version, int64_t min_frequency);
  void Import(const py::dict& dict);
  // Columns by name, [n, dim] each. Empty facts: not given.
  int64_t Upsert(const Array<int64_t>& keys, const std::vector<std::pair<std::string, Array<float>>>& columns,
                 const Array<int64_t>& frequencies, const Array<int64_t>& versions, const std::string& if_exists,
                 bool last_of_repeats);
  // Whether it is the first score that is less than the one before it.
  bool SetScore(int64_t score);
  int64_t TotalCount();
  std::string StatsJson();
  void Drain();
  void Flush();
  void SetDramBudget(uint64_t size, bool in_rows);
  void Reserve(uint64_t rows);
  void Compact();
  int64_t Prefetch(const Array<int64_t>& keys, uint64_t timeout_us);
  void ReleasePrefetched();
  py::array PopDropped();
  py::dict PopDroppedRows();
  py::array RemovedSince(int64_t version);
  // deleted: close it even if rows cannot be flushed.
  void Close(bool deleted);

  // Runs operation() and keeps all tables open meanwhile. A table may occur more than once.
  template <typename Operation>
  static void RunAll(const std::vector<std::shared_ptr<PyTable>>& tables, const Operation& operation);

  // For operations in RunAll.
  EmbeddingTable* table() const { return table_.get(); }

 private:
  Status Make(const Opening& opening, const Files& files, TableOptions options);

  // Call it before taking a lock: in a forked child, a thread that does not exist there may hold the lock.
  Status CheckProcess() const;
  Status Closed() const { return FailedPreconditionError("table '", name_, "' is closed"); }

  template <typename Operation>
  void Run(const Operation& operation) {
    Status status = CheckProcess();
    if (status.ok()) {
      py::gil_scoped_release release;
      std::shared_lock<std::shared_mutex> lock(mutex_);
      status = table_ == nullptr ? Closed() : operation();
    }
    ThrowIfError(status);
  }

  // Locks each distinct table, or returns the error of a table that is not open.
  static Result<std::vector<std::shared_lock<std::shared_mutex>>> LockAll(const std::vector<std::shared_ptr<PyTable>>& tables);

  const pid_t pid_ = ::getpid();
  std::string name_;
  std::string path_;  // path of the instance; empty: no files
  std::optional<TierRecovery> recovery_;
  int dim_ = 0;
  std::shared_mutex mutex_;  // held exclusively by Close, shared by operations
  std::shared_ptr<InstanceDirectory> instance_;
  std::unique_ptr<EmbeddingTable> table_;
};

template <typename Operation>
void PyTable::RunAll(const std::vector<std::shared_ptr<PyTable>>& tables, const Operation& operation) {
  Status status;
  for (const auto& table : tables) {
    if (status.ok()) status = table->CheckProcess();
  }
  if (status.ok()) {
    py::gil_scoped_release release;
    const auto locks = LockAll(tables);
    status = locks.ok() ? operation() : locks.status();
  }
  ThrowIfError(status);
}

}  // namespace multitier

#endif  // CC_PYTHON_PY_TABLE_H_
