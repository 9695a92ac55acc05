// HbmTable::Operation: a running lookup, apply or query, and the memory that its work on the device uses. Inside, Alone and
// NoSnapshot: how operations pass the gate, and how they avoid snapshots.

#ifndef CC_HBM_OPERATION_H_
#define CC_HBM_OPERATION_H_

#include <algorithm>
#include <functional>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "cc/hbm/device_operations.h"
#include "cc/hbm/hbm_table.h"
#include "cc/table/marks/current_snapshot.h"

namespace multitier::hbm {

struct HbmTable::BatchKeys {
  BatchKeys(Span<const int64_t> keys, Span<const uint16_t> its_tables = {})  // NOLINT: a conversion
      : host(keys), tables(its_tables), n(keys.size()) {}
  explicit BatchKeys(const DeviceKeys& keys, Span<const uint16_t> its_tables = {})
      : device(keys), tables(its_tables), n(static_cast<size_t>(keys.n)), on_device(true) {}

  Span<const int64_t> host;
  DeviceKeys device;
  Span<const uint16_t> tables = {};  // [n] in host memory, or empty: see ApplyRequest
  size_t n;
  bool on_device = false;
};

// One gradient for each key of the batch, and the occurrences that it counts as.
struct HbmTable::BatchGrads {
  const float* grads = nullptr;     // [n, dim]
  const int64_t* counts = nullptr;  // [n], or null: one each
  bool on_device = false;
};

// What a lookup does with the rows that it found.
class HbmTable::Output {
 public:
  virtual ~Output() = default;
  // Takes memory. Not under a lock: it may wait for the device.
  virtual Status Take(Operation* operation) = 0;
  // Enqueues what Check needs. Runs before the numbers come down.
  virtual Status Prepare(Operation*) { return OkStatus(); }
  // An error of the input that only the device can see.
  virtual Status Check(const Operation&) const { return OkStatus(); }
  // Enqueues the values.
  virtual Status Enqueue(const Operation& operation) = 0;
  // Whether the host reads what was enqueued. If not, memory of the operation may be lent again before the device is done with
  // it: the next borrower's work is enqueued behind.
  virtual bool comes_down() const { return false; }
};

class HbmTable::Operation {
 public:
  // Takes the next operation number. The operation counts as running until it is destroyed.
  explicit Operation(HbmTable* t);
  // One of several with the same number, which was taken from the queue.
  Operation(HbmTable* t, uint64_t taken);
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // Counts of the device, in one array so that one copy brings all of them to the host.
  struct Numbers {
    uint32_t distinct = 0;
    uint32_t misses = 0;
    uint32_t listed_to_place = 0;  // exchange reads it while it writes placed.to_place
    device::PlacedCounts placed{};
    uint32_t changed = 0;  // rows taken out; they follow the victims in the outbox
    uint32_t to_bear = 0;
    uint32_t born = 0;          // new rows: see "Births" in hbm_table.h
    uint32_t born_entries = 0;  // their occurrences
    uint32_t created = 0;
    uint32_t pinned = 0;     // rows that were not pinned before
    uint32_t first_bad = 0;  // of the entries of a batch (EntryRowsArgs)
    uint32_t used_pins = 0;  // pinned rows that it used
    uint32_t forgotten_provisional = 0;
  };

  // A find is about to be enqueued. REQUIRES: the queue's enqueue()
  void NoteSweeps();
  // Tells the pins what came down in used_pins since the last call.
  void NoteUsedPins();

  HbmTable* const table;
  std::shared_ptr<Scratch> arrays;  // of a group, of which this operation has a slice
  Scratch scratch;
  uint64_t number = 0;
  bool busy = false;  // the device may still use the scratch

  uint32_t n = 0;
  Numbers* counted = nullptr;  // pinned: as they came down last
  Numbers* counted_on_device = nullptr;
  uint32_t* first_bad = nullptr;  // on the device: lowered to the first entry whose row is out of range
  device::DedupArgs dedup{};
  device::FindArgs find{};
  device::CompactArgs missed{};         // list of misses, with keys and counts
  int64_t* missed_keys = nullptr;       // pinned [misses]
  uint32_t* missed_counts = nullptr;    // pinned [misses]
  std::vector<uint16_t> missed_tables;  // [misses], or empty: those of their first occurrences

  uint8_t* staged_below = nullptr;  // pinned [misses, stride]: rows as the table below gave them
  device::StageArgs stage{};
  device::CompactArgs to_place{};
  device::InsertArgs insert{};
  device::ExchangeArgs exchange{};
  device::MarkArgs changed{};
  device::CompactArgs list_changed{};
  device::TakeOutArgs take_out{};
  uint8_t* outbox_rows = nullptr;  // pinned [misses, stride]
  int64_t* outbox_keys = nullptr;  // pinned [misses]
  bool placed = false;             // rows may have been placed: what left has to come down

  bool may_ask = false;        // for more rows of HBM: see RunGrowing
  uint64_t asks_for_rows = 0;  // in all
  bool creates_rows = false;
  bool alone = false;       // the gate is closed
  bool asks_alone = false;  // to be run again so: see "Full tables" in hbm_table.h

  bool may_bear = false;  // new keys may get their rows on the device
  bool bears = false;     // they do
  device::CompactArgs to_bear{};
  device::BearArgs bear{};

  bool prefetches = false;
  bool training = false;    // a lookup: absent keys get provisional rows
  uint64_t epoch = 0;       // of the table when the rows were found
  bool complete = false;    // each key has a row of the table
  uint64_t can_create = 0;  // the most rows that an update creates of those
  // Of a group's lookup, if new_keys_below_: keys without a row, which the table below trains. Then `complete` is said of the
  // others.
  struct Absent {
    int64_t key;
    uint32_t number;  // of its distinct keys
  };
  std::vector<Absent> absent;
  uint64_t sweeps = 0;  // of pins, before its last find
  uint32_t noted_pins = 0;
  uint64_t provisional = 0;  // of the rows that were found: set near the budget of a table that grows
};

// Many operations may be inside at the same time. If a snapshot is far behind, waits for it before the gate, not inside.
class HbmTable::Inside {
 public:
  explicit Inside(HbmTable* table) : gate_(Awaited(table)) {}

 private:
  static Gate* Awaited(HbmTable* table) {
    table->AwaitGate();
    return &table->gate_;
  }
  const InsideGate gate_;
  const WithoutAwait without_await_;
};

// One operation alone: the gate is closed, and then the rows that updates created are counted: an update that is left to be
// settled says so before it leaves the gate. Waits for a snapshot like Inside.
class HbmTable::Alone {
 public:
  explicit Alone(HbmTable* table) : gate_(Awaited(table)) { table->AwaitSettled(); }

 private:
  static Gate* Awaited(HbmTable* table) {
    table->below_->AwaitSnapshot();
    return &table->gate_;
  }
  const ClosedGate gate_;
  const WithoutAwait without_await_;
};

// The turns of several tables, each once, taken in the order of their addresses.
class HbmTable::Turns {
 public:
  explicit Turns(const std::vector<HbmTable*>& tables) MT_NO_THREAD_SAFETY_ANALYSIS {  // a loop over objects
    for (HbmTable* const table : tables) turns_.push_back(&table->turn_);
    std::sort(turns_.begin(), turns_.end(), std::less<>());
    for (Mutex* const turn : turns_) turn->lock();
  }
  ~Turns() MT_NO_THREAD_SAFETY_ANALYSIS {
    for (Mutex* const turn : turns_) turn->unlock();
  }
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

 private:
  std::vector<Mutex*> turns_;
};

// Waits until no other thread takes a snapshot, and blocks the next one. A snapshot's own visitor does not wait.
class HbmTable::NoSnapshot {
 public:
  explicit NoSnapshot(HbmTable* table) {
    if (table->snapshot_thread_.load() != std::this_thread::get_id()) turn_.emplace(&table->one_snapshot_);
  }

 private:
  std::optional<TurnHold> turn_;
};

template <typename Call>
void HbmTable::Insist(Call call) {
  if (!broken().ok()) return;
  Status status;
  for (int i = 0; i < kTries; ++i) {
    status = call();
    if (status.ok()) return;
  }
  Break(status);
}

template <typename Report>
Status HbmTable::Facts(Span<const int64_t> keys, Report report, std::vector<int64_t>* elsewhere,
                       std::vector<size_t>* positions) {
  Operation op(this);
  Headers found;
  MT_RETURN_IF_ERROR(HeadersInHbm(&op, keys, device::Marked::kBorn, &found));
  std::unordered_map<int64_t, const device::DeviceRowHeader*> by_key;
  for (size_t i = 0; i < found.keys.size(); ++i) by_key[found.keys[i]] = &found.headers[i];
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto at = by_key.find(keys[i]);
    if (at != by_key.end()) {
      report(i, *at->second, /*in_hbm=*/true);
    } else if (const uint8_t* pending = rows_below_.Pending(keys[i]); pending != nullptr) {
      report(i, *reinterpret_cast<const device::DeviceRowHeader*>(pending), /*in_hbm=*/false);
    } else {
      elsewhere->push_back(keys[i]);
      positions->push_back(i);
    }
  }
  return OkStatus();
}

}  // namespace multitier::hbm

#endif  // CC_HBM_OPERATION_H_
