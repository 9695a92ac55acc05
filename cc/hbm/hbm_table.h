// HbmTable: a table in the memory of a GPU (HBM) above an EmbeddingTable, "the table below". To hand a row down is to write it
// to the table below.
//
// Where the newest values of a row are:
//   - in HBM, if the row is there
//   - else in a pending row (rows_below.h), if the table below has refused the row
//   - else in the table below, which does not know which rows are in HBM
//
// A lookup or an apply has two parts:
//
//   find       on the device. Finds the distinct keys and their rows, and stamps these rows with the number of the operation.
//              Counts the misses: keys without a row in HBM.
//   bring up   only if there are misses (of a group of tables: group_find.h). The operation holds turn_ ("the turn"), the lock
//   for rows that enter or leave HBM.
//              1. CopyOut reads the missed rows from the table below. One copy brings them to the device.
//              2. The device finds the missed keys again. A key that still misses gets a free place, or the place of a victim.
//                 Then the device gathers the values (lookup) or updates the rows (apply).
//              3. Dirty victims, and changed rows that got no place, are copied to the host. PutBack hands them down.
//
// Why no update is lost:
//   - Only the thread with the turn moves rows into or out of HBM. So the rows of step 1 are the newest, except for a key that
//     another operation brought into HBM after "find". Step 2 finds that key in HBM and ignores the row of step 1.
//   - A row that "find" found stays in HBM until the operation ends. It has the operation's stamp, and a victim is a row with a
//     stamp below the floor: the lowest number of a running operation. So an operation without misses needs no turn.
//   - Other rows than victims leave HBM only while the gate (gate_) is closed, when no operation runs.
//
// Errors. Until step 2 places rows, nothing has changed in HBM, and an error affects only its operation. Later, a device call
// that fails is tried kTries times. Then the table is broken: every later operation returns Internal with the reason. If the
// table below refuses rows (for example its disk is full), lookups, and applies without misses, continue. Applies with misses
// return the error.
//
// Filters. The table below applies the keys that a filter has not admitted, before anything changes in HBM. It counts them and
// creates their rows. After a group's lookup an update knows which these are: they alone are looked for again.
//
// Room below. If the last tier below has a size (bounded_below_), every row in HBM has a row in the table below from its first
// update on. So a row that is handed down always has its place:
//   - Before it changes anything in HBM, an apply creates its new rows in the table below: all of them, or it returns the
//     ResourceExhausted of the table below.
//   - Lookups leave no provisional rows (see below), so every new key is a miss of the apply.
//   - A scan holds the turn. So it sees no row between its creation below and its update.
// If the last tier has no size, a row gets its place below when it is handed down.
//
// Full tables. If the table below gives new keys no row when it is full (OnFull::kRefuse), it trains the keys without a row, as
// under a filter. If it drops its coldest rows to make room (drops_), it trains them, too, but must then know the rows in HBM
// as they are, and no operation may use a row that it drops. So an apply with new keys closes the gate and runs alone
// (Operation::asks_alone):
//   1. It trains the rows that are there.
//   2. It hands all changed rows down.
//   3. The table below trains the new keys. It refuses and drops rows by the order of use that it knows.
//   4. The rows of the keys that it has dropped leave HBM.
// If step 2 or 3 fails, for example because a file cannot be read, the apply returns the error, and the other keys were
// trained. Rows that come up may have others dropped, too. The next operation hands all down before it begins, so that dropped
// rows that had changed in HBM are back below; the other dropped rows leave HBM.
//
// Operations with device memory (device_operations.h) have the same parts, on a thread of the engine. The operation of a
// training lookup goes on until its update:
//   - Its rows stay in HBM until then.
//   - A key without a row may get a provisional row (keeps_provisional_, kRowProvisional) in the lookup. It reads as absent,
//     and becomes a row at its first update.
//   - The update needs no "find" and no wait if every key has a place in HBM and epoch_ is that of the lookup. BeginUpdate has
//     all conditions.
//   - Rows that the update creates are counted once the device has done it. AwaitSettled waits for that.
//
// Births. A key that HBM misses is new if every row of the table is in HBM. Where lookups may leave provisional rows and the
// initial value is a function of the key (device::Birth), a kernel then makes the rows of new keys, and neither the table below
// nor a wait is needed:
//   - surely_in_hbm_ counts the rows in HBM, rather too few than too many. If it is TotalCount, every row is there.
//   - There must be a free place for each key of the batch: no row leaves for a row that is born. And scratch memory for it.
//   - Whether keys are new is known only after "find", and births are enqueued before. So they are if the operation before had
//     new keys (expects_new_keys_).
//   - A key whose bucket is full stays missed, and goes on as any miss.
// The turn is taken if it is free. Else the operation goes on without births.
//
// Growth (HbmOptions::grows_from_rows): a table of storage type HBM keeps every row in HBM. An operation that finds too few
// free places closes the gate, moves the table to twice as much memory in HBM, and starts again. Where the device has no memory
// for both at once, all rows are handed down before the old memory is freed, and come up again when they are used.
//
// New slots: the rows move to wider memory in the same way, and stay what they are. Where the budget then holds fewer rows, all
// are handed down first, and some leave HBM.
//
// Locks, outermost first: one_snapshot_, gate_, turn_, enqueue_ (shared by all tables of a device); then those of the table
// below.
//   - The visitor of a snapshot may need all of them except one_snapshot_. So no operation waits for a snapshot while it holds
//     gate_, turn_ or enqueue_.
//   - Operations pass the gate together (Inside), or close it and run alone (Alone).
//   - An expiry, an import or an upsert waits for a running snapshot before it closes the gate, which it keeps closed over many
//     rows.
//
// Prefetch brings rows into HBM and pins them. A pinned row is no victim until it is used, its time is over, or it is released.
// A pin is a stamp far above the numbers of all operations. Pins take at most a quarter of the rows of HBM. A prefetch brings
// the keys that do not fit into the first tier of the table below.
//
// Values, frequencies, versions and errors are those of EmbeddingTable, bit for bit. Differences:
//   - ApplyRequest::places are not used.
//   - Rules without a kernel are refused (device_rule.h).
//
// Thread-safe.

#ifndef CC_HBM_HBM_TABLE_H_
#define CC_HBM_HBM_TABLE_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cc/base/gate.h"
#include "cc/base/mutex.h"
#include "cc/base/turn.h"
#include "cc/hbm/device_memory.h"
#include "cc/hbm/device_queue.h"
#include "cc/hbm/device_table.h"
#include "cc/hbm/rows_below.h"
#include "cc/hbm/scratch.h"
#include "cc/table/api/embedding_table.h"
#include "cc/table/host/table_below.h"

namespace multitier::hbm {

struct DeviceKeys;  // device_operations.h
class GroupFind;

constexpr uint64_t kUnboundedBytes = uint64_t{1} << 60;  // a budget that only the memory of the device limits

struct HbmOptions {
  std::shared_ptr<device::Device> device;
  Budget budget;                 // of HBM; bounded, at least one row
  uint64_t first_operation = 0;  // for tests: operation numbers wrap at 2^32
  // 0: the table allocates the whole budget and evicts rows to the table below. Else: it starts with this number of rows, grows
  // up to the budget, and keeps every row in HBM. An apply whose new rows exceed the budget returns ResourceExhausted.
  uint64_t grows_from_rows = 0;
  std::shared_ptr<const MemorySource> memory = nullptr;  // null: the device
  uint64_t hand_down_bytes = uint64_t{64} << 20;         // of rows that come down at once; tests take less
};

class HbmTable final : public EmbeddingTable {
 public:
  // InvalidArgument: an option is out of range. ResourceExhausted: the device has not enough memory.
  static Result<std::unique_ptr<HbmTable>> Create(const HbmOptions& options, std::unique_ptr<TableBelow> below);
  // If the table below keeps its files (TableOptions::keep), hands all rows down.
  ~HbmTable() override;

  const TableOptions& options() const override { return below_->options(); }
  std::shared_ptr<const RowLayout> layout() const override { return below_->layout(); }
  Status Lookup(Span<const int64_t> keys, float* out, Executor* executor = nullptr, uint32_t* places = nullptr,
                int64_t stride = 0, ReadFor reason = ReadFor::kTraining, Span<const uint16_t> tables = {}) override;
  const AbsentValues& absent_values() const override { return below_->absent_values(); }
  Status Peek(Span<const int64_t> keys, float* out, Span<const uint16_t> tables = {}) override;
  Status Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned) override;
  void ReleasePrefetched() override;
  Status Apply(const ApplyRequest& request, Executor* executor = nullptr) override;
  Status AddSlots(Span<const ColumnSpec> slots) override;
  Status Frequency(Span<const int64_t> keys, int64_t* out) override;
  Status Version(Span<const int64_t> keys, int64_t* out) override;
  Status LookupTier(Span<const int64_t> keys, int32_t* out) override;  // 0: HBM; 1: the first tier of the table below
  Status SetScore(int64_t score, bool* decreased) override { return below_->SetScore(score, decreased); }
  Status Remove(Span<const int64_t> keys, int64_t* removed) override;
  Status Expire(int64_t step, int64_t* expired) override;
  Status Clear() override;
  // Hands changed rows down while operations run. Hold closes the gate and hands down what has changed since.
  Result<std::unique_ptr<TableSnapshot>> PrepareSnapshot(SnapshotRequest request) override;
  Result<Rows> Scan(const ScanRequest& request, uint64_t* next) override;
  Result<int64_t> Upsert(const UpsertRequest& request) override;
  Status Import(const Rows& rows, Executor* executor) override;
  std::vector<int64_t> PopDropped() override;
  UpdateCounts LastUpdate() const override { return UpdateCounts{last_refused_, last_dropped_}; }
  Result<Rows> PopDroppedRows() override;
  Result<std::vector<int64_t>> RemovedSince(int64_t version) override;
  int64_t TotalCount() const override {
    AwaitSettled();
    return below_->TotalCount() + rows_below_.new_rows();
  }
  int64_t ChangesSince() const override { return below_->ChangesSince(); }
  int64_t NewestStep() const override { return below_->NewestStep(); }
  TableStats Stats() const override;
  Status Drain() override;
  Status Flush() override;
  Status SetDramBudget(Budget budget) override;
  Status Reserve(uint64_t rows) override { return below_->Reserve(rows); }
  Status Compact() override { return below_->Compact(); }

  // A running operation and its parts: see the top. Public for a test that runs the parts of two operations in every order.
  class Operation;
  Status Find(Operation* operation, Span<const int64_t> keys);
  Status FinishLookup(Operation* operation, float* out, int64_t stride, ReadFor reason);
  Status FinishApply(Operation* operation, const ApplyRequest& request);

  // One table's part of an operation with device memory (device_operations.h). Each may wait for the device.
  class Output;
  struct BatchKeys;   // in host memory or in device memory
  struct BatchGrads;  // in host memory or in device memory
  // kept: null, or gets the operation, whose rows stay in HBM until it is destroyed; then absent keys get provisional rows.
  // number: of the operation if it has one already, else 0.
  Status LookupTo(const BatchKeys& keys, Output* output, ReadFor reason, std::shared_ptr<Operation>* kept, uint64_t number = 0);
  class Turns;
  // For a group of tables (group_find.h). AwaitGate: before the gate (Inside). TryEnter: null if the gate is closed or the
  // table does not work.
  void AwaitGate() {
    SettleDropped();
    below_->AwaitSnapshot();
  }
  std::unique_ptr<MaybeInsideGate> TryEnter();
  std::shared_ptr<Scratch> NewScratch() { return std::make_shared<Scratch>(pool_, options().name); }
  // view: gets the memory of the table. REQUIRES: the caller is inside the gate
  std::shared_ptr<Operation> NewOperation(uint64_t number, device::Table* view);
  // Counts a lookup whose keys all have rows in HBM, once its values were enqueued.
  void NoteFound(const Operation& operation);
  // Counts the rows that were born for a lookup. The lookup finds them.
  void NoteBorn(const Operation& operation);
  Status ApplyFrom(const BatchKeys& keys, const BatchGrads& grads, const ApplyRequest& request);
  // The update of the rows that a training lookup found (kept_update.h); the lookup's operation is `op`, which LookupTo gave in
  // `kept`. Null if rows may have left HBM, if the table below is needed, or if there may be no room for new rows; then nothing
  // was done. Where the operation has absent keys, TrainAbsent goes first. REQUIRES: CheckApply returned OK
  class KeptUpdate;
  Result<std::shared_ptr<KeptUpdate>> BeginUpdate(const std::shared_ptr<Operation>& op, const ApplyRequest& request);
  static constexpr int kTries = 3;  // of a device call after which an operation cannot be undone
  Status CheckApply(const ApplyRequest& request) const;
  // FailedPrecondition in a forked child; the error that broke the table.
  Status Check() const;
  DeviceQueue* queue() const { return queue_.get(); }
  device::Device* device() const { return device_.get(); }

 private:
  friend class Operation;
  friend class GroupFind;  // group_misses.cc, group_births.cc
  class Inside;            // inside the gate, like other operations
  class Alone;             // holds the gate closed
  class NoSnapshot;        // prevents snapshots by other threads

  struct Headers {
    std::vector<int64_t> keys;
    std::vector<device::DeviceRowHeader> headers;
    device::CompactArgs list;  // on the device
  };

  HbmTable(const HbmOptions& options, std::shared_ptr<DeviceQueue> queue, std::unique_ptr<TableBelow> below);

  // --- operation.cc
  Status FindKeys(Operation* operation, const BatchKeys& keys, bool stamp, Output* output = nullptr);
  Status FindTables(Operation* operation, Span<const uint16_t> tables);
  Status CopyOutMisses(Operation* operation, CopyOutAs as, ReadFor reason) MT_REQUIRES(turn_);
  Status MakeRoomForPlacing(Operation* operation);
  Status FindAgain(Operation* operation, bool stamp, bool insert, bool insert_provisional) MT_REQUIRES(enqueue_);
  void PlaceMisses(Operation* operation) MT_REQUIRES(enqueue_);
  void TakeOutChanged(Operation* operation) MT_REQUIRES(enqueue_);
  void BringNumbersDown(Operation* operation, bool rows);
  void ComeDown(Operation* operation) MT_REQUIRES(turn_);
  Status Synchronize(Operation* operation);
  // Makes a device call after which the operation cannot be undone: repeats it, then breaks the table.
  template <typename Call>
  void Insist(Call call);
  void Break(const Status& status);
  Status broken() const;

  // --- hbm_table.cc
  class HostOutput;
  Status FinishLookup(Operation* operation, Output* output, ReadFor reason);
  // Enqueues the values of keys that all have rows.
  Status FinishFound(Operation* operation, Output* output);
  // Gives the headers of those keys that are in HBM, and the list of these keys on the device.
  Status HeadersInHbm(Operation* operation, Span<const int64_t> keys, device::Marked which, Headers* headers)
      MT_REQUIRES(turn_);
  // Finds the keys, and enqueues the list of those that are in HBM. Its length is Numbers::changed.
  Status ListInHbm(Operation* operation, Span<const int64_t> keys, device::Marked which, device::CompactArgs* list)
      MT_REQUIRES(turn_);
  Status Fact(Span<const int64_t> keys, int64_t (*of)(const device::DeviceRowHeader&),
              Status (EmbeddingTable::*below)(Span<const int64_t>, int64_t*), int64_t* out);
  // Calls report(i, header, in_hbm) for each key whose row is in HBM or pending. Gives the other keys in `elsewhere`, and their
  // positions in `positions`.
  template <typename Report>
  Status Facts(Span<const int64_t> keys, Report report, std::vector<int64_t>* elsewhere, std::vector<size_t>* positions)
      MT_REQUIRES(turn_);

  // --- hand_down.cc
  Status HandDownAll() MT_REQUIRES(turn_);
  Status HandDownAllInTurn();
  Status HandDownChanged() MT_REQUIRES(turn_);
  Status ListDirty(uint32_t* found) MT_REQUIRES(turn_);
  Status HandDownListed(uint32_t found, uint32_t chunk) MT_REQUIRES(turn_);

  // --- administration.cc
  class Snapshot;
  Status Empty() MT_REQUIRES(turn_);
  void ForgetListed(Operation* operation, const device::CompactArgs& list) MT_REQUIRES(turn_);
  Status Forget(Span<const int64_t> keys) MT_REQUIRES(turn_);
  // The rows of the keys that the table below has dropped leave HBM.
  Status ForgetDropped() MT_REQUIRES(turn_);
  // If it has dropped any.
  void SettleDropped();
  Status AddSlotsInside(Span<const ColumnSpec> slots);
  DeviceMemory memory() const { return queue_->MemoryOf(source_); }
  Result<std::unique_ptr<DeviceTable>> NewDeviceTable(size_t row_bytes, uint64_t bytes) const;
  void SetBirth(const RowLayout& layout, DeviceTable* table) const;
  // Frees the memory in HBM, takes memory for this shape and calls `then`. If either fails, takes memory for the old shape.
  Status Replace(size_t row_bytes, uint64_t bytes, const std::function<Status()>& then);

  // --- prefetch.cc
  class Pins;
  struct Reservation;
  device::PinArgs PinsOf(const Operation& operation) const;
  Status RenewPins(Span<const int64_t> keys, uint64_t until) MT_REQUIRES(turn_);
  Status FinishPrefetch(Operation* operation, uint64_t until, int64_t* pinned);
  Status DescribePins(Operation* operation, uint64_t until, device::PinArgs* pin);
  // Ends the pins whose time is over, so that the next rows may take these places.
  void ReleasePinsInTime() MT_REQUIRES(turn_);

  // --- births.cc: see "Births" at the top
  bool MayBear(const Operation& operation) const;
  // False: there is no memory for it.
  bool TakeBirths(Operation* operation);
  Status BearMissed(Operation* operation) MT_REQUIRES(enqueue_);

  // --- growth.cc
  // Calls part(operation) with an operation whose keys were found. If the operation asks for rows, grows the table and calls
  // part again with a new operation. If the table cannot grow, an operation that creates rows fails; any other evicts rows.
  // output: of the lookup, or null. kept: null, or gets the operation.
  Status RunGrowing(const BatchKeys& keys, Output* output, const std::function<Status(Operation*)>& part,
                    std::shared_ptr<Operation>* kept = nullptr, uint64_t number = 0, bool prefetches = false,
                    bool creates = false);
  // Whether the operation asks for more rows. If so, the caller must end it without changes. REQUIRES: CopyOutMisses
  bool AsksForRows(Operation* operation, bool creates) const MT_REQUIRES(turn_);
  Status Grow(uint64_t rows);
  // Moves the rows on the device to memory of this shape, then calls `then`. If that fails, or *moved is false (the device has
  // no memory for both, or a bucket has no slot for a key), nothing has changed.
  Status MoveTo(const RowLayout& layout, uint64_t bytes, const std::function<Status()>& then, bool* moved);
  Status EnqueueMove(const DeviceTable& to, Operation* operation);
  void Publish(const Operation& operation);
  uint64_t MostRows() const;

  // --- apply.cc
  struct Gradients;
  Status FinishApply(Operation* operation, const BatchGrads& grads, const ApplyRequest& request);
  Status PrepareRule(const ApplyRequest& request, Gradients* gradients) const;
  Status Sum(Operation* operation, const BatchGrads& grads, const ApplyRequest& request, Gradients* gradients);
  device::UpdateArgs UpdateArgsOf(const Operation& operation, const ApplyRequest& request, const Gradients& gradients,
                                  const NotedApply& noted) const;
  Status CountProvisional(Operation* operation) MT_REQUIRES(turn_);
  Status UpdateFound(Operation* operation, const ApplyRequest& request, const Gradients& gradients, const NotedApply& noted);
  void Update(Operation* operation, const ApplyRequest& request, const Gradients& gradients, const NotedApply& noted);
  // Creates rows in the table below for the staged keys that have none. After an error nothing has changed.
  Status BearBelow(Operation* operation) MT_REQUIRES(turn_);
  Status CheckMissedTables(const Operation& operation) const;
  // noted: *apply is given, and the apply was counted.
  Status TrainBelow(Operation* operation, const ApplyRequest& request, const Gradients& gradients, bool noted,
                    NotedApply* apply, size_t* trained_below) MT_REQUIRES(turn_);
  // Steps 2 to 4 of an apply of a full table: see "Full tables" at the top.
  Status TrainBelowAndForget(Operation* operation, const ApplyRequest& request, const Gradients& gradients, NotedApply noted,
                             size_t* trained_below) MT_REQUIRES(turn_);

  // --- kept_update.cc
  class Unsettled;
  // Waits until the rows that earlier updates created are counted.
  void AwaitSettled() const;

  uint32_t Floor() const MT_REQUIRES(enqueue_);

  const std::shared_ptr<device::Device> device_;
  const device::DeviceKernels& kernels_;
  const std::shared_ptr<const MemorySource> source_;
  const Budget budget_;  // of a table that grows: the most that it may reach
  const uint64_t hand_down_bytes_;
  const bool grows_;
  const std::unique_ptr<TableBelow> below_;
  const bool filters_;
  const bool bounded_below_;   // see "Room below" at the top
  const bool drops_;           // see "Full tables" at the top
  const bool new_keys_below_;  // the table below trains keys without a row: it may give them none
  // Lookups for training may leave provisional rows. True if there is no filter, every lookup reads an absent key as its
  // initial value, and a row that is created needs no place in the table below.
  const bool keeps_provisional_;
  const pid_t pid_;
  const std::shared_ptr<DeviceQueue> queue_;
  const device::Stream stream_;  // the queue's
  std::shared_ptr<ScratchPool> pool_;
  RowsBelow rows_below_;
  std::unique_ptr<DeviceTable> table_;  // replaced only while the gate is closed
  std::unique_ptr<DeviceTable> other_;  // while the table moves, or a failed device may still use it
  const std::unique_ptr<Pins> pins_;
  const std::unique_ptr<Unsettled> unsettled_;

  Turn one_snapshot_;                               // held by a snapshot, and by operations that must not run during one
  std::atomic<std::thread::id> snapshot_thread_{};  // that runs one
  Gate gate_;
  Mutex turn_;
  Mutex& enqueue_;  // the queue's
  uint64_t renumbered_at_ MT_GUARDED_BY(enqueue_) = 0;
  std::multiset<uint64_t> in_flight_ MT_GUARDED_BY(enqueue_);
  std::atomic<uint64_t> epoch_{0};  // how often rows other than victims have left HBM
  mutable Mutex broken_mutex_;
  Status broken_ MT_GUARDED_BY(broken_mutex_);
  std::atomic<bool> maybe_dirty_{false};   // an apply ran since everything was handed down
  std::atomic<int64_t> rows_{0};           // in HBM
  std::atomic<int64_t> surely_in_hbm_{0};  // of the rows that TotalCount counts at least this many are in HBM
  std::atomic<bool> expects_new_keys_{true};
  std::atomic<int64_t> resident_bytes_{0};  // of the table in HBM
  std::atomic<int64_t> lookups_{0}, absent_{0}, hits_{0}, misses_{0}, updates_{0}, handed_down_{0}, brought_up_{0};
  std::atomic<int64_t> last_refused_{0}, last_dropped_{0};  // by the last update
  std::atomic<int64_t> snapshot_held_us_{0};
  std::atomic<int64_t> removed_new_{0};  // rows that were created in HBM and removed before they were handed down
};

}  // namespace multitier::hbm

#endif  // CC_HBM_HBM_TABLE_H_
