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

// One EmbeddingTable. DefineTable has its operations, which run without the GIL. Close waits for them; later ones fail.
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
  // deleted: close it even if rows cannot be flushed.
  void Close(bool deleted);

  // Runs operation(table), which gives a Status, without the GIL.
  template <typename Operation>
  void Run(const Operation& operation) {
    Status status = CheckProcess();
    if (status.ok()) {
      py::gil_scoped_release release;
      std::shared_lock<std::shared_mutex> lock(mutex_);
      status = table_ == nullptr ? Closed() : operation(table_.get());
    }
    ThrowIfError(status);
  }
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

// Adds the class Table to the module.
void DefineTable(py::module_* module);

}  // namespace multitier

#endif  // CC_PYTHON_PY_TABLE_H_
