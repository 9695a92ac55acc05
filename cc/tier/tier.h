// Tier: a place below DRAM where rows are kept as records at locations.
//
// A tier knows records, not the table: it is given (key, location) and never asks who names a location. Everything is
// batch-first. A record is readable at its location from the moment Write returns OK until it is freed; a tier that buffers
// serves reads from its buffer. A tier never chooses what to keep: capacity is the table's business, but a tier that cannot
// take a batch (full disk, its own bound) refuses the whole batch with ResourceExhausted and keeps what it had.
//
// Life of a record: Write -> location -> Read, any number -> Free, after which the location may be used again.
// Remove says that the key is gone for good: a durable tier makes sure that no record of it comes back.
//
// A tier that may stand in the middle (capability `middle`) also keeps what the header says of the row beside its data: where
// its clean copy in the tier below is, its recency and its flags. The last tier of a chain need not.
//
// Rows may have been written with fewer columns than the table has now: a record names its number of columns, and the
// reader widens it.
//
// Order. What a durable tier holds after recovery follows the order of its calls: of a key's records and removals the last
// one told counts. So the owner tells a removal only when no write of that key is on its way, and writes a later row of the
// key only when the removal has been told. (The table: one thread at a time writes and removes keys of a shard.)
//
// Relocation. A log-structured tier reclaims space by moving records that are still held; their locations change, and only
// the owner knows who names them. It lends the tier a Relocator; the steps of one move:
//   1. choose   the tier takes records that are held and copies each to a new location. Both read as the record from now on;
//               only the old one is held, for Scan and stats.
//   2. ask      it calls the relocator with a batch of (key, from, to), holding no lock that Read, Free or stats take.
//   3. switch   the owner, under its own lock of each key: where something of its own names `from` and nobody is reading it,
//               that name becomes `to`, and moved is set. Else (freed, being written, pending, in use) it stays as it was.
//   4. settle   moved: `from` is no longer held, and `to` is. Not moved: `to` is given up, `from` is as it was, and the tier
//               comes back for it later.
// A location named in step 3 may be freed at once, before step 4. A record that is freed between 1 and 3 is not moved: who
// took its name away frees `from`. The relocator is called from Write, Sync, Remove and Compact, or from a thread of the tier;
// it may lock what protects the owner's names, so Write, Sync, Remove, Compact, Scan and SetRelocator must not be called under
// that; it may call Read, Free and stats, and nothing else of the tier. Who collects locations with Scan to free them must make
// sure that none moves in between: take the names away first, or SetRelocator(nullptr).
//
// Thread-safe: all methods. A location that is being read may be freed by another thread: Read then fails with NotFound or
// gives another record, whose key tells; it never gives torn data. tier_conformance.h is the test every tier passes.

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

// What a record holds beside its row data.
struct RecordHeader {
  int64_t key = 0;
  int64_t version = -1;
  uint32_t frequency = 0;
  uint32_t num_columns = 0;  // of the row data
  // Kept by tiers with the capability `middle`; others give them back as they are here.
  uint32_t below = kNoLocation;  // of the row's clean copy in the last tier
  uint32_t recency = 0;          // of the row when it was written
  uint16_t flags = 0;            // RowFlags: kRowEverBelow
};

// A record to write. The tier copies; nothing is kept after Write returns.
struct WriteRecord {
  RecordHeader header;
  const uint8_t* row_data = nullptr;  // the first header.num_columns columns of the layout
};

// A record to read.
struct ReadRecord {
  int64_t key = 0;             // expected; a record of another key is given as it is
  uint32_t location = 0;
  // Whoever reads it knows the location alone. Out: false where a record is damaged and the tier finds a key for it, by what it
  // says itself or another file says: in `key`, to be checked by who knows which key is where.
  bool any_key = false;
  uint8_t* row_data = nullptr; // [row_bytes of the layout]: receives the first header.num_columns columns; null: header only
  RecordHeader header;         // out; with DataLoss only its key, and only where the tier knows it: else left as it was
  Status status;               // out: DataLoss naming key, file and offset; NotFound for a freed location
};

// " of key 5", or nothing where nobody knows the key: for messages about a record.
inline std::string OfKey(const ReadRecord& record) { return record.any_key ? std::string() : StrCat(" of key ", record.key); }

struct KeyLocation {
  int64_t key = 0;
  uint32_t location = 0;
  bool newest = false;  // of Free: no newer record of the key was written, nor was it removed
};

// A record that the tier has copied from one location to another.
struct Relocation {
  int64_t key = 0;
  uint32_t from = 0;
  uint32_t to = 0;
  bool moved = false;  // out: whoever named `from` names `to` now
};
using Relocator = std::function<void(Span<Relocation>)>;

// How long batches took: count i is of those of less than 2^i microseconds and not less than 2^(i-1); the last of all longer.
using LatencyHistogram = std::array<int64_t, 24>;
inline size_t LatencyBucket(uint64_t micros) {
  size_t bucket = 0;
  for (; micros > 0 && bucket + 1 < LatencyHistogram().size(); micros >>= 1) ++bucket;
  return bucket;
}

struct TierStats {
  int64_t rows = 0;
  int64_t row_bytes = 0;       // bytes of row data held
  int64_t resident_bytes = 0;  // memory used for it
  int64_t stored_bytes = 0;    // bytes on a device used for it
  // Of tiers with files of their own; 0 elsewhere.
  int64_t device_reads = 0;           // calls that read records, after coalescing
  int64_t device_read_bytes = 0;
  int64_t device_written_bytes = 0;   // all writes: records, what moves them, what describes them
  int64_t appended_bytes = 0;         // of records given to Write and Remove; written / appended is the write amplification
  int64_t segments = 0;
  int64_t relocated_rows = 0;         // records moved by relocation
  int64_t dead_bytes = 0;             // of files: records that nobody holds any more, where the tier counts them
  int64_t compaction_debt_bytes = 0;  // beyond what the tier wants to use
  const char* read_backend = "";      // "io_uring", "pread", ...
  LatencyHistogram read_latency = {};   // of calls of Read
  LatencyHistogram write_latency = {};  // of calls of Write, compaction that it pays for included
};

// What a tier found in its files when it took them over.
struct TierRecovery {
  int64_t files = 0;             // with records
  int64_t listed_files = 0;      // of them, those that the tier's list of synced files names: found as it says
  int64_t unsealed_files = 0;    // of them, those read record by record, up to the last good one
  int64_t lost_headers = 0;      // of them, those read with the layout of another one
  int64_t records = 0;           // in them, older ones and removals included
  int64_t damaged_records = 0;   // of them, those that nobody acknowledged and that do not read: lost in a crash, or damaged
  std::string first_damage;      // of a record or a header: file and offset; empty: none
  int64_t rows = 0;              // held now
};

// What a tier can do beyond the common contract.
struct TierCapabilities {
  bool durable = false;       // records survive the process
  bool bounded = false;       // refuses when its own bound is reached
  bool relocates = false;     // moves records, and never reclaims their space without a relocator
  bool middle = false;        // keeps below, recency and flags of a record: may have a tier below it
};

class Tier {
 public:
  virtual ~Tier() = default;

  virtual const char* name() const = 0;  // "dram", "ssdhash", ...
  virtual TierCapabilities capabilities() const = 0;

  // Tells the layout of records written from now on; called before the first Write and when a column was appended.
  virtual Status SetLayout(std::shared_ptr<const RowLayout> layout) = 0;

  // Lends the relocator described above; null takes it back. When this returns no call of the one before runs or will run.
  // A tier that never relocates ignores it.
  virtual void SetRelocator(Relocator relocator) { (void)relocator; }

  // Writes all records or none. A key whose older record was not freed may be written again. locations: [records.size()].
  // InvalidArgument where a record's num_columns is 0 or more than the layout's. After an error nothing of the batch is held,
  // but recovery may find records of it: such a key counts as written when it is removed.
  virtual Status Write(Span<const WriteRecord> records, uint32_t* locations) = 0;
  // Reads all records, each with its own status; the call's Status is for what hits the whole batch.
  virtual Status Read(Span<ReadRecord> records) = 0;
  // The same, and calls answered(i), on the calling thread and with no lock of the tier held, for records whose answer is there
  // while others are still being read: which ones is up to the tier, each at most once.
  using Answered = std::function<void(size_t)>;
  virtual Status ReadAndTell(Span<ReadRecord> records, const Answered& answered) {
    (void)answered;
    return Read(records);
  }
  // Frees records. REQUIRES: each location holds a record of that key. One that is `newest` is all that recovery would find of
  // its key: a durable tier whose files are kept does not lose it before a newer record, or a removal, is written.
  virtual void Free(Span<const KeyLocation> records) = 0;
  // As Free, and the key must not come back after recovery. Location kNoLocation: the key has no record that is held, but
  // had one once. On an error nothing of the batch was freed.
  virtual Status Remove(Span<const KeyLocation> records) = 0;
  // Where the record at `location` is of that key and its `below` is `from`: makes it `to`, and is true. Memory only: called
  // under the owner's locks. Of tiers with the capability `middle`.
  virtual bool SwitchBelow(const KeyLocation& record, uint32_t from, uint32_t to) {
    (void)record, (void)from, (void)to;
    return false;
  }
  // Calls visit for every record held, in any order, stopping at its first error; for one that moves meanwhile perhaps more
  // than once. A tier that has just recovered holds one record of each key, its newest, and reads no row data here where it can
  // avoid it. Records that cannot be read are passed over, and at the end DataLoss names the first place.
  virtual Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) = 0;
  // Locations of all records held are below it.
  virtual uint64_t location_end() const = 0;
  // What was written survives a crash once this returns OK. A no-op where nothing survives.
  virtual Status Sync() = 0;
  // Gives space of freed and superseded records back to the device, more than the tier would by itself, at the cost of I/O and
  // within bounds of its own. Others write and read meanwhile. On an error everything is held as it was, perhaps elsewhere. A
  // no-op where that space is used again without copying.
  virtual Status Compact() { return OkStatus(); }
  // The columns of the widest record recovered, value first: the layout given to SetLayout begins with them. Empty: none.
  virtual std::vector<ColumnSpec> recovered_columns() const { return {}; }
  // All zero for a tier that began empty.
  virtual TierRecovery recovery() const { return {}; }
  virtual TierStats stats() const = 0;
};

}  // namespace multitier

#endif  // CC_TIER_TIER_H_
