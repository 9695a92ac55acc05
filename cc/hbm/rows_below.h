// RowsBelow: what a table in HBM asks of the table below it for rows, and rows that the table below did not take.
//
//   CopyOut    rows of keys, for HBM
//   Create     rows of keys that have none, where HBM must not have rows without a place below (hbm_table.h, "Room below")
//   PutBack    rows that changed in HBM. Rows that the table below refuses (a full disk) are *pending*: their memory stays
//              here, CopyOut finds them in it, and the error is sticky until Retry succeeds
//
// A row comes as the device has it: a DeviceRowHeader and the row data. kRowNew in it: the table below has no row of the key.
//
// Owns the pending rows. new_rows() and status() from any thread; all else by one thread at a time, the one with the table's
// turn.

#ifndef CC_HBM_ROWS_BELOW_H_
#define CC_HBM_ROWS_BELOW_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/device/device.h"
#include "cc/hbm/scratch.h"
#include "cc/table/host/table_below.h"

namespace multitier::hbm {

class RowsBelow {
 public:
  explicit RowsBelow(TableBelow* below) : below_(below) {}

  // Writes the row of keys[i] to rows + i * stride; of a key without a row, one with kRowProvisional, initial slots,
  // and the value that a lookup for this reason gives. REQUIRES: distinct keys, stride = 16 + row_bytes of the table
  // below. tables: of the keys, or empty
  Status CopyOut(Span<const int64_t> keys, Span<const uint16_t> tables, CopyOutAs as, ReadFor reason, size_t stride,
                 uint8_t* rows);
  // rows: as CopyOut gave them. Those with kRowProvisional become rows of the table below, as they are, and lose the flag. All
  // of them, or none: the errors of TableBelow::PutBack. *created: their number. REQUIRES: distinct keys
  Status Create(Span<const int64_t> keys, size_t stride, uint8_t* rows, size_t* created);
  // rows: pinned memory of `scratch`, which is kept if the rows are pending afterwards. Never loses a row, and then needs no
  // memory for row data. REQUIRES: distinct keys
  void PutBack(Span<const int64_t> keys, size_t stride, uint8_t* rows, Scratch* scratch);
  // rows: `distance` bytes from one to the next. keep: called if the rows are pending afterwards; gives the owner of the
  // memory.
  void PutBack(Span<const int64_t> keys, size_t stride, size_t distance, uint8_t* rows,
               const std::function<std::shared_ptr<void>()>& keep);
  // Puts back what is pending.
  Status Retry();
  // Why rows are pending. From any thread.
  Status status() const {
    MutexLock lock(mutex_);
    return status_;
  }

  // The row that is pending, or null.
  const uint8_t* Pending(int64_t key) const;
  // The key leaves the table: whether it had a new row here.
  bool Forget(int64_t key);
  void ForgetAll();

  // Rows that are in HBM or pending, and that the table below does not have.
  int64_t new_rows() const { return new_rows_.load(); }
  void AddNewRows(int64_t n) { new_rows_ += n; }

 private:
  Status SetStatus(Status status) {
    MutexLock lock(mutex_);
    return status_ = std::move(status);
  }
  Status Put(Span<const int64_t> keys, size_t stride, size_t distance, const uint8_t* rows);
  void ForgetPending();

  TableBelow* const below_;
  std::unordered_map<int64_t, uint8_t*> pending_;  // in kept_
  size_t pending_stride_ = 0;
  std::vector<std::shared_ptr<void>> kept_;
  mutable Mutex mutex_;
  Status status_ MT_GUARDED_BY(mutex_);
  std::atomic<int64_t> new_rows_{0};
};

}  // namespace multitier::hbm

#endif  // CC_HBM_ROWS_BELOW_H_
