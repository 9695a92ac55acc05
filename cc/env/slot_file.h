// SlotFile: a small file whose whole contents are replaced, again and again, in a way that survives a loss of power.
//
// The file has two slots. Replace() writes the one that does not have the newest contents, and syncs it: no file is made, no
// name changes, no space is taken. That is a third of what a synced copy costs that is renamed into place
// (docs/formats/slot_file.md has the bytes).
//
//   | slot: sectors of 512 bytes | slot: sectors of 512 bytes |      every sector has its place, a sequence number, a checksum
//
// A device writes a sector whole or not at all, and a slot is whole blocks. So after a crash each sector is whole, and a slot
// of which only some were written has several sequence numbers: the other slot then has the contents. A sector that is not
// whole is damage.
//
// Replace() makes a new file, syncs it, renames it and syncs the directory. It does so when the bytes on the disk are unknown:
// at the first write, since the process that wrote the file may have died before it synced it; and after an error. It also
// does so when the contents no longer fit.
//
// Keeps the file open. Not thread-safe.

#ifndef CC_ENV_SLOT_FILE_H_
#define CC_ENV_SLOT_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/status.h"
#include "cc/env/env.h"

namespace multitier {

class SlotFile {
 public:
  SlotFile(Env* env, std::string path);

  // The newest contents. NotFound; DataLoss naming the file and the offset where any sector is damaged.
  Result<std::string> Load() const;
  // OK: `contents` are the file's, and survive a loss of power. After an error the file has these or those before.
  Status Replace(const std::string& contents);
  // Takes the space for contents of that many bytes, so that Replace() needs none on a disk that has filled up since. Where it
  // cannot, or the file is not certain(), Replace() will.
  void KeepRoom(uint64_t bytes);

  // Whether it is known which contents are on the disk: false before the first Replace(), and where one failed in the middle.
  bool certain() const { return file_ != nullptr; }
  const std::string& path() const { return path_; }

 private:
  Status MakeAnew(const std::string& contents, uint64_t room_bytes);

  Env* const env_;
  const std::string path_;
  std::shared_ptr<PositionedFile> file_;  // null: what is on the disk is not known
  std::string contents_;                  // the newest
  uint64_t slot_sectors_ = 0;
  uint64_t sequence_ = 0;  // of the newest contents
  int slot_ = 0;           // where they are
};

}  // namespace multitier

#endif  // CC_ENV_SLOT_FILE_H_
