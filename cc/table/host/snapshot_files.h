// SnapshotFiles: files of the last tier that a snapshot (snapshot.cc) takes in place of their rows. A save need not write again
// what stands in a file that never changes.
//
//   Take   At the moment, while the gate is closed, the tier gives its sealed files, each with the bits of the records that are
//          held in it. All their locations are marked as given at once: the snapshot does not come to them, no operation copies
//          their rows, and a row of DRAM whose clean copy is there is given with it.
//   Give   After the moment, before other rows are given: the taker links the file. Until then the tier neither compacts nor
//          deletes it. Afterwards the tier does with its records what it likes: the link keeps the file.
//
// The bits are right because no operation is inside the gate, so that the tier holds exactly the records that the table names.
// That is counted: where a removal is pending, no file is taken. Files are taken
//   - of one lower tier, if it is the only one: a row of a middle tier may have a copy in the last tier
//   - if on_corruption is kError: a damaged record in a linked file is found when the checkpoint is read, not left out
//   - if at least half of their records are held (SsdHashTier::TakeSealedFiles): a link keeps the dead records, too
//
// Not thread-safe.

#ifndef CC_TABLE_HOST_SNAPSHOT_FILES_H_
#define CC_TABLE_HOST_SNAPSHOT_FILES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "cc/table/api/table_snapshot.h"
#include "cc/table/marks/snapshot_state.h"
#include "cc/table/tiering/tier_stack.h"

namespace multitier {

class SnapshotFiles {
 public:
  // take: SnapshotRequest::take_file; null: no file is taken.
  SnapshotFiles(TierStack* tiers, decltype(SnapshotRequest::take_file) take) : tiers_(*tiers), take_(std::move(take)) {}

  // REQUIRES: the table's gate is closed
  void Take(const ShardSet& shards, SnapshotState* state);
  // The rows of the file that was given; none if there was none left.
  Result<std::optional<int64_t>> Give();
  int64_t linked_bytes() const { return linked_bytes_; }

 private:
  TierStack& tiers_;
  const decltype(SnapshotRequest::take_file) take_;
  std::vector<SealedFile> files_;  // to be given
  int64_t linked_bytes_ = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_HOST_SNAPSHOT_FILES_H_
