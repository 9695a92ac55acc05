// The public face: each method is one of HostTable, or, if a tier is above the table, one of its front. The memory
// that it needs is held in reserve.

#include "cc/table/embedding_table.h"

#include <algorithm>

#include "cc/table/host_table.h"
#include "cc/table/table_above.h"

namespace multitier {
namespace {

constexpr size_t kChunkKeys = 64 * 1024;  // at most: what Import and Expire do at a time

}  // namespace

template <typename Call>
auto EmbeddingTable::WithMemory(size_t keys, Call call) const -> decltype(call(std::declval<HostTable&>())) {
  const MemoryLease lease(HostTable::kScratchBytes + keys * HostTable::kScratchBytesOfKey);
  if (!lease.ok()) return lease.Refusal(StrCat("table '", options().name, "'"));
  return front_ ? call(*front_) : call(*host_);
}

EmbeddingTable::EmbeddingTable(std::unique_ptr<HostTable> host) : host_(std::move(host)) {}
EmbeddingTable::EmbeddingTable(TableOptions options, std::unique_ptr<TableFront> front)
    : options_of_front_(std::make_unique<const TableOptions>(std::move(options))), front_(std::move(front)) {}
EmbeddingTable::~EmbeddingTable() = default;

Result<std::unique_ptr<EmbeddingTable>> EmbeddingTable::Create(TableOptions options) {
  const MemoryLease lease(HostTable::kScratchBytes);
  if (!lease.ok()) return lease.Refusal(StrCat("table '", options.name, "'"));
  if ((options.above == nullptr) == options.hbm_budget().bounded()) {
    return InvalidArgumentError("table '", options.name,
                                "': expected both a device and a budget for tier hbm, or neither, found ",
                                options.above == nullptr ? "no device" : "a device", " and ", options.hbm_budget().text());
  }
  if (options.above == nullptr) {
    auto host = std::make_unique<HostTable>(std::move(options));
    MT_RETURN_IF_ERROR(host->Init());
    return std::unique_ptr<EmbeddingTable>(new EmbeddingTable(std::move(host)));
  }
  TableOptions below = options;
  below.above = nullptr;
  below.is_below = true;
  below.hbm_budget_bytes = below.hbm_budget_rows = 0;
  MT_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingTable> home, Create(std::move(below)));
  MT_ASSIGN_OR_RETURN(std::unique_ptr<TableFront> front, options.above->Over(std::move(home), options.hbm_budget()));
  return std::unique_ptr<EmbeddingTable>(new EmbeddingTable(std::move(options), std::move(front)));
}

const TableOptions& EmbeddingTable::options() const { return front_ ? *options_of_front_ : host_->options(); }
int EmbeddingTable::dim() const { return options().dim; }
std::shared_ptr<const RowLayout> EmbeddingTable::layout() const { return front_ ? front_->layout() : host_->layout(); }

Status EmbeddingTable::CheckTables(Span<const uint16_t> tables, size_t n) const {
  const size_t count = absent_values().initial().tables();
  if (tables.empty() && (count == 1 || n == 0)) return OkStatus();
  if (tables.size() != n) {
    return InvalidArgumentError("table '", options().name, "': tables: expected a table number for each of ", n,
                                " keys, because its initializers are a list of ", count, "; found ", tables.size(),
                                ": give the lookup tables");
  }
  for (size_t i = 0; i < n; ++i) {
    if (tables[i] >= count) {
      return InvalidArgumentError("table '", options().name, "': tables: expected 0 to ", count - 1, ", found tables[", i,
                                  "] = ", tables[i]);
    }
  }
  return OkStatus();
}
Status EmbeddingTable::Peek(Span<const int64_t> keys, float* out, Span<const uint16_t> tables) {
  MT_RETURN_IF_ERROR(CheckTables(tables, keys.size()));
  return WithMemory(keys.size(), [&](auto& table) { return table.Peek(keys, out, tables); });
}
Status EmbeddingTable::Lookup(Span<const int64_t> keys, float* out, Executor* executor, uint32_t* places, int64_t stride,
                              ReadFor reason, Span<const uint16_t> tables) {
  MT_RETURN_IF_ERROR(CheckTables(tables, keys.size()));
  if (front_ != nullptr && places != nullptr) std::fill_n(places, keys.size(), kNoPlace);
  return WithMemory(keys.size(),
                    [&](auto& table) { return table.Lookup(keys, out, executor, places, stride, reason, tables); });
}
const AbsentValues& EmbeddingTable::absent_values() const {
  return front_ == nullptr ? host_->absent_values() : front_->absent_values();
}
Status EmbeddingTable::Apply(const ApplyRequest& request, Executor* executor) {
  return WithMemory(request.keys.size(), [&](auto& table) { return table.Apply(request, executor); });
}
Status EmbeddingTable::Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned) {
  return WithMemory(keys.size(), [&](auto& table) { return table.Prefetch(keys, timeout_us, pinned); });
}
void EmbeddingTable::ReleasePrefetched() { front_ ? front_->ReleasePrefetched() : host_->ReleasePrefetched(); }
Status EmbeddingTable::AddSlots(Span<const ColumnSpec> slots) {
  return WithMemory(0, [&](auto& table) { return table.AddSlots(slots); });
}
Status EmbeddingTable::Frequency(Span<const int64_t> keys, int64_t* out) {
  return WithMemory(keys.size(), [&](auto& table) { return table.Frequency(keys, out); });
}
Status EmbeddingTable::Version(Span<const int64_t> keys, int64_t* out) {
  return WithMemory(keys.size(), [&](auto& table) { return table.Version(keys, out); });
}
Status EmbeddingTable::ScoreOf(Span<const int64_t> keys, int64_t* out) {
  return options().score == Score::kFrequency ? Frequency(keys, out) : Version(keys, out);
}
Status EmbeddingTable::SetScore(int64_t score, bool* decreased) {
  return front_ ? front_->SetScore(score, decreased) : host_->SetScore(score, decreased);
}
Status EmbeddingTable::LookupTier(Span<const int64_t> keys, int32_t* out) {
  return WithMemory(keys.size(), [&](auto& table) { return table.LookupTier(keys, out); });
}
Status EmbeddingTable::Remove(Span<const int64_t> keys, int64_t* removed) {
  return WithMemory(keys.size(), [&](auto& table) { return table.Remove(keys, removed); });
}
Status EmbeddingTable::Expire(int64_t step, int64_t* expired) {
  return WithMemory(kChunkKeys, [&](auto& table) { return table.Expire(step, expired); });
}
Status EmbeddingTable::Clear() {
  return WithMemory(0, [&](auto& table) { return table.Clear(); });
}
Result<Rows> EmbeddingTable::Export(bool all_columns) {
  Rows all;
  MT_RETURN_IF_ERROR(TakeSnapshot(all_columns, INT64_MAX, [&](Rows* rows) {
    all = std::move(*rows);
    return OkStatus();
  }));
  return all;
}
Status EmbeddingTable::TakeSnapshot(bool all_columns, int64_t max_rows, const std::function<Status(Rows*)>& visit,
                                    const std::function<void()>& marked) {
  return WithMemory(0, [&](auto& table) -> Status {
    MT_ASSIGN_OR_RETURN(const std::unique_ptr<TableSnapshot> snapshot,
                        table.PrepareSnapshot(SnapshotRequest{all_columns, max_rows, visit, 0, 0, nullptr}));
    MT_RETURN_IF_ERROR(snapshot->Hold());
    snapshot->Mark();
    snapshot->Release();
    if (marked) marked();
    return snapshot->Run();
  });
}
Result<std::unique_ptr<TableSnapshot>> EmbeddingTable::PrepareSnapshot(SnapshotRequest request) {
  return WithMemory(0, [&](auto& table) { return table.PrepareSnapshot(std::move(request)); });
}
Result<Rows> EmbeddingTable::Scan(const ScanRequest& request, uint64_t* next) {
  return WithMemory(0, [&](auto& table) { return table.Scan(request, next); });
}
Result<int64_t> EmbeddingTable::Upsert(const UpsertRequest& request) {
  return WithMemory(request.keys.size(), [&](auto& table) { return table.Upsert(request); });
}
Status EmbeddingTable::Import(const Rows& rows, Executor* executor) {
  const size_t keys = std::min(rows.keys.size() + rows.counted_keys.size(), kChunkKeys);
  return WithMemory(keys, [&](auto& table) { return table.Import(rows, executor); });
}
std::vector<int64_t> EmbeddingTable::PopDropped() { return front_ ? front_->PopDropped() : host_->PopDropped(); }
UpdateCounts EmbeddingTable::LastUpdate() const { return front_ ? front_->LastUpdate() : host_->LastUpdate(); }
Result<Rows> EmbeddingTable::PopDroppedRows() {
  return WithMemory(0, [&](auto& table) { return table.PopDroppedRows(); });
}
Result<std::vector<int64_t>> EmbeddingTable::RemovedSince(int64_t version) {
  MT_ASSIGN_OR_RETURN(std::vector<int64_t> keys, WithMemory(0, [&](auto& table) { return table.RemovedSince(version); }));
  size_t without = 0;
  std::vector<int32_t> tiers;
  for (size_t from = 0; from < keys.size(); from += kChunkKeys) {
    const Span<const int64_t> some = Span<const int64_t>(keys).subspan(from, std::min(kChunkKeys, keys.size() - from));
    tiers.resize(some.size());
    MT_RETURN_IF_ERROR(LookupTier(some, tiers.data()));
    for (size_t i = 0; i < some.size(); ++i) {
      if (tiers[i] < 0) keys[without++] = some[i];
    }
  }
  keys.resize(without);
  return keys;
}
int64_t EmbeddingTable::ChangesSince() const { return front_ ? front_->ChangesSince() : host_->ChangesSince(); }
int64_t EmbeddingTable::TotalCount() const { return front_ ? front_->TotalCount() : host_->TotalCount(); }
int64_t EmbeddingTable::NewestStep() const { return front_ ? front_->NewestStep() : host_->NewestStep(); }
TableStats EmbeddingTable::Stats() const { return front_ ? front_->Stats() : host_->Stats(); }
Status EmbeddingTable::Drain() {
  return WithMemory(0, [&](auto& table) { return table.Drain(); });
}
Status EmbeddingTable::Flush() {
  return WithMemory(0, [&](auto& table) { return table.Flush(); });
}
Status EmbeddingTable::SetDramBudget(Budget budget) {
  return WithMemory(0, [&](auto& table) { return table.SetDramBudget(budget); });
}
Status EmbeddingTable::Reserve(uint64_t rows) {
  return WithMemory(0, [&](auto& table) { return table.Reserve(rows); });
}
Status EmbeddingTable::Compact() {
  return WithMemory(0, [&](auto& table) { return table.Compact(); });
}

// --- For what is above: only the table itself is asked.

Status EmbeddingTable::CopyOut(const RowBatch& rows, CopyOutAs as) {
  return WithMemory(rows.keys.size(), [&](auto&) { return host_->CopyOut(rows, as); });
}
Status EmbeddingTable::PutBack(const RowBatch& rows) {
  return WithMemory(rows.keys.size(), [&](auto&) { return host_->PutBack(rows); });
}
Status EmbeddingTable::CheckApply(const ApplyRequest& request, std::vector<uint32_t>* slot_offsets) const {
  return host_->CheckApply(request, slot_offsets);
}
int64_t EmbeddingTable::NoteApply(int64_t global_step) { return host_->NoteApply(global_step); }
void EmbeddingTable::NoteRemoved(Span<const int64_t> keys) { host_->NoteRemoved(keys); }
void EmbeddingTable::CountInFilter(Span<const int64_t> keys, Span<const int64_t> counts, bool take_back) {
  host_->CountInFilter(keys, counts, take_back);
}

void EmbeddingTable::AwaitSnapshot() const { host_->AwaitSnapshot(); }

}  // namespace multitier
