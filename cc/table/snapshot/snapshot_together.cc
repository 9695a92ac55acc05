#include "cc/table/snapshot/snapshot_together.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/thread.h"
#include "cc/table/marks/snapshot_state.h"
#include "cc/table/snapshot/save_pace.h"

namespace multitier {
namespace {

// When the copies of the tables that have not been started exceed this, a thread gives them to their visitors.
constexpr size_t kRelieveBytes = WaitingCopies::kFarBehindBytes / 8;

Gate* GateOfSeveral() { return OfThisProcess<Gate>(); }

class GroupSnapshot {
 public:
  Status Prepare(const std::vector<TableInGroup>& group) {
    for (const TableInGroup& of_group : group) members_.push_back(std::make_unique<Member>(of_group));
    std::sort(members_.begin(), members_.end(),
              [](const auto& a, const auto& b) { return a->of_group.table < b->of_group.table; });
    for (size_t i = 1; i < members_.size(); ++i) {
      if (members_[i]->of_group.table == members_[i - 1]->of_group.table) {
        return InvalidArgumentError("snapshot of several tables: expected each table once, found table '",
                                    members_[i]->of_group.table->options().name, "' twice");
      }
    }
    for (const auto& member : members_) {
      EmbeddingTable* const table = member->of_group.table;
      SnapshotRequest request;
      request.max_rows =
          std::clamp<int64_t>(static_cast<int64_t>(kStreamChunkBytes / table->layout()->row_bytes()), 1, 16 * 1024);
      request.waiting = waiting_;
      request.since = member->of_group.since;
      request.track_as = member->of_group.track_as;
      request.take_file = member->of_group.take_file;
      request.link_name = member->of_group.link_name;
      request.write_down = member->of_group.write_down;
      request.visit = [this, member = member.get()](Rows* rows) { return Visit(member, rows); };
      MT_ASSIGN_OR_RETURN(member->snapshot, table->PrepareSnapshot(std::move(request)));
    }
    return OkStatus();
  }

  // An error holds nothing back.
  Status TakeMoment() {
    const ClosedGate no_updates_of_several(GateOfSeveral());
    Status status;
    size_t held = 0;
    for (; held < members_.size() && status.ok(); ++held) status = members_[held]->snapshot->Hold();
    if (status.ok()) {
      for (const auto& member : members_) member->snapshot->Mark();
    } else {
      --held;  // it holds nothing
    }
    while (held > 0) members_[--held]->snapshot->Release();  // in reverse: WithoutAwait is a scope of the thread
    return status;
  }

  Status GiveFiles() {
    for (const auto& member : members_) {
      for (bool more = true; more;) {
        MT_ASSIGN_OR_RETURN(more, member->snapshot->GiveFile());
        MT_RETURN_IF_ERROR(Relieve());
      }
    }
    return OkStatus();
  }

  Status Run() {
    const size_t threads = std::min<size_t>(members_.size(), kMaxStreams);
    std::vector<std::unique_ptr<Thread>> others;
    for (size_t i = 1; i < threads; ++i) {
      others.push_back(std::make_unique<Thread>());
      if (!others.back()->Start("mt_save", [this] { RunMembers(); }).ok()) break;  // the other threads do its work
    }
    RunMembers();
    for (const auto& thread : others) thread->Join();
    MutexLock lock(mutex_);
    return error_;
  }

 private:
  struct Member {
    explicit Member(const TableInGroup& of) : of_group(of) {}
    const TableInGroup of_group;
    std::unique_ptr<TableSnapshot> snapshot;  // null once all rows were given
    Mutex mutex;                              // held while its copies are given
    std::atomic<bool> runs{false};            // it was started; set with the mutex held
    SavePace* pace = nullptr;                 // of the thread that runs it; set with the mutex held
  };

  void RunMembers() {
    SavePace pace(&saving_);
    for (size_t i = next_++; i < members_.size() && !failed_; i = next_++) {
      Member* const member = members_[i].get();
      {
        MutexLock lock(member->mutex);
        member->runs = true;
        member->pace = &pace;
      }
      Status status = member->snapshot->Run();
      member->snapshot.reset();
      if (status.ok()) status = member->of_group.finish();
      if (!status.ok()) Fail(std::move(status));
    }
  }

  Status Visit(Member* member, Rows* rows) {
    if (failed_) return CancelledError("another table of the group failed");
    if (member->pace != nullptr) member->pace->Rest([this] { return waiting_->bytes(); }, WaitingCopies::kFarBehindBytes);
    MT_RETURN_IF_ERROR(member->of_group.visit(rows));
    return member->runs ? Relieve() : OkStatus();
  }

  // Gives copies of tables that have not been started, those of the table with the most bytes first.
  Status Relieve() {
    while (waiting_->bytes() > kRelieveBytes) {
      Member* fullest = nullptr;
      size_t most = 0;
      for (size_t i = next_; i < members_.size(); ++i) {
        MutexLock lock(members_[i]->mutex);
        const size_t bytes = members_[i]->runs ? 0 : members_[i]->snapshot->copied_bytes();
        if (bytes <= most) continue;
        most = bytes;
        fullest = members_[i].get();
      }
      if (fullest == nullptr) return OkStatus();
      MutexLock lock(fullest->mutex);
      if (!fullest->runs) MT_RETURN_IF_ERROR(fullest->snapshot->GiveCopies());
    }
    return OkStatus();
  }

  void Fail(Status status) {
    MutexLock lock(mutex_);
    if (!failed_.exchange(true)) error_ = std::move(status);
  }

  std::vector<std::unique_ptr<Member>> members_;
  const std::shared_ptr<WaitingCopies> waiting_ = std::make_shared<WaitingCopies>();
  std::atomic<size_t> next_{0};  // of members_: to be run
  SavingThreads saving_;         // those that run members
  std::atomic<bool> failed_{false};
  Mutex mutex_;
  Status error_ MT_GUARDED_BY(mutex_);
};

}  // namespace

UpdateOfSeveral::UpdateOfSeveral() : inside_(GateOfSeveral()) {}
MaybeUpdateOfSeveral::MaybeUpdateOfSeveral() : inside_(GateOfSeveral()) {}

Status SnapshotTogether(const std::vector<TableInGroup>& group) {
  GroupSnapshot snapshot;
  MT_RETURN_IF_ERROR(snapshot.Prepare(group));
  MT_RETURN_IF_ERROR(snapshot.TakeMoment());
  MT_RETURN_IF_ERROR(snapshot.GiveFiles());
  return snapshot.Run();
}

}  // namespace multitier
