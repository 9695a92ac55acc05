#include "cc/table/shard/shard_rows.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::shard_rows_test {
namespace {

constexpr int kDim = 4;

// One shard over `levels` tiers. Keys are made as an apply makes them; Change() writes the first element.
class ShardRowsTest : public ::testing::Test {
 protected:
  void Make(int levels, bool bounded_last = false) {
    InitializerSpec spec;
    spec.a = 0.5f;
    initializer_ = std::make_unique<InitializerSet>(*InitializerSet::Create(spec, kDim));
    common_.env = Env::Posix();
    common_.initializer = initializer_.get();
    common_.exact = true;
    common_.evicts = levels > 0;
    common_.levels.count = levels;
    for (int level = 0; level < levels; ++level) {
      common_.levels.tier[level] = &tiers_[level];
      common_.levels.middle[level] = level + 1 < levels;
      common_.levels.bounded[level] = level + 1 < levels || bounded_last;
    }
    layout_ = std::make_shared<const RowLayout>(*RowLayout::Create(kDim, DType::kFloat32));
    rows_ = std::make_unique<ShardRows>(&common_, layout_, ShardIndex::Limits{1 << 20}, nullptr, &resolved_);
  }
  Found Find(int64_t key) { return rows_->Find(key, HashKey(key)); }
  // An uncommitted row of a key that is absent.
  RowHeader* Create(int64_t key) {
    KeyBatch batch;
    batch.SortByShard(Span<const int64_t>(&key, 1), 0);
    EXPECT_TRUE(rows_->ReserveWords(1).ok() && rows_->ReserveRows(1).ok());
    ++common_.dram_rows;
    std::vector<RowHeader*> rows(1);
    size_t created = 0;
    EXPECT_TRUE(rows_->CreateUncommitted(batch, {0}, common_.accesses++, rows.data(), &created).ok() && created == 1);
    return rows[0];
  }
  void Change(RowHeader* row, float value) {
    reinterpret_cast<float*>(rows_->BeginChange(row, HashKey(row->key)))[0] = value;
    rows_->Commit(row);
    rows_->FinishChange(row, common_.accesses++, 1, &freed_);
  }
  void Train(int64_t key) { Change(Create(key), static_cast<float>(key)); }
  // Writes the key's row to tier 0, as a slice of demotion does.
  ShardRows::Written Demote(int64_t key, uint32_t location, bool keep = false, int level = 0) {
    std::vector<uint8_t> data(layout_->row_bytes());
    header_ = rows_->BeginWrite(Find(key).slot, level, data.data());
    return rows_->EndWrite(header_, level, location, keep);
  }
  RowHeader* Promote(int64_t key, FreedRecords* freed) {
    const ReadProbe probe = rows_->records().BeginRead(key, HashKey(key), {});
    EXPECT_EQ(probe.where, ReadProbe::kBegun);
    const KeyWord word = rows_->records().EndRead(HashKey(key), probe.id);
    EXPECT_TRUE(rows_->ReserveRows(1).ok());
    std::vector<uint8_t> data(layout_->row_bytes());
    return rows_->Install(word, probe.level, probe.location, header_, data.data(), 0, 0, freed);
  }

  MemoryTier tiers_[2];
  ShardCommon common_;
  std::unique_ptr<InitializerSet> initializer_;
  std::shared_ptr<const RowLayout> layout_;
  Event resolved_;
  FreedRecords freed_;
  RecordHeader header_;
  std::unique_ptr<ShardRows> rows_;
};

TEST_F(ShardRowsTest, AnUncommittedRowHoldsItsInitialValueAndGoesWithItsLastPin) {
  Make(0);
  RowHeader* row = Create(7);
  EXPECT_TRUE(row->has(kRowUncommitted));
  EXPECT_EQ(reinterpret_cast<float*>(RowSlab::Data(row))[0], 0.5f);
  EXPECT_EQ(rows_->counts().rows, 0);
  rows_->Pin(row);
  rows_->Unpin(row);
  EXPECT_EQ(Find(7).row, row);
  rows_->Unpin(row);
  EXPECT_EQ(Find(7).row, nullptr);
  EXPECT_EQ(common_.dram_rows, 0);
}

TEST_F(ShardRowsTest, AChangeCommitsARowAndUnpinsIt) {
  Make(0);
  Train(7);
  const RowHeader* row = Find(7).row;
  ASSERT_NE(row, nullptr);
  EXPECT_FALSE(row->has(kRowUncommitted));
  EXPECT_EQ(row->pins, 0);
  EXPECT_EQ(rows_->counts().rows, 1);
  EXPECT_EQ(rows_->counters().created, 1);
  EXPECT_EQ(common_.dram_rows, 1);
}

TEST_F(ShardRowsTest, AnErasedRowThatAnApplyHoldsIsAbsentAndStaysPinned) {
  Make(0);
  Train(7);
  RowHeader* row = Find(7).row;
  rows_->Pin(row);
  rows_->Erase(Find(7), &freed_);
  EXPECT_TRUE(row->has(kRowUncommitted));
  EXPECT_EQ(reinterpret_cast<float*>(RowSlab::Data(row))[0], 0.5f);
  EXPECT_EQ(rows_->counts().rows, 0);
  Change(row, 1.0f);
  EXPECT_EQ(rows_->counts().rows, 1);
  rows_->Erase(Find(7), &freed_);
  EXPECT_EQ(Find(7).row, nullptr);
  EXPECT_EQ(common_.dram_rows, 0);
}

TEST_F(ShardRowsTest, ACountedKeyBecomesARowAndIsPutBackWhereTheApplyIsUndone) {
  Make(0);
  ASSERT_TRUE(rows_->ReserveWords(1).ok() && rows_->ReserveCounted(1));
  ASSERT_TRUE(rows_->CreateCounted(5, HashKey(5), 1).ok());
  rows_->SetCount(Find(5), 3, 9);
  rows_->UnpinCounted(5, HashKey(5));
  EXPECT_EQ(rows_->counts().counted_rows, 1);
  ASSERT_TRUE(rows_->ReserveRows(1).ok());
  ++common_.dram_rows;
  RowHeader* row = rows_->CreateFromCounted(Find(5), 1);
  EXPECT_EQ(rows_->counts().counted_rows, 0);
  rows_->Unpin(row);
  ASSERT_NE(Find(5).counted, nullptr);
  EXPECT_EQ(Find(5).counted->frequency, 3u);
  EXPECT_EQ(Find(5).counted->version, 9);
  EXPECT_EQ(rows_->counts().counted_rows, 1);
  rows_->EraseCount(Find(5));
  EXPECT_EQ(Find(5).counted, nullptr);
  EXPECT_EQ(rows_->counts().counted_rows, 0);
}

TEST_F(ShardRowsTest, AnUnchangedRowBecomesItsRecord) {
  Make(1);
  Train(7);
  EXPECT_EQ(Demote(7, 40), ShardRows::Written::kMoved);
  EXPECT_TRUE(Find(7).maybe_below);
  EXPECT_TRUE(rows_->records().Names(0, 7, 40));
  EXPECT_EQ(rows_->counts().rows_in[0], 1);
  EXPECT_EQ(rows_->counts().rows, 1);
  EXPECT_EQ(common_.dram_rows, 1);
  rows_->TellMoved();
  EXPECT_EQ(common_.dram_rows, 0);
}

TEST_F(ShardRowsTest, ARowThatChangedWhileItWasWrittenStays) {
  Make(1);
  Train(7);
  std::vector<uint8_t> data(layout_->row_bytes());
  const RecordHeader header = rows_->BeginWrite(Find(7).slot, 0, data.data());
  rows_->Pin(Find(7).row);
  Change(Find(7).row, 8.0f);
  EXPECT_EQ(rows_->EndWrite(header, 0, 40, /*keep=*/false), ShardRows::Written::kStale);
  EXPECT_NE(Find(7).row, nullptr);
}

TEST_F(ShardRowsTest, APinnedRowKeepsTheRecordAsItsCopyUntilItChanges) {
  Make(1);
  Train(7);
  rows_->Pin(Find(7).row);
  EXPECT_EQ(Demote(7, 40), ShardRows::Written::kCopied);
  EXPECT_EQ(Find(7).row->below, 40u);
  Change(Find(7).row, 8.0f);
  ASSERT_EQ(freed_.at[0].size(), 1u);
  EXPECT_EQ(freed_.at[0][0].location, 40u);
  EXPECT_EQ(Find(7).row->below, kNoLocation);
}

TEST_F(ShardRowsTest, AWriteThatFailedLeavesTheRowAsItWas) {
  Make(1);
  Train(7);
  std::vector<uint8_t> data(layout_->row_bytes());
  rows_->BeginWrite(Find(7).slot, 0, data.data());
  rows_->CancelWrite(7);
  EXPECT_FALSE(Find(7).row->has(kRowDemoting));
}

TEST_F(ShardRowsTest, ARecordOfAnUnboundedLastTierStaysAsTheCopy) {
  Make(1);
  Train(7);
  Demote(7, 40);
  const RowHeader* row = Promote(7, &freed_);
  EXPECT_EQ(row->below, 40u);
  EXPECT_TRUE(freed_.at[0].empty());
  rows_->MoveToCopy(Find(7).slot);  // clean: no write
  EXPECT_TRUE(rows_->records().Names(0, 7, 40));
}

TEST_F(ShardRowsTest, ARecordOfABoundedTierIsFreed) {
  Make(1, /*bounded_last=*/true);
  Train(7);
  Demote(7, 40);
  EXPECT_EQ(Promote(7, &freed_)->below, kNoLocation);
  ASSERT_EQ(freed_.at[0].size(), 1u);
  EXPECT_EQ(rows_->counts().rows_in[0], 0);
}

TEST_F(ShardRowsTest, ARecordIsReadByOneOperationAtATime) {
  Make(1);
  Train(7);
  Demote(7, 40);
  const ReadProbe first = rows_->records().BeginRead(7, HashKey(7), {});
  EXPECT_EQ(first.where, ReadProbe::kBegun);
  EXPECT_EQ(first.location, 40u);
  EXPECT_EQ(rows_->records().BeginRead(7, HashKey(7), {}).where, ReadProbe::kReadByOthers);
  EXPECT_TRUE(rows_->records().reading());
  const uint64_t before = resolved_.count();
  rows_->records().EndRead(HashKey(7), first.id);
  EXPECT_EQ(resolved_.count(), before + 1);
  EXPECT_EQ(rows_->records().BeginRead(7, HashKey(7), {PlaceOf(0, 40)}).where, ReadProbe::kMemory);  // another key's: excluded
}

TEST_F(ShardRowsTest, ARecordThatIsBeingReadIsNotRelocated) {
  Make(1);
  Train(7);
  Demote(7, 40);
  Relocation move{7, 40, 41};
  const ReadProbe probe = rows_->records().BeginRead(7, HashKey(7), {});
  rows_->records().Relocate(0, &move);
  EXPECT_FALSE(move.moved);
  rows_->records().EndRead(HashKey(7), probe.id);
  rows_->records().Relocate(0, &move);
  EXPECT_TRUE(move.moved);
  EXPECT_TRUE(rows_->records().Names(0, 7, 41));
}

TEST_F(ShardRowsTest, TheColdestRecordLeavesItsTierFirst) {
  Make(2);
  for (const int64_t key : {1, 2, 3}) {
    Train(key);
    Demote(key, static_cast<uint32_t>(key));
  }
  const std::vector<LowerOrder::Entry> coldest = rows_->records().PopColdest(0, 1);
  ASSERT_EQ(coldest.size(), 1u);
  EXPECT_EQ(coldest[0].key, 1);
  RecordHeader header;
  header.key = 1;
  header.recency = coldest[0].rank.recency;
  ShardRecords::Leaving leaving;
  ASSERT_EQ(rows_->records().BeginLeave(0, coldest[0], &header, common_.accesses, &leaving), ShardRecords::Leave::kBegun);
  EXPECT_EQ(rows_->records().BeginLeave(0, coldest[0], &header, common_.accesses, &leaving), ShardRecords::Leave::kReadNow);
  rows_->records().MoveDown(0, leaving, header, 1, 90, &freed_);
  EXPECT_TRUE(rows_->records().Names(1, 1, 90));
  EXPECT_EQ(rows_->counts().rows_in[0], 2);
  EXPECT_EQ(rows_->counts().rows_in[1], 1);
  EXPECT_EQ(freed_.at[0].size(), 1u);
}

TEST_F(ShardRowsTest, ARecordThatCannotLeaveIsTheColdestAgain) {
  Make(1, /*bounded_last=*/true);
  for (const int64_t key : {1, 2}) {
    Train(key);
    Demote(key, static_cast<uint32_t>(key));
  }
  const LowerOrder::Entry coldest = rows_->records().PopColdest(0, 1)[0];
  ShardRecords::Leaving leaving;
  ASSERT_EQ(rows_->records().BeginLeave(0, coldest, nullptr, common_.accesses, &leaving), ShardRecords::Leave::kBegun);
  rows_->records().CancelLeave(0, leaving);
  EXPECT_EQ(rows_->records().PopColdest(0, 1)[0].key, 1);
  EXPECT_EQ(rows_->records().BeginLeave(0, coldest, nullptr, common_.accesses, &leaving), ShardRecords::Leave::kBegun);
  rows_->records().DropRecord(0, leaving, leaving.header, nullptr, &freed_);
  EXPECT_EQ(rows_->counts().rows, 1);
  EXPECT_EQ(rows_->counters().dropped, 1);
  EXPECT_FALSE(Find(1).maybe_below);
}

TEST_F(ShardRowsTest, ColdRowsAreChosenAndPinnedOnesAreNot) {
  Make(1);
  for (const int64_t key : {1, 2, 3}) Train(key);
  rows_->Pin(Find(1).row);
  EXPECT_EQ(rows_->ChooseVictims(1), std::vector<uint32_t>{Find(2).slot});
  EXPECT_TRUE(rows_->pins().Pin(Find(2).row, ~uint64_t{0}, true));
  EXPECT_EQ(rows_->ChooseVictims(1), std::vector<uint32_t>{Find(3).slot});
  EXPECT_EQ(rows_->pins().pinned(), 1);
  rows_->pins().Sweep(~uint64_t{0});
  EXPECT_EQ(rows_->ChooseVictims(1), std::vector<uint32_t>{Find(2).slot});
}

TEST_F(ShardRowsTest, ASnapshotGivesEachRowOnceWhereverItGoes) {
  Make(1);
  for (const int64_t key : {1, 2, 3}) Train(key);
  auto state = std::make_shared<SnapshotState>();
  rows_->snapshot().Begin(state);
  Train(4);       // after the moment
  Demote(1, 40);  // given from its record
  rows_->Pin(Find(2).row);
  Change(Find(2).row, 9.0f);  // copied before
  std::vector<int64_t> given;
  uint32_t slot = 0;
  EXPECT_FALSE(rows_->snapshot().GiveRows(&slot, 100, 100, [&](const RowHeader& row) { given.push_back(row.key); }));
  EXPECT_EQ(given, std::vector<int64_t>{3});
  const std::vector<Rows> copies = rows_->snapshot().TakeCopies();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].keys, std::vector<int64_t>{2});
  ReadRecord record;
  record.location = 40;
  record.header.key = 1;
  EXPECT_TRUE(rows_->snapshot().GiveRecord(0, record, state->Moves(0)));
  EXPECT_FALSE(rows_->snapshot().GiveRecord(0, record, state->Moves(0)));
  rows_->snapshot().End();
}

TEST_F(ShardRowsTest, AChangeOfAKnownSlotDoesNotAskTheIndex) {
  Make(0);
  for (const int64_t key : {1, 2}) Train(key);
  rows_->snapshot().Begin(std::make_shared<SnapshotState>());
  const Found found = Find(2);
  rows_->Pin(found.row);
  const uint64_t of_no_key = HashKey(3);
  (void)rows_->BeginChange(found.row, of_no_key, found.slot);
  const std::vector<Rows> copies = rows_->snapshot().TakeCopies();
  ASSERT_EQ(copies.size(), 1u);
  EXPECT_EQ(copies[0].keys, std::vector<int64_t>{2});
  rows_->snapshot().End();
}

TEST_F(ShardRowsTest, AHomeIsVisitedWithItsRecordsHeld) {
  Make(1);
  Train(1);
  Train(2);
  Demote(1, 40);
  const auto home_of = [&](int64_t key) {
    return static_cast<uint32_t>(HashKey(key) & ((uint64_t{1} << rows_->scan().log2_homes()) - 1));
  };
  std::vector<int64_t> in_memory;
  std::vector<uint32_t> held;
  for (const int64_t key : {1, 2}) {
    rows_->scan().VisitHome(
        home_of(key), [&](const RowHeader& row) { in_memory.push_back(row.key); }, [](const CountedKey&) {},
        [](int, uint32_t) { return false; }, [&](int, uint32_t, uint32_t id) { held.push_back(id); });
    EXPECT_TRUE(held.empty() || key == 2);  // a record that is not wanted is not held
    rows_->scan().VisitHome(
        home_of(key), [](const RowHeader&) {}, [](const CountedKey&) {}, [](int, uint32_t) { return true; },
        [&](int, uint32_t, uint32_t id) { held.push_back(id); });
  }
  EXPECT_EQ(in_memory, std::vector<int64_t>{2});
  ASSERT_EQ(held.size(), 1u);
  EXPECT_TRUE(rows_->scan().ReadingAt(home_of(1)));
  rows_->scan().EndReadAt(home_of(1), rows_->scan().log2_homes(), held[0]);
  EXPECT_FALSE(rows_->scan().ReadingAt(home_of(1)));
}

TEST_F(ShardRowsTest, ClearTakesEverythingAway) {
  Make(1);
  Train(1);
  Train(2);
  Demote(1, 40);
  rows_->Clear(&freed_);
  EXPECT_EQ(rows_->counts().rows, 0);
  EXPECT_EQ(rows_->counts().rows_in[0], 0);
  EXPECT_EQ(rows_->counters().removed, 2);
  EXPECT_FALSE(Find(1).maybe_below || Find(2).row != nullptr);
}

}  // namespace
}  // namespace multitier::shard_rows_test
