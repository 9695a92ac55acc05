// DroppedRows: what left a table because no tier could hold it, or because its record was damaged, until a caller asks for it
// (EmbeddingTable::PopDropped). It keeps the newest, as many as fit into a number of bytes, and counts those that it lost.
//
// A key takes 8 bytes. A row takes its facts and the columns that it had: those that were added later have their initial value
// when it is asked for. Of a damaged record only the key is known: its row is NaN, with frequency 0 and version -1. A row for
// whose columns there is no memory is lost.
//
// Thread-safe; its lock is taken inside a shard's.

#ifndef CC_TABLE_TIERING_DROPPED_ROWS_H_
#define CC_TABLE_TIERING_DROPPED_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/new_array.h"
#include "cc/base/span.h"
#include "cc/options/options.h"
#include "cc/row/row_layout.h"
#include "cc/row/value_column.h"
#include "cc/table/marks/row_export.h"

namespace multitier {

class DroppedRows {
 public:
  // tells_above: for TakeGone
  explicit DroppedRows(KeepDropped what = KeepDropped::kKeys, uint64_t most_bytes = kDroppedBytes, bool tells_above = false)
      : what_(what), most_bytes_(most_bytes), tells_above_(tells_above) {}

  bool wants_rows() const { return what_ == KeepDropped::kRows; }

  // row_data: its first num_columns columns; null: unknown. Unless rows are wanted, only the key is looked at.
  void Keep(int64_t key, uint32_t frequency = 0, int64_t version = -1, size_t num_columns = 0,
            const uint8_t* row_data = nullptr, size_t row_bytes = 0) {
    MutexLock lock(mutex_);
    ++total_;
    if (tells_above_) gone_.push_back(key);
    if (what_ == KeepDropped::kNothing) {
      ++lost_;
      return;
    }
    if (!wants_rows()) {
      keys_.push_back(key);
      for (; keys_.size() * sizeof(key) > most_bytes_; ++lost_) keys_.pop_front();
      return;
    }
    Row row{key, -1, 0, 0, 0, nullptr};
    if (row_data != nullptr) {
      row = Row{key, version, frequency, num_columns, row_bytes, NewArray<uint8_t>(row_bytes)};
      if (row.data == nullptr) {
        ++lost_;
        return;
      }
      std::copy_n(row_data, row_bytes, row.data.get());
    }
    bytes_ += BytesOf(row);
    rows_.push_back(std::move(row));
    for (; bytes_ > most_bytes_; ++lost_) {
      bytes_ -= BytesOf(rows_.front());
      rows_.pop_front();
    }
  }
  // The oldest first. They are forgotten here.
  std::vector<int64_t> Pop() {
    std::vector<int64_t> keys;
    for (const Row& row : TakeRows()) keys.push_back(row.key);
    MutexLock lock(mutex_);
    keys.insert(keys.end(), keys_.begin(), keys_.end());
    keys_.clear();
    return keys;
  }
  // The same with all columns of the layout. REQUIRES: wants_rows
  Rows PopRows(const RowLayout& layout) {
    const std::deque<Row> taken = TakeRows();
    Rows rows;
    rows.columns.assign(layout.columns().begin(), layout.columns().end());
    std::vector<uint8_t> data(layout.row_bytes());
    for (const Row& row : taken) {
      if (row.data == nullptr) {
        FillWithNan(layout, data.data());
      } else {
        std::copy_n(row.data.get(), row.bytes, data.begin());
        layout.FillSlots(data.data(), row.num_columns);
      }
      AppendRow(layout, /*all_columns=*/true, row.key, row.frequency, row.version, data.data(), &rows);
    }
    return rows;
  }
  // They are back: not to be popped any more.
  void TakeBack(Span<const int64_t> keys) {
    const std::unordered_set<int64_t> back(keys.begin(), keys.end());
    MutexLock lock(mutex_);
    keys_.erase(std::remove_if(keys_.begin(), keys_.end(), [&](int64_t key) { return back.count(key) > 0; }), keys_.end());
    std::deque<Row> rows;
    for (Row& row : rows_) {
      if (back.count(row.key) == 0) {
        rows.push_back(std::move(row));
      } else {
        bytes_ -= BytesOf(row);
      }
    }
    rows_ = std::move(rows);
  }
  bool any_gone() const {
    MutexLock lock(mutex_);
    return !gone_.empty();
  }
  // What a table above must forget: all keys since the last call. See TableBelow.
  std::vector<int64_t> TakeGone() {
    MutexLock lock(mutex_);
    return std::exchange(gone_, {});
  }
  // Keys that were dropped.
  int64_t total() const {
    MutexLock lock(mutex_);
    return total_;
  }
  // Keys that it did not keep, or not until they were asked for.
  int64_t lost() const {
    MutexLock lock(mutex_);
    return lost_;
  }

 private:
  struct Row {
    int64_t key;
    int64_t version;
    uint32_t frequency;
    size_t num_columns;
    size_t bytes;
    ArrayPtr<uint8_t> data;  // null: unknown
  };
  static void FillWithNan(const RowLayout& layout, uint8_t* data) {
    for (const Column& column : layout.columns()) {
      const std::vector<float> nans(static_cast<size_t>(column.dim), std::numeric_limits<float>::quiet_NaN());
      WriteColumn(column.dtype, nans.data(), nans.size(), data + column.offset);
    }
  }
  static size_t BytesOf(const Row& row) { return sizeof(Row) + row.bytes; }
  // The lock is not held while rows are copied: operations that drop rows would wait for it.
  std::deque<Row> TakeRows() {
    MutexLock lock(mutex_);
    bytes_ = 0;
    return std::exchange(rows_, {});
  }

  const KeepDropped what_;
  const uint64_t most_bytes_;
  const bool tells_above_;
  mutable Mutex mutex_;
  std::deque<int64_t> keys_ MT_GUARDED_BY(mutex_);  // unless rows are wanted
  std::deque<Row> rows_ MT_GUARDED_BY(mutex_);      // if they are
  uint64_t bytes_ MT_GUARDED_BY(mutex_) = 0;        // of rows_
  std::vector<int64_t> gone_ MT_GUARDED_BY(mutex_);
  int64_t total_ MT_GUARDED_BY(mutex_) = 0;
  int64_t lost_ MT_GUARDED_BY(mutex_) = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_DROPPED_ROWS_H_
