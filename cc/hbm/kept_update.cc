#include "cc/hbm/kept_update.h"

#include <unistd.h>

#include <utility>

namespace multitier::hbm {

uint64_t HbmTable::Unsettled::Begin(uint64_t rows, uint64_t* can_create) {
  MutexLock lock(mutex_);
  rows_[++begun_] = rows;
  *can_create = can_create_ += rows;
  return begun_;
}

void HbmTable::Unsettled::Launched(uint64_t number) {
  MutexLock lock(mutex_);
  launched_.insert(number);
}

void HbmTable::Unsettled::End(uint64_t number) {
  MutexLock lock(mutex_);
  const auto ended = rows_.find(number);
  can_create_ -= ended->second;
  rows_.erase(ended);
  launched_.erase(number);
  ended_.notify_all();
}

bool HbmTable::Unsettled::AnyLaunched() const {
  MutexLock lock(mutex_);
  return !launched_.empty();
}

void HbmTable::Unsettled::Await() const {
  MutexLock lock(mutex_);
  const uint64_t last = launched_.empty() ? 0 : *launched_.rbegin();
  lock.Wait(ended_, [&]() MT_REQUIRES(mutex_) { return launched_.empty() || *launched_.begin() > last; });
}

bool HbmTable::KeptUpdate::Begin(const std::shared_ptr<Operation>& op) {
  inside_.emplace(&table_->gate_);
  if (!inside_->inside() || op->epoch != table_->epoch_ || !op->complete) return false;
  op_ = op;
  uint64_t can_create = 0;
  const uint64_t creates = table_->new_keys_below_ ? 0 : op->can_create;
  if (creates == 0) return true;
  number_ = table_->unsettled_->Begin(creates, &can_create);
  // Read after can_create: the rows of an update that ends in between count twice, and are not left out.
  const auto rows = static_cast<uint64_t>(table_->below_->TotalCount() + table_->rows_below_.new_rows());
  return !table_->grows_ || rows + can_create <= table_->MostRows();
}

void HbmTable::KeptUpdate::Note(const Status& launched) {
  if (!launched.ok()) return table_->Break(launched);
  const auto absent = static_cast<int64_t>(op_->absent.size()), found = int64_t{args.max_keys} - absent;
  table_->maybe_dirty_ = true;
  table_->last_refused_ = refused_;
  table_->last_dropped_ = 0;
  table_->hits_ += found;
  table_->misses_ += absent;
  table_->updates_ += found;
}

Status HbmTable::KeptUpdate::TrainAbsent(const ApplyRequest& request, const float* grads, const std::vector<int64_t>& counts) {
  MT_RETURN_IF_ERROR(table_->rows_below_.Retry());  // a key may be pending by now
  std::vector<int64_t> keys;
  for (const Operation::Absent& one : op_->absent) keys.push_back(one.key);
  ApplyRequest below = request;
  below.keys = keys;
  below.counts = counts;
  below.grads = grads;
  below.distinct = true;
  NotedApply noted;
  below.note = &noted;
  below.refused = &refused_;
  MT_RETURN_IF_ERROR(table_->below_->Apply(below));
  args.version = noted.version;
  args.step = noted.number;
  return OkStatus();
}

uint64_t HbmTable::KeptUpdate::Launched() {
  table_->unsettled_->Launched(number_);
  return std::exchange(number_, 0);
}

void HbmTable::KeptUpdate::Settle(HbmTable* table, uint64_t number, const Status& done, uint32_t created) {
  if (!done.ok()) table->Break(done);
  if (table->broken().ok()) {
    table->rows_below_.AddNewRows(created);
    table->surely_in_hbm_ += created;
  }
  table->unsettled_->End(number);
}

void HbmTable::KeptUpdate::End() {
  op_ = nullptr;
  inside_.reset();
  if (number_ != 0) table_->unsettled_->End(std::exchange(number_, 0));
}

void HbmTable::AwaitSettled() const {
  if (getpid() != pid_ || !unsettled_->AnyLaunched()) return;  // a forked child has no threads that settle
  queue_->Settle();
  unsettled_->Await();  // for what another thread settles
}

}  // namespace multitier::hbm
