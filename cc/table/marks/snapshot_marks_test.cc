#include "cc/table/marks/snapshot_marks.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace multitier::snapshot_marks_test {
namespace {

// Marks over a slab of three rows (keys 10, 11, 12) and one counted key (20), with two tiers below.
class SnapshotMarksTest : public ::testing::Test {
 protected:
  SnapshotMarksTest()
      : dram_(Env::Posix(), std::make_shared<const RowLayout>(*RowLayout::Create(4, DType::kFloat32))),
        counted_(Env::Posix()),
        state_(std::make_shared<SnapshotState>()) {
    levels_.count = 2;
    levels_.bounded[0] = true;
    EXPECT_TRUE(dram_.Reserve(4).ok() && counted_.Reserve(1));
    for (int i = 0; i < 3; ++i) {
      RowHeader* row = dram_.Header(dram_.Allocate());
      row->key = 10 + i;
      row->frequency = 1;
    }
    counted_.at(counted_.Allocate(20))->frequency = 7;
  }
  Rows copies() const { return marks_.copies().empty() ? Rows() : marks_.copies()[0]; }
  std::vector<int64_t> copied() const { return copies().keys; }

  TierLevels levels_;
  RowSlab dram_;
  CountedKeys counted_;
  std::shared_ptr<SnapshotState> state_;
  SnapshotMarks marks_{&levels_, &dram_, &counted_};
};

TEST_F(SnapshotMarksTest, NothingIsCopiedWhileNoSnapshotIsTaken) {
  marks_.RowChanges(0);
  marks_.CountedChanges(0);
  marks_.RowDemoted(1, 0, 5);
  EXPECT_FALSE(marks_.wants_record(0, 5));
  EXPECT_TRUE(copied().empty() && marks_.ignores_rows());
}

TEST_F(SnapshotMarksTest, ARowIsCopiedBeforeItsFirstChangeAndNotAgain) {
  marks_.Begin(state_);
  marks_.RowChanges(1);
  marks_.RowChanges(1);
  EXPECT_EQ(copied(), std::vector<int64_t>{11});
  EXPECT_FALSE(marks_.TakeRow(1));
  EXPECT_TRUE(marks_.TakeRow(0));
  marks_.RowChanges(0);  // it was given
  EXPECT_EQ(copied().size(), 1u);
}

TEST_F(SnapshotMarksTest, ARowOfALaterMomentIsNotCopied) {
  marks_.Begin(state_);
  marks_.RowCreated(2);  // the slot is used again
  marks_.RowChanges(2);
  marks_.CountedCreated(0);
  marks_.CountedChanges(0);
  EXPECT_TRUE(copied().empty() && copies().counted_keys.empty());
}

TEST_F(SnapshotMarksTest, ACountedKeyIsCopiedBeforeItsCountChanges) {
  marks_.Begin(state_);
  marks_.CountedChanges(0);
  EXPECT_EQ(copies().counted_keys, std::vector<int64_t>{20});
  EXPECT_EQ(copies().counted_frequencies, std::vector<int64_t>{7});
}

TEST_F(SnapshotMarksTest, ADemotedRowIsGivenFromItsRecord) {
  marks_.Begin(state_);
  marks_.RowDemoted(0, 0, 5);
  EXPECT_TRUE(marks_.wants_record(0, 5));
  EXPECT_FALSE(marks_.TakeRow(0));
  EXPECT_TRUE(marks_.TakeRow(1));  // given, then demoted: not given again
  marks_.RowDemoted(1, 0, 6);
  EXPECT_FALSE(marks_.wants_record(0, 6));
}

TEST_F(SnapshotMarksTest, ARowThatGoesWhereTheSnapshotHasBeenIsCopied) {
  marks_.Begin(state_);
  state_->in_dram = false;
  marks_.RowDemoted(0, 0, 5);
  EXPECT_EQ(copied(), std::vector<int64_t>{10});
  EXPECT_FALSE(marks_.wants_record(0, 5));
  marks_.RowDemoted(1, 1, 6);  // the last tier keeps copies: the snapshot comes to it later
  EXPECT_TRUE(marks_.wants_record(1, 6));
  EXPECT_EQ(copied().size(), 1u);
}

TEST_F(SnapshotMarksTest, ARowWhoseRecordStaysIsGivenByEither) {
  marks_.Begin(state_);
  const uint32_t slot = dram_.Allocate();
  marks_.RowCreated(slot);
  dram_.Header(slot)->below = 3;
  marks_.RowPromoted(slot, 1, 3);
  EXPECT_TRUE(marks_.wants_record(1, 3));
  marks_.RowChanges(slot);
  EXPECT_FALSE(marks_.wants_record(1, 3));
  EXPECT_EQ(copied().size(), 1u);
}

TEST_F(SnapshotMarksTest, ARowWhoseRecordGoesIsCopied) {
  marks_.Begin(state_);
  const uint32_t slot = dram_.Allocate();
  marks_.RowCreated(slot);
  marks_.RowPromoted(slot, 0, 3);
  EXPECT_FALSE(marks_.wants_record(0, 3) || marks_.TakeRow(slot));
  EXPECT_EQ(copied().size(), 1u);
}

TEST_F(SnapshotMarksTest, AMarkGoesWithItsRecord) {
  marks_.Begin(state_);
  state_->given[0].Set(7, true);
  marks_.RecordCopied(0, 7, 1, 70);
  marks_.RecordCopied(0, 8, 1, 80);
  EXPECT_FALSE(marks_.wants_record(1, 70));
  EXPECT_TRUE(marks_.wants_record(1, 80));
  marks_.RecordRelocated(1, 80, 81);
  EXPECT_TRUE(marks_.wants_record(1, 81));
  EXPECT_EQ(state_->moved[1].size(), 1u);
}

TEST_F(SnapshotMarksTest, ARecordIsCopiedBeforeItGoes) {
  marks_.Begin(state_);
  std::vector<uint8_t> data(dram_.layout()->row_bytes());
  RecordHeader header;
  header.key = 30;
  header.num_columns = 1;
  header.below = 9;
  marks_.RecordGoes(0, 4, header, data.data());
  marks_.RecordGoes(0, 4, header, data.data());
  EXPECT_EQ(copied(), std::vector<int64_t>{30});
  EXPECT_FALSE(marks_.wants_record(0, 4) || marks_.wants_record(1, 9));
}

TEST_F(SnapshotMarksTest, ADamagedRecordThatGoesIsLeftOutOnceWhereTheOptionSaysSo) {
  for (const bool leaves_out : {false, true}) {
    state_ = std::make_shared<SnapshotState>();
    state_->leaves_out_damaged = leaves_out;
    marks_.Begin(state_);
    marks_.RecordLost(0, 4, 1);
    marks_.RecordLost(0, 4, 1);
    EXPECT_FALSE(marks_.wants_record(0, 4));
    EXPECT_EQ(state_->left_out.load(), leaves_out ? 1 : 0);
    EXPECT_TRUE(copied().empty());
  }
}

TEST_F(SnapshotMarksTest, NothingIsCopiedForASnapshotThatIsOver) {
  marks_.Begin(state_);
  state_->over = true;
  marks_.RowChanges(0);
  EXPECT_TRUE(copied().empty());
  marks_.End();
  EXPECT_FALSE(marks_.active() || marks_.wants_record(0, 1));
}

}  // namespace
}  // namespace multitier::snapshot_marks_test
