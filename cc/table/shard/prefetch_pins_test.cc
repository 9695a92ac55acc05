#include "cc/table/shard/prefetch_pins.h"

#include <gtest/gtest.h>

#include <map>

namespace multitier::prefetch_pins_test {
namespace {

class PrefetchPinsTest : public ::testing::Test {
 protected:
  RowHeader* Row(int64_t key) {
    RowHeader& row = rows_[key];
    row.key = key;
    return &row;
  }
  bool Pin(int64_t key, uint64_t until, bool room = true) { return pins_.Pin(Row(key), until, room); }
  // What a lookup does.
  void Use(int64_t key) {
    Row(key)->flags = 0;
    pins_.Used();
  }
  bool pinned(int64_t key) { return Row(key)->has(kRowPrefetched); }

  std::map<int64_t, RowHeader> rows_;
  PrefetchPins pins_{[this](int64_t key) { return rows_.count(key) != 0 ? &rows_[key] : nullptr; }};
};

TEST_F(PrefetchPinsTest, APinEndsWhenItsTimeIsOver) {
  EXPECT_TRUE(Pin(1, 10));
  EXPECT_TRUE(Pin(2, 20));
  pins_.Sweep(9);
  EXPECT_EQ(pins_.pinned(), 2);
  pins_.Sweep(10);
  EXPECT_TRUE(!pinned(1) && pinned(2));
  EXPECT_EQ(pins_.pinned(), 1);
}

TEST_F(PrefetchPinsTest, ARenewedPinEndsWithTheLaterOfItsTimes) {
  EXPECT_TRUE(Pin(1, 10));
  EXPECT_FALSE(Pin(1, 30));
  EXPECT_FALSE(Pin(1, 20));
  pins_.Sweep(29);
  EXPECT_TRUE(pinned(1));
  pins_.Sweep(30);
  EXPECT_FALSE(pinned(1));
}

TEST_F(PrefetchPinsTest, AUseEndsAPinAndANewPinHasATimeOfItsOwn) {
  EXPECT_TRUE(Pin(1, 30));
  Use(1);
  EXPECT_TRUE(Pin(1, 20));
  pins_.Sweep(20);
  EXPECT_FALSE(pinned(1));
  EXPECT_EQ(pins_.pinned(), 0);
}

TEST_F(PrefetchPinsTest, WithoutRoomOnlyAPinnedRowIsPinned) {
  EXPECT_FALSE(Pin(1, 10, /*room=*/false));
  EXPECT_FALSE(pinned(1));
  EXPECT_TRUE(Pin(1, 10));
  EXPECT_FALSE(Pin(1, 20, /*room=*/false));
  pins_.Sweep(10);
  EXPECT_TRUE(pinned(1));
}

TEST_F(PrefetchPinsTest, AnUncommittedRowIsNotPinned) {
  Row(1)->flags = kRowUncommitted;
  EXPECT_FALSE(Pin(1, 10));
}

TEST_F(PrefetchPinsTest, EndsOfUsedRowsDoNotPileUp) {
  for (uint64_t i = 0; i < 10000; ++i) {
    ASSERT_TRUE(Pin(static_cast<int64_t>(i), i + 1000000));
    if (i != 5000) Use(static_cast<int64_t>(i));
  }
  EXPECT_EQ(pins_.pinned(), 1);
  pins_.Sweep(1005000);
  EXPECT_FALSE(pinned(5000));
  EXPECT_EQ(pins_.pinned(), 0);
}

}  // namespace
}  // namespace multitier::prefetch_pins_test
