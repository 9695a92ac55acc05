// A snapshot in chunks is the table, over every order of tiers, and leaves it as it was.

#include <gtest/gtest.h>

#include "cc/table/table_test_util.h"

namespace multitier {
namespace {

constexpr int kDim = 4;

void Append(Rows* all, const Rows& chunk) {
  const auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
  all->columns = chunk.columns;
  append(&all->keys, chunk.keys);
  append(&all->frequencies, chunk.frequencies);
  append(&all->versions, chunk.versions);
  append(&all->data, chunk.data);
  append(&all->counted_keys, chunk.counted_keys);
  append(&all->counted_frequencies, chunk.counted_frequencies);
  append(&all->counted_versions, chunk.counted_versions);
  all->applies = chunk.applies;
  all->filter_counters = chunk.filter_counters;
}

// 500 keys of which half come twice, by the rule with the most slots.
void Train(EmbeddingTable* table, int64_t first) {
  for (int64_t batch = 0; batch < 10; ++batch) {
    Training training;
    training.rule = *FindUpdateRule("adam");
    for (int64_t i = 0; i < 75; ++i) training.keys.push_back(first + (batch * 50 + i) % 500 * (i % 2 == 0 ? 1 : -1));
    for (size_t i = 0; i < training.keys.size() * kDim; ++i) training.grads.push_back(static_cast<float>(i % 7) - 3.0f);
    training.hyper = SomeHyper(*training.rule);
    MT_ASSERT_OK(training.Run(table));
  }
}

class SnapshotTest : public testing::TestWithParam<ChainCase> {
 protected:
  TableOptions Options(AdmissionKind admission) const {
    TableOptions options = BasicOptions(kDim);
    options.admission.kind = admission;
    options.admission.filter_freq = admission == AdmissionKind::kNone ? 0 : 2;
    options.admission.max_element_size = 1000;
    return options;
  }
};

TEST_P(SnapshotTest, ChunksAreTheTable) {
  for (const AdmissionKind admission : {AdmissionKind::kNone, AdmissionKind::kCounter, AdmissionKind::kBloom}) {
    auto dram = MakeTable(Options(admission));
    TableOptions options = Options(admission);
    options.dram_budget_bytes = 4 * 1024;
    PutChain(GetParam(), 128, 3, &options);
    auto tiered = MakeTable(std::move(options));
    Train(dram.get(), 0);
    Train(tiered.get(), 0);
    for (const int64_t chunk_rows : {1, 7, 100000}) {
      Rows all;
      size_t chunks = 0;
      MT_ASSERT_OK(tiered->TakeSnapshot(true, chunk_rows, [&](Rows* chunk) {
        EXPECT_LE(chunk->keys.size() + chunk->counted_keys.size(), static_cast<size_t>(chunk_rows));
        Append(&all, *chunk);
        ++chunks;
        return OkStatus();
      }));
      ExpectSameRows(all, *dram->Export(true));
      EXPECT_EQ(chunks, (all.keys.size() + all.counted_keys.size()) / static_cast<size_t>(chunk_rows) + 1);
      EXPECT_EQ(all.applies, 10);
      EXPECT_EQ(all.filter_counters, dram->Export(true)->filter_counters);
      EXPECT_EQ(all.filter_counters.empty(), admission != AdmissionKind::kBloom);
    }
    // Records move again afterwards.
    Train(dram.get(), 100);
    Train(tiered.get(), 100);
    ExpectSameTables(dram.get(), tiered.get());
    MT_ASSERT_OK(tiered->Drain());
    ExpectTiersInOrder(tiered.get());
  }
}

TEST_P(SnapshotTest, TheVisitorsErrorEndsIt) {
  TableOptions options = Options(AdmissionKind::kNone);
  options.dram_budget_bytes = 4 * 1024;
  PutChain(GetParam(), 128, 3, &options);
  auto table = MakeTable(std::move(options));
  Train(table.get(), 0);
  int left = 5;
  const Status status = table->TakeSnapshot(false, 10, [&](Rows*) {
    return --left == 0 ? ResourceExhaustedError("full") : OkStatus();
  });
  EXPECT_EQ(status, ResourceExhaustedError("full"));
  EXPECT_EQ(left, 0);
  Train(table.get(), 0);
  EXPECT_EQ(table->TakeSnapshot(true, 0, [](Rows*) { return OkStatus(); }).code(), StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Chains, SnapshotTest, testing::ValuesIn(AllChains()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier
