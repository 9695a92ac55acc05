// Several tables as of one moment, while threads train them one by one and together.

#include "cc/table/snapshot/snapshot_together.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <map>
#include <numeric>
#include <thread>

#include "cc/table/test/table_test_util.h"

namespace multitier::snapshot_together_test {
namespace {

constexpr int kTables = 4, kThreads = 4, kKeysOfThread = 50;

// Every row of a key counts the updates of its thread: the value begins at 0 and an update adds 1.
class GroupSnapshotTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < kTables; ++i) {
      TableOptions options = TieredOptions(4, 40 + 60 * i, std::make_shared<RelocatingTier>(static_cast<uint64_t>(i)));
      options.name = StrCat("t", i);
      options.initializer = InitializerSpec();
      options.num_shards = 2;
      tables_.push_back(MakeTable(std::move(options)));
    }
  }

  void Add(int thread, int table) {
    std::vector<int64_t> keys(kKeysOfThread);
    for (int i = 0; i < kKeysOfThread; ++i) keys[static_cast<size_t>(i)] = thread * 1000 + i;
    const std::vector<float> grads(keys.size() * 4, -1.0f);
    ApplyRequest request;
    request.keys = keys;
    request.grads = grads.data();
    request.rule = *FindUpdateRule("sgd");
    request.hyper = {1.0f};
    MT_EXPECT_OK(tables_[static_cast<size_t>(table)]->Apply(request));
  }

  // counts[table][thread]; all rows of a thread in a table have the same.
  Result<std::vector<std::map<int64_t, float>>> Save() {
    std::vector<std::map<int64_t, float>> counts(kTables);
    std::vector<TableInGroup> group;
    for (int i = 0; i < kTables; ++i) {
      group.push_back(TableInGroup{tables_[static_cast<size_t>(i)].get(),
                                   [&to = counts[static_cast<size_t>(i)]](Rows* rows) {
                                     for (size_t r = 0; r < rows->keys.size(); ++r) {
                                       const float value = rows->data[r * 4];
                                       EXPECT_TRUE(to.emplace(rows->keys[r] / 1000, value).first->second == value);
                                     }
                                     return OkStatus();
                                   },
                                   [] { return OkStatus(); }});
    }
    MT_RETURN_IF_ERROR(SnapshotTogether(group));
    return counts;
  }

  std::vector<std::unique_ptr<EmbeddingTable>> tables_;
};

int SaveRounds() { return std::getenv("TF_MULTITIER_STRESS") != nullptr ? 100 : Rounds(10); }

TEST_F(GroupSnapshotTest, IsOnePrefixOfTheUpdatesOfEachThread) {
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  std::atomic<int> begun{0};
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; !done; ++i) {
        for (int table = 0; table < kTables; ++table) Add(thread, table);
        if (i == 0) ++begun;
      }
    });
  }
  while (begun < kThreads) std::this_thread::yield();
  for (int round = 0; round < SaveRounds(); ++round) {
    const auto counts = Save();
    MT_ASSERT_OK(counts.status());
    for (int thread = 0; thread < kThreads; ++thread) {
      const float first = counts->front().at(thread), last = counts->back().at(thread);
      EXPECT_TRUE(first == last || first == last + 1.0f) << "thread " << thread << ": " << first << " and " << last;
      for (int table = 1; table < kTables; ++table) EXPECT_LE((*counts)[table].at(thread), (*counts)[table - 1].at(thread));
    }
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GroupSnapshotTest, HasAllUpdatesOfACallOrNone) {
  std::atomic<bool> done{false};
  std::atomic<int> begun{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; !done; ++i) {
        const UpdateOfSeveral together;
        for (int table = 0; table < kTables; ++table) Add(thread, (table + thread) % kTables);
        if (i == 0) ++begun;
      }
    });
  }
  while (begun < kThreads) std::this_thread::yield();
  for (int round = 0; round < SaveRounds(); ++round) {
    const auto counts = Save();
    MT_ASSERT_OK(counts.status());
    for (int table = 1; table < kTables; ++table) EXPECT_EQ((*counts)[static_cast<size_t>(table)], counts->front());
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GroupSnapshotTest, TwoGroupsAtOnceWaitForEachOther) {
  for (int table = 0; table < kTables; ++table) Add(0, table);
  std::reverse(tables_.begin(), tables_.end());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10; ++round) MT_EXPECT_OK(Save().status());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(GroupSnapshotTest, AFailureEndsAllAndHoldsNothingBack) {
  for (int table = 0; table < kTables; ++table) Add(0, table);
  std::vector<TableInGroup> group;
  for (const auto& table : tables_) {
    const bool fails = table == tables_[1];
    group.push_back(TableInGroup{table.get(), [fails](Rows*) { return fails ? ResourceExhaustedError("full") : OkStatus(); },
                                 [] { return OkStatus(); }});
  }
  EXPECT_EQ(SnapshotTogether(group).message(), "full");
  for (int table = 0; table < kTables; ++table) Add(0, table);
  const auto counts = Save();
  MT_ASSERT_OK(counts.status());
  EXPECT_EQ(counts->front().at(0), 2.0f);

  group[2].table = group[1].table;
  EXPECT_EQ(SnapshotTogether(group).code(), StatusCode::kInvalidArgument);
  Add(0, 0);
}

// The bytes of copies that wait in all tables at one moment; 0 if they changed while they were read.
size_t WaitingAtOnce(const std::vector<std::unique_ptr<EmbeddingTable>>& tables) {
  std::vector<int64_t> found[2];
  for (std::vector<int64_t>& bytes : found) {
    for (const auto& table : tables) bytes.push_back(table->Stats().snapshot_bytes);
  }
  return found[0] == found[1] ? static_cast<size_t>(std::accumulate(found[0].begin(), found[0].end(), int64_t{0})) : 0;
}

// Rows of tables whose turn is to come change by more than the limit: no operation waits for long, and the copies are bounded.
TEST(GroupSnapshot, CopiesOfManyTablesAreGivenWhileOneIsWritten) {
  constexpr int64_t kRows = 3000;
  constexpr int kDim = 1024, kMany = 12;
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  std::vector<int64_t> keys(kRows);
  for (int64_t i = 0; i < kRows; ++i) keys[static_cast<size_t>(i)] = i;
  const std::vector<float> grads(static_cast<size_t>(kRows * kDim), 1.0f);
  ApplyRequest request;
  request.keys = keys;
  request.grads = grads.data();
  request.rule = *FindUpdateRule("sgd");
  request.hyper = {1.0f};
  for (int i = 0; i < kMany; ++i) {
    TableOptions options = BasicOptions(kDim);
    options.name = StrCat("t", i);
    tables.push_back(MakeTable(std::move(options)));
    MT_ASSERT_OK(tables.back()->Apply(request));
  }
  std::atomic<bool> trained{false};
  std::thread trainer([&] {
    while (tables[0]->Stats().snapshot_held_us == 0) std::this_thread::yield();  // until the moment is over
    for (const auto& table : tables) MT_EXPECT_OK(table->Apply(request));
    trained = true;
  });
  std::atomic<int64_t> rows{0};
  std::atomic<size_t> most{0};
  std::vector<TableInGroup> group;
  for (const auto& table : tables) {
    group.push_back(TableInGroup{table.get(),
                                 [&](Rows* chunk) {
                                   rows += static_cast<int64_t>(chunk->keys.size());
                                   const size_t waiting = WaitingAtOnce(tables);
                                   size_t seen = most;
                                   while (waiting > seen && !most.compare_exchange_weak(seen, waiting)) {
                                   }
                                   return OkStatus();
                                 },
                                 [] { return OkStatus(); }});
  }
  MT_ASSERT_OK(SnapshotTogether(group));
  trainer.join();
  EXPECT_EQ(rows, kMany * kRows);
  EXPECT_GT(most, 0u);
  EXPECT_LT(most, (64u << 20) + kRows * kDim * sizeof(float) + (1u << 20)) << "the limit and one operation";
}

}  // namespace
}  // namespace multitier::snapshot_together_test
