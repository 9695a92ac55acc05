// What may stand above an EmbeddingTable: a table in device memory (cc/hbm), which keeps copies of rows and has this one as
// their home.
//
//   EmbeddingTable::Create(options with `above`)
//     1. makes the table without `above`: the home of all rows
//     2. above->Over(that table) gives a TableFront, which owns it
//     3. the EmbeddingTable that Create gives passes every call on to the front
//
// So whatever uses an EmbeddingTable works with rows in device memory unchanged. Methods: as those of EmbeddingTable,
// thread-safe.

#ifndef CC_TABLE_TABLE_ABOVE_H_
#define CC_TABLE_TABLE_ABOVE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/table/embedding_table.h"

namespace multitier {

class TableFront {
 public:
  virtual ~TableFront() = default;

  virtual std::shared_ptr<const RowLayout> layout() const = 0;
  virtual const AbsentValues& absent_values() const = 0;
  // executor and places are not used.
  virtual Status Lookup(Span<const int64_t> keys, float* out, Executor* executor, uint32_t* places, int64_t stride,
                        ReadFor reason, Span<const uint16_t> tables) = 0;
  virtual Status Peek(Span<const int64_t> keys, float* out, Span<const uint16_t> tables) = 0;
  virtual Status Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned) = 0;
  virtual void ReleasePrefetched() = 0;
  virtual Status Apply(const ApplyRequest& request, Executor* executor) = 0;
  virtual Status AddSlots(Span<const ColumnSpec> slots) = 0;
  virtual Status Frequency(Span<const int64_t> keys, int64_t* out) = 0;
  virtual Status Version(Span<const int64_t> keys, int64_t* out) = 0;
  virtual Status LookupTier(Span<const int64_t> keys, int32_t* out) = 0;
  virtual Status SetScore(int64_t score, bool* decreased) = 0;
  virtual Status Remove(Span<const int64_t> keys, int64_t* removed) = 0;
  virtual Status Expire(int64_t step, int64_t* expired) = 0;
  virtual Status Clear() = 0;
  virtual Result<std::unique_ptr<TableSnapshot>> PrepareSnapshot(SnapshotRequest request) = 0;
  virtual Result<Rows> Scan(const ScanRequest& request, uint64_t* next) = 0;
  virtual Status Import(const Rows& rows, Executor* executor) = 0;
  virtual Result<int64_t> Upsert(const UpsertRequest& request) = 0;
  virtual std::vector<int64_t> PopDropped() = 0;
  virtual Result<Rows> PopDroppedRows() = 0;
  // Keys that have a row again included.
  virtual Result<std::vector<int64_t>> RemovedSince(int64_t version) = 0;
  virtual UpdateCounts LastUpdate() const = 0;
  virtual int64_t TotalCount() const = 0;
  virtual int64_t ChangesSince() const = 0;
  virtual int64_t NewestStep() const = 0;
  virtual TableStats Stats() const = 0;
  virtual Status Drain() = 0;
  virtual Status Flush() = 0;
  virtual Status SetDramBudget(Budget budget) = 0;
  virtual Status Reserve(uint64_t rows) = 0;
  virtual Status Compact() = 0;
};

class TableAbove {
 public:
  virtual ~TableAbove() = default;
  // A front over the table. `budget`: the rows that it has room for.
  virtual Result<std::unique_ptr<TableFront>> Over(std::unique_ptr<EmbeddingTable> below, Budget budget) const = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_TABLE_ABOVE_H_
