// GroupFind: looks up many members, each of a table of its own, in one set of launches.
//
//   Run       entry rows, dedup, find, localize, scales, values     as many launches as for one table
//             numbers and missed keys of all members come down      one wait for the device
//   BringUp   only if keys miss. Holds the turns of the tables that miss, taken in the order of their addresses
//             CopyOut of each table                                 side by side on threads, into one staging buffer
//             staged rows                                           one copy up
//             find, stage, compact, chain, place, reclaim,
//             exchange, scales, values                              one launch each, for all tables
//             numbers and victims come down                         one wait; a second one if there are many victims
//             PutBack of each table                                 side by side on threads
//
// Then each member has an Operation as if its keys had been looked for alone: a slice of the group's arrays. Members without
// keys need no table: their values are zeros. These go on alone, and look again: members with tables of their keys, whose table
// below refuses rows, or whose table has to grow.
//
// Errors are those of one table (hbm_table.h): until rows are placed, nothing has changed. Later, a device call that fails for
// good breaks all tables that take part.
//
// The operations share the group's arrays. Used by one thread.

#ifndef CC_HBM_GROUP_FIND_H_
#define CC_HBM_GROUP_FIND_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/base/gate.h"
#include "cc/hbm/member_output.h"

namespace multitier::hbm {

class GroupFind {
 public:
  struct Member {
    MemberOutput* output = nullptr;
    std::shared_ptr<HbmTable::Operation> op;  // null: it has no keys
    bool looked_up = false;                   // its values are enqueued
  };

  // REQUIRES: at least one member; each that has keys has a table of its own
  GroupFind(std::vector<MemberOutput*> outputs, bool training);

  GroupFind(const GroupFind&) = delete;
  GroupFind& operator=(const GroupFind&) = delete;

  // False: the members must go on one at a time. While this object exists, no row leaves HBM otherwise than as a victim.
  bool Run();
  // REQUIRES: Run
  Status BringUp();
  std::vector<Member>& members() { return members_; }
  // Why Run gave false: OK if a gate is closed.
  const Status& status() const { return status_; }
  // For the gradients of the members: see DevicePlan::State::Batch.
  uint32_t n() const { return n_; }
  uint32_t distinct() const { return distinct_; }
  const uint64_t* entries() const { return localize_.dedup.entries; }
  uint32_t first(size_t member) const { return counts_[member].first; }
  uint32_t first_entry(size_t member) const { return member == 0 ? 0 : ends_[member - 1]; }

 private:
  // A member that BringUp looks up.
  struct Missing {
    HbmTable* table;
    HbmTable::Operation* op;
    MemberOutput* output;
    size_t member;
    uint32_t first;  // place of its first miss in the list of all
    uint32_t misses;
    size_t stride, offset;     // of its staged rows
    bool places = false;       // some of them get rows of the table
    bool provisional = false;  // those of absent keys, too
    uint32_t absent = 0;
    std::vector<uint32_t> filtered = {};  // places among its misses of keys that the table below trains; for the update
  };
  class FreeTurns;

  bool EnterGates();
  void NewOperations();
  Status TakeArrays();
  Status DescribeAll(Upload* upload);
  Status Enqueue(const Upload& upload);
  void Slice();

  // --- group_births.cc
  void ListBearing();
  void BearNone();
  size_t RoomOfBirths() const;
  Status TakeBirths();
  void DescribeBirths(Upload* upload);
  Status EnqueueBirths();
  void NoteRows();

  // --- group_misses.cc
  Status BringUpTogether();
  std::vector<Missing> ListMissing();
  Status BringKeysDown();
  // Reads the rows from the tables below. Drops the members that must go on alone.
  Status CopyOut(std::vector<Missing>* missing);
  Status TakePlaces(const std::vector<Missing>& missing);
  Status DescribeStaged(const std::vector<Missing>& missing, Upload* upload);
  // Until rows are placed.
  Status EnqueueStaged(const std::vector<Missing>& missing, const Upload& upload);
  void EnqueuePlaced(const std::vector<Missing>& missing);
  void EnqueueVictims(const std::vector<Missing>& missing);
  void NotePlaced(const Missing& one);
  void HandDownVictims(const std::vector<Missing>& missing);
  // As HbmTable::Insist, for all tables.
  template <typename Call>
  void Insist(const std::vector<Missing>& missing, Call call);

  DeviceQueue* const queue_;
  const device::Stream stream_;
  device::Device* const device_;
  const device::DeviceKernels& kernels_;
  const bool training_;
  Status status_;
  std::vector<std::unique_ptr<MaybeInsideGate>> gates_;  // until the values are enqueued
  std::vector<Member> members_;
  std::shared_ptr<Scratch> scratch_;
  OutputGroup outputs_, outputs_of_missing_;
  uint32_t n_ = 0, distinct_ = 0, misses_ = 0;

  std::vector<uint32_t> ends_;
  std::vector<device::Table> tables_;
  device::MemberCounts* counts_ = nullptr;           // pinned, as they came down last
  HbmTable::Operation::Numbers* numbers_ = nullptr;  // [members], for their operations
  uint32_t eager_keys_ = 0;                          // missed keys that come down with the numbers
  int64_t* missed_keys_ = nullptr;                   // pinned, at least [misses]

  // On the device.
  uint64_t* zeros_ = nullptr;
  size_t zero_words_ = 0;
  device::DedupArgs dedup_{};
  device::FindArgs find_{};
  device::LocalizeArgs localize_{};

  std::vector<Missing> bearing_;      // the members with keys, if they bear rows
  std::shared_ptr<FreeTurns> turns_;  // until the rows are counted
  device::BearArgs bear_{};
  bool born_ = false;  // births are enqueued

  // Of BringUp.
  bool places_ = false, filters_ = false;
  size_t outbox_stride_ = 0;
  uint8_t* staged_ = nullptr;                // pinned
  uint32_t* list_ = nullptr;                 // pinned [misses], if filters_: their numbers
  device::PlacedCounts* placed_ = nullptr;   // pinned [members + 1], the last one: of all
  std::shared_ptr<Scratch> outbox_scratch_;  // a table keeps it whose rows are pending
  uint8_t* outbox_rows_ = nullptr;           // pinned [misses, outbox_stride_]
  int64_t* outbox_keys_ = nullptr;           // pinned [misses]
  uint32_t* outbox_tables_ = nullptr;        // pinned [misses]
  uint32_t victims_ = 0;                     // that come down
  device::StageArgs stage_{};
  device::CompactArgs to_place_{};
  device::ExchangeArgs exchange_{};
  Status failed_;  // of a call behind the point of no return
};

template <typename Call>
void GroupFind::Insist(const std::vector<Missing>& missing, Call call) {
  for (int tries = 0; failed_.ok(); ++tries) {
    const Status status = call();
    if (status.ok()) return;
    if (tries + 1 == HbmTable::kTries) failed_ = status;
  }
  for (const Missing& one : missing) {
    if (one.table->broken().ok()) one.table->Break(failed_);
  }
}

}  // namespace multitier::hbm

#endif  // CC_HBM_GROUP_FIND_H_
