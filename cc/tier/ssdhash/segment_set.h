// SegmentSet: the segments of one tier, which of their records are held, and the record at each location.
//
//   location -> unit (1,024 slots) -> segment, slot
//
// A segment takes whole units when it is created and returns them when it is erased; units are reused oldest first. Held
// records have one bit each (`live`). Compaction must also keep tombstones and last copies, which have one bit each in segments
// that have any. All other records are dead. A last copy is a freed record of a tier whose files are kept: the only record of
// its key that recovery would find. It stays until a newer record or a tombstone of the key is written.
//
// Owns the segments' memory and files. Syncs or deletes a file only on request. Guarded by `mutex`, which is held only for
// short steps and never during I/O. It is the innermost of the tier's locks (ssdhash_impl.h).

#ifndef CC_TIER_SSDHASH_SEGMENT_SET_H_
#define CC_TIER_SSDHASH_SEGMENT_SET_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/env/env.h"
#include "cc/env/file_cache.h"
#include "cc/tier/ssdhash/segment_format.h"

namespace multitier {

// The first records of a segment: their number, and their newest sequence number.
struct SegmentPrefix {
  uint32_t records = 0;
  uint64_t newest_seq = 0;
};
// The prefix of entries that were read; damaged entries have no sequence number. REQUIRES: records <= entries.size()
SegmentPrefix PrefixOf(const std::vector<FooterEntry>& entries, uint32_t records);

// States of a segment: open (one per writer); full (its draft waits to be finished); sealed (complete: only its proof is still
// written to it); condemned (it has nothing to keep, and its file will be deleted). Until it is sealed, its newest records are
// in its draft's buffer. SegmentSet::mutex guards all members except the constants and sync_mutex.
struct Segment {
  Segment(SegmentHeader segment_header, std::shared_ptr<CachedFile> segment_file)
      : Segment(segment_header, std::move(segment_file), SegmentGeometry(segment_header)) {}
  Segment(SegmentHeader segment_header, std::shared_ptr<CachedFile> segment_file, const SegmentGeometry& segment_geometry);

  const SegmentHeader header;
  const SegmentGeometry geometry;
  std::vector<uint32_t> column_bytes;  // [columns + 1]: row bytes of the first n columns

  std::shared_ptr<CachedFile> file;  // replaced if a failed file was rewritten
  uint32_t attempt = 0;              // the last attempt number that was used
  uint32_t file_attempt = 0;         // the attempt number of `file`
  uint64_t file_bytes = 0;           // of the file, preallocated space included
  bool sealed = false, condemned = false;
  int users = 0;  // writers that have not published, and compaction: > 0: must not be deleted or chosen
  uint64_t footer_offset = 0, footer_bytes = 0;  // 0: none
  bool proven = false;                           // its trailer states that it was synced

  // Until sealed, a record is read from one of three places. Ends at or below file_end: from the file. Ends at or below
  // in_flight_end: from `in_flight`, which is being written (null: none). Else: from `buffer`. The begins are file
  // offsets.
  uint64_t file_end = 0;
  uint64_t in_flight_begin = 0, in_flight_end = 0;
  const uint8_t* in_flight = nullptr;
  uint64_t buffer_begin = 0;
  const uint8_t* buffer = nullptr;
  uint64_t memory_bytes = 0;  // of both
  // The bytes of the record at `offset`; null if it is in the file.
  const uint8_t* InMemory(uint64_t offset) const {
    const uint64_t end = offset + geometry.record_bytes;
    if (buffer == nullptr || end <= file_end) return nullptr;
    const bool written_now = in_flight != nullptr && end <= in_flight_end;
    return written_now ? in_flight + (offset - in_flight_begin) : buffer + (offset - buffer_begin);
  }
  // Until sealed: the entries of the slots taken. The writer's lock guards them too; the writer appends under that lock alone.
  std::vector<FooterEntry> entries;

  // Held during a sync of the file, until its result is recorded. Taken before SegmentSet::mutex.
  Mutex sync_mutex;
  // `synced_writes` and `synced` survive a loss of power: all writes up to the synced one, and the records in them.
  uint64_t writes = 0, synced_writes = 0;
  SegmentPrefix in_file, synced;
  uint32_t damaged = 0;       // records that were damaged when recovery or a repair read them, and are not held
  bool entry_synced = false;  // of the directory
  bool sync_failed = false;   // the contents of the file are unknown: it must be rewritten
  Status sync_error;          // of that sync
  bool dirty() const { return synced_writes != writes || synced.records < in_file.records || !entry_synced; }

  // At least those of every record. One thread at a time notes records, before they can be found.
  std::atomic<int64_t> newest_version{std::numeric_limits<int64_t>::min()};
  std::atomic<uint32_t> highest_frequency{0};
  void Note(int64_t version, uint32_t frequency) {
    if (version > newest_version.load(std::memory_order_relaxed)) newest_version.store(version, std::memory_order_relaxed);
    if (frequency > highest_frequency.load(std::memory_order_relaxed)) {
      highest_frequency.store(frequency, std::memory_order_relaxed);
    }
  }

  uint32_t used = 0;           // slots taken
  uint32_t num_deletions = 0;  // of these, tombstones, kept or not
  uint32_t num_live = 0, num_tombstones = 0, num_last = 0;
  std::vector<uint64_t> live;        // [slots] bits
  std::vector<uint64_t> tombstones;  // [slots] bits, or empty
  std::vector<uint64_t> last;        // [slots] bits, or empty: last copies
  uint64_t tombstone_horizon = 0;    // segments of smaller id may hold older records of its tombstones' keys
  uint64_t sealed_at = 0;            // bytes appended to the tier before it was sealed
  bool header_lost = false;          // of the file: it is read with the header of another segment
  bool left_over = false;            // compaction has processed it, but some records were in use
  uint32_t unreadable = 0;           // held records that the last pass could not read
  bool found_damaged = false;        // a reader met a damaged record: checkpoints do not share the file
  uint64_t last_sweep = 0;           // number of the last compaction sweep over it
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
  // Dead records that are not tombstones: a tombstone may have to cover them.
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

  // Adds a segment and assigns units to it. ResourceExhausted if the 2^32 locations are used up (as for a full disk, deleting
  // segments helps).
  Status Add(std::shared_ptr<Segment> segment) MT_REQUIRES(mutex);
  void Erase(Segment* segment) MT_REQUIRES(mutex);
  // The segment and slot of a location; null if it has none.
  Segment* Find(uint32_t location, uint32_t* slot) const MT_REQUIRES(mutex) {
    const uint32_t unit = location / kUnitSlots;
    if (unit >= units.size() || units[unit].segment == nullptr) return nullptr;
    *slot = units[unit].first_slot + location % kUnitSlots;
    return *slot < units[unit].segment->used ? units[unit].segment : nullptr;
  }
  uint32_t LocationOf(const Segment& segment, uint32_t slot) const MT_REQUIRES(mutex) {
    return segment.units[slot / kUnitSlots] * kUnitSlots + slot % kUnitSlots;
  }
  std::shared_ptr<Segment> Pin(Segment* segment) const MT_REQUIRES(mutex) { return segments.at(segment); }
  // Adds a held record to the counters (sign 1), or subtracts it (-1).
  void Hold(const Segment& segment, int64_t sign) MT_REQUIRES(mutex) {
    rows += sign;
    row_bytes += sign * segment.geometry.row_bytes;
    live_bytes += sign * segment.geometry.file_bytes_per_slot;
  }
  // Marks a held record as dead. REQUIRES: the slot is live
  void Release(Segment* segment, uint32_t slot) MT_REQUIRES(mutex);
  // As Release, but the record becomes its key's last copy.
  void Retire(Segment* segment, uint32_t slot, int64_t key) MT_REQUIRES(mutex);
  // Call it after a newer record or a tombstone of the key was written. Marks the key's last copy, if any, as dead.
  void Supersede(int64_t key) MT_REQUIRES(mutex);
  // Moves a last copy to another segment and slot. REQUIRES: `from` is its segment
  void MoveLast(int64_t key, Segment* from, uint32_t from_slot, Segment* to, uint32_t to_slot) MT_REQUIRES(mutex);
  void NoteIfDead(const Segment& segment) MT_REQUIRES(mutex) {
    if (segment.sealed && !segment.condemned && segment.kept() == 0) ++maybe_dead;
  }
  void SetFileBytes(Segment* segment, uint64_t bytes) MT_REQUIRES(mutex) {
    const uint64_t more = bytes - segment->file_bytes;  // less, modulo 2^64
    file_bytes += more;
    if (segment->condemned) condemned_bytes += more;
    segment->file_bytes = bytes;
  }

  // Whether records may be in a file that belongs to no segment. (`unlinked`: a loss of power may undo a deletion.)
  bool HasStrays() const MT_REQUIRES(mutex) { return deleting > 0 || !undeleted.empty(); }

  // Writes to a segment's file, and counts the bytes.
  Status Write(PositionedFile* file, uint64_t offset, const void* data, size_t bytes) MT_EXCLUDES(mutex);
  // Syncs the segment's file and records which writes are durable. The kernel reports a failed write-back to one sync only, so
  // the segment keeps the error: every later Sync returns it until the file is rewritten.
  Status Sync(Segment* segment) MT_EXCLUDES(mutex);
  // Deletes a file that may hold records. If that fails, the file stays in `undeleted`.
  void DeleteFile(Env* env, const std::string& path) MT_EXCLUDES(mutex);

  mutable Mutex mutex;
  std::map<Segment*, std::shared_ptr<Segment>> segments MT_GUARDED_BY(mutex);
  std::vector<Unit> units MT_GUARDED_BY(mutex);
  std::deque<uint32_t> free_units MT_GUARDED_BY(mutex);
  uint64_t next_segment_id MT_GUARDED_BY(mutex) = 1;
  uint64_t read_batches MT_GUARDED_BY(mutex) = 0;
  int64_t rows MT_GUARDED_BY(mutex) = 0;                                   // held
  int64_t row_bytes MT_GUARDED_BY(mutex) = 0;                              // of these rows
  int64_t live_bytes MT_GUARDED_BY(mutex) = 0;                             // file bytes of held records and last copies
  std::unordered_map<int64_t, uint32_t> last_copies MT_GUARDED_BY(mutex);  // by key: location
  uint64_t file_bytes MT_GUARDED_BY(mutex) = 0;                            // of all files, preallocated space included
  std::vector<std::string> undeleted MT_GUARDED_BY(mutex);                 // files whose records recovery would find
  int deleting MT_GUARDED_BY(mutex) = 0;                                   // files being deleted: of no segment, but may exist
  bool unlinked MT_GUARDED_BY(mutex) = false;   // a file was deleted after the last sync of the directory
  int64_t maybe_dead MT_GUARDED_BY(mutex) = 0;  // sealed segments that may have nothing to keep
  std::vector<std::shared_ptr<Segment>> condemned MT_GUARDED_BY(mutex);  // deleted by the next round of SyncAndDelete
  uint64_t condemned_bytes MT_GUARDED_BY(mutex) = 0;                     // part of file_bytes: condemned, not yet deleted
  // Counters.
  int64_t appended_bytes MT_GUARDED_BY(mutex) = 0;
  int64_t written_bytes MT_GUARDED_BY(mutex) = 0;
  int64_t reads MT_GUARDED_BY(mutex) = 0;
  int64_t read_bytes MT_GUARDED_BY(mutex) = 0;
  int64_t relocated MT_GUARDED_BY(mutex) = 0;
  int64_t corrupt MT_GUARDED_BY(mutex) = 0;
  LatencyHistogram read_latency MT_GUARDED_BY(mutex) = {};
  LatencyHistogram write_latency MT_GUARDED_BY(mutex) = {};
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SEGMENT_SET_H_
