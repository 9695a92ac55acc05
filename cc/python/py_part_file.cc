#include "cc/python/py_part_file.h"

#include <cstdint>
#include <utility>

#include "cc/env/unfinished_save.h"
#include "cc/partition/partition.h"
#include "cc/python/exceptions.h"

namespace multitier {
namespace {

Result<Manifest> ParseManifest(const std::string& where, const std::string& text) {
  Result<Manifest> manifest = Manifest::Parse(text);
  if (manifest.ok()) return manifest;
  return Status(manifest.status().code(), StrCat(where, ": ", manifest.status().message()));
}

// Of a file: what is wrong with it is damage.
Result<Manifest> ReadManifest(const std::string& where, const std::string& text) {
  Result<Manifest> manifest = ParseManifest(where, text);
  if (manifest.status().code() != StatusCode::kInvalidArgument) return manifest;
  return DataLossError(manifest.status().message());
}

// Opens a linked file of the part file at `path`, next to it.
Result<LinkedFile> OpenLinked(const std::string& path, const Manifest& manifest, const std::string& file) {
  if (path.size() < manifest.file.size() ||
      path.compare(path.size() - manifest.file.size(), std::string::npos, manifest.file) != 0) {
    return InvalidArgumentError("checkpoint part ", path, ": expected a path that ends in '", manifest.file,
                                "', as those of its linked files begin like it");
  }
  const std::string linked = path.substr(0, path.size() - manifest.file.size()) + file;
  MT_ASSIGN_OR_RETURN(std::shared_ptr<RandomAccessFile> opened, Env::Posix()->NewRandomAccessFile(linked));
  MT_ASSIGN_OR_RETURN(const uint64_t bytes, opened->Size());
  return LinkedFile{linked, bytes, [opened](uint64_t offset, size_t n, char* out) { return opened->Read(offset, n, out); }};
}

// Runs an operation of the engine without the GIL.
template <typename Operation>
void Run(const Operation& operation) {
  Status status;
  {
    py::gil_scoped_release release;
    status = operation();
  }
  ThrowIfError(status);
}

}  // namespace

std::string CheckManifest(const std::string& where, const std::string& text) {
  return ValueOrThrow(ReadManifest(where, text)).ToJson();
}

PyPartReader::PyPartReader(const std::string& path, const std::string& manifest) {
  manifest_ = ValueOrThrow(ReadManifest(StrCat("checkpoint part ", path), manifest));
  Run([&]() -> Status {
    MT_ASSIGN_OR_RETURN(file_, Env::Posix()->NewRandomAccessFile(path));
    MT_ASSIGN_OR_RETURN(const uint64_t bytes, file_->Size());
    const auto read_at = [this](uint64_t offset, size_t n, char* out) { return file_->Read(offset, n, out); };
    const auto open_linked = [this, path](const std::string& file) { return OpenLinked(path, manifest_, file); };
    reader_ = std::make_unique<PartFileReader>(path, bytes, manifest_, read_at, open_linked);
    return reader_->Begin(&initializer_);
  });
}

py::object PyPartReader::Next() {
  if (reader_->ended()) return py::none();
  Rows rows;
  Run([&] { return reader_->Next(&rows); });
  if (reader_->ended()) {
    filter_counters_ = std::move(rows.filter_counters);
    return py::none();
  }
  std::vector<int64_t> removed = std::move(rows.removed_keys);
  py::dict out = ToDict(std::move(rows));
  if (manifest_.since != 0) out["removed_keys"] = Own(std::move(removed));
  return std::move(out);
}

py::array PyPartReader::FilterCounters() const {
  if (!reader_->ended()) ThrowIfError(FailedPreconditionError("checkpoint part ", manifest_.file, ": expected it to be read"));
  return Own(std::vector<uint8_t>(filter_counters_));
}

py::object PyPartReader::Matrix() const {
  if (initializer_.matrix == nullptr) return py::none();
  return Own(std::vector<float>(*initializer_.matrix), {static_cast<py::ssize_t>(initializer_.matrix_rows), manifest_.dim()});
}

PyPartWriter::PyPartWriter(const std::string& prefix, const std::string& manifest, const Array<float>& matrix) {
  manifest_ = ValueOrThrow(ParseManifest(StrCat("checkpoint part ", prefix), manifest));
  manifest_.linked.clear();  // of the manifest that this one was made from: it gets all rows
  if (manifest_.initializer.kind == InitializerKind::kMatrix) {
    const int64_t expected = manifest_.initializer.matrix_rows * manifest_.dim();
    if (expected == 0 || matrix.size() != expected) {
      ThrowIfError(InvalidArgumentError("checkpoint part ", prefix, ": expected an initial matrix of ", expected,
                                        " numbers, found ", matrix.size()));
    }
    manifest_.initializer.matrix = std::make_shared<const std::vector<float>>(matrix.data(), matrix.data() + matrix.size());
  }
  const std::string path = StrCat(prefix, ".", manifest_.file);
  Run([&]() -> Status {
    MT_ASSIGN_OR_RETURN(const bool exists, Env::Posix()->FileExists(path));
    if (exists) return AlreadyExistsError("checkpoint part ", path);
    MT_ASSIGN_OR_RETURN(file_, Env::Posix()->NewWritableFile(path));
    path_ = path;
    writeback_.emplace(path);
    UnfinishedSave::Begin(prefix);
    UnfinishedSave::Mark(prefix, path);
    writer_ =
        std::make_unique<PartFileWriter>([this](std::string_view bytes) { return file_->Append(bytes.data(), bytes.size()); });
    if (manifest_.frozen) writer_->Freeze(manifest_.columns[0].dtype);
    return writer_->Begin(manifest_.initializer, manifest_.dim());
  });
}

PyPartWriter::~PyPartWriter() {
  if (!finished_) Discard();
}

void PyPartWriter::Discard() {
  file_.reset();
  if (path_.empty()) return;
  (void)Env::Posix()->DeleteFile(path_);
  UnfinishedSave::GiveUp(path_.substr(0, path_.size() - manifest_.file.size() - 1));
  path_.clear();
}

void PyPartWriter::CheckOpen() const {
  if (file_ == nullptr) ThrowIfError(FailedPreconditionError("checkpoint part ", manifest_.file, ": it is finished"));
}

void PyPartWriter::Add(const py::dict& dict) {
  CheckOpen();
  Rows& rows = rows_;
  FromDict(dict, &rows);
  rows.removed_keys.clear();
  if (dict.contains("removed_keys")) {
    if (manifest_.since == 0) ThrowIfError(InvalidArgumentError("checkpoint part ", path_, ": removed keys, and no delta"));
    const auto removed = dict["removed_keys"].cast<Array<int64_t>>();
    rows.removed_keys.assign(removed.data(), removed.data() + removed.size());
  }
  if (rows.row_elements() != manifest_.row_elements()) {
    ThrowIfError(InvalidArgumentError("checkpoint part ", path_, ": expected rows of ", manifest_.row_elements(),
                                      " elements, found ", rows.row_elements()));
  }
  if (rows.columns[0].dim != manifest_.columns[0].dim) {
    ThrowIfError(InvalidArgumentError("checkpoint part ", path_, ": expected values of dim ", manifest_.columns[0].dim,
                                      ", found ", rows.columns[0].dim));
  }
  rows.columns[0].dtype = manifest_.columns[0].dtype;
  Run([&]() -> Status {
    for (const std::vector<int64_t>* frequencies : {&rows.frequencies, &rows.counted_frequencies}) {
      for (const int64_t frequency : *frequencies) {
        if (frequency >= 0 && frequency <= UINT32_MAX) continue;
        return InvalidArgumentError("checkpoint part ", path_, ": expected frequencies of 0 to ", UINT32_MAX, ", found ",
                                    frequency);
      }
    }
    const int64_t part = manifest_.partition_index, parts = manifest_.num_partitions;
    for (const std::vector<int64_t>* keys : {&rows.keys, &rows.counted_keys, &rows.removed_keys}) {
      for (const int64_t key : *keys) {
        const int64_t owner = PartitionOf(key, static_cast<int>(parts));
        if (owner == part) continue;
        return InvalidArgumentError("checkpoint part ", path_, ": expected keys of part ", part, " of ", parts, ", found key ",
                                    key, " of part ", owner);
      }
    }
    MT_RETURN_IF_ERROR(writer_->Add(rows));
    writeback_->Grew(static_cast<uint64_t>(writer_->bytes()));
    return OkStatus();
  });
}

void PyPartWriter::AddColumns(int64_t rows, const std::vector<ColumnFile>& files) {
  CheckOpen();
  ColumnList list;
  list.rows = rows;
  const std::string prefix = path_.substr(0, path_.size() - manifest_.file.size());
  for (const auto& [column, name, path, checksum] : files) {
    const auto opened = ValueOrThrow(Env::Posix()->NewRandomAccessFile(prefix + name));
    manifest_.linked.push_back(Manifest::Linked{name, static_cast<int64_t>(ValueOrThrow(opened->Size())), rows});
    list.items.push_back(ColumnList::Item{column, path, checksum});
  }
  Run([&] { return writer_->AddColumns(list); });
}

void PyPartWriter::AddFilterCounters(const Array<uint8_t>& counters) {
  CheckOpen();
  Rows rows;
  rows.columns = manifest_.columns;
  rows.filter_counters.assign(counters.data(), counters.data() + counters.size());
  Run([&] { return writer_->Add(rows); });
}

std::string PyPartWriter::Finish() {
  CheckOpen();
  Run([&]() -> Status {
    MT_RETURN_IF_ERROR(writer_->End());
    MT_RETURN_IF_ERROR(file_->Sync());
    return file_->Close();
  });
  file_.reset();
  rows_ = Rows();
  finished_ = true;
  manifest_.num_rows = writer_->rows();
  manifest_.num_removed = writer_->removed();
  manifest_.checksum = writer_->checksum();
  return manifest_.ToJson();
}

}  // namespace multitier
