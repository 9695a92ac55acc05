// Upsert: writes the rows of a batch, all of them or none.
//
//   check     checks the request: sizes, columns, numbers
//   gather    brings the row of every key into DRAM and pins it; everything that can fail is here (ApplyOperation)
//   refuse    looks for repeated keys and keys that have rows; if they are not allowed, undoes gather
//   write     works only on memory and cannot fail

#include <algorithm>
#include <vector>

#include "cc/row/value_column.h"
#include "cc/table/apply/apply_operation.h"
#include "cc/table/host/host_table.h"

namespace multitier {
namespace {

constexpr int64_t kMaxFrequency = 0xffffffffLL;

// The last position of a key in the batch. Its row is the one that is written.
size_t LastPosition(const KeyBatch& batch, uint32_t entry) {
  uint32_t last = batch.first_position(entry);
  for (uint32_t p = last; p != KeyBatch::kEnd; p = batch.next(p)) last = p;
  return last;
}

// When each entry counts as used. With frequencies, the hottest row counts as used last: those that stay in the first tier are
// the hottest of the batch.
std::vector<uint64_t> UsesByHeat(const UpsertRequest& request, int shards, ApplyOperation* operation) {
  const KeyBatch& batch = operation->batch();
  std::vector<uint64_t> touched(batch.num_keys());
  std::vector<uint32_t> entries;
  for (int s = 0; s < shards; ++s) {
    for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
      touched[e] = operation->Touched(e);
      entries.push_back(e);
    }
  }
  if (request.frequencies.empty()) return touched;
  std::vector<uint64_t> uses;
  for (const uint32_t e : entries) uses.push_back(touched[e]);
  std::sort(uses.begin(), uses.end());
  std::stable_sort(entries.begin(), entries.end(), [&](uint32_t a, uint32_t b) {
    return request.frequencies[LastPosition(batch, a)] < request.frequencies[LastPosition(batch, b)];
  });
  for (size_t i = 0; i < entries.size(); ++i) touched[entries[i]] = uses[i];
  return touched;
}

}  // namespace

Status HostTable::CheckUpsert(const UpsertRequest& request) const {
  const std::string table = StrCat("table '", options_.name, "': upsert: ");
  const size_t n = request.keys.size();
  for (const auto* facts : {&request.frequencies, &request.versions}) {
    if (facts->empty() || facts->size() == n) continue;
    return InvalidArgumentError(table, "expected ", n, facts == &request.versions ? " versions" : " frequencies", ", found ",
                                facts->size());
  }
  for (const int64_t f : request.frequencies) {
    if (f < 0 || f > kMaxFrequency) return InvalidArgumentError(table, "expected frequencies in [0, 2^32), found ", f);
  }
  const std::shared_ptr<const RowLayout> layout = this->layout();
  for (const UpsertRequest::Columns& column : request.columns) {
    MT_ASSIGN_OR_RETURN(const std::vector<int> found, ColumnsNamed("upsert", {column.name}));
    const int dim = layout->columns()[found[0]].dim;
    if (column.dim == dim) continue;
    return InvalidArgumentError(table, "expected rows of ", dim, " elements for column '", column.name, "', found ",
                                column.dim);
  }
  return OkStatus();
}

Status HostTable::CheckEntries(const UpsertRequest& request, ApplyOperation* operation) {
  const KeyBatch& batch = operation->batch();
  const int shards = static_cast<int>(shards_.size());
  for (int s = 0; s < shards && !request.last_of_repeats; ++s) {
    for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
      if (batch.next(batch.first_position(e)) == KeyBatch::kEnd) continue;
      return InvalidArgumentError("table '", options_.name, "': upsert: expected distinct keys, found key ", batch.key(e),
                                  " twice");
    }
  }
  const std::string& value = layout()->columns()[0].name;
  const bool sets_values = std::any_of(request.columns.begin(), request.columns.end(),
                                       [&](const UpsertRequest::Columns& column) { return column.name == value; });
  for (int s = 0; s < shards && base_.absent.have_tables() && !sets_values; ++s) {
    Shard::Locked lock(shards_[s]);
    for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
      if (!operation->row(e)->has(kRowUncommitted)) continue;
      return InvalidArgumentError("table '", options_.name, "': upsert: expected the values of key ", batch.key(e),
                                  ", which has no row, because the initializers are a list of ",
                                  base_.absent.initial().tables(), "; found none: give them");
    }
  }
  for (int s = 0; s < shards && request.if_exists == IfExists::kError; ++s) {
    Shard::Locked lock(shards_[s]);
    for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
      if (operation->row(e)->has(kRowUncommitted)) continue;
      return AlreadyExistsError("table '", options_.name, "': upsert: expected keys without rows, found a row of key ",
                                batch.key(e));
    }
  }
  return OkStatus();
}

Result<int64_t> HostTable::Upsert(const UpsertRequest& request) {
  MT_RETURN_IF_ERROR(CheckMemory(request.keys.size()));
  MT_RETURN_IF_ERROR(CheckUpsert(request));
  SplitIfLarge(request.keys.size());
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::EnterToChange(&base_));
  ApplyOperation operation(&base_, &demoter_, &reader_);
  ApplyOperation::Keys keys;
  keys.keys = request.keys;
  keys.admits_all = true;
  MT_RETURN_IF_ERROR(operation.Gather(keys, nullptr));
  const Status refused = CheckEntries(request, &operation);
  if (!refused.ok() || request.check_only) {
    operation.Abandon();
    demoter_.TrimAndRemember();  // gather brought rows into DRAM
    if (!refused.ok()) return refused;
    return 0;
  }
  const std::vector<uint64_t> touched = UsesByHeat(request, static_cast<int>(shards_.size()), &operation);
  int64_t written = 0;
  for (int s = 0; s < static_cast<int>(shards_.size()); ++s) written += UpsertShard(request, s, touched, &operation);
  for (const int64_t version : request.versions) RaiseTo(&newest_step_, version);
  demoter_.TrimAndRemember();
  return written;
}

int64_t HostTable::UpsertShard(const UpsertRequest& request, int s, const std::vector<uint64_t>& touched,
                               ApplyOperation* operation) {
  const KeyBatch& batch = operation->batch();
  const int64_t version_of_new = base_.score.OfNewRow();
  if (base_.score.kind() == Score::kTime) RaiseTo(&newest_step_, version_of_new);
  int64_t written = 0;
  FreedRecords freed;
  Shard::Locked lock(shards_[s]);
  std::vector<const Column*> columns;
  for (const UpsertRequest::Columns& column : request.columns) {
    columns.push_back(&lock->layout()->columns()[lock->layout()->Find(column.name)]);
  }
  for (uint32_t e = batch.begin(s); e < batch.end(s); ++e) {
    RowHeader* const row = operation->row(e);
    const bool is_new = row->has(kRowUncommitted);
    if (!is_new && request.if_exists == IfExists::kKeep) {
      lock->Unpin(row);
      continue;
    }
    const size_t i = LastPosition(batch, e);
    uint8_t* const to_row = lock->BeginChange(row, batch.hash(e));
    lock->Commit(row);
    for (size_t c = 0; c < columns.size(); ++c) {
      const auto dim = static_cast<size_t>(request.columns[c].dim);
      WriteColumn(columns[c]->dtype, request.columns[c].data + i * dim, dim, to_row + columns[c]->offset);
    }
    if (!request.frequencies.empty()) row->frequency = static_cast<uint32_t>(request.frequencies[i]);
    if (!request.versions.empty() || is_new) row->version = request.versions.empty() ? version_of_new : request.versions[i];
    lock->FinishChange(row, touched[e], batch.num_keys(), &freed);
    lock->Reorder(row, batch.hash(e), operation->stamp());  // its frequency or version may be lower now
    ++written;
  }
  tiers_.Free(&freed);
  return written;
}

}  // namespace multitier
