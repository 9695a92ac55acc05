// Deltas: a full snapshot and the deltas that follow it give the same rows as the table, for every order of tiers.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <random>
#include <thread>
#include <tuple>

#include "cc/table/test/table_test_util.h"

namespace multitier::delta_test {
namespace {

constexpr int kDim = 4;
constexpr int64_t kKeys = 400;

Status TakePart(EmbeddingTable* table, int64_t since, int64_t track_as, int64_t max_rows,
                const std::function<Status(Rows*)>& visit) {
  SnapshotRequest request;
  request.since = since;
  request.track_as = track_as;
  request.max_rows = max_rows;
  request.visit = visit;
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<TableSnapshot> snapshot, table->PrepareSnapshot(std::move(request)));
  return snapshot->TakeAlone();
}

// The rows that a reader of a full snapshot and its deltas has.
class Replica {
 public:
  // The chunks of one snapshot must have each key once.
  void Begin() { seen_.clear(); }
  void Take(const Rows& rows) {
    const auto elements = static_cast<size_t>(rows.row_elements());
    for (const int64_t key : rows.removed_keys) Forget(key);
    for (size_t i = 0; i < rows.counted_keys.size(); ++i) {
      Forget(rows.counted_keys[i]);
      counted_[rows.counted_keys[i]] = {rows.counted_frequencies[i], rows.counted_versions[i]};
    }
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      Forget(rows.keys[i]);
      const auto from = rows.data.begin() + static_cast<long>(i * elements);
      rows_[rows.keys[i]] = {rows.frequencies[i], rows.versions[i], {from, from + static_cast<long>(elements)}};
    }
    columns_ = rows.columns;
  }
  Rows All() const {
    Rows all;
    all.columns = columns_;
    for (const auto& [key, row] : rows_) {
      all.keys.push_back(key);
      all.frequencies.push_back(std::get<0>(row));
      all.versions.push_back(std::get<1>(row));
      all.data.insert(all.data.end(), std::get<2>(row).begin(), std::get<2>(row).end());
    }
    for (const auto& [key, count] : counted_) {
      all.counted_keys.push_back(key);
      all.counted_frequencies.push_back(count.first);
      all.counted_versions.push_back(count.second);
    }
    return all;
  }

 private:
  void Forget(int64_t key) {
    EXPECT_TRUE(seen_.insert(key).second) << key;
    rows_.erase(key);
    counted_.erase(key);
  }
  std::vector<ColumnSpec> columns_;
  std::map<int64_t, std::tuple<int64_t, int64_t, std::vector<float>>> rows_;
  std::map<int64_t, std::pair<int64_t, int64_t>> counted_;
  std::set<int64_t> seen_;
};

class DeltaTest : public testing::TestWithParam<ChainCase> {
 protected:
  void Make(AdmissionKind admission, uint64_t seed) {
    random_.seed(seed);
    TableOptions options = BasicOptions(kDim);
    options.filter.kind = admission;
    options.filter.filter_freq = admission == AdmissionKind::kNone ? 0 : 2;
    options.expiry.steps_to_live = 60;
    options.dram_budget_bytes = (seed % 2 == 0 ? 4 : 150) * 48;
    options.num_shards = seed % 3 == 0 ? 2 : 0;
    PutChain(GetParam(), seed % 2 == 0 ? 48 : 48 * 9, seed, &options);
    table_ = MakeTable(std::move(options));
    training_.rule = *FindUpdateRule("adam");
    training_.hyper = SomeHyper(*training_.rule);
    MT_ASSERT_OK(table_->AddSlots(SlotColumns(*training_.rule, kDim)));
  }

  void Change() {
    std::vector<int64_t> keys;
    for (uint64_t n = 1 + random_() % 30; n > 0; --n) keys.push_back(static_cast<int64_t>(random_() % kKeys));
    switch (random_() % 10) {
      case 0:
        MT_ASSERT_OK(table_->Remove(keys, nullptr));
        return;
      case 1:
        MT_ASSERT_OK(table_->Expire(table_->NewestStep(), nullptr));
        return;
      case 2:
        MT_ASSERT_OK(table_->Drain());
        return;
      case 3:
        MT_ASSERT_OK(table_->Prefetch(keys, random_() % 2 == 0 ? 0 : 1000, nullptr));
        return;
      case 4:
      case 5:
        LookupAll(table_.get(), keys);
        return;
      default:
        training_.keys = keys;
        training_.grads.assign(keys.size() * kDim, static_cast<float>(random_() % 9) - 4.0f);
        MT_ASSERT_OK(training_.Run(table_.get()));
    }
  }

  std::mt19937_64 random_;
  std::unique_ptr<EmbeddingTable> table_;
  Training training_;
};

// Whatever happens between two deltas, and between two chunks of one.
TEST_P(DeltaTest, AFullSnapshotAndDeltasAreTheTable) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  for (int round = 0; round < Rounds(12); ++round) {
    Make(round % 3 == 1 ? AdmissionKind::kCounter : AdmissionKind::kNone, seed + static_cast<uint64_t>(round));
    for (int i = 0; i < 150; ++i) Change();
    Replica replica;
    for (int64_t moment = 1; moment < 8; ++moment) {
      const Rows now = *table_->Export(true);
      const uint64_t changes = random_() % 6;
      replica.Begin();
      MT_ASSERT_OK(TakePart(table_.get(), moment - 1, moment, 1 + static_cast<int64_t>(random_() % 20), [&](Rows* chunk) {
        replica.Take(*chunk);
        for (uint64_t i = 0; i < changes; ++i) Change();
        return OkStatus();
      }));
      ExpectSameRows(replica.All(), now);
      EXPECT_EQ(table_->ChangesSince(), moment);
      if (HasFailure()) FAIL() << "round " << round << " moment " << moment;
      for (uint64_t i = random_() % 40; i > 0; --i) Change();
    }
    MT_ASSERT_OK(table_->Drain());
    ExpectTiersInOrder(table_.get());
  }
}

TEST_P(DeltaTest, HasWhatChangedAndNothingElse) {
  Make(AdmissionKind::kNone, 2);
  std::vector<int64_t> all(kKeys), some = {3, 77, 391};
  std::iota(all.begin(), all.end(), 0);
  MT_ASSERT_OK(Sgd(all, 1.0f, kDim).Run(table_.get()));
  MT_ASSERT_OK(TakePart(table_.get(), 0, 1, 1000, [](Rows*) { return OkStatus(); }));
  MT_ASSERT_OK(Sgd(some, 1.0f, kDim).Run(table_.get()));
  MT_ASSERT_OK(table_->Remove(std::vector<int64_t>{5, 1000}, nullptr));
  LookupAll(table_.get(), all);  // rows move, and do not change
  MT_ASSERT_OK(table_->Drain());
  std::vector<int64_t> keys, removed;
  MT_ASSERT_OK(TakePart(table_.get(), 1, 2, 1000, [&](Rows* rows) {
    keys.insert(keys.end(), rows->keys.begin(), rows->keys.end());
    removed.insert(removed.end(), rows->removed_keys.begin(), rows->removed_keys.end());
    return OkStatus();
  }));
  std::sort(keys.begin(), keys.end());
  EXPECT_EQ(keys, some);
  EXPECT_EQ(removed, std::vector<int64_t>{5});
}

TEST_P(DeltaTest, IsRefusedWhereChangesAreNotKnown) {
  Make(AdmissionKind::kNone, 1);
  const auto nothing = [](Rows*) { return OkStatus(); };
  const auto refused = [&](int64_t since) {
    return TakePart(table_.get(), since, 9, 10, nothing).code() == StatusCode::kFailedPrecondition;
  };
  for (int i = 0; i < 20; ++i) Change();
  EXPECT_TRUE(refused(1)) << "no snapshot yet";
  MT_ASSERT_OK(TakePart(table_.get(), 0, 1, 10, nothing));
  MT_ASSERT_OK(table_->Export(true).status());  // not one of the chain
  EXPECT_TRUE(refused(2));
  MT_ASSERT_OK(TakePart(table_.get(), 1, 2, 10, nothing));
  EXPECT_TRUE(refused(1));
  MT_ASSERT_OK(Sgd({1, 2, 3}, 1.0f, kDim).Run(table_.get()));
  EXPECT_EQ(TakePart(table_.get(), 2, 3, 1, [](Rows*) { return ResourceExhaustedError("full"); }).message(), "full");
  EXPECT_TRUE(refused(2) && refused(3)) << "the failed one took the changes";
  MT_ASSERT_OK(TakePart(table_.get(), 0, 4, 10, nothing));
  MT_ASSERT_OK(table_->Clear());
  EXPECT_TRUE(refused(4));
}

// Each key is counted by its own thread, so that a row lost or read at another moment would show.
TEST_P(DeltaTest, ThreadsTrainWhileDeltasAreTaken) {
  Make(AdmissionKind::kNone, 4);
  std::vector<int64_t> all(kKeys);
  std::iota(all.begin(), all.end(), 0);
  training_.keys = all;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(static_cast<uint64_t>(t));
      while (!stop) {
        std::vector<int64_t> keys;
        for (int i = 0; i < 5; ++i) {
          const int64_t key = static_cast<int64_t>(random() % (kKeys / 6)) * 3 + t;  // its own
          keys.push_back(key);
          keys.push_back(key + kKeys);
        }
        MT_EXPECT_OK(random() % 8 == 0 ? table_->Remove(keys, nullptr) : Sgd(keys, 1.0f, kDim).Run(table_.get()));
      }
    });
  }
  Replica replica;
  for (int64_t moment = 1; moment < Rounds(60); ++moment) {
    replica.Begin();
    MT_EXPECT_OK(TakePart(table_.get(), moment - 1, moment, 30, [&](Rows* rows) {
      replica.Take(*rows);
      return OkStatus();
    }));
    const Rows now = replica.All();  // both keys of a pair were changed by the same calls
    std::map<int64_t, int64_t> frequencies;
    for (size_t i = 0; i < now.keys.size(); ++i) frequencies[now.keys[i]] = now.frequencies[i];
    for (const auto& [key, frequency] : frequencies) {
      if (key >= kKeys) continue;
      EXPECT_TRUE(frequencies.count(key + kKeys) == 1 && frequencies[key + kKeys] == frequency) << key;
    }
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const int64_t last = table_->ChangesSince();
  replica.Begin();
  MT_ASSERT_OK(TakePart(table_.get(), last, last + 1, 30, [&](Rows* rows) {
    replica.Take(*rows);
    return OkStatus();
  }));
  ExpectSameRows(replica.All(), *table_->Export(true));
}

INSTANTIATE_TEST_SUITE_P(Tiers, DeltaTest, testing::ValuesIn(AllChains()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier::delta_test
