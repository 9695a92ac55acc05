// SegmentSet: the segments of one tier: which there are, which of their records are held, and what stands at a location.
//
//   location -> unit (1,024 slots) -> segment, slot
//
// A segment takes whole units when it is made and gives them back when it is gone; units are reused oldest first. Held
// records are one bit each (`live`); what compaction must keep beside them are tombstones and last copies, one bit each in
// segments that have any. Whatever is none of these is dead. A last copy is a record that was freed, of a tier whose files are
// kept, until a newer record or a tombstone of its key is written: it is all that recovery would find of the key.
//
// Owns the segments' memory and files, and syncs or deletes a file only where it is told to. Guarded by `mutex`, which is held
// for short steps only, never over I/O. Innermost of the tier's locks (ssdhash_impl.h).

#ifndef CC_TIER_SSDHASH_SEGMENT_SET_H_
#define CC_TIER_SSDHASH_SEGMENT_SET_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cc/env/env.h"
#include "cc/env/file_cache.h"
#include "cc/tier/ssdhash/segment_format.h"

namespace multitier {

// The first records of a segment: how many, and the newest sequence number of them.
struct SegmentPrefix {
  uint32_t records = 0;
  uint64_t newest_seq = 0;
};
// Of entries that were read; damaged ones have no sequence number. REQUIRES: records <= entries.size()
SegmentPrefix PrefixOf(const std::vector<FooterEntry>& entries, uint32_t records);

// Open (one per writer), full (its draft waits to be finished), then sealed (complete: nothing but its proof is written to it).
// Until it is sealed its newest records are in its draft's buffer. Last, condemned: nothing of it is kept, its file goes.
// All but the constants and sync_mutex is guarded by SegmentSet::mutex.
struct Segment {
  Segment(SegmentHeader segment_header, std::shared_ptr<CachedFile> segment_file);

  const SegmentHeader header;
  const SegmentGeometry geometry;
  std::vector<uint32_t> column_bytes;  // [columns + 1]: row bytes of the first n columns

  std::shared_ptr<CachedFile> file;  // replaced where a failed one was rewritten
  uint32_t attempt = 0;              // the last whose name was taken
  uint32_t file_attempt = 0;         // of the file
  uint64_t file_bytes = 0;           // of the file, preallocated space included
  bool sealed = false, condemned = false;
  int users = 0;                         // writers that have not published, compaction: not to be deleted or chosen
  uint64_t footer_offset = 0, footer_bytes = 0;  // 0: none
  bool proven = false;  // its trailer says that it was synced

  // Until sealed: records that end at or below file_end are read from the file, later ones from memory: those that end at or
  // below flight_end from what is being written (null: nothing is), the rest from the buffer; where each begins is an offset
  // of the file.
  uint64_t file_end = 0;
  uint64_t flight_begin = 0, flight_end = 0;
  const uint8_t* flight = nullptr;
  uint64_t buffer_begin = 0;
  const uint8_t* buffer = nullptr;
  uint64_t memory_bytes = 0;  // of both
  // The bytes of the record at `offset`; null where it is in the file.
  const uint8_t* InMemory(uint64_t offset) const {
    const uint64_t end = offset + geometry.record_bytes;
    if (buffer == nullptr || end <= file_end) return nullptr;
    return flight != nullptr && end <= flight_end ? flight + (offset - flight_begin) : buffer + (offset - buffer_begin);
  }
  // Until sealed: of the slots taken. Also guarded by the lock of the writer, which appends under it alone.
  std::vector<FooterEntry> entries;

  // Held over a sync of the file, until what came of it is noted. Before SegmentSet::mutex.
  std::mutex sync_mutex;
  // What a loss of power leaves: all writes up to the synced one, and those records.
  uint64_t writes = 0, synced_writes = 0;
  SegmentPrefix in_file, synced;
  uint32_t damaged = 0;  // records that were not whole when recovery, or a repair of the file, read them, and are not held
  bool entry_synced = false;  // of the directory
  bool sync_failed = false;   // nobody knows what the file holds: to be rewritten
  Status sync_error;          // of that sync
  bool dirty() const { return synced_writes != writes || synced.records < in_file.records || !entry_synced; }

  uint32_t used = 0;  // slots taken
  uint32_t num_deletions = 0;  // of them, tombstones, kept or not
  uint32_t num_live = 0, num_tombstones = 0, num_last = 0;
  std::vector<uint64_t> live;        // [slots] bits
  std::vector<uint64_t> tombstones;  // [slots] bits, or empty
  std::vector<uint64_t> last;        // [slots] bits, or empty: last copies
  uint64_t tombstone_horizon = 0;    // segments of smaller id may hold older records of its tombstones' keys
  uint64_t sealed_at = 0;            // bytes appended to the tier before
  bool left_over = false;            // a pass of compaction was over it, and some records were in use
  uint32_t unreadable = 0;           // held records that the last pass could not read
  uint64_t last_sweep = 0;           // of compaction over it
  std::vector<uint32_t> units;
  uint64_t read_batch = 0;  // the last batch of reads that pinned it
  uint32_t read_index = 0;  // where in that batch's list

  bool has(const std::vector<uint64_t>& bits, uint32_t slot) const {
    return slot / 64 < bits.size() && (bits[slot / 64] >> slot % 64 & 1) != 0;
  }
  bool is_live(uint32_t slot) const { return has(live, slot); }
  bool is_tombstone(uint32_t slot) const { return has(tombstones, slot); }
  bool is_last(uint32_t slot) const { return has(last, slot); }
  uint32_t kept() const { return num_live + num_tombstones + num_last; }
  uint32_t dead() const { return used - kept(); }
  // Of them, records: what a tombstone may have to cover.
  uint32_t dead_records() const { return used - num_deletions - num_live - num_last; }
  void SetLive(uint32_t slot);
  void ClearLive(uint32_t slot);
  void SetTombstone(uint32_t slot);
  void ClearTombstone(uint32_t slot);
  void SetLast(uint32_t slot);
  void ClearLast(uint32_t slot);
};

struct SegmentSet {
  static constexpr uint32_t kUnitSlots = 1024;
  static constexpr uint32_t kMaxUnits = 0xffffffffu / kUnitSlots;  // so that no location is kNoLocation

  struct Unit {
    Segment* segment = nullptr;
    uint32_t first_slot = 0;
  };

  // REQUIRES of all: mutex held.
  // Adds a segment and gives it units. ResourceExhausted (as a full disk's: deleting segments helps) where 2^32 locations are
  // not enough.
  Status Add(std::shared_ptr<Segment> segment);
  void Erase(Segment* segment);
  // The segment and slot of a location; null where nothing is.
  Segment* Find(uint32_t location, uint32_t* slot) const {
    const uint32_t unit = location / kUnitSlots;
    if (unit >= units.size() || units[unit].segment == nullptr) return nullptr;
    *slot = units[unit].first_slot + location % kUnitSlots;
    return *slot < units[unit].segment->used ? units[unit].segment : nullptr;
  }
  uint32_t LocationOf(const Segment& segment, uint32_t slot) const {
    return segment.units[slot / kUnitSlots] * kUnitSlots + slot % kUnitSlots;
  }
  std::shared_ptr<Segment> Pin(Segment* segment) const { return segments.at(segment); }
  // Counts a held record in, or out.
  void Hold(const Segment& segment, int64_t sign) {
    rows += sign;
    row_bytes += sign * segment.geometry.row_bytes;
    live_bytes += sign * segment.geometry.file_bytes_per_slot;
  }
  // Takes a held record out. REQUIRES: the slot is live
  void Release(Segment* segment, uint32_t slot);
  // As Release, and the record is its key's last copy.
  void Retire(Segment* segment, uint32_t slot, int64_t key);
  // A newer record or a tombstone of the key was written: its last copy, if there is one, is dead.
  void Supersede(int64_t key);
  // What a last copy's segment and slot are now. REQUIRES: `from` is its segment
  void MoveLast(int64_t key, Segment* from, uint32_t from_slot, Segment* to, uint32_t to_slot);
  void NoteIfDead(const Segment& segment) {
    if (segment.sealed && !segment.condemned && segment.kept() == 0) ++maybe_dead;
  }
  void SetFileBytes(Segment* segment, uint64_t bytes) {
    const uint64_t more = bytes - segment->file_bytes;  // less, modulo 2^64
    file_bytes += more;
    if (segment->condemned) condemned_bytes += more;
    segment->file_bytes = bytes;
  }

  // Whether records may be in a file of no segment. (Those of a file whose deletion a loss of power undoes: `unlinked`.)
  bool HasStrays() const { return deleting > 0 || !undeleted.empty(); }

  // Syncs the segment's file, and notes what that says of its writes so far. Whoever asks: a failed write-back is told to one
  // sync of a file and to none after it, so its error stays with the segment, and is everybody's, until the file is rewritten.
  // REQUIRES: mutex not held
  Status Sync(Segment* segment);
  // Deletes a file that may hold records; where that fails it stays in `undeleted`. REQUIRES: mutex not held
  void DeleteFile(Env* env, const std::string& path);

  mutable std::mutex mutex;  // guards all below
  std::map<Segment*, std::shared_ptr<Segment>> segments;
  std::vector<Unit> units;
  std::deque<uint32_t> free_units;
  uint64_t next_segment_id = 1;
  uint64_t read_batches = 0;
  int64_t rows = 0;         // held
  int64_t row_bytes = 0;    // of them
  int64_t live_bytes = 0;   // of files, their share and that of last copies
  std::unordered_map<int64_t, uint32_t> last_copies;  // by key: location
  uint64_t file_bytes = 0;  // of all files, preallocated space included
  std::vector<std::string> undeleted;  // files whose records recovery would find
  int deleting = 0;         // files on their way out: maybe there still, of no segment any more
  bool unlinked = false;    // a file was deleted since the directory was synced
  int64_t maybe_dead = 0;   // sealed segments that may have nothing to keep
  std::vector<std::shared_ptr<Segment>> condemned;  // to be deleted by the next round of settling
  uint64_t condemned_bytes = 0;                     // of file_bytes: of segments condemned, taken by a round or not
  // Counters.
  int64_t appended_bytes = 0, written_bytes = 0, reads = 0, read_bytes = 0, relocated = 0, corrupt = 0;
  LatencyHistogram read_latency = {}, write_latency = {};
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SEGMENT_SET_H_
