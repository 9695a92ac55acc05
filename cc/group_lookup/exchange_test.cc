// Exchanges between an asker, or several, and homes, against the local group.

#include "cc/group_lookup/exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/group_lookup/group_test_util.h"
#include "cc/row/value_column.h"

namespace multitier::exchange_test {
namespace {

using Group = std::vector<std::unique_ptr<Case>>;
using Tables = std::vector<std::vector<std::unique_ptr<EmbeddingTable>>>;  // by member and part

// Members of every form; keys that repeat, INT64_MIN, empty members and batches, tables that are pooled at home, and one that
// is cut. with_tables: half of the members give table numbers.
Group MakeGroup(std::mt19937* random, int n, bool with_tables) {
  Group group;
  const Combiner combiners[] = {Combiner::kSum, Combiner::kMean, Combiner::kSqrtN};
  const int dims[] = {1, 3, 8, 16, 20};
  for (int i = 0; i < n; ++i) {
    const int64_t batch = i == 0 ? 12000 : (*random)() % 6 == 0 ? 0 : static_cast<int64_t>((*random)() % 100);
    const bool whole = (*random)() % 2 == 0;
    group.push_back(MakeCase(random, i, whole ? 1 : 1 + static_cast<int>((*random)() % 4), batch,
                             static_cast<int>((*random)() % 8), i == 0 ? 30000 : 400, (*random)() % 3 == 0,
                             combiners[(*random)() % 3], dims[(*random)() % 5]));
    Case& c = *group.back();
    if (!c.keys.empty()) c.keys[(*random)() % c.keys.size()] = std::numeric_limits<int64_t>::min();
    if ((*random)() % 3 == 0) c.member.max_norm = 0.5f;
    if (with_tables && i % 2 == 0) c.GiveNumbers(random);
    Reform(random, static_cast<GroupForm>((*random)() % 5), i, &c);
  }
  return group;
}

Tables TwinsOf(const Group& group) {
  Tables twins;
  for (const auto& c : group) {
    twins.emplace_back();
    for (size_t p = 0; p < c->parts.size(); ++p) twins.back().push_back(MakeTable("twin", c->member.dim, 0, c->num_tables));
  }
  return twins;
}

// What an asker's step keeps.
struct Asker {
  ExchangePlan plan;
  std::vector<std::vector<int64_t>> requests;
  std::vector<std::vector<uint8_t>> rows, sums;
  std::vector<std::vector<float>> values, weights_gradients;

  static WireIn In(DType wire, const std::vector<std::vector<uint8_t>>& bytes) {
    WireIn in{wire, {}};
    for (const auto& b : bytes) in.data.push_back(b.data());
    return in;
  }
  static WireOut Out(DType wire, std::vector<std::vector<uint8_t>>* bytes) {
    WireOut out{wire, {}};
    for (auto& b : *bytes) out.data.push_back(b.data());
    return out;
  }

  void Ask(const Group& group, const std::vector<int>& homes, int num_homes, DType wire, Executor* executor) {
    std::vector<GroupMember> members = Members(group);
    std::vector<GroupUnit> empty(homes.size());
    for (GroupMember& m : members) m.units = Span<const GroupUnit>(empty.data(), m.units.size());
    const Status routed = RouteGroup(members, homes, num_homes, wire, &plan, executor);
    ASSERT_TRUE(routed.ok()) << routed.ToString();
    requests.assign(static_cast<size_t>(num_homes), {});
    rows.assign(static_cast<size_t>(num_homes), {});
    std::vector<int64_t*> to;
    for (int h = 0; h < num_homes; ++h) {
      requests[h].assign(static_cast<size_t>(plan.words(h)) + 3, -1);  // with padding
      rows[h].resize(static_cast<size_t>(plan.elements(h)) * DTypeSize(wire));
      to.push_back(requests[h].data());
    }
    WriteRequests(plan, Span<int64_t* const>(to.data(), to.size()), executor);
  }

  void Pool(const Group& group, DType wire, Executor* executor) {
    values.clear();
    std::vector<PooledValues> to;
    for (const auto& c : group) values.emplace_back(c->out.size(), -9.0f);
    for (size_t i = 0; i < group.size(); ++i) to.push_back(PooledValues{values[i].data(), group[i]->member.dim});
    const Status pooled = PoolGroup(In(wire, rows), to, &plan, executor);
    ASSERT_TRUE(pooled.ok()) << pooled.ToString();
    EXPECT_EQ(PoolGroup(In(wire, rows), to, &plan, executor).code(), StatusCode::kInternal);
  }

  void Differentiate(const Group& group, DType wire, Executor* executor) {
    sums = rows;
    weights_gradients.clear();
    std::vector<const float*> grads;
    std::vector<float*> weights_to;
    for (const auto& c : group) {
      grads.push_back(c->grad.data());
      weights_gradients.emplace_back(c->weights.size(), -9.0f);
    }
    for (auto& w : weights_gradients) weights_to.push_back(w.empty() ? nullptr : w.data());
    GroupGradients gradients;
    gradients.grads = grads;
    gradients.weights_gradients = Span<float* const>(weights_to.data(), weights_to.size());
    ASSERT_TRUE(GradientForHomes(plan, gradients, Out(wire, &sums), executor).ok());
  }
};

// The parts at a home, in the order of the group.
struct Home {
  std::vector<ServedPart> parts;
  std::vector<int> dims;
  GroupPlan plan;
  std::vector<Request> requests;  // of all askers

  void Serve(int number, std::vector<Asker*> askers, DType wire, Executor* executor) {
    requests.clear();
    WireOut rows{wire, {}};
    for (Asker* asker : askers) {
      Result<Request> parsed = ParseRequest(asker->requests[static_cast<size_t>(number)]);
      ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
      requests.push_back(*std::move(parsed));
      ASSERT_EQ(requests.back().elements(), asker->plan.elements(number));
      rows.data.push_back(asker->rows[static_cast<size_t>(number)].data());
    }
    ASSERT_TRUE(CheckRequests(requests, dims).ok());
    // Without a plan a home answers the same.
    const Status read = ServeLookup(parts, requests, ReadFor::kTraining, nullptr, rows, executor);
    ASSERT_TRUE(read.ok()) << read.ToString();
    std::vector<std::vector<uint8_t>> first;
    for (Asker* asker : askers) first.push_back(asker->rows[static_cast<size_t>(number)]);
    ASSERT_TRUE(ServeLookup(parts, requests, ReadFor::kTraining, &plan, rows, executor).ok());
    for (size_t a = 0; a < askers.size(); ++a) ASSERT_EQ(first[a], askers[a]->rows[static_cast<size_t>(number)]);
  }

  void Train(int number, std::vector<Asker*> askers, DType wire, Executor* executor) {
    WireIn sums{wire, {}};
    for (Asker* asker : askers) sums.data.push_back(asker->sums[static_cast<size_t>(number)].data());
    std::vector<std::vector<float>> grads;
    std::vector<float*> to;
    std::vector<const float*> from;
    std::vector<UnitUpdate> updates;
    for (size_t u = 0; u < parts.size(); ++u) {
      grads.emplace_back(static_cast<size_t>(RowsOfPart(requests, u) * dims[u]), -9.0f);
      updates.push_back(UnitUpdate{static_cast<int>(u), parts[u].table, Adagrad({}, nullptr)});
    }
    for (auto& g : grads) to.push_back(g.data());
    for (auto& g : grads) from.push_back(g.data());
    GradientsOfParts(requests, sums, Span<float* const>(to.data(), to.size()), executor);
    GroupGradients gradients;
    gradients.grads = from;
    ASSERT_TRUE(UpdateGroup(plan, gradients, &updates, executor).ok());
  }
};

std::vector<Home> HomesOf(const Tables& tables, const std::vector<int>& homes, int num_homes) {
  std::vector<Home> made(static_cast<size_t>(num_homes));
  size_t unit = 0;
  for (const auto& parts : tables) {
    for (const auto& table : parts) {
      Home& home = made[static_cast<size_t>(homes[unit++])];
      home.parts.push_back(ServedPart{StrCat("part ", unit), table.get()});
      home.dims.push_back(table->dim());
    }
  }
  return made;
}

std::vector<int> RandomHomes(std::mt19937* random, const Group& group, int num_homes) {
  std::vector<int> homes;
  for (const auto& c : group) {
    for (size_t p = 0; p < c->parts.size(); ++p) homes.push_back(static_cast<int>((*random)() % num_homes));
  }
  return homes;
}

// Trains the cases' own tables by the local group.
void TrainLocally(const Group& group, std::vector<std::vector<float>>* weights_gradients) {
  GroupPlan plan;
  ASSERT_TRUE(LookupGroup(Members(group), &plan).ok());
  std::vector<const float*> grads;
  std::vector<float*> weights_to, sums(static_cast<size_t>(plan.num_units()), nullptr);
  std::vector<UnitUpdate> updates;
  weights_gradients->clear();
  for (size_t i = 0; i < group.size(); ++i) {
    grads.push_back(group[i]->grad.data());
    weights_gradients->emplace_back(group[i]->weights.size(), -9.0f);
    for (size_t p = 0; p < group[i]->parts.size(); ++p) {
      updates.push_back(
          UnitUpdate{plan.first_unit(static_cast<int>(i)) + static_cast<int>(p), group[i]->parts[p], Adagrad({}, nullptr)});
    }
  }
  for (auto& w : *weights_gradients) weights_to.push_back(w.empty() ? nullptr : w.data());
  GroupGradients gradients;
  gradients.grads = grads;
  gradients.sums = Span<float* const>(sums.data(), sums.size());
  gradients.weights_gradients = Span<float* const>(weights_to.data(), weights_to.size());
  GradientOfGroup(plan, gradients);
  ASSERT_TRUE(UpdateGroup(plan, gradients, &updates).ok());
}

void ExpectSameRows(const Group& group, const Tables& tables) {
  for (size_t i = 0; i < group.size(); ++i) {
    for (size_t p = 0; p < group[i]->parts.size(); ++p) {
      const Rows expected = *group[i]->parts[p]->Export(true), found = *tables[i][p]->Export(true);
      const size_t width = expected.keys.empty() ? 0 : expected.data.size() / expected.keys.size();
      std::map<int64_t, std::pair<int64_t, std::vector<float>>> rows;
      for (size_t k = 0; k < expected.keys.size(); ++k) {
        const float* const data = expected.data.data() + k * width;
        rows[expected.keys[k]] = {expected.frequencies[k], std::vector<float>(data, data + width)};
      }
      ASSERT_EQ(found.keys.size(), expected.keys.size());
      for (size_t k = 0; k < found.keys.size(); ++k) {
        const float* const data = found.data.data() + k * width;
        const auto& row = rows[found.keys[k]];
        ASSERT_EQ(found.frequencies[k], row.first);
        ASSERT_EQ(std::vector<float>(data, data + width), row.second) << "member " << i << " key " << found.keys[k];
      }
    }
  }
}

// Gives the number of tables that were pooled at their homes.
int CompareWithTheLocalGroup(unsigned seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Threads threads;
  Asker asker;  // its plan is used again
  int pooled = 0;
  for (const int num_homes : {1, 2, 3, 7}) {
    const Group group = MakeGroup(&random, 12, num_homes < 7);
    const Tables twins = TwinsOf(group);
    const std::vector<int> placed = RandomHomes(&random, group, num_homes);
    std::vector<Home> homes = HomesOf(twins, placed, num_homes);
    for (int step = 0; step < 3; ++step) {
      Executor* const executor = step == 1 ? nullptr : &threads;
      EXPECT_TRUE(LookupGroup(Members(group), nullptr).ok());
      asker.Ask(group, placed, num_homes, DType::kFloat32, executor);
      for (int h = 0; h < num_homes; ++h) homes[h].Serve(h, {&asker}, DType::kFloat32, executor);
      for (const Home& home : homes) {
        for (const ReadPart& part : home.requests[0].parts) pooled += part.pooled;
      }
      asker.Pool(group, DType::kFloat32, executor);
      for (size_t i = 0; i < group.size(); ++i) {
        EXPECT_EQ(asker.values[i], group[i]->out) << "member " << i;
      }
      asker.Differentiate(group, DType::kFloat32, executor);
      for (int h = 0; h < num_homes; ++h) homes[h].Train(h, {&asker}, DType::kFloat32, executor);
      std::vector<std::vector<float>> weights_gradients;
      TrainLocally(group, &weights_gradients);
      EXPECT_EQ(asker.weights_gradients, weights_gradients);
    }
    ExpectSameRows(group, twins);
  }
  return pooled;
}

TEST(ExchangeTest, AnyNumberOfHomesReadsAndTrainsTheBitsOfTheLocalGroup) {
  CompareWithTheLocalGroup(std::random_device()());
  EXPECT_GT(CompareWithTheLocalGroup(1), 0);  // of another seed there may be none
}

// Each asker reads what it would alone. A home trains a key once, with the sums of all askers in their order.
TEST(ExchangeTest, TwoAskersTrainAKeyOnceWithTheSumOfTheirGradients) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  Threads threads;
  for (int round = 0; round < 4; ++round) {
    // The second group has the first one's tables, and other batches.
    Group groups[2] = {MakeGroup(&random, 6, false), {}};
    for (size_t i = 0; i < groups[0].size(); ++i) {
      const Case& like = *groups[0][i];
      groups[1].push_back(MakeCase(&random, static_cast<int>(i), 1, static_cast<int64_t>(random() % 60), 6, 400, false,
                                   like.member.combiner, like.member.dim));
      Case& c = *groups[1].back();
      c.parts = like.parts;
      c.units = like.units;
      c.member.max_norm = like.member.max_norm;
      Reform(&random, random() % 2 == 0 ? GroupForm::kSparse : GroupForm::kDense, static_cast<int>(i), &c);
      c.member.combiner = like.member.combiner;
    }
    const Tables twins = TwinsOf(groups[0]);
    const std::vector<int> placed = RandomHomes(&random, groups[0], 2);
    std::vector<Home> homes = HomesOf(twins, placed, 2);
    Asker askers[2];
    for (int a = 0; a < 2; ++a) {
      ASSERT_TRUE(LookupGroup(Members(groups[a]), nullptr).ok());
      askers[a].Ask(groups[a], placed, 2, DType::kFloat32, &threads);
    }
    for (int h = 0; h < 2; ++h) homes[h].Serve(h, {&askers[0], &askers[1]}, DType::kFloat32, &threads);
    for (int a = 0; a < 2; ++a) {
      askers[a].Pool(groups[a], DType::kFloat32, &threads);
      for (size_t i = 0; i < groups[a].size(); ++i) ASSERT_EQ(askers[a].values[i], groups[a][i]->out);
      askers[a].Differentiate(groups[a], DType::kFloat32, &threads);
    }
    // The same by an update with the entries of both: sums of keys, or of a part that is pooled at home, all occurrences.
    GroupPlan plans[2];
    for (int a = 0; a < 2; ++a) ASSERT_TRUE(LookupGroup(Members(groups[a]), &plans[a]).ok());
    std::vector<size_t> part_of(2, 0);
    size_t unit = 0;
    for (size_t i = 0; i < groups[0].size(); ++i) {
      const size_t dim = static_cast<size_t>(groups[0][i]->member.dim);
      for (size_t p = 0; p < groups[0][i]->parts.size(); ++p, ++unit) {
        const int home = placed[unit];
        const size_t at = part_of[static_cast<size_t>(home)]++;
        std::vector<int64_t> keys, counts;
        std::vector<float> grads;
        for (int a = 0; a < 2; ++a) {
          const Case& c = *groups[a][i];
          const ReadPart& part = homes[home].requests[a].parts[at];
          std::vector<float> own(part.pooled ? c.keys.size() * dim : part.keys * dim);
          if (part.pooled) {
            keys.insert(keys.end(), c.keys.begin(), c.keys.end());
            counts.insert(counts.end(), c.keys.size(), 1);
            PoolGradient(SparseBatch{c.rows, {}, c.member.batch, c.member.dim, c.member.combiner}, c.grad.data(), own.data());
          } else {
            const int u = static_cast<int>(unit);
            keys.insert(keys.end(), plans[a].keys(u).begin(), plans[a].keys(u).end());
            counts.insert(counts.end(), plans[a].counts(u).begin(), plans[a].counts(u).end());
            std::vector<const float*> one(groups[a].size(), nullptr);
            std::vector<float*> to(static_cast<size_t>(plans[a].num_units()), nullptr);
            one[i] = c.grad.data();
            to[unit] = own.data();
            GroupGradients gradients;
            gradients.grads = one;
            gradients.sums = Span<float* const>(to.data(), to.size());
            GradientOfGroup(plans[a], gradients);
          }
          grads.insert(grads.end(), own.begin(), own.end());
        }
        ApplyRequest request = Adagrad(keys, grads.data());
        request.counts = counts;
        ASSERT_TRUE(groups[0][i]->parts[p]->Apply(request).ok());
      }
    }
    for (int h = 0; h < 2; ++h) homes[h].Train(h, {&askers[0], &askers[1]}, DType::kFloat32, &threads);
    ExpectSameRows(groups[0], twins);
  }
}

// Of a key that several entries of several askers have, the first entry of the first asker chooses the table: in what all read,
// and in what the new row begins with.
TEST(ExchangeTest, TheFirstEntryOfAKeyInTheWorldChoosesItsTable) {
  std::mt19937 random(9);
  for (const int parts : {1, 2}) {
    Group groups[2];
    Asker askers[2];
    std::map<int64_t, uint16_t> first;
    const std::vector<int> placed(static_cast<size_t>(parts), 0);
    for (int a = 0; a < 2; ++a) {
      groups[a].push_back(MakeCase(&random, 0, parts, 6, 20, 30, false, Combiner::kSum, 16));
      Case& c = *groups[a][0];
      c.GiveNumbers(&random);
      c.Point(0);
      c.grad.assign(c.grad.size(), 0.0f);  // rows stay as they begin
      askers[a].Ask(groups[a], placed, 1, DType::kFloat32, nullptr);
      for (size_t e = 0; e < c.keys.size(); ++e) c.numbers[e] = first.emplace(c.keys[e], c.numbers[e]).first->second;
      ASSERT_TRUE(LookupGroup(Members(groups[a]), nullptr).ok());
    }
    const Tables twins = TwinsOf(groups[0]);
    std::vector<Home> homes = HomesOf(twins, placed, 1);
    Home& home = homes[0];
    home.Serve(0, {&askers[0], &askers[1]}, DType::kFloat32, nullptr);
    ASSERT_EQ(home.requests[0].parts[0].pooled, parts == 1);
    for (int a = 0; a < 2; ++a) {
      askers[a].Pool(groups[a], DType::kFloat32, nullptr);
      ASSERT_EQ(askers[a].values[0], groups[a][0]->out);
      askers[a].Differentiate(groups[a], DType::kFloat32, nullptr);
    }
    home.Train(0, {&askers[0], &askers[1]}, DType::kFloat32, nullptr);
    for (int a = 0; a < 2; ++a) {
      for (uint16_t& number : groups[a][0]->numbers) number = static_cast<uint16_t>((number + 1) % 3);
      askers[a].Ask(groups[a], placed, 1, DType::kFloat32, nullptr);
      home.Serve(0, {&askers[a]}, DType::kFloat32, nullptr);
      askers[a].Pool(groups[a], DType::kFloat32, nullptr);
      ASSERT_EQ(askers[a].values[0], groups[a][0]->out);  // a row that is there has no table
    }
  }
}

// A shorter type of wire rounds a row and a sum once each; pooling and updates are in float32.
TEST(ExchangeTest, ShorterWireRoundsRowsAndSumsOnce) {
  std::mt19937 random(5);
  for (const DType wire : {DType::kBFloat16, DType::kFloat16}) {
    Group group;
    group.push_back(MakeCase(&random, 0, 2, 40, 3, 60, true, Combiner::kMean, 8));
    group.push_back(MakeCase(&random, 1, 1, 5, 8, 400, false, Combiner::kSum, 16));  // pooled at home
    const std::vector<int> placed = {0, 1, 1};
    const Tables twins = TwinsOf(group);
    std::vector<Home> homes = HomesOf(twins, placed, 2);
    Asker asker;
    asker.Ask(group, placed, 2, wire, nullptr);
    for (int h = 0; h < 2; ++h) homes[h].Serve(h, {&asker}, wire, nullptr);
    ASSERT_TRUE(homes[1].requests[0].parts[1].pooled);
    asker.Pool(group, wire, nullptr);
    asker.Differentiate(group, wire, nullptr);
    const auto rounded = [wire](std::vector<float> values) {
      RoundValues(wire, values.data(), values.size());
      return values;
    };
    Case& c = *group[0];
    GroupPlan plan;
    ASSERT_TRUE(LookupGroup(Members(group), &plan).ok());
    EXPECT_EQ(asker.values[1], rounded(group[1]->out));
    // Member 0, whose rows are pooled from rounded values.
    std::map<int64_t, std::vector<float>> rows;
    std::vector<float> values;
    for (const int64_t key : c.keys) {
      std::vector<float> row(8);
      ASSERT_TRUE(twins[0][0]->Lookup(Span<const int64_t>(&key, 1), row.data()).ok());
      row = rounded(row);
      values.insert(values.end(), row.begin(), row.end());
    }
    std::vector<float> pooled(c.out.size());
    Pool(SparseBatch{c.rows, c.weights, c.member.batch, 8, c.member.combiner}, EntryValues{values.data(), nullptr},
         pooled.data());
    EXPECT_EQ(asker.values[0], pooled);
    std::vector<float> expected;
    std::vector<const float*> grads = {c.grad.data(), nullptr};
    std::vector<std::vector<float>> sums;
    std::vector<float*> to;
    for (int u = 0; u < 2; ++u) sums.emplace_back(plan.keys(u).size() * 8);
    for (auto& sum : sums) to.push_back(sum.data());
    to.push_back(nullptr);
    GroupGradients gradients;
    gradients.grads = grads;
    gradients.sums = Span<float* const>(to.data(), to.size());
    GradientOfGroup(plan, gradients);
    std::vector<float> found(sums[0].size());
    ReadColumn(wire, asker.sums[0].data(), found.size(), found.data());
    EXPECT_EQ(found, rounded(sums[0]));
    for (int h = 0; h < 2; ++h) homes[h].Train(h, {&asker}, wire, nullptr);
    EXPECT_EQ(twins[0][0]->TotalCount(), static_cast<int64_t>(plan.keys(0).size()));
  }
}

TEST(ExchangeTest, MembersWithoutAGradientGiveZeros) {
  std::mt19937 random(7);
  Group group;
  for (int i = 0; i < 2; ++i) group.push_back(MakeCase(&random, i, 1, 30, 2, 100, false, Combiner::kSum, 4));
  Asker asker;
  const Tables twins = TwinsOf(group);
  std::vector<Home> homes = HomesOf(twins, {0, 0}, 1);
  asker.Ask(group, {0, 0}, 1, DType::kFloat32, nullptr);
  homes[0].Serve(0, {&asker}, DType::kFloat32, nullptr);
  asker.Pool(group, DType::kFloat32, nullptr);
  asker.sums = asker.rows;
  GroupGradients gradients;
  const std::vector<const float*> grads = {nullptr, group[1]->grad.data()};
  gradients.grads = grads;
  ASSERT_TRUE(GradientForHomes(asker.plan, gradients, Asker::Out(DType::kFloat32, &asker.sums)).ok());
  const int64_t first = homes[0].requests[0].parts[0].elements();
  std::vector<float> sums(static_cast<size_t>(asker.plan.elements(0)));
  std::memcpy(sums.data(), asker.sums[0].data(), asker.sums[0].size());
  EXPECT_TRUE(std::all_of(sums.begin(), sums.begin() + first, [](float sum) { return sum == 0.0f; }));
  EXPECT_FALSE(std::all_of(sums.begin() + first, sums.end(), [](float sum) { return sum == 0.0f; }));
}

TEST(ExchangeTest, RefusesHomesThatAreNot) {
  std::mt19937 random(1);
  Group group;
  group.push_back(MakeCase(&random, 0, 2, 3, 2, 10, false, Combiner::kSum, 4));
  std::vector<GroupMember> members = Members(group);
  ExchangePlan plan;
  EXPECT_EQ(RouteGroup(members, std::vector<int>{0, 2}, 2, DType::kFloat32, &plan).message(),
            "exchange: expected homes in [0, 2), found 2");
  EXPECT_EQ(RouteGroup(members, std::vector<int>{0}, 2, DType::kFloat32, &plan).message(),
            "exchange: expected 2 homes, found 1");
}

}  // namespace
}  // namespace multitier::exchange_test
