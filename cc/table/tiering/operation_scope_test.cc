#include "cc/table/tiering/operation_scope.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <utility>

namespace multitier::operation_scope_test {
namespace {

TableOptions Options() {
  TableOptions options;
  options.name = "t";
  return options;
}

class OperationScopeTest : public ::testing::Test {
 protected:
  bool gate_is_open() {
    const MaybeInsideGate inside(&base_.gate);
    return inside.inside();
  }
  bool snapshot_may_begin() {
    const bool free = base_.snapshot.one_at_a_time().TryTake();
    if (free) base_.snapshot.one_at_a_time().GiveBack();
    return free;
  }
  // A snapshot, taken by the thread that calls this, with more copies than its visitor should find at once.
  std::shared_ptr<SnapshotState> BeginSnapshotThatIsFarBehind() {
    auto state = std::make_shared<SnapshotState>();
    state->waiting->Add(WaitingCopies::kFarBehindBytes + 1);
    base_.snapshot.Begin(state);
    return state;
  }

  TableBase base_{Options()};
};

TEST_F(OperationScopeTest, OperationsAreInsideTogether) {
  const auto first = OperationScope::Enter(&base_);
  const auto second = OperationScope::EnterToChange(&base_);
  EXPECT_TRUE(first.ok() && second.ok());
  EXPECT_TRUE(gate_is_open() && snapshot_may_begin());
}

TEST_F(OperationScopeTest, TheGateClosesOnceEveryOperationHasLeft) {
  auto inside = std::make_unique<OperationScope>(*OperationScope::Enter(&base_));
  std::atomic<bool> leaves{false};
  std::thread closer([&] {
    const auto alone = ExclusiveScope::Enter(&base_);
    EXPECT_TRUE(alone.ok() && leaves);
  });
  while (gate_is_open()) std::this_thread::yield();  // until it wants to close
  leaves = true;
  inside.reset();
  closer.join();
  EXPECT_TRUE(gate_is_open() && snapshot_may_begin());
}

TEST_F(OperationScopeTest, AnExclusiveScopeKeepsOperationsAndSnapshotsOut) {
  auto alone = ExclusiveScope::Enter(&base_);
  ASSERT_TRUE(alone.ok());
  EXPECT_FALSE(gate_is_open() || snapshot_may_begin());
  alone->OpenGate();
  EXPECT_TRUE(gate_is_open());
  EXPECT_FALSE(snapshot_may_begin());
  {
    const ExclusiveScope ends = *std::move(alone);
  }
  EXPECT_TRUE(gate_is_open() && snapshot_may_begin());
}

TEST_F(OperationScopeTest, AScopeThatWasMovedFromReleasesNothing) {
  auto from = OperationScope::Enter(&base_);
  {
    const OperationScope to = *std::move(from);
  }
  const auto alone = ExclusiveScope::Enter(&base_);  // would wait for ever for a scope that is still inside
  EXPECT_FALSE(gate_is_open());
}

TEST_F(OperationScopeTest, AChangeWaitsForASnapshotThatIsFarBehindAndAReadDoesNot) {
  const auto state = BeginSnapshotThatIsFarBehind();
  std::atomic<bool> caught_up{false};
  std::thread reader([&] { EXPECT_TRUE(OperationScope::Enter(&base_).ok()); });
  reader.join();
  std::thread changer([&] {
    EXPECT_TRUE(OperationScope::EnterToChange(&base_).ok());
    EXPECT_TRUE(caught_up);
  });
  caught_up = true;
  state->waiting->Remove(1);
  changer.join();
  base_.snapshot.End();
}

TEST_F(OperationScopeTest, AVisitorOfTheSnapshotDoesNotWaitForItself) {
  const auto state = BeginSnapshotThatIsFarBehind();
  EXPECT_TRUE(OperationScope::EnterToChange(&base_).ok());
  base_.snapshot.End();
}

TEST_F(OperationScopeTest, AForkedProcessIsRefusedAndHoldsNothing) {
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = OperationScope::Enter(&base_).status().code() == StatusCode::kFailedPrecondition &&
                         OperationScope::EnterToChange(&base_).status().code() == StatusCode::kFailedPrecondition &&
                         ExclusiveScope::Enter(&base_).status().code() == StatusCode::kFailedPrecondition;
    _exit(refused && gate_is_open() && snapshot_may_begin() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace multitier::operation_scope_test
