#include "cc/table/api/table_admin.h"

#include <utility>

namespace multitier {

Result<MemoryLease> TableAdmin::HoldMemory(size_t keys) const {
  MemoryLease lease(kScratchBytes + keys * kScratchBytesOfKey);
  if (!lease.ok()) return lease.Refusal(StrCat("table '", options().name, "'"));
  return lease;
}

Result<Rows> TableAdmin::Export(bool all_columns) {
  Rows all;
  MT_RETURN_IF_ERROR(TakeSnapshot(all_columns, INT64_MAX, [&](Rows* rows) {
    all = std::move(*rows);
    return OkStatus();
  }));
  return all;
}

Status TableAdmin::TakeSnapshot(bool all_columns, int64_t max_rows, const std::function<Status(Rows*)>& visit,
                                const std::function<void()>& marked) {
  MT_ASSIGN_OR_RETURN(const MemoryLease memory, HoldMemory(0));
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<TableSnapshot> snapshot,
                      PrepareSnapshot(SnapshotRequest{all_columns, max_rows, visit, 0, 0, nullptr}));
  MT_RETURN_IF_ERROR(snapshot->Hold());
  snapshot->Mark();
  snapshot->Release();
  if (marked) marked();
  return snapshot->Run();
}

}  // namespace multitier
