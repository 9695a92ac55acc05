#include "cc/table/api/table_admin.h"

#include <utility>

#include "cc/base/can_allocate.h"

namespace multitier {

Status TableAdmin::CheckMemory(size_t keys) const {
  const size_t bytes = keys * kScratchBytesOfKey;
  if (CanAllocate(bytes)) return OkStatus();
  return ResourceExhaustedError("table '", options().name, "': no memory for ", bytes, " bytes of an operation on ", keys,
                                " keys: use smaller batches");
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
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<TableSnapshot> snapshot,
                      PrepareSnapshot(SnapshotRequest{all_columns, max_rows, visit, 0, 0, nullptr}));
  MT_RETURN_IF_ERROR(snapshot->Hold());
  snapshot->Mark();
  snapshot->Release();
  if (marked) marked();
  return snapshot->Run();
}

}  // namespace multitier
