#include "cc/table/host/snapshot_files.h"

namespace multitier {

void SnapshotFiles::Take(const ShardSet& shards, SnapshotState* state) {
  if (take_ == nullptr) return;
  int64_t named = 0;  // records
  for (const auto& shard : shards) {
    Shard::Locked lock(shard);
    named += lock->counts().rows_in[0] + lock->counts().copies;
  }
  SealedFiles taken = tiers_.TakeSealedFiles(0);
  if (taken.rows != named) return;
  files_ = std::move(taken.files);
  for (const SealedFile& file : files_) {
    for (const uint32_t location : file.locations) state->given[0].SetRun(location, SealedFile::kRun);
  }
}

Result<std::optional<int64_t>> SnapshotFiles::Give() {
  if (files_.empty()) return std::optional<int64_t>();
  const SealedFile file = std::move(files_.back());
  files_.pop_back();
  const auto link = [&](const std::string& to) {
    const Status linked = tiers_.LinkSealedFile(0, file, to);
    if (linked.ok()) linked_bytes_ += static_cast<int64_t>(file.bytes);
    return linked;
  };
  MT_RETURN_IF_ERROR(take_(file, link));
  return std::optional<int64_t>(file.rows);
}

}  // namespace multitier
