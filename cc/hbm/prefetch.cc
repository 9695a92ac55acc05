// Prefetch, and the pins of what it brought into HBM.

#include <unistd.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "cc/hbm/pins.h"

namespace multitier::hbm {

using device::DeviceRowHeader;

// Rows that a prefetch may pin.
struct HbmTable::Reservation {
  explicit Reservation(Pins* pins) : pins(pins) {}
  ~Reservation() { pins->Unreserve(rows); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  Pins* const pins;
  int64_t rows = 0;
};

uint64_t HbmTable::Pins::Now() const {
  Env* const env = table_->options().env;
  return (env != nullptr ? env : Env::Posix())->NowMicros();
}

Result<int64_t> HbmTable::Pins::Reserve(int64_t wanted, int64_t most) {
  bool sweeps = AnyOver();
  {
    MutexLock lock(mutex_);
    sweeps = sweeps || (counted_ > 0 && counted_ + reserved_ + wanted > most);
  }
  if (sweeps) MT_RETURN_IF_ERROR(Sweep(/*all=*/false).status());
  MutexLock lock(mutex_);
  const int64_t rows = std::clamp<int64_t>(most - counted_ - reserved_, 0, wanted);
  reserved_ += rows;
  return rows;
}

void HbmTable::Pins::Unreserve(int64_t rows) {
  MutexLock lock(mutex_);
  reserved_ -= rows;
}

std::vector<uint32_t> HbmTable::Pins::Add(uint32_t operation, uint64_t until) {
  MutexLock lock(mutex_);
  std::vector<uint32_t> later;
  for (const Pin& pin : pins_) {
    if (pin.until > until) later.push_back(pin.operation);
  }
  const Pin added{operation, until};
  pins_.insert(std::upper_bound(pins_.begin(), pins_.end(), added, IsBefore), added);
  latest_ = std::max(latest_.load(), until);
  return later;
}

void HbmTable::Pins::Pinned(int64_t rows) {
  MutexLock lock(mutex_);
  counted_ += rows;
}

bool HbmTable::Pins::AnyOver() const {
  MutexLock lock(mutex_);
  return !pins_.empty() && std::any_of(pins_.begin(), pins_.end(), [now = Now()](const Pin& pin) { return pin.until <= now; });
}

Result<int64_t> HbmTable::Pins::Sweep(bool all) {
  MutexLock lock(mutex_);
  if (pins_.empty()) return int64_t{0};
  const uint64_t now = Now();
  std::vector<Pin> running;
  std::vector<uint32_t> kept;
  for (const Pin& pin : pins_) {
    if (all || pin.until <= now) continue;
    running.push_back(pin);
    kept.push_back(pin.operation);
  }
  MT_ASSIGN_OR_RETURN(const std::vector<uint32_t> rows, SweepDevice(kept));
  pins_.clear();
  int64_t counted = 0;
  uint64_t latest = 0;
  for (size_t i = 0; i < running.size(); ++i) {
    if (rows[i] == 0) continue;
    pins_.push_back(running[i]);
    counted += rows[i];
    latest = std::max(latest, running[i].until);
  }
  counted_ = counted;
  latest_ = latest;
  return counted;
}

void HbmTable::Pins::Forget() {
  MutexLock lock(mutex_);
  pins_.clear();
  ++sweeps_;
  counted_ = used_ = 0;
  latest_ = 0;
}

Result<std::vector<uint32_t>> HbmTable::Pins::SweepDevice(const std::vector<uint32_t>& kept) {
  DeviceQueue* const queue = table_->queue();
  device::Device* const device = table_->device();
  const device::Stream stream = queue->stream();
  Scratch scratch(table_->pool_, table_->options().name);
  auto* const kept_on_device = scratch.OnDevice<uint32_t>(kept.size());
  auto* const rows_on_device = scratch.OnDevice<uint32_t>(kept.size());
  auto* const rows = scratch.Pinned<uint32_t>(kept.size());
  MT_RETURN_IF_ERROR(scratch.status());
  if (!kept.empty()) {
    MT_RETURN_IF_ERROR(queue->CopyUp(kept_on_device, kept.data(), kept.size() * sizeof(uint32_t)));
  }
  {
    MutexLock lock(queue->enqueue());
    ++sweeps_;  // later finds use rows that this sweep counts
    used_ = 0;
    const auto number = static_cast<uint32_t>(queue->NextOperation());
    const device::SweepPinsArgs sweep{table_->table_->on_device(),
                                      table_->table_->view().buckets,
                                      number,
                                      kept_on_device,
                                      static_cast<uint32_t>(kept.size()),
                                      rows_on_device};
    MT_RETURN_IF_ERROR(device->Fill(stream, rows_on_device, 0, kept.size() * sizeof(uint32_t)));
    MT_RETURN_IF_ERROR(device->kernels().sweep_pins(stream, sweep));
  }
  Status status = device->Copy(stream, rows, rows_on_device, kept.size() * sizeof(uint32_t));
  if (status.ok()) status = device->Synchronize(stream);
  if (!status.ok()) {
    scratch.Bury();
    return status;
  }
  return std::vector<uint32_t>(rows, rows + kept.size());
}

void HbmTable::ReleasePinsInTime() {
  if (pins_->AnyOver()) (void)pins_->Sweep(/*all=*/false);  // a row that stays pinned longer is no error
}

Status HbmTable::DescribePins(Operation* op, uint64_t until, device::PinArgs* pin) {
  const std::vector<uint32_t> later = pins_->Add(pin->operation, until);
  auto* const on_device = op->scratch.OnDevice<uint32_t>(later.size());
  MT_RETURN_IF_ERROR(op->scratch.status());
  pin->later = on_device;
  pin->num_later = static_cast<uint32_t>(later.size());
  return later.empty() ? OkStatus() : queue_->CopyUp(on_device, later.data(), later.size() * sizeof(uint32_t));
}

device::PinArgs HbmTable::PinsOf(const Operation& op) const {
  device::PinArgs pin{};
  pin.table = table_->on_device();
  pin.rows = op.find.rows;
  pin.num_keys = op.find.num_keys;
  pin.max_keys = op.n;
  pin.operation = static_cast<uint32_t>(op.number);
  pin.pinned = &op.counted_on_device->pinned;
  return pin;
}

// Rows that the table below has come up; absent keys stay absent.
Status HbmTable::FinishPrefetch(Operation* op, uint64_t until, int64_t* pinned) {
  const uint32_t misses = op->counted->misses;
  MutexLock turn(turn_);
  if (misses > 0) {
    MT_RETURN_IF_ERROR(rows_below_.Retry());
    MT_RETURN_IF_ERROR(CopyOutMisses(op, CopyOutAs::kUse, ReadFor::kTraining));
    ReleasePinsInTime();
    if (AsksForRows(op, /*creates=*/false)) return OkStatus();
    MT_RETURN_IF_ERROR(MakeRoomForPlacing(op));
  }
  device::PinArgs pin = PinsOf(*op);
  if (!grows_) MT_RETURN_IF_ERROR(DescribePins(op, until, &pin));
  {
    MutexLock lock(enqueue_);
    op->busy = true;
    if (misses > 0) {
      MT_RETURN_IF_ERROR(FindAgain(op, /*stamp=*/true, /*insert=*/true, /*insert_provisional=*/false));
      PlaceMisses(op);
    }
    if (!grows_) Insist([&] { return kernels_.pin(stream_, pin); });
  }
  ComeDown(op);
  MT_RETURN_IF_ERROR(broken());
  if (misses > 0) brought_up_ += op->counted->placed.to_place;
  *pinned = op->counted->pinned;
  pins_->Pinned(*pinned);
  return OkStatus();
}

// Rows that are pinned already stay pinned until the later time.
Status HbmTable::RenewPins(Span<const int64_t> keys, uint64_t until) {
  Operation op(this);
  MT_RETURN_IF_ERROR(FindKeys(&op, keys, /*stamp=*/false));
  device::PinArgs pin = PinsOf(op);
  pin.renews = true;
  MT_RETURN_IF_ERROR(DescribePins(&op, until, &pin));
  op.busy = true;
  {
    MutexLock lock(enqueue_);
    MT_RETURN_IF_ERROR(kernels_.pin(stream_, pin));
  }
  return Synchronize(&op);
}

Status HbmTable::Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned) {
  MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
  MT_RETURN_IF_ERROR(Check());
  int64_t in_hbm = 0, below = 0;
  if (pinned != nullptr) *pinned = 0;
  if (keys.empty()) return OkStatus();
  std::vector<int64_t> up, elsewhere;
  std::unordered_set<int64_t> seen;
  for (const int64_t key : keys) {
    if (seen.insert(key).second) up.push_back(key);
  }
  const uint64_t now = pins_->Now(), until = now + std::min(timeout_us, ~uint64_t{0} - now);
  Reservation reservation(pins_.get());
  {
    Inside inside(this);
    MT_RETURN_IF_ERROR(broken());  // by the operation that closed the gate: then there is no table
    if (!grows_) {
      MutexLock turn(turn_);
      const auto wanted = static_cast<int64_t>(up.size());
      MT_ASSIGN_OR_RETURN(reservation.rows, pins_->Reserve(wanted, int64_t{table_->view().capacity / 4}));
      const Span<const int64_t> rest(up.data() + reservation.rows, static_cast<size_t>(wanted - reservation.rows));
      if (!rest.empty()) {
        std::vector<size_t> positions;
        const auto report = [](size_t, const DeviceRowHeader&, bool) {};
        MT_RETURN_IF_ERROR(Facts(rest, report, &elsewhere, &positions));
        MT_RETURN_IF_ERROR(RenewPins(rest, until));
      }
      up.resize(static_cast<size_t>(reservation.rows));
    }
    MT_RETURN_IF_ERROR(below_->Prefetch(elsewhere, timeout_us, &below));
  }
  if (!up.empty()) {
    MT_RETURN_IF_ERROR(RunGrowing(
        Span<const int64_t>(up), nullptr, [&](Operation* op) { return FinishPrefetch(op, until, &in_hbm); },
        /*kept=*/nullptr, /*number=*/0, /*prefetches=*/true));
  }
  if (pinned != nullptr) *pinned = in_hbm + below;
  return OkStatus();
}

void HbmTable::ReleasePrefetched() {
  if (Check().ok()) {
    Inside inside(this);
    MutexLock turn(turn_);
    if (broken().ok()) (void)pins_->Sweep(/*all=*/true);
  }
  below_->ReleasePrefetched();
}

}  // namespace multitier::hbm
