#include "cc/table/marks/snapshot_copies.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cc/table/marks/row_export.h"

namespace multitier::snapshot_copies_test {
namespace {

constexpr size_t kFloats = 32;
constexpr size_t kRowBytes = ShardCopies::kKeyBytes + kFloats * sizeof(float);
constexpr size_t kInBlock = ShardCopies::kBlockBytes / kRowBytes;

// Adds a row and returns what is to be counted.
size_t AddRow(ShardCopies* copies, int64_t key) {
  Rows* const rows = copies->Next(kFloats);
  rows->keys.push_back(key);
  rows->frequencies.push_back(1);
  rows->versions.push_back(2);
  rows->data.insert(rows->data.end(), kFloats, static_cast<float>(key));
  return copies->ToCount();
}

TEST(ShardCopies, ABlockIsFullBeforeTheNextBegins) {
  ShardCopies copies;
  for (size_t i = 0; i < 3 * kInBlock + 1; ++i) (void)AddRow(&copies, static_cast<int64_t>(i));
  size_t counted = 0;
  const std::vector<Rows> blocks = copies.Take(&counted);
  ASSERT_EQ(blocks.size(), 4u);
  int64_t next = 0;
  for (const Rows& block : blocks) {
    EXPECT_EQ(block.keys.size(), next == static_cast<int64_t>(3 * kInBlock) ? 1u : kInBlock);
    for (const int64_t key : block.keys) EXPECT_EQ(key, next++);
  }
  EXPECT_TRUE(copies.blocks().empty());
}

TEST(ShardCopies, BlocksAfterTheFirstDoNotGrow) {
  ShardCopies copies;
  for (size_t i = 0; i < kInBlock + 1; ++i) (void)AddRow(&copies, 1);
  const float* const data = copies.blocks()[1].data.data();
  for (size_t i = 1; i < kInBlock; ++i) (void)AddRow(&copies, 1);
  ASSERT_EQ(copies.blocks().size(), 2u);
  EXPECT_EQ(copies.blocks()[1].data.data(), data);
}

TEST(ShardCopies, RowsAmongKeysFillBlocksOfTheirOwn) {
  constexpr size_t kKeysInBlock = ShardCopies::kBlockBytes / ShardCopies::kKeyBytes;
  ShardCopies copies;
  size_t most = 0;
  for (size_t i = 0; i < 2 * kKeysInBlock; ++i) {  // a removed key, then a row, and so on
    copies.Next(0)->removed_keys.push_back(1);
    (void)AddRow(&copies, 2);
  }
  size_t counted = 0, rows = 0, keys = 0;
  const std::vector<Rows> blocks = copies.Take(&counted);
  EXPECT_EQ(blocks.size(), 2 + (2 * kKeysInBlock + kInBlock - 1) / kInBlock);
  for (const Rows& block : blocks) {
    EXPECT_TRUE(block.keys.empty() || block.removed_keys.empty());
    rows += block.keys.size();
    keys += block.removed_keys.size();
    most = std::max(most, block.data.capacity() * sizeof(float));
  }
  EXPECT_EQ(rows, 2 * kKeysInBlock);
  EXPECT_EQ(keys, 2 * kKeysInBlock);
  EXPECT_LE(most, 2 * ShardCopies::kBlockBytes);
}

TEST(ShardCopies, TheSumLagsBehindByLessThanItsBound) {
  ShardCopies copies;
  size_t added = 0, sum = 0, counts = 0;
  for (int i = 0; i < 1000; ++i) {
    const size_t count = AddRow(&copies, i);
    added += kRowBytes;
    sum += count;
    counts += count != 0;
    ASSERT_LE(sum, added);
    ASSERT_LT(added - sum, ShardCopies::kUncountedBytes);
  }
  EXPECT_LT(counts, 1000 / (ShardCopies::kUncountedBytes / kRowBytes) + 1) << "a row is not counted alone";
  size_t counted = 0;
  (void)copies.Take(&counted);
  EXPECT_EQ(counted, sum);
  (void)copies.Take(&counted);
  EXPECT_EQ(counted, 0u);
}

TEST(ShardCopies, ARowLongerThanABlockHasABlock) {
  ShardCopies copies;
  for (int i = 0; i < 2; ++i) {
    copies.Next(ShardCopies::kBlockBytes)->keys.push_back(i);
    EXPECT_GT(copies.ToCount(), ShardCopies::kBlockBytes);
  }
  EXPECT_EQ(copies.blocks().size(), 2u);
}

TEST(RowExport, AppendSomeGoesThroughRowsThenCountedThenRemovedKeys) {
  Rows from;
  from.keys = {1, 2, 3};
  from.frequencies = {10, 20, 30};
  from.versions = {100, 200, 300};
  from.data = {1, 1.5, 2, 2.5, 3, 3.5};
  from.counted_keys = {4, 5};
  from.counted_frequencies = {40, 50};
  from.counted_versions = {400, 500};
  from.removed_keys = {6};
  for (const size_t most : {1, 2, 4, 6, 100}) {
    SCOPED_TRACE(most);
    Rows to;
    size_t next = 0, calls = 0;
    for (bool more = true; more; ++calls) {
      const size_t before = next;
      more = AppendSome(from, most, &next, &to);
      EXPECT_LE(next - before, most);
    }
    EXPECT_EQ(calls, (6 + most - 1) / most);
    EXPECT_EQ(to.keys, from.keys);
    EXPECT_EQ(to.frequencies, from.frequencies);
    EXPECT_EQ(to.versions, from.versions);
    EXPECT_EQ(to.data, from.data);
    EXPECT_EQ(to.counted_keys, from.counted_keys);
    EXPECT_EQ(to.counted_frequencies, from.counted_frequencies);
    EXPECT_EQ(to.counted_versions, from.counted_versions);
    EXPECT_EQ(to.removed_keys, from.removed_keys);
  }
}

}  // namespace
}  // namespace multitier::snapshot_copies_test
