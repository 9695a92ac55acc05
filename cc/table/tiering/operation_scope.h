// OperationScope, ExclusiveScope: how an operation comes into a table, and holds its place until the end of the block.
//
//   OperationScope::Enter           1. refuses a process that was forked from the table's own
//                                   2. enters the gate, together with other operations
//   OperationScope::EnterToChange   the same; before 2 it waits while a snapshot is far behind with the copies of changed rows
//   ExclusiveScope::Enter           1. as above
//                                   2. waits for the snapshot that is being taken, and keeps the next one from starting
//                                   3. closes the gate: waits until every operation has left, and holds new ones back
//   ExclusiveScope::TryEnter        the same, but gives nothing where a snapshot is being taken
//
// Owns its place in the gate, and gives it up at the end of the block. Used by the operations of a table: every public call
// that touches rows begins with one of them. A call over many rows enters once for each chunk, so that a snapshot, or an
// operation that closes the gate, waits for a chunk and not for the whole call.
//
// A thread that is inside does not enter again, and holds no shard's lock, pin or pending word when it enters. One scope is
// used by one thread; any number of threads have scopes.

#ifndef CC_TABLE_TIERING_OPERATION_SCOPE_H_
#define CC_TABLE_TIERING_OPERATION_SCOPE_H_

#include <optional>
#include <utility>

#include "cc/table/tiering/table_base.h"

namespace multitier {

class OperationScope {
 public:
  // FailedPrecondition in a forked process. Nothing is held then.
  static Result<OperationScope> Enter(TableBase* base) {
    MT_RETURN_IF_ERROR(base->CheckProcess());
    base->removed.Spill();
    return OperationScope(&base->gate);
  }
  static Result<OperationScope> EnterToChange(TableBase* base) {
    MT_RETURN_IF_ERROR(base->CheckProcess());
    base->removed.Spill();
    base->snapshot.Await();
    return OperationScope(&base->gate);
  }
  OperationScope(OperationScope&& other) noexcept : gate_(std::exchange(other.gate_, nullptr)) {}
  ~OperationScope() {
    if (gate_ != nullptr) gate_->Leave();
  }

 private:
  explicit OperationScope(Gate* gate) : gate_(gate) { gate_->Enter(); }

  Gate* gate_;
};

class ExclusiveScope {
 public:
  // FailedPrecondition in a forked process. Nothing is held then.
  static Result<ExclusiveScope> Enter(TableBase* base) {
    MT_RETURN_IF_ERROR(base->CheckProcess());
    return ExclusiveScope(base, TurnHold(&base->snapshot.one_at_a_time()));
  }
  static std::optional<ExclusiveScope> TryEnter(TableBase* base) {
    if (!base->CheckProcess().ok()) return std::nullopt;
    std::optional<TurnHold> no_snapshot = TurnHold::Try(&base->snapshot.one_at_a_time());
    if (!no_snapshot.has_value()) return std::nullopt;
    return ExclusiveScope(base, *std::move(no_snapshot));
  }
  ExclusiveScope(ExclusiveScope&& other) noexcept
      : no_snapshot_(std::move(other.no_snapshot_)), gate_(std::exchange(other.gate_, nullptr)) {}
  ~ExclusiveScope() { OpenGate(); }

  // Lets operations in again. Snapshots wait until the scope ends.
  void OpenGate() {
    if (Gate* const gate = std::exchange(gate_, nullptr)) gate->Open();
  }

 private:
  ExclusiveScope(TableBase* base, TurnHold no_snapshot) : no_snapshot_(std::move(no_snapshot)), gate_(&base->gate) {
    gate_->Close();
  }

  TurnHold no_snapshot_;  // released after the gate is open
  Gate* gate_;            // null once it is open
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_OPERATION_SCOPE_H_
