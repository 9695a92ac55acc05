// A million keys pass through a hundred thousand rows of HBM. The counts of hits, misses and evictions must be exact. This
// takes minutes on the emulated device, so without TF_MULTITIER_STRESS the test uses a hundredth of the keys and rows.

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>

#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::million_keys_test {
namespace {

const int64_t kKeys = std::getenv("TF_MULTITIER_STRESS") != nullptr ? 1000000 : 10000;
const int64_t kRows = kKeys / 10, kBatch = kKeys / 20;

std::vector<int64_t> InHbm(HbmTable* table, const std::vector<int64_t>& keys) {
  const std::vector<int32_t> tiers = TierOf(table, keys);
  std::vector<int64_t> in;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (tiers[i] == 0) in.push_back(keys[i]);
  }
  std::sort(in.begin(), in.end());
  return in;
}

int64_t InFirstAlone(const std::vector<int64_t>& first, const std::vector<int64_t>& second) {
  std::vector<int64_t> alone;
  std::set_difference(first.begin(), first.end(), second.begin(), second.end(), std::back_inserter(alone));
  return static_cast<int64_t>(alone.size());
}

// What a batch of distinct keys did, given the sorted keys in HBM before and after it, and the statistics before and after:
//   hits + inserted + not placed = distinct        evicted = inserted - growth
void ExpectAddsUp(HbmTable* table, const std::vector<int64_t>& batch, const std::vector<int64_t>& in_before,
                  const std::vector<int64_t>& in_after, const TableStats& before, const TableStats& after) {
  const int64_t distinct = static_cast<int64_t>(batch.size());
  const int64_t hits = after.tiers[0].hits - before.tiers[0].hits;
  const int64_t inserted = InFirstAlone(in_after, in_before), evicted = InFirstAlone(in_before, in_after);
  const int64_t not_placed = distinct - static_cast<int64_t>(InHbm(table, batch).size());
  EXPECT_EQ(hits + inserted + not_placed, distinct);
  EXPECT_EQ(evicted, inserted - (after.tiers[0].rows - before.tiers[0].rows));
  EXPECT_EQ(after.tiers[1].promotions - before.tiers[1].promotions, inserted + not_placed);
  EXPECT_EQ(static_cast<int64_t>(in_after.size()), after.tiers[0].rows);
}

TEST(MillionKeys, HitsMissesAndEvictionsAddUpExactly) {
  auto table = MakeHbmTable(BasicOptions(1), static_cast<int>(kRows), NewEmulatedDevice());
  std::vector<int64_t> keys = Range(-kKeys / 2, kKeys / 2);
  std::mt19937_64 random(7);
  std::shuffle(keys.begin(), keys.end(), random);
  const auto batch = [&](int64_t from) { return std::vector<int64_t>(keys.begin() + from, keys.begin() + from + kBatch); };
  for (int64_t from = 0; from < kKeys; from += kBatch) {
    MT_ASSERT_OK(Train(Sgd(batch(from), -1.0f, 1), table.get()));
    const TableStats stats = table->Stats();
    const int64_t trained = from + kBatch;
    EXPECT_EQ(stats.rows, trained);
    EXPECT_EQ(stats.tiers[0].hits, 0);
    EXPECT_EQ(stats.tiers[0].misses, trained);
    // Each row is new: it is in HBM, or it left and was handed down.
    EXPECT_EQ(stats.tiers[0].rows + stats.tiers[1].demotions, trained);
    EXPECT_LE(stats.tiers[0].rows, kRows);
  }
  const TableStats trained = table->Stats();
  EXPECT_GE(trained.tiers[0].rows, kRows * 99 / 100);

  // The last two batches, of which HBM holds a part, and the first, of which it holds none.
  std::vector<int64_t> in_hbm = InHbm(table.get(), keys);
  for (const int64_t from : {kKeys - kBatch, kKeys - 2 * kBatch, int64_t{0}}) {
    const TableStats before = table->Stats();
    const int64_t in = static_cast<int64_t>(InHbm(table.get(), batch(from)).size());
    const std::vector<float> values = LookupAll(table.get(), batch(from));
    const TableStats after = table->Stats();
    EXPECT_EQ(after.tiers[0].hits - before.tiers[0].hits, in);
    EXPECT_EQ(after.tiers[0].misses - before.tiers[0].misses, kBatch - in);
    EXPECT_EQ(in == 0, from == 0);
    std::vector<int64_t> in_after = InHbm(table.get(), keys);
    ExpectAddsUp(table.get(), batch(from), in_hbm, in_after, before, after);
    in_hbm = std::move(in_after);
    std::vector<int64_t> frequencies(batch(from).size());
    MT_ASSERT_OK(table->Frequency(batch(from), frequencies.data()));
    EXPECT_EQ(frequencies, std::vector<int64_t>(frequencies.size(), 1));
  }
  EXPECT_EQ(static_cast<int64_t>(in_hbm.size()), table->Stats().tiers[0].rows);
  EXPECT_EQ(table->TotalCount(), kKeys);

  // What is not in HBM was handed down once; the rest goes down with the save, and nothing twice.
  auto rows = table->Export(false);
  ASSERT_TRUE(rows.ok()) << rows.status().ToString();
  EXPECT_EQ(static_cast<int64_t>(rows->keys.size()), kKeys);
  EXPECT_EQ(table->Stats().tiers[1].demotions, kKeys);
}

}  // namespace
}  // namespace multitier::hbm::million_keys_test
