#include "cc/tier/tier_conformance.h"

#include <cstdio>
#include <limits>
#include <random>
#include <utility>

#include "cc/base/hash.h"

namespace multitier {
namespace {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

size_t BytesOfColumns(const RowLayout& layout, size_t num_columns) {
  const Column& last = layout.columns()[num_columns - 1];
  return last.offset + last.bytes;
}

std::vector<KeyLocation> KeyLocations(const std::vector<TestRecord>& records, const std::vector<uint32_t>& locations) {
  std::vector<KeyLocation> result;
  for (size_t i = 0; i < records.size(); ++i) result.push_back({records[i].header.key, locations[i]});
  return result;
}

}  // namespace

std::shared_ptr<const RowLayout> TierTestLayout(size_t num_columns, DType value_dtype) {
  RowLayout layout = *RowLayout::Create(3, value_dtype);
  if (num_columns > 1) layout = *layout.WithColumn({"slot", DType::kFloat32, 3, 0.1f});
  if (num_columns > 2) layout = *layout.WithColumn({"wide", DType::kBFloat16, 5, -2.0f});
  return std::make_shared<const RowLayout>(std::move(layout));
}

TestRecord::TestRecord(int64_t key, uint64_t generation, uint32_t num_columns) {
  header.key = key;
  header.version = static_cast<int64_t>(generation);
  header.frequency = static_cast<uint32_t>(Mix64(generation));
  header.num_columns = num_columns;
  row_data.resize(BytesOfColumns(*TierTestLayout(3), num_columns));
  uint64_t word = Mix64(static_cast<uint64_t>(key) ^ Mix64(generation + 1));
  for (uint8_t& byte : row_data) byte = static_cast<uint8_t>((word = Mix64(word + 1)) >> 56);
}

void TierConformanceTest::SetUp() { MakeTier(DType::kFloat32); }

void TierConformanceTest::MakeTier(DType value_dtype) {
  value_dtype_ = value_dtype;
  layout_ = TierTestLayout(2, value_dtype);
  tier_ = GetParam().make(layout_);
  ASSERT_TRUE(tier_->SetLayout(layout_).ok());
  // The tests keep the locations that Write returned. They act as an owner whose records are always in use.
  tier_->SetRelocator([](Span<Relocation>) {});
}

void TierConformanceTest::SetColumns(size_t num_columns) {
  layout_ = TierTestLayout(num_columns, value_dtype_);
  const Status status = tier_->SetLayout(layout_);
  ASSERT_TRUE(status.ok()) << status.ToString();
}

std::vector<uint32_t> TierConformanceTest::Write(const std::vector<TestRecord>& records) {
  std::vector<WriteRecord> batch;
  for (const TestRecord& record : records) batch.push_back(record.write());
  std::vector<uint32_t> locations(records.size(), kNoLocation);
  const Status status = tier_->Write(batch, locations.data());
  EXPECT_TRUE(status.ok()) << status.ToString();
  for (const uint32_t location : locations) EXPECT_NE(location, kNoLocation);
  return locations;
}

uint32_t TierConformanceTest::Write(const TestRecord& record) { return Write(std::vector<TestRecord>{record})[0]; }

void TierConformanceTest::Free(int64_t key, uint32_t location) {
  const KeyLocation freed{key, location};
  tier_->Free(Span<const KeyLocation>(&freed, 1));
}

void TierConformanceTest::ExpectRead(const TestRecord& expected, uint32_t location) {
  std::vector<uint8_t> row_data(layout_->row_bytes(), 0xee);
  ReadRecord read;
  read.key = expected.header.key;
  read.location = location;
  read.row_data = row_data.data();
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
  ASSERT_TRUE(read.status.ok()) << read.status.ToString();
  EXPECT_EQ(read.header.key, expected.header.key);
  EXPECT_EQ(read.header.version, expected.header.version);
  EXPECT_EQ(read.header.frequency, expected.header.frequency);
  EXPECT_TRUE(tier_->MayReach(location, expected.header.version, expected.header.frequency)) << "key " << expected.header.key;
  ASSERT_GE(read.header.num_columns, expected.header.num_columns);
  ASSERT_LE(read.header.num_columns, layout_->columns().size());
  std::vector<uint8_t> widened = expected.row_data;
  widened.resize(layout_->row_bytes());
  layout_->FillSlots(widened.data(), expected.header.num_columns);
  layout_->FillSlots(row_data.data(), read.header.num_columns);  // what a reader does
  EXPECT_EQ(row_data, widened) << "key " << expected.header.key;
}

void TierConformanceTest::ExpectGone(int64_t key, uint32_t location) {
  ReadRecord read;
  read.key = key;
  read.location = location;
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
  if (read.status.ok()) {
    EXPECT_NE(read.header.key, key) << "at location " << location;
  } else {
    EXPECT_EQ(read.status.code(), StatusCode::kNotFound) << read.status.ToString();
  }
}

void TierConformanceTest::ExpectHeld(const std::map<uint32_t, TestRecord>& records) {
  std::map<uint32_t, RecordHeader> scanned;
  const Status status = tier_->Scan([&](const RecordHeader& header, uint32_t location) {
    EXPECT_TRUE(scanned.emplace(location, header).second) << "location " << location << " twice";
    return OkStatus();
  });
  ASSERT_TRUE(status.ok()) << status.ToString();
  ASSERT_EQ(scanned.size(), records.size());
  int64_t written_bytes = 0;
  for (const auto& [location, record] : records) {
    ASSERT_EQ(scanned.count(location), 1u) << "location " << location;
    const RecordHeader& header = scanned[location];
    EXPECT_EQ(header.key, record.header.key);
    EXPECT_EQ(header.version, record.header.version);
    EXPECT_EQ(header.frequency, record.header.frequency);
    EXPECT_GE(header.num_columns, record.header.num_columns);
    written_bytes += static_cast<int64_t>(record.row_data.size());
  }
  const TierStats stats = tier_->stats();
  EXPECT_EQ(stats.rows, static_cast<int64_t>(records.size()));
  EXPECT_GE(stats.row_bytes, written_bytes);
  EXPECT_LE(stats.row_bytes, stats.rows * static_cast<int64_t>(layout_->row_bytes()));
  EXPECT_TRUE(records.empty() || stats.resident_bytes + stats.stored_bytes >= stats.row_bytes);
}

namespace {

TEST_P(TierConformanceTest, NewTierIsEmptyAndNamed) {
  EXPECT_STRNE(tier_->name(), "");
  ExpectHeld({});
  for (const uint32_t location : {0u, 1u, 12345u, kNoLocation - 1}) ExpectGone(7, location);
}

TEST_P(TierConformanceTest, WrittenRecordIsReadWithItsHeader) {
  const TestRecord record(42, 7, 2);
  const uint32_t location = Write(record);
  ExpectRead(record, location);
  ExpectRead(record, location);
  ExpectHeld({{location, record}});
}

TEST_P(TierConformanceTest, ReadWithoutRowDataGivesTheHeader) {
  const TestRecord record(42, 7, 2);
  ReadRecord read;
  read.key = 42;
  read.location = Write(record);
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
  ASSERT_TRUE(read.status.ok()) << read.status.ToString();
  EXPECT_EQ(read.header.version, 7);
}

TEST_P(TierConformanceTest, EmptyBatchesDoNothing) {
  EXPECT_TRUE(tier_->Write(Span<const WriteRecord>(), nullptr).ok());
  EXPECT_TRUE(tier_->Read(Span<ReadRecord>()).ok());
  tier_->Free(Span<const KeyLocation>());
  EXPECT_TRUE(tier_->Remove(Span<const KeyLocation>()).ok());
  EXPECT_TRUE(tier_->Sync().ok());
  ExpectHeld({});
}

TEST_P(TierConformanceTest, EveryInt64IsAKey) {
  std::map<uint32_t, TestRecord> held;
  for (const int64_t key : {kMin, kMin + 1, int64_t{-1}, int64_t{0}, int64_t{1}, kMax - 1, kMax}) {
    const TestRecord record(key, 3, 2);
    held.emplace(Write(record), record);
  }
  ASSERT_EQ(held.size(), 7u);
  for (const auto& [location, record] : held) ExpectRead(record, location);
  ExpectHeld(held);
}

TEST_P(TierConformanceTest, BatchIsReadInAnyOrderWithRepeats) {
  std::vector<TestRecord> records;
  for (int64_t key = 0; key < 1000; ++key) records.emplace_back(key * 17 - 500, 1, 2);
  const std::vector<uint32_t> locations = Write(records);
  std::vector<std::vector<uint8_t>> rows(2000, std::vector<uint8_t>(layout_->row_bytes()));
  std::vector<ReadRecord> batch(2000);
  for (size_t i = 0; i < batch.size(); ++i) {
    const size_t from = i * 7919 % 1000;
    batch[i].key = records[from].header.key;
    batch[i].location = locations[from];
    batch[i].row_data = rows[i].data();
  }
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(batch)).ok());
  for (size_t i = 0; i < batch.size(); ++i) {
    ASSERT_TRUE(batch[i].status.ok()) << batch[i].status.ToString();
    EXPECT_EQ(batch[i].header.key, batch[i].key);
    EXPECT_EQ(rows[i], records[i * 7919 % 1000].row_data);
  }
}

TEST_P(TierConformanceTest, MissingRecordFailsAloneInItsBatch) {
  const TestRecord record(1, 1, 2);
  std::vector<uint8_t> row_data(layout_->row_bytes());
  std::vector<ReadRecord> batch(2);
  batch[0].key = 2;
  batch[0].location = 999999;
  batch[1].key = 1;
  batch[1].location = Write(record);
  batch[1].row_data = row_data.data();
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(batch)).ok());
  EXPECT_EQ(batch[0].status.code(), StatusCode::kNotFound);
  EXPECT_NE(batch[0].status.message().find("999999"), std::string::npos) << batch[0].status.message();
  EXPECT_TRUE(batch[1].status.ok());
  EXPECT_EQ(row_data, record.row_data);
}

TEST_P(TierConformanceTest, AFreedRecordIsNotFoundAndTheOthersAre) {
  const std::vector<TestRecord> records = {{1, 1, 2}, {2, 1, 2}, {3, 1, 2}};
  const std::vector<uint32_t> locations = Write(records);
  Free(2, locations[1]);
  ExpectGone(2, locations[1]);
  ExpectRead(records[0], locations[0]);
  ExpectRead(records[2], locations[2]);
  ExpectHeld({{locations[0], records[0]}, {locations[2], records[2]}});
}

TEST_P(TierConformanceTest, FreedLocationsDoNotAddUp) {
  std::vector<TestRecord> records;
  for (int64_t key = 0; key < 100; ++key) records.emplace_back(key, 1, 2);
  for (int round = 0; round < 50; ++round) {
    const std::vector<uint32_t> locations = Write(records);
    tier_->Free(KeyLocations(records, locations));
  }
  ExpectHeld({});
  const TestRecord last(5, 9, 2);
  ExpectRead(last, Write(last));
}

TEST_P(TierConformanceTest, ARemovedRecordIsNotFound) {
  const std::vector<TestRecord> records = {{kMin, 1, 2}, {0, 1, 2}};
  const std::vector<uint32_t> locations = Write(records);
  const KeyLocation removed{kMin, locations[0]};
  ASSERT_TRUE(tier_->Remove(Span<const KeyLocation>(&removed, 1)).ok());
  ExpectGone(kMin, locations[0]);
  ExpectHeld({{locations[1], records[1]}});
}

TEST_P(TierConformanceTest, KeyWithoutAHeldRecordIsRemovedWithoutALocation) {
  const TestRecord record(5, 1, 2), other(6, 1, 2);
  const std::vector<uint32_t> locations = Write({record, other});
  Free(5, locations[0]);
  const KeyLocation removed{5, kNoLocation};
  ASSERT_TRUE(tier_->Remove(Span<const KeyLocation>(&removed, 1)).ok());
  ExpectHeld({{locations[1], other}});
}

// A key that is demoted again before its old copy is freed.
TEST_P(TierConformanceTest, RewrittenKeyReadsItsNewestRecordAndFreeingTheOldKeepsIt) {
  const TestRecord older(8, 1, 2), newer(8, 2, 2);
  const uint32_t old_location = Write(older);
  const uint32_t new_location = Write(newer);
  ASSERT_NE(old_location, new_location);
  ExpectRead(newer, new_location);
  Free(8, old_location);
  ExpectRead(newer, new_location);
  ExpectHeld({{new_location, newer}});
}

TEST_P(TierConformanceTest, LocationOfAnotherKeyGivesThatKeysRecord) {
  ReadRecord read;
  read.key = 1;
  read.location = Write(TestRecord(2, 1, 2));
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
  if (read.status.ok()) {
    EXPECT_EQ(read.header.key, 2);
  } else {
    EXPECT_EQ(read.status.code(), StatusCode::kNotFound);
  }
}

TEST_P(TierConformanceTest, RecordWithFewerColumnsWidens) {
  const TestRecord narrow(1, 1, 1);
  const uint32_t location = Write(narrow);
  ExpectRead(narrow, location);
  SetColumns(3);
  ExpectRead(narrow, location);
  const TestRecord two(2, 1, 2), wide(3, 1, 3);
  const std::vector<uint32_t> locations = Write({two, wide});
  ExpectRead(two, locations[0]);
  ExpectRead(wide, locations[1]);
  ExpectHeld({{location, narrow}, {locations[0], two}, {locations[1], wide}});
}

TEST_P(TierConformanceTest, BatchWithAnImpossibleRecordIsRefusedWhole) {
  const TestRecord good(1, 1, 2), kept(3, 1, 2);
  const uint32_t location = Write(kept);
  for (const uint32_t num_columns : {0u, 3u}) {
    std::vector<WriteRecord> batch = {good.write(), good.write()};
    batch[1].header.key = 2;
    batch[1].header.num_columns = num_columns;
    uint32_t locations[2];
    const Status status = tier_->Write(batch, locations);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    ExpectHeld({{location, kept}});
  }
}

TEST_P(TierConformanceTest, MiddleTierKeepsWhatBelongsToTheRowAndSwitchesItsBelow) {
  if (!tier_->capabilities().middle) GTEST_SKIP() << "nothing may stand below this tier";
  TestRecord record(7, 1, 2);
  record.header.below = 11;
  record.header.recency = 22;
  record.header.flags = kRowEverBelow;
  const uint32_t location = Write(record);
  auto header = [&] {
    ReadRecord read;
    read.key = 7;
    read.location = location;
    EXPECT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok() && read.status.ok());
    return read.header;
  };
  EXPECT_EQ(header().below, 11u);
  EXPECT_EQ(header().recency, 22u);
  EXPECT_EQ(header().flags, kRowEverBelow);
  EXPECT_FALSE(tier_->SwitchBelow(KeyLocation{7, location}, 12, 13));
  EXPECT_FALSE(tier_->SwitchBelow(KeyLocation{8, location}, 11, 13));
  EXPECT_TRUE(tier_->SwitchBelow(KeyLocation{7, location}, 11, 13));
  EXPECT_EQ(header().below, 13u);
  ExpectRead(record, location);
  Free(7, location);
  EXPECT_FALSE(tier_->SwitchBelow(KeyLocation{7, location}, 13, 14));
}

TEST_P(TierConformanceTest, ScanStopsAtTheFirstErrorOfItsVisitor) {
  Write({TestRecord(1, 1, 2), TestRecord(2, 1, 2), TestRecord(3, 1, 2)});
  int visits = 0;
  const Status status =
      tier_->Scan([&visits](const RecordHeader&, uint32_t) { return ++visits == 2 ? CancelledError("enough") : OkStatus(); });
  EXPECT_EQ(status, CancelledError("enough"));
  EXPECT_EQ(visits, 2);
}

TEST_P(TierConformanceTest, FullTierRefusesTheWholeBatchAndKeepsWhatItHad) {
  if (GetParam().make_bounded == nullptr) GTEST_SKIP() << "this tier has no bound of its own";
  tier_ = GetParam().make_bounded(layout_, 3);
  ASSERT_TRUE(tier_->SetLayout(layout_).ok());
  const std::vector<TestRecord> records = {{1, 1, 2}, {2, 1, 2}, {3, 1, 2}};
  const std::vector<uint32_t> held = Write({records[0], records[1]});
  const std::vector<WriteRecord> batch = {records[2].write(), TestRecord(4, 1, 2).write()};
  uint32_t locations[2];
  const Status status = tier_->Write(batch, locations);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  ExpectHeld({{held[0], records[0]}, {held[1], records[1]}});
  ExpectRead(records[2], Write(records[2]));
  EXPECT_EQ(tier_->Write(Span<const WriteRecord>(batch).subspan(0, 1), locations).code(), StatusCode::kResourceExhausted);
  Free(1, held[0]);
  ExpectRead(records[2], Write(records[2]));
}

// Random operations against a map, with values of a random dtype; a column comes in the middle.
TEST_P(TierConformanceTest, RandomOperationsAgreeWithAModel) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const DType dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  MakeTier(dtypes[random() % 3]);
  std::map<uint32_t, TestRecord> model;
  std::map<int64_t, uint32_t> location_of;
  for (int step = 0; step < 3000; ++step) {
    if (step == 1500) SetColumns(3);
    std::vector<TestRecord> batch;
    std::vector<KeyLocation> old;
    const int64_t first = static_cast<int64_t>(random() % 400) - 200;
    for (int64_t key = first; key < first + static_cast<int64_t>(random() % 20); ++key) {
      const auto it = location_of.find(key);
      if (it != location_of.end()) old.push_back({key, it->second});
      batch.emplace_back(key, random(), static_cast<uint32_t>(1 + random() % layout_->columns().size()));
    }
    switch (random() % 4) {
      case 0:
        tier_->Free(old);
        break;
      case 1:
        ASSERT_TRUE(tier_->Remove(old).ok());
        break;
      case 2: {  // demoted anew: write, then free the older copies
        const std::vector<uint32_t> locations = Write(batch);
        tier_->Free(old);
        for (size_t i = 0; i < batch.size(); ++i) location_of[batch[i].header.key] = locations[i];
        for (const KeyLocation& record : old) model.erase(record.location);
        for (size_t i = 0; i < batch.size(); ++i) model[locations[i]] = batch[i];
        continue;
      }
      default:
        for (const KeyLocation& record : old) ExpectRead(model[record.location], record.location);
        continue;
    }
    for (const KeyLocation& record : old) {
      model.erase(record.location);
      location_of.erase(record.key);
    }
    if (HasFailure()) FAIL() << "step " << step;
  }
  for (const auto& [location, record] : model) ExpectRead(record, location);
  ExpectHeld(model);
}

}  // namespace
}  // namespace multitier
