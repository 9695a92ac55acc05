// ChangedRows: a changed row is named once, by its slot while it is in DRAM and by its key afterwards.

#include "cc/table/marks/changed_rows.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <unordered_set>

namespace multitier::changed_rows_test {
namespace {

using Keys = std::unordered_set<int64_t>;

class ChangedRowsTest : public testing::Test {
 protected:
  ChangedRowsTest() { changed_.Start(); }

  ChangedRows changed_;
};

TEST_F(ChangedRowsTest, ARowThatChangesAndStaysIsNamedByItsSlot) {
  changed_.RowChanged(3, 30);
  changed_.RowChanged(3, 30);
  changed_.CountedChanged(5, 50);
  const ChangedRows::Changes changes = changed_.Take();
  EXPECT_TRUE(changes.rows.has(3));
  EXPECT_FALSE(changes.rows.has(5));
  EXPECT_TRUE(changes.counted.has(5));
  EXPECT_EQ(changes.keys, Keys());
}

TEST_F(ChangedRowsTest, AChangedRowThatIsDemotedIsNamedByItsKey) {
  changed_.RowChanged(3, 30);
  changed_.RowDemoted(3, 30);
  changed_.RowDemoted(4, 40);  // not changed
  const ChangedRows::Changes changes = changed_.Take();
  EXPECT_FALSE(changes.rows.has(3));
  EXPECT_EQ(changes.keys, Keys({30}));
}

TEST_F(ChangedRowsTest, AKeyThatChangesAgainInDramIsNoLongerInTheSet) {
  changed_.RowChanged(3, 30);
  changed_.RowDemoted(3, 30);
  changed_.RowCreated(8);  // it comes up again, in another slot
  changed_.RowChanged(8, 30);
  const ChangedRows::Changes changes = changed_.Take();
  EXPECT_TRUE(changes.rows.has(8));
  EXPECT_EQ(changes.keys, Keys());
}

TEST_F(ChangedRowsTest, WhatLeavesTheTableIsNamedChangedOrNot) {
  changed_.RowGone(1, 10);
  changed_.CountedGone(2, 20);
  changed_.RecordGone(30);
  const ChangedRows::Changes changes = changed_.Take();
  EXPECT_EQ(changes.keys, Keys({10, 20, 30}));
}

TEST_F(ChangedRowsTest, ASlotThatIsUsedAgainDoesNotInheritTheChange) {
  changed_.RowChanged(1, 10);
  changed_.RowCreated(1);
  changed_.CountedChanged(2, 20);
  changed_.CountedCreated(2);
  const ChangedRows::Changes changes = changed_.Take();
  EXPECT_FALSE(changes.rows.has(1));
  EXPECT_FALSE(changes.counted.has(2));
}

TEST_F(ChangedRowsTest, TakeBeginsAnewAndStopForgets) {
  changed_.RowChanged(1, 10);
  EXPECT_TRUE(changed_.Take().rows.has(1));
  EXPECT_TRUE(changed_.active());
  EXPECT_FALSE(changed_.Take().rows.has(1));
  changed_.RecordGone(20);
  changed_.Stop();
  EXPECT_FALSE(changed_.active());
  changed_.RowChanged(1, 10);
  changed_.RecordGone(30);
  const ChangedRows::Changes changes = changed_.Take();
  EXPECT_FALSE(changes.rows.has(1));
  EXPECT_EQ(changes.keys, Keys());
}

}  // namespace
}  // namespace multitier::changed_rows_test
