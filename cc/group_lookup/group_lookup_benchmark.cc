// Cost of a grouped step without TensorFlow: tables with an Adagrad slot, Zipf(1.05) keys of a million each, 64 batches that
// were all trained before. Arguments: members, batch, keys of a row, threads, dim.
//
//   BM_Lookup     without a plan, as in serving
//   BM_Plan       with a plan, as in training
//   BM_Gradient   sums of a plan's keys
//   BM_Apply      their updates, a table to a thread at a time
//   BM_Update     both at once, as a step does
//   BM_Step       a plan and an update

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "cc/base/hash.h"
#include "cc/group_lookup/group_lookup.h"
#include "cc/optimizer/update_rule.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {
namespace {

constexpr int kBatches = 64;
constexpr double kVocabulary = 1e6;
constexpr double kAlpha = 1.05;

// The caller and one helper, as in an intra-op pool of two threads.
class TwoThreads : public Executor {
 public:
  TwoThreads() : helper_([this] { Help(); }) {}
  ~TwoThreads() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      end_ = true;
    }
    changed_.notify_all();
    helper_.join();
  }
  void ParallelFor(int n, const std::function<void(int)>& task) override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      task_ = &task;
      n_ = n;
      next_ = 0;
      done_ = 0;
    }
    changed_.notify_all();
    Take();
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return done_ == n_; });
    task_ = nullptr;
  }

 private:
  void Take() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (task_ != nullptr && next_ < n_) {
      const int i = next_++;
      const auto* task = task_;
      lock.unlock();
      (*task)(i);
      lock.lock();
      ++done_;
    }
    changed_.notify_all();
  }
  void Help() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!end_) {
      changed_.wait(lock, [&] { return end_ || (task_ != nullptr && next_ < n_); });
      lock.unlock();
      Take();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void(int)>* task_ = nullptr;
  int n_ = 0, next_ = 0, done_ = 0;
  bool end_ = false;
  std::thread helper_;
};

class Group {
 public:
  Group(int members, int batch, int hot, int dim) : members_(members), batch_(batch), hot_(hot), dim_(dim) {
    std::mt19937_64 random(1);
    std::uniform_real_distribution<double> uniform;
    const double e = 1.0 - kAlpha, reach = std::pow(kVocabulary + 1.0, e) - 1.0;
    for (int m = 0; m < members; ++m) {
      TableOptions options;
      options.name = "t" + std::to_string(m);
      options.dim = dim_;
      ColumnSpec slot;
      slot.name = "accumulator";
      slot.dim = dim_;
      slot.initial_value = 0.1f;
      options.slots.push_back(slot);
      tables_.push_back(*EmbeddingTable::Create(options));
      units_.push_back(GroupUnit{tables_.back().get(), nullptr, 0});
    }
    for (int64_t r = 0; r < batch; ++r) {
      for (int h = 0; h < hot; ++h) indices_.insert(indices_.end(), {r, h});
    }
    keys_.resize(kBatches);
    for (auto& step : keys_) {
      step.resize(static_cast<size_t>(members));
      for (int m = 0; m < members; ++m) {
        for (int i = 0; i < batch * hot; ++i) {
          const double rank = std::pow(1.0 + uniform(random) * reach, 1.0 / e);
          step[m].push_back(static_cast<int64_t>(Mix64(static_cast<uint64_t>(rank) + static_cast<uint64_t>(m) * 1000000)));
        }
      }
    }
    out_.resize(static_cast<size_t>(members) * batch * dim_);
    grads_.resize(static_cast<size_t>(members), out_.data());
    sums_.resize(static_cast<size_t>(members), std::vector<float>(static_cast<size_t>(batch) * hot * dim_));
    for (int step = 0; step < kBatches; ++step) Step(step, nullptr);
  }

  void Lookup(int step, GroupPlan* plan, Executor* executor) {
    std::vector<GroupMember> group(static_cast<size_t>(members_));
    for (int m = 0; m < members_; ++m) {
      GroupMember& member = group[m];
      member.name = tables_[m]->options().name;
      member.units = Span<const GroupUnit>(&units_[m], 1);
      member.dim = dim_;
      member.form = GroupForm::kSparse;
      member.keys = keys_[step % kBatches][m];
      member.indices = indices_;
      member.batch = batch_;
      member.out = out_.data() + static_cast<size_t>(m) * batch_ * dim_;
    }
    if (!LookupGroup(group, plan, executor).ok()) std::abort();
  }
  void Gradient(const GroupPlan& plan, Executor* executor) {
    std::vector<float*> sums;
    for (auto& sum : sums_) sums.push_back(sum.data());
    GroupGradients gradients;
    gradients.grads = grads_;
    gradients.sums = Span<float* const>(sums.data(), sums.size());
    GradientOfGroup(plan, gradients, executor);
  }
  // With the sums that Gradient left, or summing by itself.
  void Apply(const GroupPlan& plan, bool summed, Executor* executor) {
    static const UpdateRule* const rule = *FindUpdateRule("adagrad");
    std::vector<UnitUpdate> updates(static_cast<size_t>(members_));
    for (int m = 0; m < members_; ++m) {
      UnitUpdate& update = updates[m];
      update.unit = m;
      update.table = tables_[m].get();
      if (summed) update.request.grads = sums_[m].data();
      update.request.rule = rule;
      update.request.slot_columns = {"accumulator"};
      update.request.hyper = {0.1f};
    }
    GroupGradients gradients;
    gradients.grads = grads_;
    if (!UpdateGroup(plan, gradients, &updates, executor).ok()) std::abort();
  }
  void Step(int step, Executor* executor) {
    GroupPlan plan;
    Lookup(step, &plan, executor);
    Apply(plan, /*summed=*/false, executor);
  }
  int64_t keys() const { return int64_t{members_} * batch_ * hot_; }

 private:
  const int members_, batch_, hot_, dim_;
  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
  std::vector<GroupUnit> units_;
  std::vector<int64_t> indices_;
  std::vector<std::vector<std::vector<int64_t>>> keys_;  // [batches][members]
  std::vector<float> out_;
  std::vector<const float*> grads_;
  std::vector<std::vector<float>> sums_;
};

// The group of the benchmark before, where it is the same.
Group* GroupOf(const benchmark::State& state) {
  static std::unique_ptr<Group> held;
  static std::tuple<int64_t, int64_t, int64_t, int64_t> held_for;
  const std::tuple<int64_t, int64_t, int64_t, int64_t> wanted(state.range(0), state.range(1), state.range(2), state.range(4));
  if (held == nullptr || held_for != wanted) {
    held.reset();
    held = std::make_unique<Group>(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)),
                                   static_cast<int>(state.range(2)), static_cast<int>(state.range(4)));
    held_for = wanted;
  }
  return held.get();
}

template <typename Function>
void Run(benchmark::State& state, Function function) {
  Group* const group = GroupOf(state);
  std::unique_ptr<TwoThreads> threads = state.range(3) > 1 ? std::make_unique<TwoThreads>() : nullptr;
  int step = 0;
  for (auto _ : state) function(group, step++, threads.get(), &state);
  state.counters["ns/key"] = benchmark::Counter(static_cast<double>(state.iterations() * group->keys()) * 1e-9,
                                                benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void BM_Lookup(benchmark::State& state) {
  Run(state, [](Group* group, int step, Executor* threads, benchmark::State*) { group->Lookup(step, nullptr, threads); });
}

void BM_Plan(benchmark::State& state) {
  Run(state, [](Group* group, int step, Executor* threads, benchmark::State*) {
    GroupPlan plan;
    group->Lookup(step, &plan, threads);
  });
}

void BM_Gradient(benchmark::State& state) {
  Run(state, [](Group* group, int step, Executor* threads, benchmark::State* timer) {
    timer->PauseTiming();
    GroupPlan plan;
    group->Lookup(step, &plan, threads);
    timer->ResumeTiming();
    group->Gradient(plan, threads);
  });
}

void BM_Apply(benchmark::State& state) {
  Run(state, [](Group* group, int step, Executor* threads, benchmark::State* timer) {
    timer->PauseTiming();
    GroupPlan plan;
    group->Lookup(step, &plan, threads);
    group->Gradient(plan, threads);
    timer->ResumeTiming();
    group->Apply(plan, /*summed=*/true, threads);
  });
}

void BM_Update(benchmark::State& state) {
  Run(state, [](Group* group, int step, Executor* threads, benchmark::State* timer) {
    timer->PauseTiming();
    GroupPlan plan;
    group->Lookup(step, &plan, threads);
    timer->ResumeTiming();
    group->Apply(plan, /*summed=*/false, threads);
  });
}

void BM_Step(benchmark::State& state) {
  Run(state, [](Group* group, int step, Executor* threads, benchmark::State*) { group->Step(step, threads); });
}

void Settings(benchmark::internal::Benchmark* benchmark) {
  for (const int threads : {1, 2}) {
    benchmark->Args({26, 2048, 1, threads, 16})->Args({26, 512, 1, threads, 16})->Args({26, 128, 1, threads, 16});
    benchmark->Args({50, 512, 1, threads, 16})->Args({26, 2048, 10, threads, 16});
    benchmark->Args({100, 64, 1, threads, 8})->Args({26, 256, 1, threads, 32})->Args({26, 1024, 1, threads, 64});
    benchmark->Args({8, 256, 10, threads, 128});
  }
  benchmark->Unit(benchmark::kMicrosecond)->UseRealTime()->MinTime(0.5);
}

BENCHMARK(BM_Lookup)->Apply(Settings);
BENCHMARK(BM_Plan)->Apply(Settings);
BENCHMARK(BM_Gradient)->Apply(Settings);
BENCHMARK(BM_Apply)->Apply(Settings);
BENCHMARK(BM_Update)->Apply(Settings);
BENCHMARK(BM_Step)->Apply(Settings);

}  // namespace
}  // namespace multitier
