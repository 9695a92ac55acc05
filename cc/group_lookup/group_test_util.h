// Helpers for tests of grouped lookups: tables, random groups, and separate lookups of the members.

#ifndef CC_GROUP_LOOKUP_GROUP_TEST_UTIL_H_
#define CC_GROUP_LOOKUP_GROUP_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/group_lookup/group_lookup.h"
#include "cc/group_lookup/sparse_lookup.h"
#include "cc/optimizer/update_rule.h"

namespace multitier {

// Runs each task on a separate thread.
class Threads : public Executor {
 public:
  void ParallelFor(int n, const std::function<void(int)>& task) override {
    std::vector<std::thread> threads;
    for (int i = 0; i < n; ++i) threads.emplace_back(task, i);
    for (std::thread& thread : threads) thread.join();
  }
};

// tables: the number of initializers; those of several are a list, of which each has its own range.
inline std::unique_ptr<EmbeddingTable> MakeTable(const std::string& name, int dim, int num_shards = 0, int tables = 1) {
  TableOptions options;
  options.name = name;
  options.dim = dim;
  options.num_shards = num_shards;
  options.initializer.kind = InitializerKind::kUniform;
  options.initializer.a = -1.0f;
  options.initializer.b = 1.0f;
  options.initializer.seed = 3;
  if (tables > 1) {
    InitializerSpec spec = options.initializer;
    std::vector<TableInitializer> list;
    for (; static_cast<int>(list.size()) < tables; spec.a += 2.0f, spec.b += 2.0f) list.push_back({{{0, spec}}});
    options.initializer = InitializerSpec();
    options.initializer.seed = spec.seed;
    options.initializer.tables = std::make_shared<const std::vector<TableInitializer>>(std::move(list));
  }
  options.slots = {ColumnSpec{"accumulator", DType::kFloat32, dim, 0.1f}};
  Result<std::unique_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(options));
  EXPECT_TRUE(table.ok()) << table.status().ToString();
  return *std::move(table);
}

inline ApplyRequest Adagrad(Span<const int64_t> keys, const float* grads) {
  ApplyRequest request;
  request.keys = keys;
  request.grads = grads;
  request.rule = *FindUpdateRule("adagrad");
  request.slot_columns = {"accumulator"};
  request.hyper = {0.1f};
  return request;
}

// A member, and the data to which it points.
struct Case {
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  std::vector<EmbeddingTable*> parts;
  std::vector<float> matrix;
  std::vector<GroupUnit> units;
  std::vector<int64_t> keys, indices, rows;
  std::vector<float> weights, out, grad;
  int num_tables = 1;             // initializers of each of `tables`
  std::vector<uint16_t> numbers;  // of the keys, if there are several
  GroupMember member;

  Case() = default;
  Case(const Case&) = delete;

  void MakeTables(int n, int dim) {
    tables.clear();
    parts.clear();
    units.clear();
    for (int p = 0; p < n; ++p) {
      tables.push_back(MakeTable("t", dim, 0, num_tables));
      parts.push_back(tables.back().get());
      units.push_back(GroupUnit{parts.back(), nullptr, 0});
    }
  }
  // Makes the tables anew, with several initializers, and gives each key one of them.
  void GiveNumbers(std::mt19937* random) {
    num_tables = 3;
    MakeTables(static_cast<int>(parts.size()), member.dim);
    for (size_t k = 0; k < keys.size(); ++k) numbers.push_back(static_cast<uint16_t>((*random)() % 3));
  }

  void Point(int number) {
    member.name = "member " + std::to_string(number);
    member.units = units;
    member.keys = keys;
    member.indices = indices;
    member.weights = weights;
    member.tables = numbers;
    out.assign(static_cast<size_t>(member.batch * member.steps * member.dim), -9.0f);
    member.out = out.data();
  }
};

// `parts` tables; rows with 0 to 2 * mean entries, keys below `range`.
inline std::unique_ptr<Case> MakeCase(std::mt19937* random, int number, int parts, int64_t batch, int mean, int64_t range,
                                      bool weighted, Combiner combiner, int dim) {
  auto made = std::make_unique<Case>();
  made->MakeTables(parts, dim);
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

inline float Between(std::mt19937* random) { return static_cast<float>((*random)() % 2000) / 1000.0f - 1.0f; }

// Gives a case another form; its rows keep their numbers of entries.
inline void Reform(std::mt19937* random, GroupForm form, int number, Case* c) {
  int64_t steps = 1;
  for (size_t e = 0; e < c->rows.size(); ++e) steps = std::max(steps, c->indices[2 * e + 1] + 1);
  c->member.form = form;
  if (form == GroupForm::kSequence || form == GroupForm::kRaggedSequence) {
    c->member.combiner = Combiner::kSum;
    c->member.steps = c->keys.empty() && form == GroupForm::kRaggedSequence ? 0 : steps;
  }
  if (form == GroupForm::kRagged || form == GroupForm::kRaggedSequence) {
    c->indices.assign(1, 0);
    for (int64_t row = 0, e = 0; row < c->member.batch; ++row) {
      while (e < static_cast<int64_t>(c->rows.size()) && c->rows[static_cast<size_t>(e)] == row) ++e;
      c->indices.push_back(e);
    }
  }
  if (form == GroupForm::kDense) {
    c->indices.clear();
    c->weights.clear();
    c->member.batch = static_cast<int64_t>(c->keys.size());
  }
  c->grad.assign(static_cast<size_t>(c->member.batch * c->member.steps * c->member.dim), 0.0f);
  for (float& g : c->grad) g = Between(random);
  c->Point(number);
}

inline std::vector<float> Separately(const Case& c) {
  SparseLookup lookup;
  lookup.partitions = Span<EmbeddingTable* const>(c.parts.data(), c.parts.size());
  lookup.keys = c.keys;
  lookup.batch = SparseBatch{c.rows, c.weights, c.member.batch, c.member.dim, c.member.combiner};
  lookup.max_norm = c.member.max_norm;
  std::vector<float> out(c.out.size());
  EXPECT_TRUE(LookupSparse(lookup, out.data()).ok());
  return out;
}

// same_batch: the batch size of all members; 0: each member has its own.
inline std::vector<std::unique_ptr<Case>> RandomGroup(std::mt19937* random, int64_t same_batch = 0) {
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

inline std::vector<GroupMember> Members(const std::vector<std::unique_ptr<Case>>& group) {
  std::vector<GroupMember> members;
  for (const auto& c : group) members.push_back(c->member);
  return members;
}

}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_GROUP_TEST_UTIL_H_
