// Tier: stores rows outside of DRAM: below it, or in its place. A row in a tier is a record; its place is a location, a number.
//
// The table that uses a tier is its owner. It knows the location of each of its records, and gives key and location to the
// tier. Calls for records take batches. In the table, tier_reader.h reads cold rows for lookups and updates.
//
// Life of a record:
//   Write    gives it a location. Once Write has returned OK, the record is held: it can be read any number of times, even
//            while it is in a write buffer.
//   Free     ends that. The tier may use the location again.
//   Remove   does what Free does and deletes the key: after a restart, a durable tier has no record of the key.
//
// Room. A tier does not evict: the table decides what to free. If the disk or the tier is full, Write fails with
// ResourceExhausted, writes nothing, and keeps the records that the tier had.
//
// Middle tiers (the capability `middle`) may have one tier below them, the last tier. A row of a middle tier may also have a
// record with the same contents in the last tier, its clean copy. Such a row moves down without a write. A middle tier stores
// three more fields of a record's header: `below`, the location of the clean copy; `recency`; and `flags`.
//
// Columns. The table may get columns after a record was written. A record states how many columns it has. Read returns these,
// and its caller fills in the others.
//
// Order. After a restart, the last Write or Remove of a key decides what a durable tier has of it. So the owner makes these
// calls for a key one after the other. It calls Remove when no Write of the key is in progress, and writes the key again after
// Remove has returned. (In the table, one thread at a time writes and removes keys of a shard: ShardWriter.)
//
// Relocation. A log-structured tier moves held records to reclaim space. Only the owner can change the locations that it has
// stored, so it gives the tier a function that does: the Relocator. The steps of one move:
//   1. choose   The tier copies held records to new locations. From now on both locations read as the record. Scan and stats
//               count only the old one.
//   2. ask      The tier calls the relocator with the (key, from, to) of many records. It holds no lock that Read, Free or
//               stats take.
//   3. switch   The owner takes its own lock of each key. If the key's location is `from` and no thread reads there, it stores
//               `to` and sets `moved`. Otherwise it changes nothing: the record was freed, or it is being read or written.
//   4. release  Moved: the tier holds `to` and no longer `from`. Not moved: the tier discards `to`, still holds `from`, and
//               tries again later.
// During a move the owner may free `from` before step 3. That step then finds another location, and does not set `moved`. From
// step 3 on it may free `to`, even before step 4.
// Locks. The relocator takes the owner's locks. So the owner holds none of them when it calls one of these methods:
//   Write, Sync, Remove, Compact          they may call the relocator (and a thread of the tier may, at any time)
//   Scan, PrepareLinks, SetRelocator      they may wait until a running relocator returns
// The relocator may call Read (without any_key), Free and stats, and no other method of the tier.
// Scan and Free. A record may move after Scan has reported its location. So an owner that frees what it scans first prevents
// moves, in one of two ways: it calls SetRelocator(nullptr), or it forgets its locations, so that step 3 never sets `moved`.
//
// Thread-safe: all methods. If a location is freed during a read of it, Read returns NotFound or the data of another record
// (its key shows which), never a mixture of two. Every tier passes the tests of tier_conformance.h.

#ifndef CC_TIER_TIER_H_
#define CC_TIER_TIER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/row/row_layout.h"

namespace multitier {

// The fields of a record other than its row data.
struct RecordHeader {
  int64_t key = 0;
  int64_t version = -1;
  uint32_t frequency = 0;
  uint32_t num_columns = 0;  // of the row data
  // Stored by tiers with the capability `middle`; other tiers return these initial values.
  uint32_t below = kNoLocation;  // location of the row's clean copy in the last tier (see above)
  uint32_t recency = 0;          // of the row when it was written
  uint16_t flags = 0;            // RowFlags: kRowEverBelow
};

// A record to write. The tier copies the data; it keeps no pointer after Write returns.
struct WriteRecord {
  RecordHeader header;
  const uint8_t* row_data = nullptr;  // the first header.num_columns columns of the layout
};

// A record to read.
struct ReadRecord {
  int64_t key = 0;  // the expected key. If the location has a record of another key, that record is read
  uint32_t location = 0;
  // In: true if the caller does not know the key. Out: false if the tier has found a key and set `key`. If the record is
  // damaged, the caller must then check that its row of this key is at this location.
  bool any_key = false;
  uint8_t* row_data = nullptr;  // [row_bytes of the layout]: receives the first header.num_columns columns; null: header only
  RecordHeader header;          // out; after DataLoss only its key is set, and only if the tier knows the key
  Status status;                // out: DataLoss with key, file and offset; NotFound for a freed location
};

// For messages about a record: " of key 5", or an empty string if the key is unknown.
inline std::string OfKey(const ReadRecord& record) { return record.any_key ? std::string() : StrCat(" of key ", record.key); }

struct KeyLocation {
  int64_t key = 0;
  uint32_t location = 0;
  bool newest = false;  // for Free: since this record was written, no other record of the key was written or removed
};

// A record that the tier has copied from one location to another.
struct Relocation {
  int64_t key = 0;
  uint32_t from = 0;
  uint32_t to = 0;
  bool moved = false;  // out: the owner's reference to `from` is now `to`
};
using Relocator = std::function<void(Span<Relocation>)>;

// A histogram of times. Count 0 is the number of batches that took less than 1 microsecond. Count i is the number of those that
// took at least 2^(i-1) and less than 2^i microseconds. The last count includes all longer ones.
using LatencyHistogram = std::array<int64_t, 24>;
inline size_t LatencyBucket(uint64_t micros) {
  size_t bucket = 0;
  for (; micros > 0 && bucket + 1 < LatencyHistogram().size(); micros >>= 1) ++bucket;
  return bucket;
}

struct TierStats {
  int64_t rows = 0;
  int64_t row_bytes = 0;       // bytes of row data in records that are held
  int64_t resident_bytes = 0;  // memory used for these rows
  int64_t stored_bytes = 0;    // bytes on a device used for these rows
  // SSDHASH sets all fields below. LEVELDB sets device_reads to appended_bytes, and read_backend. Other tiers set none.
  int64_t device_reads = 0;  // calls that read records; reads of adjacent blocks are one call
  int64_t device_read_bytes = 0;
  int64_t device_written_bytes = 0;  // all writes: records, relocation and metadata
  int64_t appended_bytes = 0;        // bytes of records passed to Write and Remove
  int64_t segments = 0;
  int64_t relocated_rows = 0;           // records moved by relocation
  int64_t dead_bytes = 0;               // bytes in files of records that are no longer held; 0 if not counted
  int64_t compaction_debt_bytes = 0;    // bytes above the tier's target size
  const char* read_backend = "";        // "io_uring", "pread", ...
  LatencyHistogram read_latency = {};   // of calls of Read
  LatencyHistogram write_latency = {};  // of calls of Write, with the compaction that runs inside them
};

// The contents of a tier's files when it opened them.
struct TierRecovery {
  int64_t files = 0;            // files with records
  int64_t listed_files = 0;     // of `files`: those in the tier's list of synced files
  int64_t unsealed_files = 0;   // of `files`: those without a usable footer, read record by record
  int64_t lost_headers = 0;     // of `files`: those with a lost header, read with the layout of another file
  int64_t records = 0;          // records in the files, including older ones and removals
  int64_t damaged_records = 0;  // records that no Sync had covered and that cannot be read
  std::string first_damage;     // file and offset of the first damaged record or header; empty: none
  int64_t rows = 0;             // rows held after recovery
};

// A file whose records never change, and the records of it that are held. A snapshot can take the file in place of its rows
// (table/host/snapshot.cc).
struct SealedFile {
  static constexpr uint32_t kRun = 1024;

  std::string path;
  uint64_t bytes = 0;
  std::string header;               // the file begins with it; docs/formats/ssdhash.md says where records are
  uint32_t slots = 0;               // places of records
  int64_t rows = 0;                 // records held
  std::vector<uint64_t> held;       // [slots] bits
  std::vector<uint32_t> locations;  // of slots 0, kRun, 2 * kRun, ...; the slots of a run have locations in sequence
  // While this exists, the tier moves no single record out of the file. It may replace the whole file by a copy. It goes before
  // the tier does.
  std::shared_ptr<const void> hold;
};
struct SealedFiles {
  std::vector<SealedFile> files;
  int64_t rows = 0;  // records held by the tier, in these files or not
};

// The properties of a tier that are optional in the contract.
struct TierCapabilities {
  bool durable = false;    // records survive the process
  bool relocates = false;  // moves records. Without a relocator, it reclaims only files of which no record is held
  bool middle = false;     // stores below, recency and flags of a record: may have a tier below it
  bool keyed = false;      // stores entries by key: a freed one stays in its files until the key is written or removed
};

class Tier {
 public:
  virtual ~Tier() = default;

  virtual const char* name() const = 0;  // "pmem", "ssdhash", ...
  virtual TierCapabilities capabilities() const = 0;

  // Sets the layout of records written from now on. Called before the first Write and after a column was appended.
  virtual Status SetLayout(std::shared_ptr<const RowLayout> layout) = 0;

  // Sets the relocator described above; null: none. After this returns, no call of the previous relocator runs or will run.
  // A tier that never relocates ignores it.
  virtual void SetRelocator(Relocator relocator) { (void)relocator; }

  // Writes all records or none. A key may be written again before its older record is freed. locations: [records.size()].
  // InvalidArgument if a record's num_columns is 0 or more than the layout's. After an error no record of the batch is held,
  // but recovery may find some of them: the owner calls Remove for a key that must not return.
  virtual Status Write(Span<const WriteRecord> records, uint32_t* locations) = 0;
  // Reads all records, each with its own status. The returned Status is for errors of the whole batch.
  virtual Status Read(Span<ReadRecord> records) = 0;
  // As Read. While reads are still running, it may call answered(i) for a record that is complete: on the calling thread, with
  // no lock of the tier held, at most once for each record.
  using Answered = std::function<void(size_t)>;
  virtual Status ReadAndTell(Span<ReadRecord> records, const Answered& answered) {
    (void)answered;
    return Read(records);
  }
  // Whether the record at `location` may have both a version of at least min_version and a frequency of at least min_frequency.
  // True if the tier does not know. Does no I/O: the owner calls it under its locks.
  virtual bool MayReach(uint32_t location, int64_t min_version, int64_t min_frequency) const {
    (void)location, (void)min_version, (void)min_frequency;
    return true;
  }
  // Frees records. Does no I/O: the owner calls it under its locks. REQUIRES: each location holds a record of that key. A
  // durable tier keeps a freed record that is `newest` until a newer record or a removal of its key is written: the row may be
  // in memory alone, and after a crash recovery must find the record.
  virtual void Free(Span<const KeyLocation> records) = 0;
  // As Free, and recovery does not find the key again. Location kNoLocation: the key had a record before, and none is held now.
  // After an error no record of the batch was freed.
  virtual Status Remove(Span<const KeyLocation> records) = 0;
  // For middle tiers: if the record at `location` belongs to that key and its `below` is `from`, sets `below` to `to` and
  // returns true. Does no I/O: the owner calls it under its locks.
  virtual bool SwitchBelow(const KeyLocation& record, uint32_t from, uint32_t to) {
    (void)record, (void)from, (void)to;
    return false;
  }
  // Calls visit for every record held, in any order; stops at the first error of visit. A record that moves during the scan may
  // be visited more than once. Skips records that cannot be read, and then returns DataLoss with the place of the first. Right
  // after recovery, a tier holds one record of each key, the newest, and avoids reading row data here.
  virtual Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) = 0;
  // The locations of all records held are below this number.
  virtual uint64_t location_end() const = 0;
  // After this returns OK, all records written before it survive a crash. A no-op for a tier that is not durable.
  virtual Status Sync() = 0;
  // Reclaims the space of records that are no longer held: more of it than the tier does by itself, at the cost of I/O. The
  // files stay within the tier's bound. Reads and writes may run at the same time. After an error every record is still held,
  // perhaps at another location. A no-op for a tier that uses freed space again without copying.
  virtual Status Compact() { return OkStatus(); }
  // The sealed files that can be linked now. Leaves out files of which more than half of the records are dead, files with few
  // records, and files that are in use, are damaged, or failed to sync. Does no I/O. The result must not outlive the tier.
  virtual SealedFiles TakeSealedFiles() { return {}; }
  // Gives the file the second name `to`: a hard link. If the tier has replaced the file by a copy, it links the copy. Syncs the
  // file first, unless that was done. The caller syncs the directory of `to`.
  virtual Status LinkSealedFile(const SealedFile& file, const std::string& to) {
    (void)file;
    return UnimplementedError("tier ", name(), ": link of a file to '", to, "'");
  }
  // Tests whether hard links work: makes a link `to` to one of its files and deletes it. If that worked, seals the files that
  // are full, syncs them, and returns true. Does I/O.
  virtual bool PrepareLinks(const std::string& to) {
    (void)to;
    return false;
  }
  // The columns of the widest recovered record, value first. The layout passed to SetLayout begins with them. Empty: none.
  virtual std::vector<ColumnSpec> recovered_columns() const { return {}; }
  // All fields are zero for a tier that was empty when opened.
  virtual TierRecovery recovery() const { return {}; }
  virtual TierStats stats() const = 0;
};

}  // namespace multitier

#endif  // CC_TIER_TIER_H_
