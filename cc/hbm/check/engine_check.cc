#include "cc/hbm/check/engine_check.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "cc/base/thread.h"
#include "cc/hbm/check/engine_caller.h"
#include "cc/hbm/hbm_above.h"
#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm {
namespace {

using Device = std::shared_ptr<device::Device>;

// A table in HBM and a plain one with the same values.
struct Both {
  std::unique_ptr<EmbeddingTable> in_hbm, plain;
};

Result<Both> MakeBoth(const Device& device, const TableOptions& options, int hbm_rows, uint64_t grows_from_rows) {
  Both both;
  TableOptions over = options;
  over.above = HbmOver(device, grows_from_rows);
  if (grows_from_rows > 0) over.hbm_budget_bytes = uint64_t{1} << 30;
  if (grows_from_rows == 0) over.hbm_budget_rows = static_cast<uint64_t>(hbm_rows);
  MT_ASSIGN_OR_RETURN(both.plain, EmbeddingTable::Create(options));
  MT_ASSIGN_OR_RETURN(both.in_hbm, EmbeddingTable::Create(std::move(over)));
  return both;
}

TableOptions OptionsOf(int dim, uint64_t seed) {
  TableOptions options = BasicOptions(dim);
  options.initializer.seed = seed;
  return options;
}

Status CompareFloats(const std::string& what, const std::vector<float>& expected, const std::vector<float>& found) {
  if (SameBits(expected, found)) return OkStatus();
  for (size_t i = 0; i < std::min(expected.size(), found.size()); ++i) {
    if (std::memcmp(&expected[i], &found[i], sizeof(float)) == 0) continue;
    return DataLossError(what, ", element ", i, " of ", expected.size(), ": expected ", expected[i], ", found ", found[i]);
  }
  return DataLossError(what, ": expected ", expected.size(), " elements, found ", found.size());
}

Status CompareTables(const std::string& what, const Both& both) {
  MT_ASSIGN_OR_RETURN(const Rows of_plain, both.plain->Export(true));
  MT_ASSIGN_OR_RETURN(const Rows of_hbm, both.in_hbm->Export(true));
  const Rows x = Sorted(of_plain), y = Sorted(of_hbm);
  if (x.keys != y.keys) return DataLossError(what, ": expected ", x.keys.size(), " keys, found ", y.keys.size(), " or others");
  if (x.frequencies != y.frequencies) return DataLossError(what, ": frequencies differ");
  if (x.versions != y.versions) return DataLossError(what, ": versions differ");
  if (x.counted_keys != y.counted_keys || x.counted_frequencies != y.counted_frequencies) {
    return DataLossError(what, ": keys that a filter counts differ");
  }
  return CompareFloats(StrCat(what, ", rows"), x.data, y.data);
}

std::vector<int64_t> SomeKeysOf(const EngineCheckOptions& options, std::mt19937_64* random) {
  std::vector<int64_t> keys(1 + (*random)() % static_cast<uint64_t>(options.batch));
  for (int64_t& key : keys) key = static_cast<int64_t>((*random)() % static_cast<uint64_t>(options.keys)) - 5;
  return keys;
}

// One step of a group on both sides: values, then the update of each table.
Status TrainGroup(const std::vector<Both>& group, const UpdateRule* rule, const EngineCheckOptions& options,
                  EngineCaller* caller, std::mt19937_64* random) {
  std::vector<Training> trainings;
  std::vector<DeviceMember> members;
  for (const Both& both : group) {
    trainings.push_back(SomeTraining(rule, SomeKeysOf(options, random), both.plain->dim(), random));
    for (EmbeddingTable* table : {both.plain.get(), both.in_hbm.get()}) {
      MT_RETURN_IF_ERROR(table->AddSlots(SlotColumns(*rule, table->dim())));
    }
    members.push_back(caller->Member(both.in_hbm.get(), trainings.back().keys));
  }
  DevicePlan plan;
  MT_RETURN_IF_ERROR(caller->Lookup(members, &plan));
  std::vector<DeviceUpdate> updates;
  for (size_t i = 0; i < group.size(); ++i) {
    const Training& training = trainings[i];
    std::vector<float> expected(training.grads.size());
    MT_RETURN_IF_ERROR(group[i].plain->Lookup(training.keys, expected.data()));
    MT_RETURN_IF_ERROR(
        CompareFloats(StrCat("values of table ", i), expected, caller->memory()->Down(members[i].out, expected.size())));
    MT_RETURN_IF_ERROR(group[i].plain->Apply(RequestOf(training)));
    DeviceUpdate update;
    update.member = static_cast<int>(i);
    update.grad = caller->memory()->Up(training.grads);
    update.request = RequestOf(training);
    updates.push_back(update);
  }
  MT_RETURN_IF_ERROR(caller->Update(plan, updates));
  plan = DevicePlan();
  caller->ForgetMemory();
  return OkStatus();
}

Status TrainAndCompare(const std::string& what, const std::vector<Both>& group, const UpdateRule* rule, const Device& device,
                       const EngineCheckOptions& options) {
  std::mt19937_64 random(options.seed);
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<EngineCaller> caller, EngineCaller::Create(device));
  for (int step = 0; step < options.steps; ++step) {
    const Status status = TrainGroup(group, rule, options, caller.get(), &random);
    if (!status.ok()) return Status(status.code(), StrCat(what, ", step ", step, ", ", status.message()));
  }
  for (size_t i = 0; i < group.size(); ++i) MT_RETURN_IF_ERROR(CompareTables(StrCat(what, ", table ", i), group[i]));
  return OkStatus();
}

// Of three tables one has room for all keys. Their values take turns with the types.
Status CheckRules(const Device& device, const EngineCheckOptions& options) {
  uint64_t values = 0;
  for (const UpdateRule* rule : RulesWithKernels()) {
    std::vector<Both> group;
    for (const int dim : {options.dim, std::max(1, options.dim / 4 * 4), 1}) {
      const int rows = group.empty() ? options.keys * 2 : options.hbm_rows;
      const TableOptions table = WithValues(OptionsOf(dim, options.seed + group.size()), values++);
      MT_ASSIGN_OR_RETURN(Both both, MakeBoth(device, table, rows, 0));
      group.push_back(std::move(both));
    }
    MT_RETURN_IF_ERROR(TrainAndCompare(rule->name(), group, rule, device, options));
  }
  return OkStatus();
}

Status CheckGrowth(const Device& device, const EngineCheckOptions& options) {
  std::vector<Both> group;
  for (const int dim : {options.dim, 4}) {
    const TableOptions table = WithValues(OptionsOf(dim, options.seed), group.empty() ? 0 : 3);
    MT_ASSIGN_OR_RETURN(Both both, MakeBoth(device, table, 0, /*grows_from_rows=*/2));
    group.push_back(std::move(both));
  }
  return TrainAndCompare("growth", group, *FindUpdateRule("adagrad"), device, options);
}

Status CheckFilters(const Device& device, const EngineCheckOptions& options) {
  std::vector<Both> group;
  for (const AdmissionKind kind : {AdmissionKind::kCounter, AdmissionKind::kBloom}) {
    TableOptions table = WithValues(OptionsOf(options.dim, options.seed), group.empty() ? 4 : 0);
    table.filter.kind = kind;
    table.filter.filter_freq = 2;
    table.filter.max_element_size = options.keys * 4;
    table.default_value_no_permission.a = 0.25f;
    MT_ASSIGN_OR_RETURN(Both both, MakeBoth(device, table, options.hbm_rows, 0));
    group.push_back(std::move(both));
  }
  return TrainAndCompare("filters", group, *FindUpdateRule("sgd"), device, options);
}

// Whole numbers are added, so that the sums do not depend on the order of the threads.
class Threads {
 public:
  static constexpr int kDim = 4, kTables = 2;

  Threads(const Device& device, const EngineCheckOptions& options) : device_(device), options_(options) {}

  Status Run() {
    for (int t = 0; t < kTables; ++t) {
      TableOptions table = OptionsOf(kDim, options_.seed);
      table.initializer.kind = InitializerKind::kConstant;
      table.initializer.a = 0.0f;
      tables_.emplace_back();
      MT_ASSIGN_OR_RETURN(tables_.back(), MakeBoth(device_, table, options_.hbm_rows, 0));
    }
    std::vector<Status> statuses(static_cast<size_t>(options_.threads) + 1);
    std::vector<std::map<int64_t, int>> updates(static_cast<size_t>(options_.threads));
    std::atomic<bool> over{false};
    Thread saver;
    std::vector<Thread> threads(updates.size());
    Status started = saver.Start("saver", [&] { statuses.back() = SaveUntil(over); });
    for (size_t t = 0; t < threads.size() && started.ok(); ++t) {
      started = threads[t].Start("trainer", [&, t] { statuses[t] = Train(t, &updates[t]); });
    }
    for (Thread& thread : threads) thread.Join();
    over = true;
    saver.Join();
    MT_RETURN_IF_ERROR(started);
    for (const Status& status : statuses) MT_RETURN_IF_ERROR(status);
    return Compare(updates);
  }

 private:
  Status Train(size_t thread, std::map<int64_t, int>* updates) {
    std::mt19937_64 random(options_.seed * 100 + thread);
    MT_ASSIGN_OR_RETURN(const std::unique_ptr<EngineCaller> caller, EngineCaller::Create(device_));
    for (int step = 0; step < options_.steps; ++step) {
      const Training training = Sgd(SomeKeysOf(options_, &random), -1.0f, kDim);
      for (const int64_t key : training.keys) ++(*updates)[key];
      const float* const grads = caller->memory()->Up(training.grads);
      std::vector<DeviceMember> members;
      std::vector<DeviceUpdate> of_plan;
      std::vector<DeviceApply> applies;
      for (const Both& both : tables_) {
        members.push_back(caller->Member(both.in_hbm.get(), training.keys));
        DeviceUpdate update;
        update.member = static_cast<int>(of_plan.size());
        update.grad = grads;
        update.request = RequestOf(training);
        of_plan.push_back(update);
        DeviceApply apply;
        apply.table = members.back().table;
        apply.keys = members.back().keys;
        apply.grads = grads;
        apply.request = update.request;
        applies.push_back(apply);
      }
      if (step % 3 == 2) {
        MT_RETURN_IF_ERROR(caller->Apply(applies));
      } else {
        DevicePlan plan;
        MT_RETURN_IF_ERROR(caller->Lookup(members, &plan));
        MT_RETURN_IF_ERROR(caller->Update(plan, of_plan));
      }
      caller->ForgetMemory();
    }
    return OkStatus();
  }

  // At least once.
  Status SaveUntil(const std::atomic<bool>& over) {
    do {
      for (const Both& both : tables_) {
        MT_ASSIGN_OR_RETURN(const Rows rows, both.in_hbm->Export(true));
        for (size_t r = 0; r < rows.keys.size(); ++r) {
          for (size_t d = 1; d < kDim; ++d) {
            if (rows.data[r * kDim + d] != rows.data[r * kDim])
              return DataLossError("a save: the row of key ", rows.keys[r], " is torn");
          }
        }
      }
    } while (!over);
    return OkStatus();
  }

  Status Compare(const std::vector<std::map<int64_t, int>>& updates) {
    std::map<int64_t, int> sums;
    for (const auto& of_thread : updates) {
      for (const auto& [key, n] : of_thread) sums[key] += n;
    }
    for (const Both& both : tables_) {
      MT_ASSIGN_OR_RETURN(const Rows rows, both.in_hbm->Export(true));
      if (rows.keys.size() != sums.size())
        return DataLossError("threads: expected ", sums.size(), " rows, found ", rows.keys.size());
      for (size_t r = 0; r < rows.keys.size(); ++r) {
        const auto expected = static_cast<float>(sums[rows.keys[r]]);
        if (rows.data[r * kDim] == expected) continue;
        return DataLossError("threads, key ", rows.keys[r], ": expected ", expected, ", found ", rows.data[r * kDim]);
      }
    }
    return OkStatus();
  }

  const Device device_;
  const EngineCheckOptions options_;
  std::vector<Both> tables_;
};

Status CheckThreads(const Device& device, const EngineCheckOptions& options) { return Threads(device, options).Run(); }

constexpr EngineCheck kEngineChecks[] = {
    {"rules", CheckRules},
    {"growth", CheckGrowth},
    {"filters", CheckFilters},
    {"threads", CheckThreads},
};

}  // namespace

Span<const EngineCheck> EngineChecks() { return Span<const EngineCheck>(kEngineChecks, std::size(kEngineChecks)); }

}  // namespace multitier::hbm
