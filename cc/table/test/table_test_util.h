// What the table's tests share: building tables, applying rules, comparing tables bit for bit.

#ifndef CC_TABLE_TEST_TABLE_TEST_UTIL_H_
#define CC_TABLE_TEST_TABLE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cc/table/host/table_below.h"
#include "cc/tier/test_tiers/memory_tier.h"
#include "cc/tier/test_tiers/relocating_tier.h"

namespace multitier {

#define MT_ASSERT_OK(expression)                   \
  do {                                             \
    const ::multitier::Status mt_s = (expression); \
    ASSERT_TRUE(mt_s.ok()) << mt_s.ToString();     \
  } while (0)
#define MT_EXPECT_OK(expression)                   \
  do {                                             \
    const ::multitier::Status mt_s = (expression); \
    EXPECT_TRUE(mt_s.ok()) << mt_s.ToString();     \
  } while (0)

inline TableOptions BasicOptions(int dim) {
  TableOptions options;
  options.name = "t";
  options.dim = dim;
  options.initializer.kind = InitializerKind::kUniform;
  options.initializer.a = -1.0f;
  options.initializer.b = 1.0f;
  options.initializer.seed = 42;
  return options;
}

// The same table with room for `rows` rows of DRAM over a memory tier.
inline TableOptions TieredOptions(int dim, int64_t rows, std::shared_ptr<Tier> lower) {
  TableOptions options = BasicOptions(dim);
  options.lower_tiers.push_back(LowerTierOptions{std::move(lower), 0});
  options.dram_budget_bytes = static_cast<uint64_t>(rows) * RowLayout::Create(dim, DType::kFloat32)->row_bytes();
  return options;
}

// The orders of tiers that the tests run over. A budget is a number of rows of `row_bytes`; the DRAM budget is in *options.
struct ChainCase {
  const char* name;
  bool dram_named;
  int middle_rows;  // of a MemoryTier above the last; -1: none
  bool relocates;   // the last is a RelocatingTier, else a MemoryTier
  int last_rows;    // budget of the last; 0: unbounded
};

inline const std::vector<ChainCase>& AllChains() {
  static const std::vector<ChainCase> chains = {
      {"OverMemory", true, -1, false, 0},
      {"OverRelocating", true, -1, true, 0},
      {"OverBoundedRelocating", true, -1, true, 100000},
      {"OverMemoryOverRelocating", true, 3, true, 0},
      {"OverWideMemoryOverMemory", true, 20, false, 0},
      {"NoDramOverRelocating", false, -1, true, 0},
      {"NoDramOverMemoryOverRelocating", false, 2, true, 0},
  };
  return chains;
}

// New tiers for the table.
inline void PutChain(const ChainCase& chain, uint64_t row_bytes, uint64_t seed, TableOptions* options) {
  options->lower_tiers.clear();
  options->dram_named = chain.dram_named;
  if (!chain.dram_named) options->dram_budget_bytes = 0;
  if (chain.middle_rows >= 0) {
    options->lower_tiers.push_back({std::make_shared<MemoryTier>(), static_cast<uint64_t>(chain.middle_rows) * row_bytes});
  }
  std::shared_ptr<Tier> last = std::make_shared<MemoryTier>();
  if (chain.relocates) last = std::make_shared<RelocatingTier>(seed);
  options->lower_tiers.push_back({last, static_cast<uint64_t>(chain.last_rows) * row_bytes});
}

// What every table that has lower tiers gets above them, if anything. cc/hbm/test/over_hbm.cc puts HBM there: the tests that
// are linked with it run over HBM.
struct TestedAbove {
  std::function<void(TableOptions* options)> put;
  std::function<bool(const UpdateRule& rule)> runs;  // whether it trains by the rule; null: by every rule
  int slower = 1;                                    // its operations take this many times as long
};
inline TestedAbove& AboveOfTests() {
  static TestedAbove above;
  return above;
}

// n, or less where operations take longer.
inline int Rounds(int n) { return std::max(1, n / AboveOfTests().slower); }

inline std::unique_ptr<EmbeddingTable> MakeTable(TableOptions options) {
  if (AboveOfTests().put && options.above == nullptr && !options.lower_tiers.empty()) AboveOfTests().put(&options);
  auto table = EmbeddingTable::Create(std::move(options));
  EXPECT_TRUE(table.ok()) << table.status().ToString();
  return table.ok() ? *std::move(table) : nullptr;
}

// With nothing above it, whatever the test runs over.
inline std::unique_ptr<TableBelow> MakeTableBelow(TableOptions options) {
  auto table = TableBelow::Create(std::move(options));
  EXPECT_TRUE(table.ok()) << table.status().ToString();
  return table.ok() ? *std::move(table) : nullptr;
}

// Slots of a rule as columns "<rule>/<slot>".
inline std::vector<ColumnSpec> SlotColumns(const UpdateRule& rule, int dim) {
  std::vector<ColumnSpec> columns;
  for (const SlotSpec& slot : rule.slots()) {
    ColumnSpec column;
    column.name = StrCat(rule.name(), "/", slot.name);
    column.dim = slot.per_row ? 1 : dim;
    column.initial_value = slot.default_initial_value;
    columns.push_back(column);
  }
  return columns;
}

// Hyperparameters in every rule's range: 0.1 for learning rates, 0.5 for what decays, and so on.
std::vector<float> SomeHyper(const UpdateRule& rule);

// An apply that owns its arrays.
struct Training {
  const UpdateRule* rule = nullptr;
  std::vector<int64_t> keys;
  std::vector<float> grads;
  std::vector<int64_t> counts;
  std::vector<float> hyper;
  int64_t step = -1;

  Status Run(EmbeddingTable* table) const {
    MT_RETURN_IF_ERROR(table->AddSlots(SlotColumns(*rule, table->dim())));
    ApplyRequest request;
    request.keys = keys;
    request.grads = grads.data();
    request.counts = counts;
    request.rule = rule;
    for (const ColumnSpec& column : SlotColumns(*rule, table->dim())) request.slot_columns.push_back(column.name);
    request.hyper = hyper;
    request.global_step = step;
    return table->Apply(request);
  }
};

// SGD with learning rate 1: the value moves by minus the sum of the gradients.
inline Training Sgd(std::vector<int64_t> keys, float grad, int dim) {
  Training training;
  training.rule = *FindUpdateRule("sgd");
  training.grads.assign(keys.size() * static_cast<size_t>(dim), grad);
  training.keys = std::move(keys);
  training.hyper = {1.0f};
  return training;
}

inline std::vector<float> LookupAll(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  std::vector<float> out(keys.size() * static_cast<size_t>(table->dim()));
  MT_EXPECT_OK(table->Lookup(keys, out.data()));
  return out;
}

// The same with values written apart: what is between them must stay as it was.
inline std::vector<float> LookupAllApart(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  const size_t dim = static_cast<size_t>(table->dim()), stride = dim + 3;
  std::vector<float> apart(keys.size() * stride, -77.0f), out;
  MT_EXPECT_OK(table->Lookup(keys, apart.data(), nullptr, nullptr, static_cast<int64_t>(stride)));
  for (size_t i = 0; i < apart.size(); ++i) {
    if (i % stride < dim) {
      out.push_back(apart[i]);
    } else {
      EXPECT_EQ(apart[i], -77.0f) << "after value " << i / stride;
    }
  }
  return out;
}

inline std::vector<int64_t> Range(int64_t from, int64_t to) {
  std::vector<int64_t> keys(static_cast<size_t>(to - from));
  std::iota(keys.begin(), keys.end(), from);
  return keys;
}

inline std::vector<int64_t> FrequencyOf(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  std::vector<int64_t> out(keys.size());
  MT_EXPECT_OK(table->Frequency(keys, out.data()));
  return out;
}

inline std::vector<int32_t> TierOf(EmbeddingTable* table, const std::vector<int64_t>& keys) {
  std::vector<int32_t> out(keys.size());
  MT_EXPECT_OK(table->LookupTier(keys, out.data()));
  return out;
}

inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// Rows in the order of their keys.
inline Rows Sorted(const Rows& rows) {
  Rows sorted;
  sorted.columns = rows.columns;
  std::vector<size_t> order(rows.keys.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rows.keys[a] < rows.keys[b]; });
  const size_t n = static_cast<size_t>(rows.row_elements());
  for (const size_t i : order) {
    sorted.keys.push_back(rows.keys[i]);
    sorted.frequencies.push_back(rows.frequencies[i]);
    sorted.versions.push_back(rows.versions[i]);
    sorted.data.insert(sorted.data.end(), rows.data.begin() + static_cast<long>(i * n),
                       rows.data.begin() + static_cast<long>((i + 1) * n));
  }
  std::vector<size_t> counted(rows.counted_keys.size());
  std::iota(counted.begin(), counted.end(), 0);
  std::sort(counted.begin(), counted.end(), [&](size_t a, size_t b) { return rows.counted_keys[a] < rows.counted_keys[b]; });
  for (const size_t i : counted) {
    sorted.counted_keys.push_back(rows.counted_keys[i]);
    sorted.counted_frequencies.push_back(rows.counted_frequencies[i]);
    sorted.counted_versions.push_back(rows.counted_versions[i]);
  }
  return sorted;
}

inline void ExpectSameRows(const Rows& a, const Rows& b) {
  const Rows x = Sorted(a), y = Sorted(b);
  const auto names = [](const Rows& rows) {
    std::vector<std::string> all;
    for (const ColumnSpec& column : rows.columns) all.push_back(column.name);
    return all;
  };
  ASSERT_EQ(names(x), names(y));
  ASSERT_EQ(x.keys, y.keys);
  EXPECT_EQ(x.frequencies, y.frequencies);
  EXPECT_EQ(x.versions, y.versions);
  EXPECT_TRUE(SameBits(x.data, y.data)) << "row data differ";
  EXPECT_EQ(x.counted_keys, y.counted_keys);
  EXPECT_EQ(x.counted_frequencies, y.counted_frequencies);
  EXPECT_EQ(x.counted_versions, y.counted_versions);
}

// What must hold between a table at rest and its tiers: no record is lost track of, no removed key would come back.
inline void ExpectTiersInOrder(EmbeddingTable* table) {
  const auto& lower = table->options().lower_tiers;
  const TableStats stats = table->Stats();
  for (size_t i = 0; i < lower.size(); ++i) {
    const int64_t records = lower[i].tier->stats().rows;
    const int64_t rows = stats.tiers[stats.tiers.size() - lower.size() + i].rows;
    if (lower[i].budget_bytes != 0) {
      EXPECT_EQ(records, rows) << "tier " << i;
      EXPECT_LE(static_cast<uint64_t>(stats.tiers[stats.tiers.size() - lower.size() + i].row_bytes), lower[i].budget_bytes);
    }
    EXPECT_GE(records, rows) << "tier " << i;
    EXPECT_LE(records, stats.rows) << "tier " << i;
  }
  const auto* relocating = lower.empty() ? nullptr : dynamic_cast<RelocatingTier*>(lower.back().tier.get());
  if (relocating == nullptr) return;
  const auto rows = table->Export(false);
  ASSERT_TRUE(rows.ok());
  const std::set<int64_t> keys(rows->keys.begin(), rows->keys.end());
  for (const int64_t key : relocating->RecoverableKeys()) EXPECT_EQ(keys.count(key), 1u) << "key " << key << " would come back";
}

inline void ExpectSameTables(EmbeddingTable* a, EmbeddingTable* b) {
  const auto x = a->Export(true), y = b->Export(true);
  ASSERT_TRUE(x.ok() && y.ok()) << x.status().ToString() << " " << y.status().ToString();
  EXPECT_EQ(a->TotalCount(), static_cast<int64_t>(x->keys.size()));
  EXPECT_EQ(b->TotalCount(), static_cast<int64_t>(y->keys.size()));
  ExpectSameRows(*x, *y);
}

}  // namespace multitier

#endif  // CC_TABLE_TEST_TABLE_TEST_UTIL_H_
