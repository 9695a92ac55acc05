// MemoryTier: records in this process's memory, as a lower tier for tests.
//
// It implements the contract of Tier and nothing more. A test can make it fail as a disk may: refuse a write, fail the n-th
// call, lose a record, or be slow at a chosen moment. The next Write uses a freed location again, so that a test finds a
// stale reference to it.
//
// Owns copies of the records. Has no bound unless SetMaxRows was called.
//
// Thread-safe: all methods. The hook runs on the calling thread without the tier's lock, so it may wait for other threads
// and call the tier itself.

#ifndef CC_TIER_TEST_TIERS_MEMORY_TIER_H_
#define CC_TIER_TEST_TIERS_MEMORY_TIER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/row/row_layout.h"
#include "cc/tier/tier.h"

namespace multitier {

class MemoryTier : public Tier {
 public:
  // The point in a call at which the hook runs: before the tier reads its records, or after it has copied them.
  enum class Point { kBeforeWrite, kAfterWrite, kBeforeRead, kAfterRead };
  using Hook = std::function<void(Point)>;

  // Counts of calls, including failed ones, and of records, without those of failed calls.
  struct Counters {
    int64_t write_calls = 0;
    int64_t read_calls = 0;
    int64_t records_written = 0;
    int64_t records_read = 0;  // with an OK status
    int64_t records_freed = 0;
    int64_t records_removed = 0;  // not among records_freed
    int64_t syncs = 0;
  };

  MemoryTier() = default;

  // --- For tests.
  // A batch that would make more than max_rows records is ResourceExhausted; 0: no bound. Records already held stay.
  void SetMaxRows(int64_t max_rows);
  // The n-th call from now on (1: the next) and the `calls` - 1 calls after it return `status` and do nothing. Replaces an
  // earlier fault; `calls` 0: no fault. REQUIRES: n >= 1.
  void FailWrite(int64_t n, Status status, int64_t calls = 1);
  void FailRead(int64_t n, Status status, int64_t calls = 1);
  // Until it is freed, the record at `location` reads as DataLoss with its key and location. NotFound if there is no record.
  Status Corrupt(uint32_t location);
  // Replaces the hook; null: none. Calls in flight may still run the old one.
  void SetHook(Hook hook);
  Counters counters() const;

  // --- Tier. Write before SetLayout is FailedPrecondition. Free and Remove stop the process if a location does not hold a
  // record of the key, because this is an error of the table.
  const char* name() const override { return "memory"; }
  TierCapabilities capabilities() const override;
  Status SetLayout(std::shared_ptr<const RowLayout> layout) override;
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override;
  Status Read(Span<ReadRecord> records) override;
  void Free(Span<const KeyLocation> records) override;
  Status Remove(Span<const KeyLocation> records) override;
  bool SwitchBelow(const KeyLocation& record, uint32_t from, uint32_t to) override;
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) override;
  uint64_t location_end() const override;
  Status Sync() override;
  TierStats stats() const override;

 private:
  struct Record {
    RecordHeader header;
    std::vector<uint8_t> row_data;
    bool corrupt = false;
  };
  // The calls [skip, skip + calls) from now on fail.
  struct Fault {
    int64_t skip = 0;
    int64_t calls = 0;
    Status status;
    Status Next();  // the status of the call that is about to run
  };

  void RunHook(Point point);
  Status WriteLocked(Span<const WriteRecord> records, uint32_t* locations) MT_REQUIRES(mu_);
  void Erase(const KeyLocation& record) MT_REQUIRES(mu_);

  mutable Mutex mu_;
  std::shared_ptr<const RowLayout> layout_ MT_GUARDED_BY(mu_);
  std::unordered_map<uint32_t, Record> records_ MT_GUARDED_BY(mu_);  // by location
  std::vector<uint32_t> free_locations_ MT_GUARDED_BY(mu_);          // the last is given first
  uint32_t end_ MT_GUARDED_BY(mu_) = 0;                              // locations ever given
  int64_t row_bytes_ MT_GUARDED_BY(mu_) = 0;
  int64_t max_rows_ MT_GUARDED_BY(mu_) = 0;
  Fault write_fault_ MT_GUARDED_BY(mu_), read_fault_ MT_GUARDED_BY(mu_);
  std::shared_ptr<const Hook> hook_ MT_GUARDED_BY(mu_);
  Counters counters_ MT_GUARDED_BY(mu_);
};

}  // namespace multitier

#endif  // CC_TIER_TEST_TIERS_MEMORY_TIER_H_
