// HbmTable::KeptUpdate: the update of the rows that a training lookup found. HbmTable::Unsettled: the updates of a table that
// have begun and have not ended.
//
// One launch may update rows of several tables that have the same rule (plan_update.cc). The life of an update:
//   Begin   enters the gate and takes the lookup's operation, so that its rows stay in HBM (HbmTable::BeginUpdate)
//   Note    after the launch: an error breaks the table
//   Settle  if it may have created rows, after the device has done it: counts these. No one waits for that but AwaitSettled
//           (DeviceQueue::SettleLater). The gate and the operation are left before, since the stream orders what follows
// An update that is destroyed before its launch changes no row in HBM.
//
// Unsettled is thread-safe. Its lock is the innermost one. An update belongs to one thread at a time.

#ifndef CC_HBM_KEPT_UPDATE_H_
#define CC_HBM_KEPT_UPDATE_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "cc/hbm/operation.h"

namespace multitier::hbm {

class HbmTable::Unsettled {
 public:
  // An update begins that creates at most `rows` rows. Returns its number. *can_create: the most that all updates can create.
  uint64_t Begin(uint64_t rows, uint64_t* can_create);
  // It is launched, and will be settled.
  void Launched(uint64_t number);
  // It has ended, and the rows that it created are counted.
  void End(uint64_t number);
  bool AnyLaunched() const;
  // Waits until all updates that were launched have ended.
  void Await() const;

 private:
  mutable Mutex mutex_;
  mutable std::condition_variable ended_;
  std::map<uint64_t, uint64_t> rows_ MT_GUARDED_BY(mutex_);  // by number: the most that it can create
  std::set<uint64_t> launched_ MT_GUARDED_BY(mutex_);
  uint64_t begun_ MT_GUARDED_BY(mutex_) = 0;
  uint64_t can_create_ MT_GUARDED_BY(mutex_) = 0;
};

class HbmTable::KeptUpdate {
 public:
  explicit KeptUpdate(HbmTable* table) : table_(table) {}
  ~KeptUpdate() { End(); }
  KeptUpdate(const KeptUpdate&) = delete;
  KeptUpdate& operator=(const KeptUpdate&) = delete;

  // False if rows may have left HBM, or if there may be no room for the rows that it creates.
  bool Begin(const std::shared_ptr<Operation>& op);
  // REQUIRES: the queue's enqueue() has been held since the launch, if `launched` is OK
  void Note(const Status& launched);
  // To be settled: gives its number, which no longer ends with this object. REQUIRES: creates()
  uint64_t Launched();
  // The table may end behind this.
  static void Settle(HbmTable* table, uint64_t number, const Status& done, uint32_t created);

  HbmTable* table() const { return table_; }
  const device::Table& view() const { return table_->table_->view(); }
  // Whether it may create rows: else it need not be settled.
  bool creates() const { return number_ != 0; }
  // Trains the operation's absent keys in the table below, which notes the apply. REQUIRES: the turn; none is in HBM
  Status TrainAbsent(const ApplyRequest& request, const float* grads, const std::vector<int64_t>& counts);
  device::DeviceRule rule{};
  device::UpdateArgs args{};  // without sums, counts and created

 private:
  void End();

  HbmTable* const table_;
  std::optional<MaybeInsideGate> inside_;
  std::shared_ptr<Operation> op_;
  int64_t refused_ = 0;  // of its absent keys
  uint64_t number_ = 0;  // 0: it has not begun, or has ended
};

}  // namespace multitier::hbm

#endif  // CC_HBM_KEPT_UPDATE_H_
