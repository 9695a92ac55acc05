// Apply: the checks of a request, then gather and update (apply_operation.h), then trim (demoter.h); see embedding_table.h.

#include "cc/optimizer/catch_up.h"
#include "cc/options/names.h"
#include "cc/table/apply/apply_operation.h"
#include "cc/table/host/host_table.h"

namespace multitier {
namespace {

// What can be said of a request without its table's rows. tables: how many the initial values are of.
Status CheckRequest(const ApplyRequest& request, const TableOptions& options, size_t tables) {
  const std::string& table = options.name;
  const size_t n = request.keys.size();
  if (request.rule == nullptr) {
    return InvalidArgumentError("table '", table, "': apply: expected an update rule, found none");
  }
  if (!request.places.empty() && (!request.distinct || request.places.size() != n)) {
    return InvalidArgumentError("table '", table, "': apply: expected places of ", n, " distinct keys or none, found ",
                                request.places.size(), request.distinct ? "" : " of keys that may repeat");
  }
  if (!request.counts.empty() && request.counts.size() != n) {
    return InvalidArgumentError("table '", table, "': apply: expected a count for each of ", n, " keys, found ",
                                request.counts.size());
  }
  if (!request.tables.empty() && request.tables.size() != n) {
    return InvalidArgumentError("table '", table, "': apply: expected a table number for each of ", n, " keys, found ",
                                request.tables.size());
  }
  for (size_t i = 0; i < request.tables.size(); ++i) {
    if (request.tables[i] < tables || request.tables[i] == kNoTable) continue;
    return InvalidArgumentError("table '", table, "': tables: expected 0 to ", tables - 1, ", found tables[", i,
                                "] = ", request.tables[i]);
  }
  int64_t signs = 0;  // of all counts: a loop without a branch
  for (const int64_t count : request.counts) signs |= count;
  for (const int64_t count : request.counts) {
    if (signs >= 0) break;
    if (count < 0) return InvalidArgumentError("table '", table, "': apply: counts: expected at least 0, found ", count);
  }
  const size_t hyper = request.rule->hyperparameters().size();
  if (request.hyper.size() < hyper || (request.hyper.size() > hyper && !CatchesUp(*request.rule))) {
    return InvalidArgumentError("table '", table, "': rule ", request.rule->name(), ": expected ", hyper,
                                " hyperparameters, found ", request.hyper.size());
  }
  const bool has_steps = options.score == Score::kStep || options.score == Score::kFrequency;
  if (CatchesUp(*request.rule) && !has_steps) {
    return InvalidArgumentError("table '", table, "': rule ", request.rule->name(),
                                ": expected score 'step' or 'frequency', whose versions are steps, found '",
                                NameOf(options.score), "': train with Adam without catch_up");
  }
  return request.rule->Validate(request.hyper.data());
}

// Where the rule's slots are in a row of the layout.
Result<std::vector<uint32_t>> SlotOffsets(const ApplyRequest& request, const RowLayout& layout, const TableOptions& options) {
  const Span<const SlotSpec> slots = request.rule->slots();
  if (request.slot_columns.size() != slots.size()) {
    return InvalidArgumentError("table '", options.name, "': rule ", request.rule->name(), ": expected ", slots.size(),
                                " slot columns, found ", request.slot_columns.size());
  }
  std::vector<uint32_t> offsets;
  for (size_t i = 0; i < slots.size(); ++i) {
    const int column = layout.Find(request.slot_columns[i]);
    if (column <= 0) {
      return InvalidArgumentError("table '", options.name, "': rule ", request.rule->name(), ": expected slot '",
                                  request.slot_columns[i], "', found no such column in the table");
    }
    const int dim = slots[i].per_row ? 1 : options.dim;
    if (layout.columns()[column].dim != dim) {
      return InvalidArgumentError("table '", options.name, "': rule ", request.rule->name(), ": expected slot '",
                                  request.slot_columns[i], "' of dim ", dim, ", found ", layout.columns()[column].dim);
    }
    offsets.push_back(layout.columns()[column].offset);
  }
  return offsets;
}

}  // namespace

Status HostTable::CheckApply(const ApplyRequest& request, std::vector<uint32_t>* slot_offsets) const {
  MT_RETURN_IF_ERROR(CheckRequest(request, options_, base_.absent.initial().tables()));
  MT_RETURN_IF_ERROR(base_.OfThisTable(base_.score.Check()));
  MT_ASSIGN_OR_RETURN(*slot_offsets, SlotOffsets(request, *layout(), options_));
  return OkStatus();
}

Status HostTable::Apply(const ApplyRequest& request, Executor* executor) {
  MT_RETURN_IF_ERROR(CheckMemory(request.keys.size()));
  MT_RETURN_IF_ERROR(CheckRequest(request, options_, base_.absent.initial().tables()));
  SplitIfLarge(request.keys.size(), /*lends_threads=*/executor != nullptr);
  MT_ASSIGN_OR_RETURN(const OperationScope inside, OperationScope::EnterToChange(&base_));
  MT_ASSIGN_OR_RETURN(const std::vector<uint32_t> slot_offsets, SlotOffsets(request, *layout(), options_));
  MT_RETURN_IF_ERROR(base_.OfThisTable(base_.score.Check()));
  last_refused_ = last_dropped_ = 0;
  if (request.keys.empty()) {
    ++applies_;
    return OkStatus();
  }
  const int64_t dropped_before = demoter_.dropped().total();
  ApplyOperation operation(&base_, &demoter_, &reader_);
  ApplyOperation::Keys keys;
  keys.keys = request.keys;
  keys.counts = request.counts;
  keys.places = request.places;
  keys.tables = request.tables;
  keys.distinct = request.distinct;
  keys.may_hold = true;
  const int64_t step = request.global_step >= 0 ? request.global_step : applies_.load() + 1;
  keys.version = request.noted != nullptr ? request.noted->version : base_.score.Peek(step);
  MT_RETURN_IF_ERROR(operation.Gather(keys, executor));

  if (request.refused != nullptr) *request.refused = operation.refused();
  const NotedApply noted = request.noted != nullptr ? *request.noted : NoteApply(request.global_step);
  if (request.note != nullptr) *request.note = noted;
  operation.Update(request, slot_offsets, noted.version, noted.number, executor);
  BoundCounted();
  demoter_.TrimAndRemember();
  last_refused_ = operation.refused();
  last_dropped_ = demoter_.dropped().total() - dropped_before;
  return OkStatus();
}

}  // namespace multitier
