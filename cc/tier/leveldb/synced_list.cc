// | "multitier-leveldb-synced 1\n" | a line a file: name, bytes, crc32c of those as 8 hex digits |

#include "cc/tier/leveldb/synced_list.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>

#include "cc/base/crc32c.h"
#include "cc/env/env.h"
#include "cc/env/posix_error.h"
#include "leveldb/options.h"
#include "leveldb/table.h"

namespace multitier {
namespace {

constexpr char kMagic[] = "multitier-leveldb-synced";
constexpr int kFormatVersion = 1;

Result<std::string> ReadAll(const std::string& path) {
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, Env::Posix()->NewRandomAccessFile(path));
  MT_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  std::string bytes(size, '\0');
  MT_RETURN_IF_ERROR(file->Read(0, size, bytes.data()));
  return bytes;
}

std::string Hex(uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof(text), "%08x", value);
  return text;
}

// "MANIFEST-000012", "000012.log": 12. 0: it is no such name.
uint64_t NumberIn(const std::string& name, const std::string& prefix, const std::string& suffix) {
  if (name.size() <= prefix.size() + suffix.size() || name.compare(0, prefix.size(), prefix) != 0) return 0;
  const std::string digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  if (name.compare(name.size() - suffix.size(), suffix.size(), suffix) != 0) return 0;
  return digits.find_first_not_of("0123456789") == std::string::npos ? std::strtoull(digits.c_str(), nullptr, 10) : 0;
}
uint64_t ManifestNumber(const std::string& name) { return NumberIn(name, "MANIFEST-", ""); }
uint64_t LogNumber(const std::string& name) { return NumberIn(name, "", ".log"); }

}  // namespace

SyncedList::SyncedList(LevelDbDisk* disk, std::string directory)
    : disk_(disk),
      env_(disk, /*sync_logs=*/false),
      directory_(std::move(directory)),
      file_(Env::Posix(), directory_ + "/synced.list") {}

Status SyncedList::Write() {
  MT_ASSIGN_OR_RETURN(const std::vector<SyncedFile> files, disk_->SyncedFiles());
  std::ostringstream text;
  text << kMagic << " " << kFormatVersion << "\n";
  for (const SyncedFile& file : files) text << file.name << " " << file.bytes << " " << Hex(file.crc) << "\n";
  if (const int fault = disk_->Inject("sync", path())) return PosixError("sync", path(), fault);
  return file_.Replace(text.str());
}

Status SyncedList::Load(std::vector<SyncedFile>* files) const {
  MT_ASSIGN_OR_RETURN(const std::string text, file_.Load());
  std::istringstream lines(text);
  std::string magic;
  int version = 0;
  if (!(lines >> magic >> version) || magic != kMagic) {
    return DataLossError("'", path(), "' at offset 0: expected a list of synced files, found something else");
  }
  if (version != kFormatVersion) {
    return UnimplementedError("'", path(), "': expected format version ", kFormatVersion, ", found ", version,
                              ": use the release that wrote it");
  }
  for (SyncedFile file; lines >> file.name >> file.bytes >> std::hex >> file.crc >> std::dec;) files->push_back(file);
  return OkStatus();
}

Status SyncedList::CheckBytes(const SyncedFile& file) const {
  const std::string path = directory_ + "/" + file.name;
  const Result<std::string> bytes = ReadAll(path);
  if (bytes.status().code() == StatusCode::kNotFound) {
    return DataLossError("'", path, "' is missing: expected at least ", file.bytes, " bytes, as '", this->path(), "' says");
  }
  MT_RETURN_IF_ERROR(bytes.status());
  if (bytes->size() < file.bytes) {
    return DataLossError("'", path, "' at offset ", bytes->size(), ": expected at least ", file.bytes, " bytes, as '",
                         this->path(), "' says, found ", bytes->size());
  }
  if (Crc32c(bytes->data(), file.bytes) == file.crc) return OkStatus();
  return DataLossError("'", path, "' at offset 0: expected the ", file.bytes, " bytes that '", this->path(),
                       "' says were synced, found others");
}

Status SyncedList::ReadTable(const std::string& path, uint64_t bytes,
                             const std::function<const char*(leveldb::Iterator*)>& read) const {
  const auto failed = [this, &path](const leveldb::Status& status) {
    const int error = disk_->ErrnoOf(status);
    return error == 0 ? DataLossError("table file '", path, "': ", status.ToString()) : PosixError("read", path, error);
  };
  leveldb::RandomAccessFile* opened = nullptr;
  if (const leveldb::Status status = env_.NewRandomAccessFile(path, &opened); !status.ok()) return failed(status);
  const std::unique_ptr<leveldb::RandomAccessFile> file(opened);
  leveldb::Options options;
  options.env = &env_;
  options.paranoid_checks = true;
  leveldb::Table* table = nullptr;
  if (const leveldb::Status status = leveldb::Table::Open(options, file.get(), bytes, &table); !status.ok()) {
    return failed(status);
  }
  const std::unique_ptr<leveldb::Table> whole(table);
  leveldb::ReadOptions checked;
  checked.verify_checksums = true;
  checked.fill_cache = false;
  const std::unique_ptr<leveldb::Iterator> it(whole->NewIterator(checked));
  const char* const wrong = read(it.get());
  if (!it->status().ok()) return failed(it->status());
  return wrong == nullptr ? OkStatus() : DataLossError("table file '", path, "' at offset 0: ", wrong);
}

Status SyncedList::FindDamagedTable() const {
  MT_ASSIGN_OR_RETURN(const std::vector<std::string> names, Env::Posix()->ListDir(directory_));
  for (const std::string& name : names) {
    if (NumberIn(name, "", ".ldb") == 0) continue;
    const std::string path = directory_ + "/" + name;
    MT_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, Env::Posix()->NewRandomAccessFile(path));
    MT_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
    MT_RETURN_IF_ERROR(ReadTable(path, size, [](leveldb::Iterator* it) -> const char* {
      for (it->SeekToFirst(); it->Valid(); it->Next()) {
      }
      return nullptr;
    }));
  }
  return OkStatus();
}

Status SyncedList::CheckTables(const std::map<uint64_t, LevelDbManifest::Table>& tables) const {
  for (const auto& [number, table] : tables) {
    char name[32];
    std::snprintf(name, sizeof(name), "/%06llu", static_cast<unsigned long long>(number));
    const std::string path = directory_ + name + ".ldb";
    const Result<std::unique_ptr<RandomAccessFile>> file = Env::Posix()->NewRandomAccessFile(path);
    if (file.status().code() == StatusCode::kNotFound) {
      return DataLossError("table file '", path, "' is missing: the manifest names it, with ", table.bytes, " bytes");
    }
    MT_RETURN_IF_ERROR(file.status());
    MT_ASSIGN_OR_RETURN(const uint64_t size, (*file)->Size());
    if (size != table.bytes) {
      return DataLossError("table file '", path, "' at offset ", std::min(size, table.bytes), ": expected ", table.bytes,
                           " bytes, as the manifest says, found ", size);
    }
    MT_RETURN_IF_ERROR(ReadTable(path, size, [&table = table](leveldb::Iterator* it) {
      it->SeekToFirst();
      const bool first = it->Valid() && it->key() == table.smallest;
      it->SeekToLast();
      const bool last = it->Valid() && it->key() == table.largest;
      return first && last ? nullptr : "expected the first and last key that the manifest says, found others";
    }));
  }
  return OkStatus();
}

Result<bool> SyncedList::IsRepaired() const { return Env::Posix()->FileExists(directory_ + "/lost"); }

Status SyncedList::Check(TierRecovery* counts) {
  std::vector<SyncedFile> listed;
  if (const Status loaded = Load(&listed); loaded.code() == StatusCode::kNotFound) {
    MT_ASSIGN_OR_RETURN(found_, IsRepaired());
    return OkStatus();
  } else if (!loaded.ok()) {
    return loaded;
  }
  found_ = true;
  const std::string current = directory_ + "/CURRENT";
  Result<std::string> name = ReadAll(current);
  if (name.status().code() == StatusCode::kNotFound) return DataLossError("'", current, "' is missing");
  MT_RETURN_IF_ERROR(name.status());
  if (!name->empty() && name->back() == '\n') name->pop_back();
  const uint64_t number = ManifestNumber(*name);
  if (number == 0) return DataLossError("'", current, "' at offset 0: expected the name of a manifest");
  const auto is_manifest = [](const SyncedFile& file) { return ManifestNumber(file.name) != 0; };
  const auto manifest = std::find_if(listed.begin(), listed.end(), is_manifest);
  if (manifest == listed.end()) return DataLossError("'", path(), "' at offset 0: expected the name of a manifest");
  if (number < ManifestNumber(manifest->name)) {
    MT_ASSIGN_OR_RETURN(const bool repaired, IsRepaired());
    if (repaired) return OkStatus();
    return DataLossError("'", current, "' at offset 0: expected ", manifest->name, " or a newer one, as '", path(),
                         "' says, found ", *name);
  }
  if (number == ManifestNumber(manifest->name)) MT_RETURN_IF_ERROR(CheckBytes(*manifest));
  const Result<std::string> bytes = ReadAll(directory_ + "/" + *name);
  if (bytes.status().code() == StatusCode::kNotFound) return DataLossError("'", directory_, "/", *name, "' is missing");
  MT_RETURN_IF_ERROR(bytes.status());
  const LevelDbManifest live = LevelDbManifest::Parse(*bytes);
  counts->listed_files = number == ManifestNumber(manifest->name) ? 1 : 0;
  counts->files = 1 + static_cast<int64_t>(live.tables.size());
  for (const SyncedFile& file : listed) {
    if (is_manifest(file) || !live.NeedsLog(LogNumber(file.name))) continue;
    MT_RETURN_IF_ERROR(CheckBytes(file));
    ++counts->files;
    ++counts->listed_files;
  }
  return CheckTables(live.tables);
}

}  // namespace multitier
