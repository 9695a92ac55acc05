// Snapshots count the rows they give against those that the table had: one that lacks a row fails, and so does a flush.

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "cc/table/test/table_test_util.h"

namespace multitier::snapshot_count_test {
namespace {

constexpr int kDim = 4;
constexpr int64_t kKeys = 60;
constexpr uint64_t kRowBytes = kDim * sizeof(float);

// A tier that loses records without knowing it: there is nothing at their locations, or another key's record.
class LosingTier : public MemoryTier {
 public:
  std::set<uint32_t> lost;
  std::map<uint32_t, uint32_t> swapped;  // read in place of
  bool middle = true;

  TierCapabilities capabilities() const override {
    TierCapabilities can = MemoryTier::capabilities();
    can.middle = middle;
    return can;
  }
  Status Read(Span<ReadRecord> records) override {
    for (ReadRecord& record : records) {
      const uint32_t location = record.location;
      if (const auto other = swapped.find(location); other != swapped.end()) record.location = other->second;
      MT_RETURN_IF_ERROR(MemoryTier::Read(Span<ReadRecord>(&record, 1)));
      record.location = location;
      if (lost.count(location) > 0) record.status = NotFoundError("nothing at location ", location);
    }
    return OkStatus();
  }
  std::vector<uint32_t> Locations() {
    std::vector<uint32_t> locations;
    MT_EXPECT_OK(Scan([&](const RecordHeader&, uint32_t location) {
      locations.push_back(location);
      return OkStatus();
    }));
    return locations;
  }
  uint32_t LocationOf(int64_t key) {
    uint32_t found = kNoLocation;
    MT_EXPECT_OK(Scan([&](const RecordHeader& header, uint32_t location) {
      if (header.key == key) found = location;
      return OkStatus();
    }));
    return found;
  }
};

// `last` may be null: then `first` is it.
TableOptions Options(std::shared_ptr<Tier> first, std::shared_ptr<Tier> last, OnCorruption on_corruption) {
  TableOptions options = TieredOptions(kDim, 4, std::move(first));
  options.num_shards = 2;
  options.on_corruption = on_corruption;
  if (last == nullptr) return options;
  options.lower_tiers[0].budget_bytes = 20 * kRowBytes;
  options.lower_tiers.push_back({std::move(last), 0});
  return options;
}

Status Take(EmbeddingTable* table, int64_t chunk_rows, Rows* all, const std::function<void()>& visitor = [] {}) {
  return table->TakeSnapshot(true, chunk_rows, [&](Rows* chunk) {
    all->keys.insert(all->keys.end(), chunk->keys.begin(), chunk->keys.end());
    visitor();
    return OkStatus();
  });
}

// The tier that loses is the only one below, the one between, or the last of two.
class SnapshotCount : public testing::TestWithParam<int> {
 protected:
  std::unique_ptr<EmbeddingTable> Table(OnCorruption on_corruption = OnCorruption::kError) {
    std::shared_ptr<Tier> other = GetParam() == 0 ? nullptr : std::make_shared<MemoryTier>();
    auto table = MakeTable(GetParam() == 2 ? Options(other, tier_, on_corruption) : Options(tier_, other, on_corruption));
    MT_EXPECT_OK(Sgd(Range(0, kKeys), 1.0f, kDim).Run(table.get()));
    return table;
  }
  std::shared_ptr<LosingTier> tier_ = std::make_shared<LosingTier>();
};
INSTANTIATE_TEST_SUITE_P(Tiers, SnapshotCount, testing::Values(0, 1, 2));

TEST_P(SnapshotCount, ARecordThatIsNotThereFailsItWhateverTheOptionSays) {
  for (const OnCorruption option : {OnCorruption::kError, OnCorruption::kReinit, OnCorruption::kDrop}) {
    tier_ = std::make_shared<LosingTier>();
    auto table = Table(option);
    tier_->lost = {tier_->Locations()[3]};
    for (const int64_t chunk_rows : {1, 7, 1000}) {
      Rows found;
      const Status status = Take(table.get(), chunk_rows, &found);
      EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
      EXPECT_NE(status.message().find("expected 60 rows and 0 counted keys, found 59 and 0"), std::string::npos)
          << status.message();
    }
    EXPECT_EQ(table->Export(true).status().code(), StatusCode::kDataLoss);
    tier_->lost.clear();
    EXPECT_EQ(table->Export(true)->keys.size(), static_cast<size_t>(kKeys));
  }
}

TEST_P(SnapshotCount, RecordsThatChangedPlacesFailIt) {
  auto table = Table();
  const std::vector<uint32_t> locations = tier_->Locations();
  tier_->swapped = {{locations[2], locations[5]}, {locations[5], locations[2]}};
  const Status status = table->Export(true).status();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
  EXPECT_NE(status.message().find("found 58 and 0"), std::string::npos) << status.message();
}

TEST_P(SnapshotCount, DamagedRowsThatTheOptionLeavesOutAreNoDifference) {
  for (const OnCorruption option : {OnCorruption::kReinit, OnCorruption::kDrop}) {
    // During the snapshot nothing happens, or the damaged key is looked up, updated, or removed.
    for (int during = 0; during < 4; ++during) {
      tier_ = std::make_shared<LosingTier>();
      auto table = Table(option);
      const uint32_t damaged = tier_->Locations()[1];
      int64_t key = -1;
      for (int64_t k = 0; k < kKeys; ++k) key = tier_->LocationOf(k) == damaged ? k : key;
      MT_ASSERT_OK(tier_->Corrupt(damaged));
      Rows found;
      bool first = true;
      MT_ASSERT_OK(Take(table.get(), 1, &found, [&] {
        if (!std::exchange(first, false)) return;
        if (during == 1) LookupAll(table.get(), {key});
        if (during == 2) MT_EXPECT_OK(Sgd({key}, 1.0f, kDim).Run(table.get()));
        if (during == 3) MT_EXPECT_OK(table->Remove(std::vector<int64_t>{key}, nullptr));
      }));
      const std::set<int64_t> keys(found.keys.begin(), found.keys.end());
      EXPECT_EQ(keys.size(), found.keys.size());
      EXPECT_GE(keys.size(), static_cast<size_t>(kKeys) - 1) << during;
      EXPECT_EQ(keys.size() + (1 - keys.count(key)), static_cast<size_t>(kKeys)) << during;
    }
  }
}

TEST_P(SnapshotCount, ADamagedRowRemovedDuringASnapshotFailsItAndTheNextSucceeds) {
  auto table = Table();
  const uint32_t damaged = tier_->Locations()[1];
  int64_t key = -1;
  for (int64_t k = 0; k < kKeys; ++k) key = tier_->LocationOf(k) == damaged ? k : key;
  MT_ASSERT_OK(tier_->Corrupt(damaged));
  Rows found;
  const Status status = Take(table.get(), 1, &found, [&] { MT_EXPECT_OK(table->Remove(std::vector<int64_t>{key}, nullptr)); });
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
  EXPECT_EQ(table->Export(true)->keys.size(), static_cast<size_t>(kKeys) - 1);
}

TEST(SnapshotCopies, ADamagedCopyOfARowInMemoryIsNotNeeded) {
  auto tier = std::make_shared<LosingTier>();
  tier->middle = false;
  auto table = MakeTable(Options(tier, nullptr, OnCorruption::kError));
  MT_ASSERT_OK(Sgd(Range(0, kKeys), 1.0f, kDim).Run(table.get()));
  const int64_t key = 0;  // the coldest
  ASSERT_EQ(TierOf(table.get(), {key}), std::vector<int32_t>{1});
  Rows found;
  bool first = true;
  int64_t left = kKeys - 8;  // the pass over DRAM is over by then
  MT_ASSERT_OK(Take(table.get(), 1, &found, [&] {
    if (--left > 40 || !std::exchange(first, false) || std::count(found.keys.begin(), found.keys.end(), key) > 0) return;
    MT_EXPECT_OK(table->Prefetch(std::vector<int64_t>{key}, 1000000000, nullptr));
    MT_EXPECT_OK(tier->Corrupt(tier->LocationOf(key)));
  }));
  EXPECT_EQ(std::set<int64_t>(found.keys.begin(), found.keys.end()).size(), static_cast<size_t>(kKeys));
}

TEST(FlushCount, ARowThatIsNotInTheTierBetweenFailsIt) {
  auto middle = std::make_shared<LosingTier>();
  auto last = std::make_shared<RelocatingTier>(3);
  auto table = MakeTable(Options(middle, last, OnCorruption::kError));
  MT_ASSERT_OK(Sgd(Range(0, kKeys), 1.0f, kDim).Run(table.get()));
  middle->lost = {middle->Locations()[3]};
  const Status status = table->Flush();
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
  EXPECT_NE(status.message().find("found none for 1 rows"), std::string::npos) << status.message();
  middle->lost.clear();
  MT_EXPECT_OK(table->Flush());
  EXPECT_EQ(last->RecoverableKeys().size(), static_cast<size_t>(kKeys));
}

// A full tier whose records are damaged takes new rows where the option gives the damaged ones up.
TEST(DemotionOfDamagedRows, AFullTierOfThemMakesRoomWhereTheOptionSaysSo) {
  for (const bool drops : {false, true}) {
    auto tier = std::make_shared<LosingTier>();
    TableOptions options = Options(tier, drops ? nullptr : std::make_shared<MemoryTier>(), OnCorruption::kDrop);
    options.lower_tiers[0].budget_bytes = 20 * kRowBytes;
    options.drop_coldest = drops;
    auto table = MakeTable(std::move(options));
    MT_ASSERT_OK(Sgd(Range(0, 24), 1.0f, kDim).Run(table.get()));
    for (const uint32_t location : tier->Locations()) MT_ASSERT_OK(tier->Corrupt(location));
    for (int64_t key = 100; key < 200; ++key) {
      MT_ASSERT_OK(Sgd({key}, 1.0f, kDim).Run(table.get()));
    }
    MT_EXPECT_OK(table->Drain());
    EXPECT_GT(table->Stats().dropped, 0);
    ExpectTiersInOrder(table.get());
  }
}

}  // namespace
}  // namespace multitier::snapshot_count_test
