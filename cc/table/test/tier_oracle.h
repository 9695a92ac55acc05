// The tier oracle: one sequence of random operations on DRAM alone and on four rows of DRAM, or none, over lower tiers gives
// the same bits: values (of every dtype), slots, frequencies, versions. The operations: lookup, training (rounds take turns:
// each update rule alone, then all of them mixed), upsert, remove, clear, expire by steps and by weight, facts, export, scan
// with thresholds, drain, prefetch, save and restore, flush, and closing and recovering what the tiers kept. The seed is
// printed; set MT_ORACLE_SEED to run one again, MT_ORACLE_ROUNDS for more.

#ifndef CC_TABLE_TEST_TIER_ORACLE_H_
#define CC_TABLE_TEST_TIER_ORACLE_H_

#include <cstdlib>
#include <functional>
#include <set>
#include <string>

#include "cc/table/test/table_test_util.h"

namespace multitier {

// Gives the options new tiers, budgets in rows of row_bytes; `recover`: the last tier opens what the last tier before left.
using PutTiers = std::function<void(uint64_t row_bytes, uint64_t seed, bool recover, TableOptions* options)>;

// One filter of each kind.
inline std::vector<AdmissionSpec> AllFilters() {
  std::vector<AdmissionSpec> filters(3);
  filters[0].kind = AdmissionKind::kCounter;
  filters[0].filter_freq = 3;
  filters[1].kind = AdmissionKind::kBloom;
  filters[1].filter_freq = 3;
  filters[1].max_element_size = 100;
  filters[2].kind = AdmissionKind::kProbabilistic;
  filters[2].probability = 0.4;
  filters[2].seed = 5;
  return filters;
}

inline uint64_t OracleSeed() {
  const char* seed = std::getenv("MT_ORACLE_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : std::random_device()();
}

inline int OracleRounds(int rounds) {
  const char* asked = std::getenv("MT_ORACLE_ROUNDS");
  return asked != nullptr ? std::atoi(asked) : Rounds(rounds);
}

// Another form of lookups and training, for the tables with lower tiers every other time. Empty: there is none.
struct OtherForm {
  std::function<std::vector<float>(EmbeddingTable* table, const std::vector<int64_t>& keys, ReadFor reason)> look_up;
  std::function<Status(EmbeddingTable* table, const Training& training, uint64_t random)> train;
};

// Two tables that must never differ, and the operations done to both.
class Oracle {
 public:
  Oracle(uint64_t seed, const PutTiers& put_tiers, const AdmissionSpec& admission, OtherForm other = {})
      : random_(seed), put_tiers_(put_tiers), other_(std::move(other)) {
    const auto& runs = AboveOfTests().runs;
    for (const UpdateRule* rule : AllUpdateRules()) {
      if (!runs || runs(*rule)) rules_.push_back(rule);
    }
    const size_t turn = seed % (rules_.size() + 4);
    if (turn < rules_.size()) rules_ = {rules_[turn]};
    dim_ = std::vector<int>{1, 3, 8, 17}[random_() % 4];
    TableOptions plain = BasicOptions(dim_);
    TableOptions tiered = BasicOptions(dim_);
    // Room for the slots of any rule: the bound counts row data, and rows widen.
    tiered.dram_budget_bytes = 4 * WidestRow();
    put_tiers_(MixedRow(), random_(), false, &tiered);
    const Replacement strategies[] = {Replacement::kLru, Replacement::kLfu, Replacement::kDefault, Replacement::kScore};
    tiered.cache_strategy = strategies[random_() % (tiered.above == nullptr ? 4 : 3)];  // HBM has no order by score
    if (random_() % 4 == 0) tiered.num_shards = 2;
    const uint64_t expiry = random_() % 4;
    for (TableOptions* options : {&plain, &tiered}) {
      options->filter = admission;
      options->default_value_no_permission.a = 0.25f;
      if (expiry != 0) options->expiry.steps_to_live = 12;
      if (expiry < 2) options->expiry.l2_weight_threshold = 0.1f * static_cast<float>(dim_);
    }
    for (InitializerSpec* spec : {&plain.initializer, &plain.default_value_no_permission}) {
      const InitializerKind kinds[] = {spec->kind, InitializerKind::kTruncatedNormal, InitializerKind::kNormalBetween};
      spec->kind = kinds[random_() % 3];
      if (spec->kind == InitializerKind::kConstant) continue;
      spec->b = 1.0f;
      spec->upper = -0.5f;
    }
    const DType dtypes[] = {DType::kFloat32, DType::kFloat32, DType::kBFloat16, DType::kFloat16};
    plain.value_dtype = tiered.value_dtype = dtypes[random_() % 4];
    plain.stochastic_rounding = tiered.stochastic_rounding = plain.value_dtype != DType::kFloat32 && random_() % 2 == 0;
    if (random_() % 2 == 0 && plain.value_dtype != DType::kFloat16)
      plain.eval_initializer.emplace().kind = InitializerKind::kDebug;
    if (admission.kind == AdmissionKind::kCounter && random_() % 2 == 0) plain.filter.max_keys = 12;
    tiered.initializer = plain.initializer;
    tiered.default_value_no_permission = plain.default_value_no_permission;
    tiered.eval_initializer = plain.eval_initializer;
    tiered.filter = plain.filter;
    options_[0] = plain;
    options_[1] = tiered;
    for (int t = 0; t < 2; ++t) table_[t] = MakeTable(options_[t]);
  }

  void Step() {
    ++step_;
    switch (random_() % 16) {
      case 0:
        return Remove();
      case 1:
        return Expire();
      case 2:
        return CompareFacts();
      case 3:
        return ExpectSameTables(table_[0].get(), table_[1].get());
      case 4:
        if (random_() % 2 == 0) {
          const std::vector<int64_t> keys = Keys();
          MT_ASSERT_OK(table_[1]->Prefetch(keys, random_() % 2 == 0 ? 0 : 1000000, nullptr));
          return;
        }
        if (random_() % 4 == 0) table_[1]->ReleasePrefetched();
        for (auto& table : table_) MT_ASSERT_OK(table->Drain());
        return;
      case 5:
        switch (random_() % 9) {
          case 0:
            return SaveAndRestore();
          case 1:
            return CloseAndRecover();
          case 2:
            return Flush();
          case 3:
          case 4:
            return Upsert();
          case 5:
            if (random_() % 4 == 0) return Clear();
            return CompareEvaluation();
          default:
            return CompareScans();
        }
      case 6:
      case 7:
      case 8:
        return CompareLookups();
      default:
        return Train();
    }
  }

  void Finish() {
    ExpectSameTables(table_[0].get(), table_[1].get());
    MT_ASSERT_OK(table_[1]->Drain());
    ExpectTiersInOrder(table_[1].get());
  }

 private:
  // Bytes of a row with eight columns, more than any rule's.
  uint64_t WidestRow() const { return RowWith(8); }
  // Bytes of a row with the slots of every rule: that wide it becomes where rules are mixed.
  uint64_t MixedRow() const {
    std::set<std::string> slots;
    for (const UpdateRule* rule : AllUpdateRules()) {
      for (const ColumnSpec& slot : SlotColumns(*rule, dim_)) slots.insert(slot.name);
    }
    return RowWith(1 + slots.size());
  }
  uint64_t RowWith(size_t columns) const { return 16 * static_cast<uint64_t>((dim_ + 3) / 4) * columns; }

  std::vector<int64_t> Keys() {
    static const int64_t kSpecial[] = {0, -1, -7, INT64_MIN, INT64_MAX};
    std::vector<int64_t> keys(random_() % 12);
    for (int64_t& key : keys) {
      key = random_() % 8 == 0 ? kSpecial[random_() % 5] : static_cast<int64_t>(random_() % 40) - 10;
    }
    return keys;
  }

  void Train() {
    Training training;
    training.rule = rules_[random_() % rules_.size()];
    training.keys = Keys();
    for (size_t i = 0; i < training.keys.size() * static_cast<size_t>(dim_); ++i) {
      training.grads.push_back(static_cast<float>(static_cast<int>(random_() % 2001) - 1000) / 700.0f);
    }
    if (random_() % 2 == 0) {
      for (size_t i = 0; i < training.keys.size(); ++i) training.counts.push_back(static_cast<int64_t>(random_() % 4));
    }
    training.hyper = SomeHyper(*training.rule);
    training.step = random_() % 4 == 0 ? -1 : step_;
    MT_ASSERT_OK(training.Run(table_[0].get()));
    if (other_.train && random_() % 2 == 0) {
      MT_ASSERT_OK(other_.train(table_[1].get(), training, random_()));
    } else {
      MT_ASSERT_OK(training.Run(table_[1].get()));
    }
  }

  void CompareLookups() {
    const std::vector<int64_t> keys = Keys();
    const std::vector<float> expected = LookupAll(table_[0].get(), keys);
    if (other_.look_up && random_() % 2 == 0) {
      EXPECT_TRUE(SameBits(expected, other_.look_up(table_[1].get(), keys, ReadFor::kTraining)));
      return;
    }
    const auto look_up = random_() % 2 == 0 ? LookupAll : LookupAllApart;
    EXPECT_TRUE(SameBits(expected, look_up(table_[1].get(), keys)));
  }

  void CompareEvaluation() {
    const std::vector<int64_t> keys = Keys();
    std::vector<float> values[2];
    for (int t = 0; t < 2; ++t) {
      values[t].resize(keys.size() * static_cast<size_t>(dim_));
      MT_ASSERT_OK(table_[t]->Lookup(keys, values[t].data(), nullptr, nullptr, 0, ReadFor::kEvaluation));
    }
    EXPECT_TRUE(SameBits(values[0], values[1]));
    if (other_.look_up) {
      EXPECT_TRUE(SameBits(values[0], other_.look_up(table_[1].get(), keys, ReadFor::kEvaluation)));
    }
  }

  void Clear() {
    for (auto& table : table_) {
      MT_ASSERT_OK(table->Clear());
      EXPECT_EQ(table->TotalCount(), 0);
    }
  }

  void CompareFacts() {
    const std::vector<int64_t> keys = Keys();
    std::vector<int64_t> facts[2][2];
    for (int t = 0; t < 2; ++t) {
      for (auto& f : facts[t]) f.resize(keys.size());
      MT_ASSERT_OK(table_[t]->Frequency(keys, facts[t][0].data()));
      MT_ASSERT_OK(table_[t]->Version(keys, facts[t][1].data()));
    }
    EXPECT_EQ(facts[0][0], facts[1][0]);
    EXPECT_EQ(facts[0][1], facts[1][1]);
    std::vector<int32_t> tiers[2] = {std::vector<int32_t>(keys.size()), std::vector<int32_t>(keys.size())};
    for (int t = 0; t < 2; ++t) MT_ASSERT_OK(table_[t]->LookupTier(keys, tiers[t].data()));
    for (size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(tiers[0][i] < 0, tiers[1][i] < 0);
  }

  void Remove() {
    const std::vector<int64_t> keys = Keys();
    int64_t removed[2];
    for (int t = 0; t < 2; ++t) MT_ASSERT_OK(table_[t]->Remove(keys, &removed[t]));
    EXPECT_EQ(removed[0], removed[1]);
  }

  void Expire() {
    int64_t expired[2];
    for (int t = 0; t < 2; ++t) MT_ASSERT_OK(table_[t]->Expire(step_, &expired[t]));
    EXPECT_EQ(expired[0], expired[1]);
  }

  void SaveAndRestore() {
    for (int t = 0; t < 2; ++t) {
      const auto rows = table_[t]->Export(true);
      ASSERT_TRUE(rows.ok()) << rows.status().ToString();
      if (t == 1) put_tiers_(MixedRow(), random_(), false, &options_[1]);
      table_[t] = MakeTable(options_[t]);
      MT_ASSERT_OK(table_[t]->Import(*rows));
    }
  }

  Tier* last() const { return options_[1].lower_tiers.empty() ? nullptr : options_[1].lower_tiers.back().tier.get(); }
  bool durable() const { return last() != nullptr && last()->capabilities().durable; }

  void Flush() {
    const Status flushed = table_[1]->Flush();
    if (!durable()) {
      EXPECT_EQ(flushed.code(), StatusCode::kFailedPrecondition);
      return;
    }
    MT_ASSERT_OK(flushed);
    const auto* relocating = dynamic_cast<RelocatingTier*>(last());
    if (relocating == nullptr) return;
    const auto rows = table_[1]->Export(false);
    ASSERT_TRUE(rows.ok());
    EXPECT_EQ(relocating->RecoverableKeys(), std::set<int64_t>(rows->keys.begin(), rows->keys.end()));
  }

  // A filter's counts do not survive it.
  void CloseAndRecover() {
    const bool by_flush = random_() % 2 == 0;
    if (!durable() || !options_[0].filter.admits_all()) return;
    if (dynamic_cast<RelocatingTier*>(last()) != nullptr) return;
    auto rows = table_[0]->Export(true);
    ASSERT_TRUE(rows.ok());
    rows->applies = 0;
    for (const int64_t version : rows->versions) rows->applies = std::max(rows->applies, version);
    table_[0] = MakeTable(options_[0]);
    MT_ASSERT_OK(table_[0]->Import(*rows));
    if (by_flush) MT_ASSERT_OK(table_[1]->Flush());
    TableOptions keeping = options_[1];
    if (!by_flush) {  // a table that flushes by itself, over the same tiers
      keeping.keep = true;
      const auto all = table_[1]->Export(true);
      ASSERT_TRUE(all.ok());
      keeping.lower_tiers.clear();
      table_[1] = nullptr;
      put_tiers_(MixedRow(), random_(), false, &keeping);
      table_[1] = MakeTable(keeping);
      MT_ASSERT_OK(table_[1]->Import(*all));
    }
    table_[1] = nullptr;
    keeping.lower_tiers.clear();
    options_[1].lower_tiers.clear();
    put_tiers_(MixedRow(), random_(), true, &options_[1]);
    options_[1].adopt = true;
    table_[1] = MakeTable(options_[1]);
    options_[1].adopt = false;
    ASSERT_NE(table_[1], nullptr);
    // A column that no record was written with is not in the files.
    MT_ASSERT_OK(table_[1]->AddSlots(Span<const ColumnSpec>(rows->columns.data() + 1, rows->columns.size() - 1)));
    ExpectSameTables(table_[0].get(), table_[1].get());
    EXPECT_EQ(table_[0]->NewestStep(), table_[1]->NewestStep());
  }

  void Upsert() {
    const std::vector<int64_t> keys = Keys();
    std::vector<float> values;
    for (size_t i = 0; i < keys.size() * static_cast<size_t>(dim_); ++i) values.push_back(static_cast<float>(random_() % 999));
    std::vector<int64_t> frequencies, versions;
    for (size_t i = 0; i < keys.size(); ++i) {
      frequencies.push_back(static_cast<int64_t>(random_() % 5));
      versions.push_back(static_cast<int64_t>(random_() % 20));
    }
    UpsertRequest request;
    request.keys = keys;
    if (random_() % 4 != 0) request.columns.push_back({"value", dim_, values.data()});
    if (random_() % 2 == 0) request.frequencies = frequencies;
    if (random_() % 2 == 0) request.versions = versions;
    request.if_exists = static_cast<IfExists>(random_() % 3);
    request.last_of_repeats = random_() % 4 != 0;
    const Result<int64_t> written[2] = {table_[0]->Upsert(request), table_[1]->Upsert(request)};
    ASSERT_EQ(written[0].status().code(), written[1].status().code())
        << written[0].status().ToString() << " " << written[1].status().ToString();
    if (!written[0].ok()) return;
    EXPECT_EQ(*written[0], *written[1]);
  }

  void CompareScans() {
    Rows all[2];
    ScanRequest request;
    if (random_() % 2 == 0) request.min_version = static_cast<int64_t>(random_() % 20);
    if (random_() % 2 == 0) request.min_frequency = static_cast<int64_t>(random_() % 4);
    for (int t = 0; t < 2; ++t) {
      uint64_t cursor = 0;
      do {
        request.cursor = cursor;
        request.max_rows = 1 + static_cast<int64_t>(random_() % 20);
        auto rows = table_[t]->Scan(request, &cursor);
        ASSERT_TRUE(rows.ok()) << rows.status().ToString();
        if (all[t].columns.empty()) all[t].columns = rows->columns;
        auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
        append(&all[t].keys, rows->keys);
        append(&all[t].frequencies, rows->frequencies);
        append(&all[t].versions, rows->versions);
        append(&all[t].data, rows->data);
        append(&all[t].counted_keys, rows->counted_keys);
        append(&all[t].counted_frequencies, rows->counted_frequencies);
        append(&all[t].counted_versions, rows->counted_versions);
      } while (cursor != 0);
    }
    ExpectSameRows(all[0], all[1]);
  }

  std::mt19937_64 random_;
  const PutTiers put_tiers_;
  const OtherForm other_;
  int dim_ = 0;
  int64_t step_ = 0;
  TableOptions options_[2];
  std::unique_ptr<EmbeddingTable> table_[2];
  std::vector<const UpdateRule*> rules_;
};

inline void RunOracle(const PutTiers& put_tiers, const AdmissionSpec& admission, int rounds, const OtherForm& other = {}) {
  const uint64_t seed = OracleSeed();
  for (int round = 0; round < OracleRounds(rounds); ++round) {
    SCOPED_TRACE(StrCat("MT_ORACLE_SEED=", seed + static_cast<uint64_t>(round), " MT_ORACLE_ROUNDS=1"));
    Oracle oracle(seed + static_cast<uint64_t>(round), put_tiers, admission, other);
    for (int i = 0; i < 40; ++i) {
      oracle.Step();
      if (testing::Test::HasFailure()) return;
    }
    oracle.Finish();
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace multitier

#endif  // CC_TABLE_TEST_TIER_ORACLE_H_
