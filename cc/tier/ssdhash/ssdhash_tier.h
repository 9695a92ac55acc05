// SsdHashTier: records in a log of segment files on an SSD.
//
//   Write, Remove --> hot head  --> segment segment segment ...      Read: one sorted, coalesced batch of block reads
//   compaction    --> cold head --> segment segment ...                    Free: one bit
//                          ^----------- held records of a segment with many dead ones
//
// Life of a record: appended to the open segment, served from its buffer until it is written, from the file after; freed, a
// cleared bit; gone when its segment is deleted, after compaction has moved what is still held (tier.h, Relocation).
//
// What Write waits for: encoding, and where the log needs a new segment, making its file. Files are written, synced and deleted
// on the process's two threads for that (io_worker.h); Write does such work itself only where they fall behind.
//
// Space: at most 1.5 times what the held records take, plus four segments, plus the batch being written, as long as the
// relocator moves what it is asked to move and the owner writes (compaction is paid in slices by Write) or async_compaction is
// set. A segment is a 64th of what is held, at least 1 MiB and at most 256 MiB. Without a relocator only segments without held
// records are reclaimed. On a full disk Write compacts on, down to segments with a 16th of dead records, with a segment that is
// always in reserve; then it answers ResourceExhausted, and works again as soon as rows are freed or the disk has room. Where
// descriptors or memory are out it answers so at once.
//
// Durable is what Sync() acknowledged, and, in a tier that is kept, what stands in a segment that was sealed and then synced in
// the background; a tier that is not kept syncs nothing else but what replaces synced records. Recovery gives for each key its
// newest record that is still in a file. A record that was freed while no newer one of its key was written stays in a tier that
// is kept, where the owner says so (KeyLocation::newest; 40 bytes of memory each); else it may be gone at any time. A removed
// key does not come back: its tombstone stays until no file can hold an older record of it. A tombstone is newer than whatever
// was written before Remove was called, whoever wrote it: the owner keeps a key's writes and removals in order.
//
// Loss: a tier that is kept has a list of the segments that were synced (segment_list.h). Where one of them, or an acknowledged
// record of it, is missing, recovery fails with DataLoss naming the file.
//
// Damage: a record whose checksum does not match is DataLoss naming key, file and offset when it is read; a damaged footer is
// replaced by reading the records; a header that lacks a sector by that of another; a header or id damaged otherwise fails
// recovery. Of a segment that was open when its process was killed, records since the last Sync that do not read are counted by
// recovery(): nobody knows then whether they were lost with the power.
//
// Owns the files of one directory, and the instance that keeps the directory, if given; deletes them when destroyed, unless
// `keep`. Bounds rows where max_rows is given, and no bytes. Memory: a bit a record, 32 bytes for each record of the segments
// not yet sealed, and write buffers: 64 KiB of each of two heads, and beyond that, up to two of 2 MiB a head, 8 MiB of segments
// being finished, and while less than half is taken what two finished ones had, a share of the 64 MiB that all tiers of the
// process have together; nothing of it before the first Write.
// Descriptors: those of the process's file cache (file_cache.h).
//
// Thread-safe: all methods. In a forked child every call answers FailedPrecondition and the destructor does nothing.

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
  // Where the files are; of this tier alone, but for names that do not begin with "ssd". Empty: instance->path().
  std::string directory;
  std::shared_ptr<InstanceDirectory> instance;  // held as long as the tier lives. Default: none, the caller sees to it
  // Takes over what is in the directory; else it is deleted. Default: false.
  bool recover = false;
  // Leaves the files, sealed and synced, when the tier is destroyed, and syncs sealed segments meanwhile. Default: false.
  bool keep = false;
  // Compaction on the process's threads for it, and by Write only where that falls behind. Default: false, by Write.
  bool async_compaction = false;
  bool direct_io = true;      // O_DIRECT where the file system has it
  int64_t max_rows = 0;       // held; 0: no bound
  BatchReader::Kind reader = BatchReader::Kind::kAuto;
  uint64_t min_segment_bytes = 1 << 20;
  uint64_t max_segment_bytes = 256 << 20;
};

class SsdHashTier : public Tier {
 public:
  // InvalidArgument for impossible options; what the Env says of the directory; with `recover`: DataLoss naming file and
  // offset where a segment cannot be read, Unimplemented for a newer format.
  static Result<std::unique_ptr<SsdHashTier>> Open(SsdHashOptions options);
  ~SsdHashTier() override;

  const char* name() const override { return "ssdhash"; }
  TierCapabilities capabilities() const override;
  // FailedPrecondition where a recovered segment's columns are not the first of the layout's.
  Status SetLayout(std::shared_ptr<const RowLayout> layout) override;
  void SetRelocator(Relocator relocator) override;
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override;
  Status Read(Span<ReadRecord> records) override;
  Status ReadAndTell(Span<ReadRecord> records, const Answered& answered) override;
  void Free(Span<const KeyLocation> records) override;
  Status Remove(Span<const KeyLocation> records) override;
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) override;
  uint64_t location_end() const override;
  Status Sync() override;
  // Rewrites every sealed segment with at least a sixteenth of dead records, reading no more than all files once. Writers wait
  // for a slice of a quarter MiB of it at most. ResourceExhausted where the disk has no room for what would have to be moved.
  Status Compact() override;
  // Of the widest segment.
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
