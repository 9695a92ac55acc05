// Gradients of grouped lookups and the updates that take them, against those of every member alone.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/group_lookup/group_test_util.h"
#include "cc/partition/partition.h"

namespace multitier::group_gradient_test {
namespace {

// Training by the plan is training by the entries' own gradients, to the bit, whatever else is in the group.
TEST(GroupGradientTest, PlannedApplyLeavesTheRowsOfAnUnplannedOne) {
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

TEST(GroupGradientTest, FailedUpdateNamesItsTableAndLeavesTheOthersTheirs) {
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

// The values of members are side by side in one output, with a gap before the first.
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
TEST(GroupGradientTest, MembersSideBySideHaveTheBitsOfMembersApart) {
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
      GroupGradients gradients{grads,
                               Span<float* const>(sums.data(), sums.size()),
                               Span<float* const>(weights.data(), weights.size()),
                               Span<float* const>(entries.data(), entries.size()),
                               {}};
      if (joined) gradients.strides = strides;
      GradientOfGroup(joined ? plan : apart, gradients, executor);
    }
    ASSERT_EQ(found[0], found[1]);
  }
}

TEST(GroupGradientTest, StalePlacesFindTheRowsWhereTheyAreNow) {
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

TEST(GroupGradientTest, ClippedAndWeightedGradientsAgreeWithFiniteDifferences) {
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
      GroupGradients gradients{
          Span<const float* const>(&grad, 1), Span<float* const>(&to, 1), Span<float* const>(&weights_to, 1), {}, {}};
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
          EXPECT_NEAR(sums[k * 3 + static_cast<size_t>(d)], slope(&c->matrix[static_cast<size_t>(plan.keys(0)[k] * 3 + d)]),
                      2e-2);
        }
      }
      for (size_t i = 0; i < c->weights.size(); ++i) EXPECT_NEAR(weights_gradient[i], slope(&c->weights[i]), 2e-2);
    }
  }
}

}  // namespace
}  // namespace multitier::group_gradient_test
