#include "cc/python/py_group.h"

#include <utility>

#include "cc/optimizer/update_rule.h"
#include "cc/python/exceptions.h"

namespace multitier {
namespace {

py::array Copy(Span<const int64_t> values) { return Own(std::vector<int64_t>(values.begin(), values.end())); }

std::vector<const float*> Pointers(const std::vector<Array<float>>& arrays) {
  std::vector<const float*> pointers;
  for (const Array<float>& array : arrays) pointers.push_back(array.data());
  return pointers;
}

}  // namespace

PyGroup::PyGroup(std::vector<std::shared_ptr<PyTable>> tables, std::vector<Array<int64_t>> keys,
                 std::vector<Array<int64_t>> row_splits, const std::vector<std::string>& combiners,
                 std::vector<std::optional<Array<float>>> weights, const std::vector<float>& max_norms,
                 const std::vector<bool>& sequences, bool train)
    : tables_(std::move(tables)), weights_(std::move(weights)) {
  std::vector<GroupUnit> units(tables_.size());
  std::vector<GroupMember> members(tables_.size());
  for (size_t i = 0; i < tables_.size(); ++i) {
    GroupMember& member = members[i];
    member.name = StrCat("member ", i, " ('", tables_[i]->name(), "')");
    member.units = Span<const GroupUnit>(&units[i], 1);
    member.dim = tables_[i]->dim();
    // A sequence is what its entries are: a mean would divide each by its own weight.
    member.combiner = sequences[i] ? Combiner::kSum : ValueOrThrow(ParseCombiner(combiners[i]));
    member.max_norm = max_norms[i];
    member.form = sequences[i] ? GroupForm::kRaggedSequence : GroupForm::kRagged;
    member.keys = View(keys[i]);
    member.indices = View(row_splits[i]);
    if (weights_[i]) member.weights = View(*weights_[i]);
    member.batch = row_splits[i].size() - 1;
    std::vector<py::ssize_t> shape = {static_cast<py::ssize_t>(member.batch), member.dim};
    if (sequences[i]) {
      member.steps = ValueOrThrow(RaggedSteps(member.name, member.indices, member.keys.size()));
      shape.insert(shape.begin() + 1, static_cast<py::ssize_t>(member.steps));
    }
    values_.emplace_back(std::move(shape));
    member.out = values_.back().mutable_data();
  }
  PyTable::RunAll(tables_, [&] {
    for (size_t i = 0; i < units.size(); ++i) units[i].table = tables_[i]->table();
    return LookupGroup(members, train ? &plan_ : nullptr);
  });
}

py::array PyGroup::Keys(int member) const { return Copy(plan_.keys(member)); }

py::array PyGroup::Counts(int member) const { return Copy(plan_.counts(member)); }

std::vector<std::optional<Array<float>>> PyGroup::WeightsGradients(const std::vector<Array<float>>& grads) {
  std::vector<std::optional<Array<float>>> found(tables_.size());
  std::vector<float*> to(tables_.size(), nullptr);
  for (size_t i = 0; i < tables_.size(); ++i) {
    if (!weights_[i]) continue;
    found[i].emplace(weights_[i]->size());
    if (plan_.weighted(static_cast<int>(i))) to[i] = found[i]->mutable_data();
  }
  const std::vector<const float*> from = Pointers(grads);
  const std::vector<float*> no_sums(tables_.size(), nullptr);
  PyTable::RunAll(tables_, [&] {
    GroupGradients gradients;
    gradients.grads = Span<const float* const>(from.data(), from.size());
    gradients.sums = Span<float* const>(no_sums.data(), no_sums.size());
    gradients.weights_gradients = Span<float* const>(to.data(), to.size());
    GradientOfGroup(plan_, gradients);
    return OkStatus();
  });
  return found;
}

void PyGroup::Apply(const std::string& rule, const std::vector<Array<float>>& grads, const std::vector<float>& hyper,
                    const std::vector<std::vector<std::string>>& slot_columns, int64_t global_step) {
  const UpdateRule* const found = ValueOrThrow(FindUpdateRule(rule));
  std::vector<std::vector<float>> sums(tables_.size());
  const std::vector<const float*> from = Pointers(grads);
  std::vector<float*> to;
  for (size_t i = 0; i < tables_.size(); ++i) {
    sums[i].resize(plan_.keys(static_cast<int>(i)).size() * static_cast<size_t>(tables_[i]->dim()));
    to.push_back(sums[i].data());
  }
  PyTable::RunAll(tables_, [&] {
    GroupGradients gradients;
    gradients.grads = Span<const float* const>(from.data(), from.size());
    gradients.sums = Span<float* const>(to.data(), to.size());
    GradientOfGroup(plan_, gradients);
    for (size_t i = 0; i < tables_.size(); ++i) {
      ApplyRequest request;
      request.keys = plan_.keys(static_cast<int>(i));
      request.counts = plan_.counts(static_cast<int>(i));
      request.places = plan_.places(static_cast<int>(i));
      request.distinct = true;
      request.grads = sums[i].data();
      request.rule = found;
      request.hyper = hyper;
      request.slot_columns = slot_columns[i];
      request.global_step = global_step;
      MT_RETURN_IF_ERROR(tables_[i]->table()->Apply(request));
    }
    return OkStatus();
  });
}

}  // namespace multitier
