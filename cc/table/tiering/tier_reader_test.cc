#include "cc/table/tiering/tier_reader.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cc/table/test/table_parts_test_util.h"

namespace multitier::tier_reader_test {
namespace {

constexpr int kDim = 4;

// Gives the answer it was made with, and notes what it saw.
class NotingVisitor : public RecordVisitor {
 public:
  explicit NotingVisitor(Answer answer, Damage damage = Damage::kAsOption) : answer_(answer), damage_(damage) {}
  bool NeedsRow() const override { return true; }
  Damage OnDamage() const override { return damage_; }
  FreedRecords* removed() override { return answer_ == Answer::kErase ? &freed : nullptr; }
  Status OnMemory(Shard::Locked&, TierKey* key, const Found& found) override {
    (found.row != nullptr ? in_memory : absent).push_back(key->key);
    return OkStatus();
  }
  Answer OnRecord(Shard::Locked&, TierKey* key, const RecordHeader& header) override {
    first_element[key->key] = reinterpret_cast<const float*>(key->row.data())[0];
    frequency[key->key] = header.frequency;
    return answer_;
  }
  void OnInstalled(Shard::Locked&, TierKey* key, RowHeader* row) override { installed[key->key] = row; }

  FreedRecords freed;
  std::vector<int64_t> in_memory, absent;
  std::map<int64_t, float> first_element;
  std::map<int64_t, uint32_t> frequency;
  std::map<int64_t, RowHeader*> installed;

 private:
  const Answer answer_;
  const Damage damage_;
};

using Answer = RecordVisitor::Answer;

// One shard over one tier in memory with the records of keys 1 .. 3, whose first element is their key.
class TierReaderTest : public ::testing::Test {
 protected:
  void Make(OnCorruption on_corruption = OnCorruption::kError, bool has_last = false) {
    TableOptions options;
    options.name = "t";
    options.dim = kDim;
    options.dram_budget_bytes = 1024;
    options.on_corruption = on_corruption;
    InitializerSpec initial_value;
    initial_value.a = 0.5f;
    parts_ = std::make_unique<TableParts>(std::move(options), initial_value, /*has_lower=*/true, /*lower_rows=*/0, has_last);
    base_ = &parts_->base;
    tier_ = parts_->tier.get();
    for (const int64_t key : {1, 2, 3}) Write(key);
  }
  void Write(int64_t key, int level = 0) {
    std::vector<float> row(kDim, static_cast<float>(key));
    WriteRecord record;
    record.header.key = key;
    record.header.frequency = 7;
    record.header.num_columns = 1;
    record.row_data = reinterpret_cast<const uint8_t*>(row.data());
    const ShardWriter writer(base_->shards[0]);
    ASSERT_TRUE(base_->tiers.Write(writer, level, Span<const WriteRecord>(&record, 1), &location_[key]).ok());
    Shard::Locked lock(base_->shards[0]);
    ASSERT_TRUE(lock->ReserveWords(1).ok() && lock->Adopt(HashKey(key), level, location_[key]).ok());
  }
  Status Read(const std::vector<int64_t>& keys, RecordVisitor* visitor) {
    KeyBatch batch;
    batch.SortByShard(Span<const int64_t>(keys), 0);
    TierKeys wanted;
    for (uint32_t e = batch.begin(0); e < batch.end(0); ++e) wanted.Add(batch, e, 0);
    return parts_->reader.Read(&wanted, visitor);
  }
  bool names(int64_t key) { return Shard::Locked(base_->shards[0])->records().Names(0, key, location_[key]); }
  bool reading() { return Shard::Locked(base_->shards[0])->records().reading(); }

  std::map<int64_t, uint32_t> location_;
  std::unique_ptr<TableParts> parts_;
  TableBase* base_ = nullptr;  // of parts_
  MemoryTier* tier_ = nullptr;
};

TEST_F(TierReaderTest, KeptRecordsAreReadAndStay) {
  Make();
  NotingVisitor visitor(Answer::kKeep);
  ASSERT_TRUE(Read({1, 3, 9}, &visitor).ok());
  EXPECT_EQ(visitor.first_element, (std::map<int64_t, float>{{1, 1.0f}, {3, 3.0f}}));
  EXPECT_EQ(visitor.frequency[1], 7u);
  EXPECT_EQ(visitor.absent, std::vector<int64_t>{9});
  EXPECT_TRUE(names(1) && names(3) && !reading());
  EXPECT_EQ(tier_->counters().read_calls, 1);
}

TEST_F(TierReaderTest, InstalledRowsAreInDramAndKeepTheirRecordAsACopy) {
  Make();
  NotingVisitor visitor(Answer::kInstall);
  ASSERT_TRUE(Read({2}, &visitor).ok());
  const RowHeader* row = visitor.installed[2];
  ASSERT_NE(row, nullptr);
  EXPECT_EQ(reinterpret_cast<const float*>(RowSlab::Data(row))[0], 2.0f);
  EXPECT_EQ(row->below, location_[2]);
  NotingVisitor again(Answer::kInstall);
  ASSERT_TRUE(Read({2}, &again).ok());
  EXPECT_EQ(again.in_memory, std::vector<int64_t>{2});
}

// Else another thread could remove the key, and the tier would keep the record as the newest of a key that has no row.
TEST_F(TierReaderTest, ARecordThatIsNoCopyIsFreedBeforeOtherThreadsSeeItsRow) {
  Make(OnCorruption::kError, /*has_last=*/true);
  Write(4, /*level=*/1);
  int64_t freed = -1;
  parts_->last->SetHook([&](MemoryTier::Point point) {
    if (point == MemoryTier::Point::kBeforeRead) freed = tier_->counters().records_freed;  // the first tier was read before
  });
  NotingVisitor visitor(Answer::kInstall);
  ASSERT_TRUE(Read({1, 4}, &visitor).ok());
  EXPECT_EQ(freed, 1);
}

TEST_F(TierReaderTest, ErasedKeysLeaveTheTableAndTheirRecordsAreReturned) {
  Make();
  NotingVisitor visitor(Answer::kErase);
  ASSERT_TRUE(Read({1, 2}, &visitor).ok());
  EXPECT_EQ(visitor.freed.at[0].size(), 2u);
  EXPECT_FALSE(names(1) || names(2));
  EXPECT_TRUE(names(3));
}

TEST_F(TierReaderTest, AFailedReadPutsEveryRecordBack) {
  Make();
  tier_->FailRead(1, InternalError("broken"));
  NotingVisitor visitor(Answer::kInstall);
  const Status status = Read({1, 2}, &visitor);
  EXPECT_EQ(status.code(), StatusCode::kInternal);
  EXPECT_NE(status.message().find("table 't': reading key "), std::string::npos);
  EXPECT_TRUE(visitor.installed.empty() && names(1) && names(2) && !reading());
}

TEST_F(TierReaderTest, ADamagedRecordIsAnError) {
  Make();
  ASSERT_TRUE(tier_->Corrupt(location_[1]).ok());
  NotingVisitor visitor(Answer::kKeep);
  EXPECT_EQ(Read({1}, &visitor).code(), StatusCode::kDataLoss);
  EXPECT_TRUE(names(1) && !reading());
}

TEST_F(TierReaderTest, ADamagedRecordStartsAnewWhereTheOptionSaysSo) {
  Make(OnCorruption::kReinit);
  ASSERT_TRUE(tier_->Corrupt(location_[1]).ok());
  NotingVisitor visitor(Answer::kInstall);
  ASSERT_TRUE(Read({1}, &visitor).ok());
  EXPECT_EQ(visitor.first_element[1], 0.5f);
  EXPECT_EQ(visitor.frequency[1], 0u);
  EXPECT_EQ(visitor.installed[1]->below, kNoLocation);
}

TEST_F(TierReaderTest, ADamagedRecordIsDroppedWhereTheOptionSaysSo) {
  Make(OnCorruption::kDrop);
  ASSERT_TRUE(tier_->Corrupt(location_[1]).ok());
  NotingVisitor visitor(Answer::kKeep);
  ASSERT_TRUE(Read({1}, &visitor).ok());
  EXPECT_EQ(visitor.absent, std::vector<int64_t>{1});
  EXPECT_EQ(parts_->demoter.PopDropped(), std::vector<int64_t>{1});
}

TEST_F(TierReaderTest, ADamagedRecordIsErasedWhereTheVisitorSaysSo) {
  Make();
  ASSERT_TRUE(tier_->Corrupt(location_[1]).ok());
  NotingVisitor visitor(Answer::kErase, RecordVisitor::Damage::kErase);
  ASSERT_TRUE(Read({1, 2}, &visitor).ok());
  EXPECT_FALSE(names(1) || names(2));
}

TEST_F(TierReaderTest, AVisitorThatErasesGoesThroughAllKeysBeforeTheFirstErrorIsReturned) {
  Make();
  ASSERT_TRUE(tier_->Corrupt(location_[1]).ok());
  NotingVisitor visitor(Answer::kErase, RecordVisitor::Damage::kError);
  EXPECT_EQ(Read({1, 2, 3}, &visitor).code(), StatusCode::kDataLoss);
  EXPECT_TRUE(names(1) && !names(2) && !names(3));
}

}  // namespace
}  // namespace multitier::tier_reader_test
