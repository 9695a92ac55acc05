// SegmentList: the file "ssd.list" of a kept tier. It lists the segments that are known to be on the disk
// (docs/formats/ssdhash.md). Recovery compares the segments' files with it. A lost, cut or replaced file is therefore an error
// with the file's name, and never an older row.
//
// An entry is a segment that was synced: its id, the attempt of its file, the number of its first records that were synced,
// their newest sequence number, and the length of the file if it is sealed. Records and files that are not in the list are not
// acknowledged: recovery uses the intact records that a crash left of them.
//
// The order of writes (sync_and_delete.cc). A crash at any point causes no false error and hides no loss:
//   1. sync    Sync the segments, and the directory if it has new entries.
//   2. list    Write the list of all synced segments, without those that step 3 deletes. Sync() returns OK after this step.
//   3. delete  Delete the segments that have nothing to keep. The records that replace theirs are in the list of step 2.
// A crash before step 2 leaves the previous list, and all of its files exist. An open segment only grows at its end. A segment
// that was rewritten has the same records at the same places in its new file, and its old file is deleted later. A crash
// between steps 2 and 3 leaves a file that is not in the list. Recovery reads it too.
//
// The file has two slots that are written in turns (slot_file.h). A new list therefore needs no space, so that it can be
// written when a full disk must be relieved. Room for a longer list is allocated after step 3.
//
// A directory that is kept always has a list: it is created before "ssd.id". A missing or damaged list is DataLoss.
//
// Cost of each Sync that wrote data, and of each round that deletes: the list (32 bytes, and 40 per segment), in whole blocks,
// and one sync of it. Not thread-safe: guarded by the tier's files_mutex_.

#ifndef CC_TIER_SSDHASH_SEGMENT_LIST_H_
#define CC_TIER_SSDHASH_SEGMENT_LIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/status.h"
#include "cc/env/env.h"
#include "cc/env/slot_file.h"
#include "cc/tier/ssdhash/segment_format.h"

namespace multitier {

struct ListedSegment {
  uint64_t id = 0;
  uint32_t attempt = 0;  // of its file; a later attempt has the same records
  bool sealed = false;   // the whole file was synced
  uint32_t records = 0;  // number of first records that were synced, including tombstones; at least one
  uint32_t damaged = 0;  // of these, records that were damaged when the list was written: lost in an earlier crash
  uint64_t bytes = 0;    // end of the last of these records; of a sealed segment the length of the file
  uint64_t newest_seq = 0;

  bool operator==(const ListedSegment& other) const {
    return id == other.id && attempt == other.attempt && sealed == other.sealed && records == other.records &&
           damaged == other.damaged && bytes == other.bytes && newest_seq == other.newest_seq;
  }
};

class SegmentList {
 public:
  SegmentList(Env* env, const std::string& directory, const InstanceId& instance);

  // Reads the list, in the order of ids. Every segment is Named() until the next Replace. DataLoss where the list is missing,
  // damaged or of another instance, Unimplemented for another format version.
  Status Load();
  // Makes `segments` the list; OK: it survives a loss of power. Does nothing where that is the list already. After an error the
  // list before or this one may be found, and a segment of either is Named().
  Status Replace(std::vector<ListedSegment> segments);
  // Takes the space for a longer list. Where the disk has none Replace tries again.
  void KeepRoom();

  const std::vector<ListedSegment>& segments() const { return segments_; }
  const ListedSegment* Find(uint64_t id) const;  // null: not in the list
  // Whether a list that may be on the disk contains the segment. Its file must then stay.
  bool Named(uint64_t id) const { return uncertain_ || Find(id) != nullptr; }
  const std::string& path() const { return file_.path(); }

 private:
  std::string Encode(const std::vector<ListedSegment>& segments) const;

  SlotFile file_;
  const InstanceId instance_;
  std::vector<ListedSegment> segments_;
  bool uncertain_ = true;  // the list on the disk may differ from segments_
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SEGMENT_LIST_H_
