#include "cc/hbm/check/step_times.h"

#include <chrono>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "cc/hbm/check/engine_caller.h"
#include "cc/hbm/check/launch_times.h"
#include "cc/hbm/hbm_above.h"
#include "cc/hbm/test/hbm_test_util.h"
#include "cc/table/snapshot/snapshot_together.h"

namespace multitier::hbm {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// A group of tables that train by one rule.
class StepBench {
 public:
  StepBench(std::shared_ptr<device::Device> device, const StepTimesOptions& options, const char* rule)
      : device_(std::move(device)), options_(options), rule_(*FindUpdateRule(rule)), next_new_(options.rows) {}
  ~StepBench() {
    for (const device::Event event : {begin_, end_}) {
      if (event.native != nullptr) device_->Delete(event);
    }
  }

  // hbm_rows: of a table; 0: the tables are in HBM alone.
  Status Make(uint64_t hbm_rows) {
    for (uint32_t t = 0; t < options_.tables; ++t) {
      TableOptions table = BasicOptions(options_.dim);
      table.name = StrCat("t", t);
      table.above = HbmOver(device_, hbm_rows == 0 ? options_.rows * 5 / 4 : 0);
      table.hbm_budget_rows = hbm_rows == 0 ? options_.rows * 2 : hbm_rows;
      tables_.emplace_back();
      MT_ASSIGN_OR_RETURN(tables_.back(), EmbeddingTable::Create(std::move(table)));
      MT_RETURN_IF_ERROR(tables_.back()->AddSlots(SlotColumns(*rule_, options_.dim)));
    }
    MT_ASSIGN_OR_RETURN(caller_, EngineCaller::Create(device_));
    MT_ASSIGN_OR_RETURN(begin_, device_->NewTimedEvent());
    MT_ASSIGN_OR_RETURN(end_, device_->NewTimedEvent());
    grads_.assign(size_t{options_.entries} * static_cast<size_t>(options_.dim), 0.01f);
    // All rows, a batch of them at a time.
    for (int64_t first = 0; first < options_.rows; first += options_.entries) {
      std::vector<int64_t> keys(options_.entries);
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = (first + static_cast<int64_t>(i)) % options_.rows;
      double seconds = 0, on_device = 0;
      MT_RETURN_IF_ERROR(Step(std::vector<std::vector<int64_t>>(tables_.size(), keys), &seconds, &on_device));
    }
    return OkStatus();
  }

  // The median step in which new_keys of the keys of each table are new.
  Result<std::string> Steps(uint32_t new_keys) {
    std::vector<double> seconds, on_device;
    const Clock::time_point begin = Clock::now();
    for (int step = 0; step < options_.steps && (step < 2 || SecondsSince(begin) < options_.seconds_of_a_case); ++step) {
      seconds.push_back(0);
      on_device.push_back(0);
      MT_RETURN_IF_ERROR(Step(SomeKeys(new_keys), &seconds.back(), &on_device.back()));
    }
    JsonMembers json;
    json.Add("seconds", StrCat(MedianOf(seconds)));
    json.Add("device_seconds", StrCat(MedianOf(on_device)));
    json.Add("steps", StrCat(seconds.size()));
    json.Add("keys", StrCat(options_.entries * options_.tables));
    return json.text();
  }

  Result<std::string> Save() {
    std::atomic<int64_t> rows{0};
    std::vector<TableInGroup> group;
    for (const auto& table : tables_) {
      group.emplace_back();
      group.back().table = table.get();
      group.back().visit = [&rows](Rows* chunk) {
        rows += static_cast<int64_t>(chunk->keys.size());
        return OkStatus();
      };
      group.back().finish = [] { return OkStatus(); };
    }
    const Clock::time_point begin = Clock::now();
    MT_RETURN_IF_ERROR(SnapshotTogether(group));
    JsonMembers json;
    json.Add("seconds", StrCat(SecondsSince(begin)));
    json.Add("rows", StrCat(rows.load()));
    return json.text();
  }

 private:
  std::vector<std::vector<int64_t>> SomeKeys(uint32_t new_keys) {
    std::vector<std::vector<int64_t>> keys(tables_.size(), std::vector<int64_t>(options_.entries));
    for (auto& of_table : keys) {
      // A window of the drawn keys: steps differ in their rows.
      const auto first = static_cast<int64_t>(random_() % options_.rows);
      for (int64_t& key : of_table) key = (first + static_cast<int64_t>(random_() % options_.drawn_from) * 7) % options_.rows;
      for (uint32_t i = 0; i < new_keys; ++i) of_table[i * 7919 % of_table.size()] = next_new_ + i;
    }
    next_new_ += new_keys;
    return keys;
  }

  Status Step(const std::vector<std::vector<int64_t>>& keys, double* seconds, double* on_device) {
    std::vector<DeviceMember> members;
    std::vector<DeviceUpdate> updates;
    Training training;
    training.rule = rule_;
    training.hyper = SomeHyper(*rule_);
    const float* const grads = caller_->memory()->Up(grads_);
    for (size_t t = 0; t < tables_.size(); ++t) {
      members.push_back(caller_->Member(tables_[t].get(), keys[t]));
      DeviceUpdate update;
      update.member = static_cast<int>(t);
      update.grad = grads;
      update.request = RequestOf(training);
      updates.push_back(update);
    }
    MT_RETURN_IF_ERROR(device_->Synchronize(caller_->stream()));
    const Clock::time_point begin = Clock::now();
    {
      DevicePlan plan;
      MT_RETURN_IF_ERROR(device_->Record(caller_->stream(), begin_));
      MT_RETURN_IF_ERROR(caller_->Lookup(members, &plan));
      MT_RETURN_IF_ERROR(caller_->Update(plan, updates));
      MT_RETURN_IF_ERROR(device_->Record(caller_->stream(), end_));
    }
    MT_RETURN_IF_ERROR(device_->Synchronize(caller_->stream()));
    *seconds = SecondsSince(begin);
    MT_ASSIGN_OR_RETURN(*on_device, device_->Seconds(begin_, end_));
    caller_->ForgetMemory();
    return OkStatus();
  }

  const std::shared_ptr<device::Device> device_;
  const StepTimesOptions options_;
  const UpdateRule* const rule_;
  int64_t next_new_;
  std::mt19937_64 random_{1};
  std::vector<float> grads_;
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
  std::unique_ptr<EngineCaller> caller_;
  device::Event begin_, end_;
};

}  // namespace

Result<std::string> MeasureSteps(const std::shared_ptr<device::Device>& device, const StepTimesOptions& options) {
  JsonMembers json;
  const auto add = [&](const std::string& name, Result<std::string> measured) {
    if (measured.ok()) json.Add(name, *measured);
    return measured.status();
  };
  for (const char* rule : {"sgd", "adam"}) {
    StepBench bench(device, options, rule);
    MT_RETURN_IF_ERROR(bench.Make(0));
    const std::string step = StrCat("step_", rule);
    MT_RETURN_IF_ERROR(add(step + "_no_new_key", bench.Steps(0)));
    MT_RETURN_IF_ERROR(add(step + "_one_new_key_a_table", bench.Steps(1)));
    MT_RETURN_IF_ERROR(add(step + "_1_percent_new", bench.Steps(options.entries / 100)));
  }
  StepBench bench(device, options, "sgd");
  MT_RETURN_IF_ERROR(bench.Make(std::max(1u, options.rows / 10)));
  MT_RETURN_IF_ERROR(add("step_sgd_10_percent_in_hbm", bench.Steps(0)));
  MT_RETURN_IF_ERROR(add("save", bench.Save()));
  MT_RETURN_IF_ERROR(bench.Steps(0).status());
  MT_RETURN_IF_ERROR(add("save_after_steps", bench.Save()));
  return json.text();
}

}  // namespace multitier::hbm
