// Gate: operations pass through it together; whoever closes it waits until they have left and holds new ones back. Unlike
// std::shared_mutex, closing does not starve under a steady stream of operations.

#ifndef CC_BASE_GATE_H_
#define CC_BASE_GATE_H_

#include <condition_variable>
#include <mutex>

namespace multitier {

class Gate {
 public:
  // Shared side. REQUIRES: a thread inside does not enter again.
  void Enter() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !closed_; });
    ++inside_;
  }
  // False, and not inside, where it is closed or about to be.
  bool TryEnter() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_) ++inside_;
    return !closed_;
  }
  void Leave() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--inside_ == 0) changed_.notify_all();
  }

  // Exclusive side.
  void Close() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !closed_; });
    closed_ = true;
    changed_.wait(lock, [this] { return inside_ == 0; });
  }
  void Open() {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = false;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int inside_ = 0;
  bool closed_ = false;
};

class InsideGate {
 public:
  explicit InsideGate(Gate* gate) : gate_(gate) { gate_->Enter(); }
  ~InsideGate() { gate_->Leave(); }
  InsideGate(const InsideGate&) = delete;
  InsideGate& operator=(const InsideGate&) = delete;

 private:
  Gate* gate_;
};

// The same for who does not wait: whether it is inside, is for the caller to ask.
class MaybeInsideGate {
 public:
  explicit MaybeInsideGate(Gate* gate) : gate_(gate->TryEnter() ? gate : nullptr) {}
  ~MaybeInsideGate() {
    if (gate_ != nullptr) gate_->Leave();
  }
  MaybeInsideGate(const MaybeInsideGate&) = delete;
  MaybeInsideGate& operator=(const MaybeInsideGate&) = delete;

  bool inside() const { return gate_ != nullptr; }

 private:
  Gate* const gate_;
};

class ClosedGate {
 public:
  explicit ClosedGate(Gate* gate) : gate_(gate) { gate_->Close(); }
  ~ClosedGate() { gate_->Open(); }
  ClosedGate(const ClosedGate&) = delete;
  ClosedGate& operator=(const ClosedGate&) = delete;

 private:
  Gate* gate_;
};

}  // namespace multitier

#endif  // CC_BASE_GATE_H_
