// PmemTier: rows in slots of files mapped by libpmem. The files are on persistent memory if the directory is on a DAX mount;
// any other file system works too, but slower.
//
// A location is a slot number over all files. The tier adds files as it gets more rows. A file is at most as large as all
// earlier files together, and at most 1 GiB. It is fully allocated, so that a full disk is an error of Write and never of a
// store. Life of a slot:
//   free -> reserved by a Write, which fills it without the tier's lock -> held -> freed, in limbo while a Read that may be
//   copying it runs -> free
// Limbo has two halves. A Read enters the current epoch, and a freed slot goes into the limbo of the current epoch. A new
// epoch begins when no Read of the previous epoch is left; the slots in limbo of that epoch then become free. Reads never
// wait; a Write waits for Reads only if the tier must not grow.
//
// After a column is added, new files have wider slots. Rows in narrow slots stay there until freed; a narrow file without
// rows is removed.
//
// Owns the files, not the directory. capacity_bytes, if set, bounds the rows; the files then have room for 1/8 more rows, or
// one unit of 256 KiB. A device error under a mapped page (other than a full disk) is a signal, which cannot become a Status.
//
// Thread-safe. In a forked child every call is FailedPrecondition and the destructor does nothing.

#ifndef CC_TIER_PMEM_PMEM_TIER_H_
#define CC_TIER_PMEM_PMEM_TIER_H_

#include <sys/types.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/row/row_layout.h"
#include "cc/tier/pmem/pmem_file.h"
#include "cc/tier/tier.h"

namespace multitier {

struct PmemOptions {
  std::string directory;       // exists; rows-*.pmem files in it are removed
  int64_t capacity_bytes = 0;  // > 0: at most capacity_bytes / row_bytes rows; Write of more is ResourceExhausted
};

class PmemTier : public Tier {
 public:
  static Result<std::unique_ptr<PmemTier>> Open(const PmemOptions& options);
  ~PmemTier() override;

  const char* name() const override { return "pmem"; }
  TierCapabilities capabilities() const override;
  Status SetLayout(std::shared_ptr<const RowLayout> layout) override;
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override;
  Status Read(Span<ReadRecord> records) override;
  // Stops the process if a location is not held.
  void Free(Span<const KeyLocation> records) override;
  Status Remove(Span<const KeyLocation> records) override;
  bool SwitchBelow(const KeyLocation& record, uint32_t from, uint32_t to) override;
  // Checks no checksum: a damaged slot is visited with the key in its header. Holds no lock while visiting; a record that is
  // written or freed meanwhile may or may not be visited.
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) override;
  uint64_t location_end() const override;
  // Flushes the pages of files that are not persistent memory.
  Status Sync() override;
  // row_bytes counts every row at the layout's full width. Files on persistent memory are resident, others stored.
  TierStats stats() const override;

 private:
  // The fields of a row that only this process needs; they are in memory.
  struct Volatile {
    uint32_t below = kNoLocation;
    uint32_t recency = 0;
    uint16_t flags = 0;
  };
  struct File {
    std::shared_ptr<PmemFile> pmem;
    std::vector<uint64_t> held;       // one bit for each slot
    std::vector<Volatile> in_memory;  // by slot
    int64_t used = 0;                 // slots that are reserved, held or in limbo
  };
  struct Slot {
    PmemFile* file = nullptr;
    uint32_t index = 0;
  };

  explicit PmemTier(const PmemOptions& options);

  Status CheckProcess() const;
  int FileIndexOf(uint32_t location) const MT_REQUIRES(mutex_);  // -1: none
  Slot SlotOf(uint32_t location) const MT_REQUIRES(mutex_);
  bool IsHeld(uint32_t location) const MT_REQUIRES(mutex_);
  void SetHeld(uint32_t location, bool held) MT_REQUIRES(mutex_);
  Volatile* VolatileOf(uint32_t location) MT_REQUIRES(mutex_);
  void Forget(uint32_t location) MT_REQUIRES(mutex_);      // held -> limbo
  bool BeginEpoch() MT_REQUIRES(mutex_);                   // false: reads of the previous epoch still run
  void RetireWhereUnused(File* file) MT_REQUIRES(mutex_);  // a narrow file
  int EnterEpoch() MT_REQUIRES(mutex_) { return ++reads_[epoch_ & 1], epoch_; }
  void LeaveEpoch(int epoch) MT_REQUIRES(mutex_);
  int64_t max_rows() const MT_REQUIRES(mutex_);  // kNoLocation: no bound
  void Adopt(std::shared_ptr<PmemFile> file) MT_REQUIRES(mutex_);
  // The number of slots of the next file: at least `missing`, unless the bound allows fewer.
  uint64_t SlotsOfNextFile(uint64_t missing) const MT_REQUIRES(mutex_);
  // Takes n free slots, or returns the reason why it cannot. May release `lock`, of mutex_, and take it again.
  Status Reserve(size_t n, MutexLock* lock, uint32_t* locations) MT_REQUIRES(grow_mutex_, mutex_);
  // Adds a file; its number is the next one whose file name does not exist. Releases mutex_ while it makes the file.
  Status Grow(uint64_t slots) MT_REQUIRES(grow_mutex_, mutex_);

  // Unmaps and removes retired files.
  void RemoveRetired() MT_EXCLUDES(mutex_);

  const PmemOptions options_;
  const pid_t pid_;
  Mutex grow_mutex_;                             // held by the one Write that reserves slots; taken before mutex_
  size_t named_ MT_GUARDED_BY(grow_mutex_) = 0;  // the number of the last file tried, created or not

  mutable Mutex mutex_;  // rows are not copied, and no file is opened or removed, while it is held
  std::condition_variable reads_over_;
  std::shared_ptr<const RowLayout> layout_ MT_GUARDED_BY(mutex_);
  std::vector<File> files_ MT_GUARDED_BY(mutex_);                         // pmem null: removed
  std::vector<std::shared_ptr<PmemFile>> retired_ MT_GUARDED_BY(mutex_);  // to be removed
  std::vector<int> file_of_unit_ MT_GUARDED_BY(mutex_);                   // by location >> unit_shift_
  int unit_shift_ MT_GUARDED_BY(mutex_) = 0;          // files begin and end at multiples of 1 << unit_shift_ slots
  uint64_t slots_ MT_GUARDED_BY(mutex_) = 0;          // of the current layout's width
  std::vector<uint32_t> free_ MT_GUARDED_BY(mutex_);  // slots of the current layout's width
  int epoch_ MT_GUARDED_BY(mutex_) = 0;
  int reads_[2] MT_GUARDED_BY(mutex_) = {0, 0};           // by epoch & 1
  std::vector<uint32_t> limbo_[2] MT_GUARDED_BY(mutex_);  // by epoch & 1
  int64_t rows_ MT_GUARDED_BY(mutex_) = 0;                // held or reserved
};

}  // namespace multitier

#endif  // CC_TIER_PMEM_PMEM_TIER_H_
