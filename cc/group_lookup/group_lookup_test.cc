#include "cc/group_lookup/group_lookup.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "cc/group_lookup/group_test_util.h"

namespace multitier::group_lookup_test {
namespace {

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
      GradientOfGroup(*plan, GroupGradients{grads,
                                            Span<float* const>(to.data(), to.size()),
                                            Span<float* const>(weights_to.data(), weights_to.size()),
                                            {},
                                            {}});
      ++number;
    }
    ASSERT_EQ(keys[0], keys[1]);
    ASSERT_EQ(counts[0], counts[1]);
    ASSERT_EQ(sums[0], sums[1]);
    ASSERT_EQ(weights_gradients[0], weights_gradients[1]);
  }
}

// Rows of 128 elements: a slice has 256 entries.
TEST(GroupLookupTest, BagsOfWideRowsAreReadInSlicesWithTheSameBits) {
  std::mt19937 random(11);
  for (const int parts : {1, 3}) {
    for (const bool weighted : {false, true}) {
      auto c = MakeCase(&random, 0, parts, /*batch=*/300, /*mean=*/5, /*range=*/500, weighted, Combiner::kMean, /*dim=*/128);
      for (EmbeddingTable* part : c->parts) {
        std::vector<int64_t> keys(200);
        std::iota(keys.begin(), keys.end(), 0);
        const std::vector<float> grads(keys.size() * 128, 0.5f);
        ASSERT_TRUE(part->Apply(Adagrad(keys, grads.data())).ok());
      }
      for (const float max_norm : {-1.0f, 2.0f}) {
        c->member.max_norm = max_norm;
        ASSERT_TRUE(LookupGroup(Span<const GroupMember>(&c->member, 1), nullptr).ok());
        EXPECT_EQ(c->out, Separately(*c)) << parts << " parts, weights " << weighted << ", max_norm " << max_norm;
      }
    }
  }
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
}  // namespace multitier::group_lookup_test
