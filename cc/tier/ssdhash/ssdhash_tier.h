// SsdHashTier: records in a log of segment files on an SSD.
//
//   Write, Remove --> hot head  --> segment segment segment ...      Read: one sorted, coalesced batch of block reads
//   compaction    --> cold head --> segment segment ...                    Free: one bit
//                          ^----------- held records of a segment with many dead ones
//
// Life of a record. It is appended to the open segment and served from its buffer until it is written, then from the file. Free
// clears its bit. It disappears when its segment is deleted, after compaction has moved the records that are still held
// (tier.h, Relocation).
//
// Write waits for encoding, and for the creation of a file if the log needs a new segment. The process's two I/O threads write,
// sync and delete files (io_worker.h); Write does such work itself only if they fall behind.
//
// Space. The files take at most 1.5 times the space of the held records, plus four segments, plus the batch being written. This
// REQUIRES that the relocator moves the records that it is asked to move, and that the owner writes (Write compacts in slices)
// or async_compaction is set. A segment is a 64th of the held records' space, at least 1 MiB and at most 256 MiB. Without a
// relocator only segments without held records are reclaimed. On a full disk Write continues to compact, using a segment in
// reserve, down to segments with a 16th of dead records. Then it returns ResourceExhausted, and works again when rows are freed
// or the disk has room. If descriptors or memory run out, it returns ResourceExhausted at once.
//
// Durability. Records that Sync() acknowledged are durable. In a kept tier, records of a segment that was sealed and then
// synced in the background are durable too; a tier that is not kept syncs in the background only records that replace synced
// ones. Recovery returns for each key the newest record that is still in a file. A freed record without a newer record of its
// key stays in a kept tier if the owner requests it (KeyLocation::newest; 40 bytes of memory each); else it may disappear at
// any time. A removed key does not return: its tombstone stays until no file can hold an older record of it. A tombstone is
// newer than every record written before Remove was called: the owner keeps a key's writes and removals in order.
//
// Loss. A kept tier has a list of the segments that were synced (segment_list.h). If one of them, or an acknowledged record of
// one, is missing, recovery fails with DataLoss and the name of the file.
//
// Damage. A read of a record whose checksum does not match is DataLoss with key, file and offset. A damaged footer is replaced
// by reading the records. A header that lost a sector is replaced by that of another segment. Other damage of a header or of
// the id fails recovery. In a segment that was open when its process was killed, recovery() counts the records after the last
// Sync that cannot be read: it is unknown whether a loss of power lost them.
//
// A reader (`read_only`) shares the files of a closed tier with any number of other readers. It keeps all of them open. Sealed
// segments never change, so it goes on to read what it opened when a later owner writes, compacts or deletes files. It changes
// no file: Write fails, Remove and Free change its own memory only. It reads values alone, whatever slots the records have.
//
// Owns the files of one directory, and the instance of the directory if given; deletes them when destroyed, unless `keep`.
// Bounds rows if max_rows is set, and no bytes. Memory, all of it after the first Write:
//   - one bit per record, and 32 bytes for each record of segments that are not sealed
//   - write buffers: 64 KiB for each of two heads
//   - a share of the 64 MiB of write buffers of all tiers of the process: up to two buffers of 2 MiB per head, and 8 MiB of
//     segments being finished; while less than half of the 64 MiB is used, also the buffers of two finished segments
// Descriptors: those of the process's file cache (file_cache.h). A reader has one for each file.
//
// Thread-safe: all methods. In a forked child every call returns FailedPrecondition and the destructor does nothing.

#ifndef CC_TIER_SSDHASH_SSDHASH_TIER_H_
#define CC_TIER_SSDHASH_SSDHASH_TIER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/env/batch_reader.h"
#include "cc/env/env.h"
#include "cc/env/instance_dir.h"
#include "cc/tier/tier.h"

namespace multitier {

struct SsdHashOptions {
  Env* env = Env::Posix();
  // The directory of the files. Files whose names begin with "ssd" belong to this tier alone. Empty: instance->path().
  std::string directory;
  std::shared_ptr<InstanceDirectory> instance;  // held as long as the tier lives. Default: none, the caller holds it
  // true: recovers the files in the directory. false (default): deletes them.
  bool recover = false;
  // true: the destructor leaves the files, sealed and synced; sealed segments are synced in the background. Default: false.
  bool keep = false;
  // true: a reader. The caller ensures that no other tier writes to the directory until Open returns. REQUIRES: recover, not
  // keep
  bool read_only = false;
  // true: the process's I/O threads compact, and Write only if they fall behind. false (default): Write compacts.
  bool async_compaction = false;
  bool direct_io = true;  // uses O_DIRECT if the file system supports it
  int64_t max_rows = 0;   // held; 0: no bound
  BatchReader::Kind reader = BatchReader::Kind::kAuto;
  uint64_t min_segment_bytes = 1 << 20;
  uint64_t max_segment_bytes = 256 << 20;
};

class SsdHashTier : public Tier {
 public:
  // InvalidArgument for invalid options; the Env's error for the directory; with `recover`: DataLoss with file and offset if a
  // segment cannot be read, Unimplemented for another format version.
  static Result<std::unique_ptr<SsdHashTier>> Open(SsdHashOptions options);
  ~SsdHashTier() override;

  const char* name() const override { return "ssdhash"; }
  TierCapabilities capabilities() const override;
  // FailedPrecondition unless the layout begins with the columns of each recovered segment.
  Status SetLayout(std::shared_ptr<const RowLayout> layout) override;
  void SetRelocator(Relocator relocator) override;
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override;
  Status Read(Span<ReadRecord> records) override;
  Status ReadAndTell(Span<ReadRecord> records, const Answered& answered) override;
  // By the greatest version and frequency of the record's segment.
  bool MayReach(uint32_t location, int64_t min_version, int64_t min_frequency) const override;
  void Free(Span<const KeyLocation> records) override;
  Status Remove(Span<const KeyLocation> records) override;
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) override;
  uint64_t location_end() const override;
  Status Sync() override;
  // Rewrites every sealed segment with at least a sixteenth of dead records. Reads all files at most once. Writers wait for at
  // most one slice of a quarter MiB. ResourceExhausted if the disk has no room for the records that must move.
  Status Compact() override;
  // Sealed segments of which at least half of the records are held, and that have at least kLeastLinkedBytes of them.
  SealedFiles TakeSealedFiles() override;
  Status LinkSealedFile(const SealedFile& file, const std::string& to) override;
  bool PrepareLinks(const std::string& to) override;
  static constexpr uint64_t kLeastLinkedBytes = 32 << 10;
  // The columns of the widest segment.
  std::vector<ColumnSpec> recovered_columns() const override;
  TierRecovery recovery() const override;
  TierStats stats() const override;

 private:
  class Impl;
  explicit SsdHashTier(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_SSDHASH_TIER_H_
