// tf_multitier._engine.PartReader and PartWriter: part files of checkpoints (cc/checkpoint_files/part_file.h) without
// TensorFlow.
//
// A reader and a writer keep one block in memory. Not thread-safe: the GIL is released while they work, so a caller with
// several threads takes a lock.

#ifndef CC_PYTHON_PY_PART_FILE_H_
#define CC_PYTHON_PY_PART_FILE_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "cc/checkpoint_files/part_file.h"
#include "cc/checkpoint_files/table_part.h"
#include "cc/env/early_writeback.h"
#include "cc/env/env.h"
#include "cc/python/arrays.h"

namespace multitier {

// The members of a manifest that were checked, as JSON. DataLoss if it is damaged, Unimplemented if it is of another format
// version: the message begins with `where`.
std::string CheckManifest(const std::string& where, const std::string& text);

class PyPartReader {
 public:
  // manifest: its JSON text. DataLoss if it or the file is damaged.
  PyPartReader(const std::string& path, const std::string& manifest);
  // The next rows, in the form of Table.export; of a delta also `removed_keys`, int64 [n]. None at the end of the file, when
  // everything has been checked.
  py::object Next();
  // The state of the Bloom filter, uint8 [n]; empty without one. FailedPrecondition before Next has returned None.
  py::array FilterCounters() const;
  // The initial matrix of the initializer `matrix`: float32 [rows, dim]; None for the others.
  py::object Matrix() const;

 private:
  Manifest manifest_;
  std::unique_ptr<RandomAccessFile> file_;
  std::unique_ptr<PartFileReader> reader_;
  InitializerSpec initializer_;
  std::vector<uint8_t> filter_counters_;
};

class PyPartWriter {
 public:
  using ColumnFile = std::tuple<std::string, std::string, std::string, std::optional<uint32_t>>;

  // The path of the file is `prefix`, a dot and the manifest's member `file`. AlreadyExists if there is such a file.
  // matrix: float32 [matrix_rows, dim], the initial matrix if the manifest's initializer is `matrix`; else empty.
  PyPartWriter(const std::string& prefix, const std::string& manifest, const Array<float>& matrix);
  // Deletes the file unless Finish has returned.
  ~PyPartWriter();
  // rows: in the form of Table.export; of a delta also `removed_keys`.
  void Add(const py::dict& rows);
  // Writes where rows are as arrays (column_rows.h). files: of each array its column, its name without the prefix and a dot,
  // its path for messages, and its CRC-32, or none.
  void AddColumns(int64_t rows, const std::vector<ColumnFile>& files);
  // Writes the state of a Bloom filter, as FilterCounters gives it.
  void AddFilterCounters(const Array<uint8_t>& counters);
  // Syncs the file. Returns the manifest with its number of rows, and of removed keys.
  std::string Finish();
  // Deletes the file, after Finish too. Add and Finish are then refused.
  void Discard();

 private:
  void CheckOpen() const;

  Manifest manifest_;
  std::string path_;  // empty unless there is a file
  bool finished_ = false;
  std::unique_ptr<WritableFile> file_;
  std::optional<EarlyWriteback> writeback_;
  std::unique_ptr<PartFileWriter> writer_;
  Rows rows_;  // those of the last Add, for their memory
};

}  // namespace multitier

#endif  // CC_PYTHON_PY_PART_FILE_H_
