#include "cc/lookup/group_lookup.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cc/base/partition.h"
#include "cc/lookup/sparse_lookup.h"

namespace multitier {
namespace {

// Each task on a thread of its own.
class Threads : public Executor {
 public:
  void ParallelFor(int n, const std::function<void(int)>& task) override {
    std::vector<std::thread> threads;
    for (int i = 0; i < n; ++i) threads.emplace_back(task, i);
    for (std::thread& thread : threads) thread.join();
  }
};

std::unique_ptr<EmbeddingTable> MakeTable(const std::string& name, int dim, int num_shards = 0) {
  TableOptions options;
  options.name = name;
  options.dim = dim;
  options.num_shards = num_shards;
  options.initializer.kind = InitializerKind::kUniform;
  options.initializer.a = -1.0f;
  options.initializer.b = 1.0f;
  options.initializer.seed = 3;
  options.slots = {ColumnSpec{"accumulator", DType::kFloat32, dim, 0.1f}};
  Result<std::unique_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(options));
  EXPECT_TRUE(table.ok()) << table.status().ToString();
  return *std::move(table);
}

ApplyRequest Adagrad(Span<const int64_t> keys, const float* grads) {
  ApplyRequest request;
  request.keys = keys;
  request.grads = grads;
  request.rule = *FindUpdateRule("adagrad");
  request.slot_columns = {"accumulator"};
  request.hyper = {0.1f};
  return request;
}

// A member with everything it points to.
struct Case {
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  std::vector<EmbeddingTable*> parts;
  std::vector<float> matrix;
  std::vector<GroupUnit> units;
  std::vector<int64_t> keys, indices, rows;
  std::vector<float> weights, out, grad;
  GroupMember member;

  Case() = default;
  Case(const Case&) = delete;

  void Point(int number) {
    member.name = "member " + std::to_string(number);
    member.units = units;
    member.keys = keys;
    member.indices = indices;
    member.weights = weights;
    out.assign(static_cast<size_t>(member.batch * member.steps * member.dim), -9.0f);
    member.out = out.data();
  }
};

// `parts` tables; rows with 0 to 2 * mean entries, keys below `range`.
std::unique_ptr<Case> MakeCase(std::mt19937* random, int number, int parts, int64_t batch, int mean, int64_t range,
                               bool weighted, Combiner combiner, int dim) {
  auto made = std::make_unique<Case>();
  for (int p = 0; p < parts; ++p) {
    made->tables.push_back(MakeTable("t", dim));
    made->parts.push_back(made->tables.back().get());
    made->units.push_back(GroupUnit{made->parts.back(), nullptr, 0});
  }
  for (int64_t row = 0; row < batch; ++row) {
    const int n = mean == 1 ? 1 : static_cast<int>((*random)() % (2 * mean + 1));
    for (int i = 0; i < n; ++i) {
      made->keys.push_back(static_cast<int64_t>((*random)() % static_cast<uint64_t>(range)) - range / 4);
      made->indices.insert(made->indices.end(), {row, i});
      made->rows.push_back(row);
      if (weighted) made->weights.push_back(static_cast<float>((*random)() % 1000) / 250.0f - 1.0f);
    }
  }
  made->member.form = GroupForm::kSparse;
  made->member.batch = batch;
  made->member.dim = dim;
  made->member.combiner = combiner;
  for (int64_t i = 0; i < batch * dim; ++i) made->grad.push_back(static_cast<float>((*random)() % 2000) / 1000.0f - 1.0f);
  made->Point(number);
  return made;
}

std::vector<float> Separately(const Case& c) {
  SparseLookup lookup;
  lookup.partitions = Span<EmbeddingTable* const>(c.parts.data(), c.parts.size());
  lookup.keys = c.keys;
  lookup.batch = SparseBatch{c.rows, c.weights, c.member.batch, c.member.dim, c.member.combiner};
  lookup.max_norm = c.member.max_norm;
  std::vector<float> out(c.out.size());
  EXPECT_TRUE(LookupSparse(lookup, out.data()).ok());
  return out;
}

// batch: of every member; 0: each its own.
std::vector<std::unique_ptr<Case>> RandomGroup(std::mt19937* random, int64_t same_batch = 0) {
  std::vector<std::unique_ptr<Case>> group;
  const Combiner combiners[] = {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN};
  const int dims[] = {1, 3, 8, 16, 20};
  const int n = 1 + static_cast<int>((*random)() % 5);
  for (int i = 0; i < n; ++i) {
    const int64_t batch = same_batch > 0 ? same_batch
                          : i == 0       ? 20000  // is cut
                                         : static_cast<int64_t>((*random)() % 300);
    const int mean = static_cast<int>((*random)() % 4);
    group.push_back(MakeCase(random, i, (*random)() % 3 == 0 ? 3 : 1, batch, mean, i == 0 ? 5000 : 100, (*random)() % 3 == 0,
                             combiners[(*random)() % 3], dims[(*random)() % 5]));
  }
  return group;
}

std::vector<GroupMember> Members(const std::vector<std::unique_ptr<Case>>& group) {
  std::vector<GroupMember> members;
  for (const auto& c : group) members.push_back(c->member);
  return members;
}

TEST(GroupLookupTest, RandomGroupsReadTheBitsOfSeparateLookupsWithAndWithoutPlan) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Threads threads;
  for (int round = 0; round < 8; ++round) {
    auto group = RandomGroup(&random);
    const auto members = Members(group);
    ASSERT_TRUE(LookupGroup(members, nullptr, round % 2 ? &threads : nullptr).ok());
    for (const auto& c : group) ASSERT_EQ(c->out, Separately(*c));
    for (auto& c : group) c->out.assign(c->out.size(), -9.0f);
    GroupPlan plan;
    ASSERT_TRUE(LookupGroup(members, &plan, round % 2 ? &threads : nullptr).ok());
    for (const auto& c : group) ASSERT_EQ(c->out, Separately(*c));
  }
}

// What a plan held before, for other members, leaves no trace.
TEST(GroupLookupTest, PlanFilledAgainIsThePlanOfItsGroup) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Threads threads;
  GroupPlan used;
  for (int round = 0; round < 8; ++round) {
    auto group = RandomGroup(&random);
    for (auto& c : group) c->member.max_norm = random() % 3 == 0 ? 0.5f : -1.0f;
    const auto members = Members(group);
    std::vector<std::vector<std::vector<float>>> sums(2), weights_gradients(2);
    std::vector<std::vector<int64_t>> keys(2), counts(2);
    GroupPlan fresh;
    int number = 0;
    for (GroupPlan* plan : {&fresh, &used}) {
      ASSERT_TRUE(LookupGroup(members, plan, round % 2 ? &threads : nullptr).ok());
      for (const auto& c : group) ASSERT_EQ(c->out, Separately(*c));
      std::vector<const float*> grads;
      std::vector<float*> to, weights_to;
      for (int u = 0; u < plan->num_units(); ++u) {
        keys[number].insert(keys[number].end(), plan->keys(u).begin(), plan->keys(u).end());
        counts[number].insert(counts[number].end(), plan->counts(u).begin(), plan->counts(u).end());
        sums[number].emplace_back(plan->keys(u).size() * static_cast<size_t>(plan->dim_of_unit(u)), -9.0f);
      }
      for (const auto& c : group) {
        grads.push_back(c->grad.data());
        weights_gradients[number].emplace_back(c->weights.size(), -9.0f);
      }
      for (auto& sum : sums[number]) to.push_back(sum.data());
      for (auto& gradient : weights_gradients[number]) weights_to.push_back(gradient.empty() ? nullptr : gradient.data());
      GradientOfGroup(*plan, GroupGradients{grads, Span<float* const>(to.data(), to.size()),
                                            Span<float* const>(weights_to.data(), weights_to.size()), {}, {}});
      ++number;
    }
    ASSERT_EQ(keys[0], keys[1]);
    ASSERT_EQ(counts[0], counts[1]);
    ASSERT_EQ(sums[0], sums[1]);
    ASSERT_EQ(weights_gradients[0], weights_gradients[1]);
  }
}

// Training by the plan is training by the entries' own gradients, to the bit, whatever else is in the group.
TEST(GroupLookupTest, PlannedApplyLeavesTheRowsOfAnUnplannedOne) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Threads threads;
  auto group = RandomGroup(&random);
  std::vector<std::vector<std::unique_ptr<EmbeddingTable>>> twins;
  for (const auto& c : group) {
    twins.emplace_back();
    for (size_t p = 0; p < c->parts.size(); ++p) twins.back().push_back(MakeTable("twin", c->member.dim));
  }
  for (int step = 0; step < 3; ++step) {
    const auto members = Members(group);
    GroupPlan plan;
    ASSERT_TRUE(LookupGroup(members, &plan, &threads).ok());
    std::vector<const float*> grads;
    std::vector<std::vector<float>> sums(static_cast<size_t>(plan.num_units())), by_entry;
    std::vector<float*> to, by_entry_to;
    for (const auto& c : group) {
      grads.push_back(c->grad.data());
      by_entry.emplace_back(c->keys.size() * static_cast<size_t>(c->member.dim), -9.0f);
      by_entry_to.push_back(by_entry.back().data());
    }
    for (int u = 0; u < plan.num_units(); ++u) {
      sums[u].assign(plan.keys(u).size() * static_cast<size_t>(plan.dim_of_unit(u)), -9.0f);
      to.push_back(sums[u].data());
    }
    GroupGradients gradients;
    gradients.grads = Span<const float* const>(grads.data(), grads.size());
    gradients.sums = Span<float* const>(to.data(), to.size());
    gradients.entries_gradients = Span<float* const>(by_entry_to.data(), by_entry_to.size());
    GradientOfGroup(plan, gradients, step == 1 ? nullptr : &threads);
    std::vector<UnitUpdate> updates;
    for (size_t i = 0; i < group.size(); ++i) {
      Case& c = *group[i];
      const int first = plan.first_unit(static_cast<int>(i));
      // Steps 0 and 1 a table at a time, with and without places; step 2 all at once, sums given for some of them.
      for (size_t p = 0; p < c.parts.size(); ++p) {
        const int u = first + static_cast<int>(p);
        ApplyRequest request = Adagrad(plan.keys(u), sums[u].data());
        request.counts = plan.counts(u);
        request.distinct = true;
        if (step == 0) request.places = plan.places(u);
        if (step < 2) {
          ASSERT_TRUE(c.parts[p]->Apply(request).ok());
        } else {
          updates.push_back(UnitUpdate{u, c.parts[p], Adagrad({}, u % 3 == 0 ? sums[u].data() : nullptr)});
        }
      }
      SparseBatch batch{c.rows, c.weights, c.member.batch, c.member.dim, c.member.combiner};
      std::vector<float> entries(c.keys.size() * static_cast<size_t>(c.member.dim));
      PoolGradient(batch, c.grad.data(), entries.data());
      ASSERT_EQ(by_entry[i], entries);
      for (size_t p = 0; p < c.parts.size(); ++p) {
        std::vector<int64_t> keys;
        std::vector<float> its;
        for (size_t e = 0; e < c.keys.size(); ++e) {
          if (c.parts.size() > 1 && PartitionOf(c.keys[e], static_cast<int>(c.parts.size())) != static_cast<int>(p)) continue;
          keys.push_back(c.keys[e]);
          its.insert(its.end(), entries.begin() + static_cast<int64_t>(e) * c.member.dim,
                     entries.begin() + static_cast<int64_t>(e + 1) * c.member.dim);
        }
        ASSERT_TRUE(twins[i][p]->Apply(Adagrad(keys, its.data())).ok());
      }
    }
    ASSERT_TRUE(UpdateGroup(plan, gradients, &updates, seed % 2 == 0 ? nullptr : &threads).ok());
  }
  for (size_t i = 0; i < group.size(); ++i) {
    for (size_t p = 0; p < group[i]->parts.size(); ++p) {
      EmbeddingTable &ours = *group[i]->parts[p], &other = *twins[i][p];
      ASSERT_EQ(ours.TotalCount(), other.TotalCount());
      const Rows rows = *other.Export(true);
      const size_t dim = static_cast<size_t>(group[i]->member.dim);
      std::vector<float> values(rows.keys.size() * dim);
      std::vector<int64_t> frequencies(rows.keys.size());
      ASSERT_TRUE(ours.Lookup(rows.keys, values.data()).ok());
      ASSERT_TRUE(ours.Frequency(rows.keys, frequencies.data()).ok());
      EXPECT_EQ(frequencies, rows.frequencies);
      for (size_t k = 0; k < rows.keys.size(); ++k) {
        for (size_t d = 0; d < dim; ++d) ASSERT_EQ(values[k * dim + d], rows.data[k * 2 * dim + d]);
      }
    }
  }
}

TEST(GroupLookupTest, FailedUpdateNamesItsTableAndLeavesTheOthersTheirs) {
  std::mt19937 random(1);
  std::vector<std::unique_ptr<Case>> group;
  for (int i = 0; i < 3; ++i) group.push_back(MakeCase(&random, i, 1, 50, 2, 100, false, Combiner::kSum, 8));
  group[1]->tables[0] = MakeTable("wrong", 8);
  group[1]->parts = {group[1]->tables[0].get()};
  group[1]->units[0].table = group[1]->parts[0];
  GroupPlan plan;
  ASSERT_TRUE(LookupGroup(Members(group), &plan).ok());
  std::vector<const float*> grads;
  std::vector<UnitUpdate> updates;
  for (int i = 0; i < 3; ++i) {
    grads.push_back(group[i]->grad.data());
    updates.push_back(UnitUpdate{i, group[i]->parts[0], Adagrad({}, nullptr)});
  }
  updates[1].request.slot_columns = {"none"};
  GroupGradients gradients;
  gradients.grads = grads;
  const Status status = UpdateGroup(plan, gradients, &updates);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("table 'wrong'"), std::string::npos) << status.ToString();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(group[i]->parts[0]->TotalCount(), i == 1 ? 0 : static_cast<int64_t>(plan.keys(i).size()));
  }
}

// Where the values of members stand side by side, with a gap before the first.
struct SideBySide {
  explicit SideBySide(std::vector<GroupMember>* members) {
    for (const GroupMember& m : *members) stride += m.dim;
    out.assign(static_cast<size_t>((*members)[0].batch * stride), -9.0f);
    grad = out;
    int64_t at = kGap;
    for (GroupMember& m : *members) {
      m.out = out.data() + at;
      m.stride = stride;
      begins.push_back(at);
      at += m.dim;
    }
  }
  // The columns of one member: [batch, dim].
  std::vector<float> Of(const GroupMember& m, size_t number) const {
    std::vector<float> values;
    for (int64_t row = 0; row < m.batch; ++row) {
      const auto from = out.begin() + row * stride + begins[number];
      values.insert(values.end(), from, from + m.dim);
    }
    return values;
  }

  static constexpr int64_t kGap = 2;
  int64_t stride = kGap;
  std::vector<int64_t> begins;
  std::vector<float> out, grad;
};

// Values and gradients side by side have the bits of those apart: pooled and dense members, of tables and matrices, clipped or
// not, cut or not.
TEST(GroupLookupTest, MembersSideBySideHaveTheBitsOfMembersApart) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Threads threads;
  for (int round = 0; round < 10; ++round) {
    Executor* const executor = round % 2 ? &threads : nullptr;
    auto group = RandomGroup(&random, round < 2 ? 20000 : 1 + static_cast<int64_t>(random() % 300));
    for (auto& c : group) {
      if (random() % 3 == 0) c->member.max_norm = 0.5f;
      const bool one_a_row = static_cast<int64_t>(c->keys.size()) == c->member.batch && c->rows.back() + 1 == c->member.batch;
      if (random() % 2 == 0 && c->parts.size() == 1) {
        c->matrix.resize(static_cast<size_t>(8000 * c->member.dim));
        for (float& v : c->matrix) v = static_cast<float>(random() % 1000) / 500.0f - 1.0f;
        c->units = {GroupUnit{nullptr, c->matrix.data(), 8000}};
        for (int64_t& key : c->keys) key += 2000;
        c->Point(0);
      }
      if (one_a_row && c->weights.empty() && random() % 2 == 0) c->member.form = GroupForm::kDense;
    }
    auto members = Members(group);
    ASSERT_TRUE(LookupGroup(members, nullptr, executor).ok());
    SideBySide wide(&members);
    GroupPlan apart, plan;
    for (GroupPlan* p : {static_cast<GroupPlan*>(nullptr), &plan}) {
      wide.out.assign(wide.out.size(), -9.0f);
      ASSERT_TRUE(LookupGroup(members, p, executor).ok());
      for (size_t i = 0; i < group.size(); ++i) ASSERT_EQ(wide.Of(members[i], i), group[i]->out) << "member " << i;
      for (size_t at = 0; at < wide.out.size(); at += static_cast<size_t>(wide.stride)) {
        for (int64_t g = 0; g < SideBySide::kGap; ++g) ASSERT_EQ(wide.out[at + static_cast<size_t>(g)], -9.0f);
      }
    }
    ASSERT_TRUE(LookupGroup(Members(group), &apart, executor).ok());
    std::vector<std::vector<float>> found[2];  // of sums, weights and entries, in this order
    for (const bool joined : {false, true}) {
      std::vector<const float*> grads;
      std::vector<float*> sums, weights, entries;
      std::vector<int64_t> strides;
      auto& to = found[joined];
      to.resize(static_cast<size_t>(plan.num_units()) + 2 * group.size());
      for (int u = 0; u < plan.num_units(); ++u) {
        to[static_cast<size_t>(u)].assign(plan.keys(u).size() * static_cast<size_t>(plan.dim_of_unit(u)), -9.0f);
        sums.push_back(to[static_cast<size_t>(u)].data());
      }
      for (size_t i = 0; i < group.size(); ++i) {
        const Case& c = *group[i];
        std::vector<float>* const its = &to[static_cast<size_t>(plan.num_units()) + 2 * i];
        its[0].assign(c.weights.size(), -9.0f);
        its[1].assign(c.keys.size() * static_cast<size_t>(c.member.dim), -9.0f);
        weights.push_back(c.weights.empty() ? nullptr : its[0].data());
        entries.push_back(its[1].data());
        strides.push_back(wide.stride);
        const int64_t dim = c.member.dim;
        for (int64_t row = 0; row < c.member.batch && joined; ++row) {
          std::copy_n(c.grad.begin() + row * dim, dim, wide.grad.begin() + row * wide.stride + wide.begins[i]);
        }
        grads.push_back(joined ? wide.grad.data() + wide.begins[i] : c.grad.data());
      }
      GroupGradients gradients{grads, Span<float* const>(sums.data(), sums.size()),
                               Span<float* const>(weights.data(), weights.size()),
                               Span<float* const>(entries.data(), entries.size()), {}};
      if (joined) gradients.strides = strides;
      GradientOfGroup(joined ? plan : apart, gradients, executor);
    }
    ASSERT_EQ(found[0], found[1]);
  }
}

TEST(GroupLookupTest, StalePlacesFindTheRowsWhereTheyAreNow) {
  const auto table = MakeTable("t", 2, 1);
  std::vector<int64_t> keys = {1, 2, 3, 4};
  std::vector<float> grads(8, 1.0f), values(8);
  ASSERT_TRUE(table->Apply(Adagrad(keys, grads.data())).ok());
  std::vector<uint32_t> places(4);
  ASSERT_TRUE(table->Lookup(keys, values.data(), nullptr, places.data()).ok());
  for (const uint32_t place : places) EXPECT_NE(place, EmbeddingTable::kNoPlace);
  // 2 and 3 go; 30 takes a place of theirs, 3 comes back at the other's.
  const std::vector<int64_t> removed = {3, 2};
  ASSERT_TRUE(table->Remove(removed, nullptr).ok());
  const std::vector<int64_t> others = {30, 3};
  ASSERT_TRUE(table->Apply(Adagrad(others, grads.data())).ok());
  ApplyRequest request = Adagrad(keys, grads.data());
  request.distinct = true;
  request.places = places;
  ASSERT_TRUE(table->Apply(request).ok());
  std::vector<int64_t> frequencies(5);
  const std::vector<int64_t> all = {1, 2, 3, 4, 30};
  ASSERT_TRUE(table->Frequency(all, frequencies.data()).ok());
  EXPECT_EQ(frequencies, (std::vector<int64_t>{2, 1, 2, 2, 1}));
  EXPECT_EQ(table->TotalCount(), 5);
  // A table that was emptied since, and places of no table at all.
  ASSERT_TRUE(table->Clear().ok());
  places[0] = 4000000000u;
  ASSERT_TRUE(table->Apply(request).ok());
  EXPECT_EQ(table->TotalCount(), 4);
  request.distinct = false;
  EXPECT_EQ(table->Apply(request).code(), StatusCode::kInvalidArgument);
}

TEST(GroupLookupTest, SequencesStandAtTheirStepsAndAreZeroElsewhere) {
  Case c;
  c.matrix = {1, 2, 3, 4, 5, 6};
  c.units = {GroupUnit{nullptr, c.matrix.data(), 3}};
  c.keys = {0, 2, 1};
  c.member.form = GroupForm::kSequence;
  c.member.dim = 2;
  c.member.batch = 3;
  c.member.steps = 2;
  c.indices = {0, 0, 0, 1, 2, 0};
  c.Point(0);
  const std::vector<float> expected = {1, 2, 5, 6, 0, 0, 0, 0, 3, 4, 0, 0};
  GroupPlan plan;
  ASSERT_TRUE(LookupGroup(Span<const GroupMember>(&c.member, 1), nullptr).ok());
  EXPECT_EQ(c.out, expected);
  c.Point(0);
  ASSERT_TRUE(LookupGroup(Span<const GroupMember>(&c.member, 1), &plan).ok());
  EXPECT_EQ(c.out, expected);
  c.member.form = GroupForm::kRaggedSequence;
  c.indices = {0, 2, 2, 3};
  c.Point(0);
  ASSERT_TRUE(LookupGroup(Span<const GroupMember>(&c.member, 1), nullptr).ok());
  EXPECT_EQ(c.out, expected);
}

TEST(GroupLookupTest, MatricesInPartsAreCutAsTensorFlowCutsThem) {
  Case c;  // 5 rows in 2 parts: div 0 1 2 | 3 4, mod 0 2 4 | 1 3
  c.matrix = {0, 1, 2, 3, 4};
  c.keys = {4, 0, 3, 1, 2};
  c.member.dim = 1;
  c.member.batch = 5;
  c.units = {GroupUnit{nullptr, c.matrix.data(), 3}, GroupUnit{nullptr, c.matrix.data() + 3, 2}};
  c.member.routing = Routing::kDiv;
  c.Point(0);
  ASSERT_TRUE(LookupGroup(Span<const GroupMember>(&c.member, 1), nullptr).ok());
  EXPECT_EQ(c.out, (std::vector<float>{4, 0, 3, 1, 2}));
  c.member.routing = Routing::kMod;
  ASSERT_TRUE(LookupGroup(Span<const GroupMember>(&c.member, 1), nullptr).ok());
  EXPECT_EQ(c.out, (std::vector<float>{2, 0, 4, 3, 1}));
  c.keys[1] = 5;
  c.Point(7);
  const Status status = LookupGroup(Span<const GroupMember>(&c.member, 1), nullptr);
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("member 7: expected ids in [0, 5), found 5"), std::string::npos) << status.message();
}

TEST(GroupLookupTest, ClippedAndWeightedGradientsAgreeWithFiniteDifferences) {
  std::mt19937 random(5);
  for (const Combiner combiner : {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN}) {
    for (const float max_norm : {-1.0f, 0.7f}) {
      auto c = MakeCase(&random, 0, 1, 6, 2, 12, false, combiner, 3);
      c->matrix.resize(36);
      for (float& v : c->matrix) v = static_cast<float>(random() % 1000) / 500.0f - 1.0f;
      c->units = {GroupUnit{nullptr, c->matrix.data(), 12}};
      for (int64_t& key : c->keys) key += 3;
      for (size_t i = 0; i < c->keys.size(); ++i) c->weights.push_back(0.5f + static_cast<float>(random() % 100) / 50.0f);
      c->member.max_norm = max_norm;
      c->Point(0);
      const Span<const GroupMember> group(&c->member, 1);
      GroupPlan plan;
      ASSERT_TRUE(LookupGroup(group, &plan).ok());
      auto loss = [&] {
        EXPECT_TRUE(LookupGroup(group, nullptr).ok());
        double sum = 0;
        for (size_t i = 0; i < c->out.size(); ++i) sum += static_cast<double>(c->out[i]) * c->grad[i];
        return sum;
      };
      std::vector<float> sums(plan.keys(0).size() * 3), weights_gradient(c->weights.size());
      const float* grad = c->grad.data();
      float *to = sums.data(), *weights_to = weights_gradient.data();
      GroupGradients gradients{Span<const float* const>(&grad, 1), Span<float* const>(&to, 1),
                               Span<float* const>(&weights_to, 1), {}, {}};
      GradientOfGroup(plan, gradients);
      auto slope = [&](float* at) {
        const float was = *at, step = 1e-2f;
        *at = was + step;
        const double above = loss();
        *at = was - step;
        const double below = loss();
        *at = was;
        return (above - below) / (2 * step);
      };
      for (size_t k = 0; k < plan.keys(0).size(); ++k) {
        for (int d = 0; d < 3; ++d) {
          EXPECT_NEAR(sums[k * 3 + static_cast<size_t>(d)],
                  slope(&c->matrix[static_cast<size_t>(plan.keys(0)[k] * 3 + d)]), 2e-2);
        }
      }
      for (size_t i = 0; i < c->weights.size(); ++i) EXPECT_NEAR(weights_gradient[i], slope(&c->weights[i]), 2e-2);
    }
  }
}

TEST(GroupLookupTest, BadMembersAreNamedAndGroupsMayBeEmpty) {
  std::mt19937 random(1);
  auto refused = [&](const char* expected, auto spoil) {
    auto good = MakeCase(&random, 0, 1, 4, 2, 10, false, Combiner::kSum, 4);
    auto bad = MakeCase(&random, 1, 1, 4, 1, 10, true, Combiner::kSum, 4);
    spoil(bad.get());
    bad->Point(1);
    const std::vector<GroupMember> members = {good->member, bad->member};
    GroupPlan plan;
    for (GroupPlan* p : {static_cast<GroupPlan*>(nullptr), &plan}) {
      const Status status = LookupGroup(members, p);
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
      EXPECT_NE(status.message().find(std::string("member 1: ") + expected), std::string::npos) << status.message();
    }
  };
  refused("expected 4 weights", [](Case* c) { c->weights.pop_back(); });
  refused("expected one row index for each of 4", [](Case* c) { c->indices.pop_back(); });
  refused("expected rows in [0, 4), found indices[3] = 4", [](Case* c) { c->indices[6] = 4; });
  refused("expected indices in row-major order, found indices[2]", [](Case* c) { c->indices[4] = 0; });
  refused("expected dim 5, found 4 in 't'", [](Case* c) { c->member.dim = 5; });
  refused("expected row splits from 0 to 4", [](Case* c) {
    c->member.form = GroupForm::kRagged;
    c->indices = {0, 2, 1, 3, 4};
  });
  refused("expected steps in [0, 1), found indices[2] = [2, 1]", [](Case* c) {
    c->member.form = GroupForm::kSequence;
    c->indices[5] = 1;
  });
  refused("expected no weights with dense ids", [](Case* c) { c->member.form = GroupForm::kDense; });
  auto none = MakeCase(&random, 0, 1, 3, 1, 10, false, Combiner::kMean, 4);
  none->keys.clear();
  none->indices.clear();
  none->Point(0);
  ASSERT_TRUE(LookupGroup(Span<const GroupMember>(&none->member, 1), nullptr).ok());
  EXPECT_EQ(none->out, std::vector<float>(12, 0.0f));
  none->Point(0);
  GroupPlan plan;
  ASSERT_TRUE(LookupGroup(Span<const GroupMember>(&none->member, 1), &plan).ok());
  EXPECT_EQ(none->out, std::vector<float>(12, 0.0f));
  EXPECT_EQ(plan.keys(0).size(), 0u);
}

}  // namespace
}  // namespace multitier
