// A sector: | contents 484 | format version 4 | sequence 8 | bytes of the contents 4 | number in the file 4 | sectors of the
// file 4 |
//           | crc32c of all before 4 |                                                              docs/formats/slot_file.md

#include "cc/env/slot_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"
#include "cc/env/file_cache.h"

namespace multitier {
namespace {

constexpr uint64_t kSectorBytes = 512, kShareBytes = 484, kBlockBytes = 4096;
constexpr uint64_t kLeastSlotSectors = kBlockBytes / kSectorBytes;
constexpr uint32_t kFormatVersion = 1;

uint64_t SectorsFor(uint64_t bytes) { return std::max<uint64_t>(1, (bytes + kShareBytes - 1) / kShareBytes); }

struct Sector {
  std::string share;
  uint32_t version = kFormatVersion;
  uint64_t sequence = 0;  // 0: never written
  uint64_t bytes = 0;
};

void Put(const Sector& sector, uint64_t number, uint64_t sectors, std::string* out) {
  const size_t from = out->size();
  out->append(sector.share).append(kShareBytes - sector.share.size(), '\0');
  PutFixed32(out, sector.version);
  PutFixed64(out, sector.sequence);
  PutFixed32(out, static_cast<uint32_t>(sector.bytes));
  PutFixed32(out, static_cast<uint32_t>(number));
  PutFixed32(out, static_cast<uint32_t>(sectors));
  PutFixed32(out, Crc32c(out->data() + from, kSectorBytes - 4));
}

// False: it is not whole, or belongs elsewhere.
bool Get(const std::string& file, uint64_t number, Sector* sector) {
  const std::string bytes = file.substr(number * kSectorBytes, kSectorBytes);
  const auto* in = reinterpret_cast<const uint8_t*>(bytes.data());
  sector->share = bytes.substr(0, kShareBytes);
  sector->version = DecodeFixed32(in + kShareBytes);
  sector->sequence = DecodeFixed64(in + kShareBytes + 4);
  sector->bytes = DecodeFixed32(in + kShareBytes + 12);
  return DecodeFixed32(in + kSectorBytes - 4) == Crc32c(in, kSectorBytes - 4) &&
         DecodeFixed32(in + kShareBytes + 16) == number && DecodeFixed32(in + kShareBytes + 20) == file.size() / kSectorBytes;
}

// The sectors of a slot with these contents, up to the end of a block: what is written stays apart from what is not.
std::string SlotOf(const std::string& contents, uint64_t sequence, uint64_t first, uint64_t sectors) {
  std::string out;
  for (uint64_t i = 0; i < SectorsFor(contents.size()); ++i) {
    Put({contents.substr(std::min<uint64_t>(contents.size(), i * kShareBytes), kShareBytes), kFormatVersion, sequence,
         contents.size()},
        first + i, sectors, &out);
  }
  while (out.size() % kBlockBytes != 0) Put(Sector(), first + out.size() / kSectorBytes, sectors, &out);
  return out;
}

// The contents of a slot, if all of its sectors were written.
bool Join(const Sector* slot, uint64_t sectors, std::string* contents) {
  contents->clear();
  const uint64_t used = SectorsFor(slot->bytes);
  if (slot->sequence == 0 || used > sectors) return false;
  for (uint64_t i = 0; i < used; ++i) {
    if (slot[i].sequence != slot->sequence || slot[i].bytes != slot->bytes) return false;
    contents->append(slot[i].share);
  }
  contents->resize(slot->bytes);
  return true;
}

}  // namespace

SlotFile::SlotFile(Env* env, std::string path) : env_(env), path_(std::move(path)) {}

Result<std::string> SlotFile::Load() const {
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file, env_->NewRandomAccessFile(path_));
  MT_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  const uint64_t sectors = size / kSectorBytes, slot_sectors = sectors / 2;
  if (slot_sectors < kLeastSlotSectors || size % (2 * kSectorBytes) != 0) {
    return DataLossError("'", path_, "' at offset ", size, ": expected two slots of at least ",
                         kLeastSlotSectors * kSectorBytes, " bytes, found ", size, " bytes");
  }
  std::string bytes(size, '\0');
  MT_RETURN_IF_ERROR(file->Read(0, size, bytes.data()));
  std::vector<Sector> all(sectors);
  for (uint64_t i = 0; i < sectors; ++i) {
    if (!Get(bytes, i, &all[i])) {
      return DataLossError("'", path_, "' at offset ", i * kSectorBytes, ": expected a sector of this file, found damage");
    }
    if (all[i].version != kFormatVersion) {
      return UnimplementedError("'", path_, "': expected format version ", kFormatVersion, ", found ", all[i].version,
                                ": use the release that wrote it");
    }
  }
  std::string first, second;
  const bool has_first = Join(all.data(), slot_sectors, &first);
  const bool has_second = Join(all.data() + slot_sectors, slot_sectors, &second);
  if (!has_first && !has_second) return DataLossError("'", path_, "' at offset 0: expected a whole slot, found none");
  return has_second && (!has_first || all[slot_sectors].sequence > all[0].sequence) ? second : first;
}

Status SlotFile::Replace(const std::string& contents) {
  if (file_ == nullptr || SectorsFor(contents.size()) > slot_sectors_) return MakeAnew(contents, contents.size());
  if (contents == contents_) return OkStatus();
  const uint64_t first = slot_ == 0 ? slot_sectors_ : 0;
  const std::string sectors = SlotOf(contents, sequence_ + 1, first, 2 * slot_sectors_);
  Status written = file_->Write(first * kSectorBytes, sectors.data(), sectors.size());
  if (written.ok()) written = file_->Sync();
  if (!written.ok()) {
    file_.reset();
    return written;
  }
  slot_ = 1 - slot_;
  ++sequence_;
  contents_ = contents;
  return OkStatus();
}

Status SlotFile::MakeAnew(const std::string& contents, uint64_t room_bytes) {
  const std::string made = path_ + "+";
  const Status deleted = env_->DeleteFile(made);  // of a process that died, or of a failed attempt
  if (!deleted.ok() && deleted.code() != StatusCode::kNotFound) return deleted;
  MT_ASSIGN_OR_RETURN(const std::shared_ptr<CachedFile> created, CachedFile::Create(env_, made, /*direct=*/false));
  MT_ASSIGN_OR_RETURN(std::shared_ptr<PositionedFile> file, created->Open());
  const uint64_t blocks = (2 * SectorsFor(room_bytes) + kLeastSlotSectors - 1) / kLeastSlotSectors;  // room to grow
  const uint64_t slot_sectors = blocks * kLeastSlotSectors;
  std::string bytes = SlotOf(contents, 1, 0, 2 * slot_sectors);
  for (uint64_t i = bytes.size() / kSectorBytes; i < 2 * slot_sectors; ++i) Put(Sector(), i, 2 * slot_sectors, &bytes);
  MT_RETURN_IF_ERROR(file->Allocate(bytes.size()));
  MT_RETURN_IF_ERROR(file->Write(0, bytes.data(), bytes.size()));
  MT_RETURN_IF_ERROR(file->Sync());
  file_.reset();
  MT_RETURN_IF_ERROR(env_->RenameFile(made, path_));
  MT_RETURN_IF_ERROR(CachedFile::SyncDir(env_, path_.substr(0, path_.rfind('/'))));
  file_ = std::move(file);
  contents_ = contents;
  slot_sectors_ = slot_sectors;
  sequence_ = 1;
  slot_ = 0;
  return OkStatus();
}

void SlotFile::KeepRoom(uint64_t bytes) {
  if (file_ == nullptr || SectorsFor(bytes) <= slot_sectors_) return;
  const std::string contents = contents_;
  (void)MakeAnew(contents, bytes);
}

}  // namespace multitier
