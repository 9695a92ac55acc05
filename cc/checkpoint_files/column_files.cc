#include "cc/checkpoint_files/column_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cc/base/crc32.h"
#include "cc/base/new_array.h"

namespace multitier {
namespace {

constexpr size_t kCopiedBytes = 256u << 10;  // at once: they stay in the cache for the checksum and the write

}  // namespace

ColumnFiles::ColumnFiles(std::string path, bool slots)
    : path_(std::move(path)),
      slots_(slots),
      files_{&keys_, &values_, &counted_keys_, &counted_frequencies_, &frequencies_, &versions_} {
  if (slots_) files_.push_back(&slot_values_);
}

Status ColumnFiles::Open() {
  for (File* const each : files_) {
    const std::string path = StrCat(path_, ".", each->name);
    MT_ASSIGN_OR_RETURN(const bool exists, Env::Posix()->FileExists(path));
    if (exists) return AlreadyExistsError(path);
    MT_ASSIGN_OR_RETURN(each->file, Env::Posix()->NewWritableFile(path));
    if (each->synced) each->writeback = std::make_unique<EarlyWriteback>(path);
  }
  return OkStatus();
}

Status ColumnFiles::Append(File* to, const void* data, size_t bytes) {
  to->checksum = ExtendCrc32(to->checksum, data, bytes);
  to->bytes += bytes;
  MT_RETURN_IF_ERROR(to->file->Append(data, bytes));
  if (to->writeback != nullptr) to->writeback->Grew(to->bytes);
  return OkStatus();
}

Status ColumnFiles::AppendElements(File* to, const Rows& rows, size_t first, size_t end) {
  const auto elements = static_cast<size_t>(rows.row_elements()), n = rows.keys.size(), taken = end - first;
  if (taken == elements) return Append(to, rows.data.data(), n * elements * sizeof(float));
  if (taken == 0) return OkStatus();
  const size_t at_once = std::max<size_t>(1, kCopiedBytes / (taken * sizeof(float)));
  const ArrayPtr<float> copied = NewArray<float>(at_once * taken);
  if (copied == nullptr) return ResourceExhaustedError(path_, ": no memory for a row of ", taken, " elements");
  for (size_t from = 0; from < n; from += at_once) {
    const size_t to_row = std::min(n, from + at_once);
    for (size_t i = from; i < to_row; ++i) {
      std::memcpy(copied.get() + (i - from) * taken, rows.data.data() + i * elements + first, taken * sizeof(float));
    }
    MT_RETURN_IF_ERROR(Append(to, copied.get(), (to_row - from) * taken * sizeof(float)));
  }
  return OkStatus();
}

Status ColumnFiles::Add(const Rows& rows) {
  columns_ = rows.columns;
  const auto dim = static_cast<size_t>(rows.columns[0].dim);
  MT_RETURN_IF_ERROR(Append(&keys_, rows.keys));
  MT_RETURN_IF_ERROR(Append(&frequencies_, rows.frequencies));
  MT_RETURN_IF_ERROR(Append(&versions_, rows.versions));
  MT_RETURN_IF_ERROR(AppendElements(&values_, rows, 0, dim));
  if (slots_) MT_RETURN_IF_ERROR(AppendElements(&slot_values_, rows, dim, static_cast<size_t>(rows.row_elements())));
  MT_RETURN_IF_ERROR(Append(&counted_keys_, rows.counted_keys));
  return Append(&counted_frequencies_, rows.counted_frequencies);
}

Status ColumnFiles::Finish() {
  for (File* const each : files_) {
    if (each->synced) MT_RETURN_IF_ERROR(each->file->Sync());
    MT_RETURN_IF_ERROR(each->file->Close());
  }
  return OkStatus();
}

Json ColumnFiles::Describe() const {
  Json slots = Json::Array(), files = Json::Object(), described = Json::Object();
  for (size_t i = 1; i < columns_.size(); ++i) {
    Json slot = Json::Object();
    slot.Set("name", Json::String(columns_[i].name));
    slot.Set("dim", Json::Int(columns_[i].dim));
    slots.Append(std::move(slot));
  }
  for (const File* const each : files_) {
    Json entry = Json::Object();
    entry.Set("size", Json::Uint(each->bytes));
    entry.Set("crc32", Json::Uint(each->checksum));
    files.Set(each->name, std::move(entry));
  }
  described.Set("path", Json::String(path_));
  described.Set("slots", std::move(slots));
  described.Set("files", std::move(files));
  return described;
}

}  // namespace multitier
