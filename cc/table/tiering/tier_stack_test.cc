#include "cc/table/tiering/tier_stack.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::tier_stack_test {
namespace {

// A tier that refuses removals when a test asks for it.
class RefusingTier : public MemoryTier {
 public:
  bool refuses = false;
  std::vector<int64_t> removed;
  TierCapabilities capabilities() const override {
    TierCapabilities can = MemoryTier::capabilities();
    can.durable = true;
    return can;
  }
  Status Remove(Span<const KeyLocation> records) override {
    if (refuses) return ResourceExhaustedError("no room for removals");
    for (const KeyLocation& record : records) removed.push_back(record.key);
    return OkStatus();
  }
};

class TierStackTest : public ::testing::Test {
 protected:
  TierStackTest() : tiers_("t", &common_.levels, &shards_, [this](Status status) { refusals_.push_back(status); }) {
    common_.env = Env::Posix();
    tiers_.Add(&tier_, /*bounded=*/false);
    shards_.Make(1, &common_, std::make_shared<const RowLayout>(*RowLayout::Create(4, DType::kFloat32)), nullptr);
  }
  static FreedRecords Freed(int64_t key) {
    FreedRecords freed;
    freed.at[0].push_back(KeyLocation{key, 1});
    return freed;
  }
  static bool mentions(const Status& status, const std::string& text) {
    return status.message().find(text) != std::string::npos;
  }
  // The first key of the shard, from 1 on.
  int64_t KeyOf(int shard) const {
    int64_t key = 1;
    while (shards_.index(HashKey(key)) != shard) ++key;
    return key;
  }

  RefusingTier tier_;
  ShardCommon common_;
  ShardSet shards_;
  std::vector<Status> refusals_;
  TierStack tiers_;
};

TEST_F(TierStackTest, ATierIsKnownByWhatItCanDo) {
  EXPECT_EQ(tiers_.count(), 1);
  EXPECT_TRUE(common_.levels.durable[0]);
  EXPECT_FALSE(common_.levels.bounded[0]);
  EXPECT_TRUE(common_.levels.keeps_copies(0));
  EXPECT_EQ(common_.levels.number(0), 1);
}

TEST_F(TierStackTest, TheNextWriterOfAShardRepeatsARefusedRemoval) {
  tier_.refuses = true;
  const int64_t key = KeyOf(1);
  FreedRecords freed = Freed(key);
  EXPECT_EQ(tiers_.Remove(ShardWriter(shards_[1]), &freed).code(), StatusCode::kResourceExhausted);
  ASSERT_EQ(refusals_.size(), 1u);
  EXPECT_TRUE(mentions(refusals_[0], "table 't': removing keys: tier "));
  tier_.refuses = false;
  EXPECT_TRUE(tiers_.RetryRemovals(ShardWriter(shards_[0])).ok());
  EXPECT_TRUE(tier_.removed.empty());  // another shard's
  EXPECT_TRUE(tiers_.RetryRemovals(ShardWriter(shards_[1])).ok());
  EXPECT_EQ(tier_.removed, std::vector<int64_t>{key});
  EXPECT_TRUE(tiers_.RetryAllRemovals().ok());
  EXPECT_EQ(tier_.removed.size(), 1u);
}

TEST_F(TierStackTest, ARemovalOfACallerWithoutTheWriterWaitsForOneThatHasIt) {
  {
    Shard::Locked lock(shards_[0]);
    tiers_.RemoveLater(lock, Freed(KeyOf(0)));
  }
  EXPECT_TRUE(tier_.removed.empty());
  EXPECT_TRUE(tiers_.RetryAllRemovals().ok());
  EXPECT_EQ(tier_.removed.size(), 1u);
}

TEST_F(TierStackTest, ARefusedRemovalHoldsUpWritesToItsTierAlone) {
  RefusingTier other;
  const std::shared_ptr<const RowLayout> layout = std::make_shared<const RowLayout>(*RowLayout::Create(4, DType::kFloat32));
  tiers_.Add(&other, /*bounded=*/false);
  ASSERT_TRUE(tiers_.SetLayout(layout).ok());
  const ShardWriter writer(shards_[0]);
  const int64_t key = KeyOf(0);
  other.refuses = true;
  FreedRecords freed;
  freed.at[1].push_back(KeyLocation{key, 1});
  EXPECT_FALSE(tiers_.Remove(writer, &freed).ok());
  const std::vector<uint8_t> row(layout->row_bytes());
  WriteRecord record;
  record.header.key = key;
  record.header.num_columns = 1;
  record.row_data = row.data();
  const Span<const WriteRecord> records(&record, 1);
  uint32_t location = 0;
  EXPECT_TRUE(tiers_.Write(writer, 0, records, &location).ok());
  EXPECT_EQ(tiers_.Write(writer, 1, records, &location).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(other.counters().write_calls, 0);
  other.refuses = false;
  EXPECT_TRUE(tiers_.Write(writer, 1, records, &location).ok());
  EXPECT_EQ(other.removed, std::vector<int64_t>{key});
  EXPECT_EQ(other.counters().write_calls, 1);
}

TEST_F(TierStackTest, OneThreadAtATimeHasTheWriterOfAShard) {
  std::atomic<bool> second{false};
  std::thread thread;
  {
    const ShardWriter writer(shards_[0]);
    const ShardWriter other(shards_[1]);  // of another shard
    thread = std::thread([&] {
      const ShardWriter waits(shards_[0]);
      second = true;
    });
    EXPECT_FALSE(second);
  }
  thread.join();
  EXPECT_TRUE(second);
}

TEST_F(TierStackTest, ErrorsNameTableTierAndKeyAndNotFoundIsDataLoss) {
  const Status error = tiers_.Error("reading key 5", 0, NotFoundError("nothing there"));
  EXPECT_EQ(error.code(), StatusCode::kDataLoss);
  EXPECT_EQ(error.message(), StrCat("table 't': reading key 5: tier ", tier_.name(), ": nothing there"));
  ReadRecord record;
  record.key = KeyOf(0);
  record.location = 40;
  record.status = DataLossError("torn");
  EXPECT_FALSE(mentions(tiers_.RecordError("saving", 0, record), ", key "));
  {
    Shard::Locked lock(shards_[0]);
    ASSERT_TRUE(lock->ReserveWords(1).ok() && lock->Adopt(HashKey(record.key), 0, 40).ok());
  }
  EXPECT_TRUE(mentions(tiers_.RecordError("saving", 0, record), StrCat(", key ", record.key)));
}

TEST(ShardSetTest, AKeyBelongsToTheShardThatTheTopBitsOfItsHashName) {
  ShardCommon common;
  common.env = Env::Posix();
  ShardSet shards;
  shards.Make(2, &common, std::make_shared<const RowLayout>(*RowLayout::Create(4, DType::kFloat32)), nullptr);
  EXPECT_EQ(shards.size(), 4u);
  EXPECT_EQ(shards.index(uint64_t{3} << 62), 3);
  EXPECT_EQ(shards.of(uint64_t{1} << 62), shards[1].get());
}

}  // namespace
}  // namespace multitier::tier_stack_test
