#include "cc/tier/external/external_tier.h"

#include <gmock/gmock.h>

#include "cc/tier/external/map_storage.h"
#include "cc/tier/tier_conformance.h"

namespace multitier {
namespace {

using testing::HasSubstr;

std::unique_ptr<Tier> OpenTier(const std::string& name) {
  Result<std::unique_ptr<ExternalTier>> tier = ExternalTier::Open(name, "table");
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  return tier.ok() ? *std::move(tier) : nullptr;
}

INSTANTIATE_TEST_SUITE_P(External, TierConformanceTest,
                         testing::Values(TierTestCase{"External",
                                                      [](std::shared_ptr<const RowLayout>) {
                                                        static auto* const storage = new MapStorage("conformance");
                                                        EXPECT_TRUE(storage->registered);
                                                        return OpenTier("conformance");
                                                      },
                                                      nullptr}),
                         TierTestName);

class ExternalTierTest : public testing::Test {
 protected:
  void SetUp() override { Open(); }
  void Open() {
    tier_ = OpenTier(name_);
    ASSERT_NE(tier_, nullptr);
    ASSERT_TRUE(tier_->SetLayout(TierTestLayout(2)).ok());
  }
  Status Write(const TestRecord& record, uint32_t* location) {
    const WriteRecord batch = record.write();
    return tier_->Write(Span<const WriteRecord>(&batch, 1), location);
  }
  Status Read(int64_t key, uint32_t location, std::vector<uint8_t>* row = nullptr) {
    std::vector<uint8_t> unused(TierTestLayout(3)->row_bytes());
    ReadRecord read;
    read.key = key;
    read.location = location;
    read.row_data = row == nullptr ? unused.data() : row->data();
    MT_RETURN_IF_ERROR(tier_->Read(Span<ReadRecord>(&read, 1)));
    header_ = read.header;
    return read.status;
  }

  const std::string name_ = testing::UnitTest::GetInstance()->current_test_info()->name();
  MapStorage storage_{name_.c_str()};
  std::unique_ptr<Tier> tier_;
  RecordHeader header_;
};

TEST_F(ExternalTierTest, ErrorsOfTheStoreNameStorageAndFunctionAndChangeNothing) {
  const TestRecord older(5, 1, 2), newer(5, 2, 2);
  uint32_t location = 0, unused = 0;
  ASSERT_TRUE(Write(older, &location).ok());
  storage_.fail = {"insert", "find", "erase", "flush"};
  const KeyLocation record{5, location};
  for (const auto& [function, status] : {std::pair<std::string, Status>{"insert", Write(newer, &unused)},
                                         {"find", Read(5, location)},
                                         {"erase", tier_->Remove(Span<const KeyLocation>(&record, 1))},
                                         {"flush", tier_->Sync()}}) {
    EXPECT_EQ(status.code(), StatusCode::kUnknown);
    EXPECT_EQ(status.message(), StrCat(name_, ".", function, ": broken"));
  }
  storage_.fail.clear();
  std::vector<uint8_t> row(older.row_data.size());
  EXPECT_TRUE(Read(5, location, &row).ok());
  EXPECT_EQ(row, older.row_data);
  EXPECT_EQ(header_.version, 1);
  EXPECT_EQ(tier_->stats().rows, 1);
}

TEST_F(ExternalTierTest, AKeyThatTheStoreForgetsIsLostByName) {
  uint32_t locations[2];
  ASSERT_TRUE(Write(TestRecord(5, 1, 2), &locations[0]).ok());
  ASSERT_TRUE(Write(TestRecord(6, 1, 2), &locations[1]).ok());
  storage_.forgotten = {5};
  const Status lost = Read(5, locations[0]);
  EXPECT_EQ(lost.code(), StatusCode::kDataLoss);
  EXPECT_EQ(lost.message(), StrCat(name_, ".find: expected the row of key 5, which is in the store, found none"));
  EXPECT_TRUE(Read(6, locations[1]).ok());
}

TEST_F(ExternalTierTest, ListedKeysAreRecordsThatWereNeverTrained) {
  const TestRecord record(7, 3, 2);
  storage_.listed = {7, -1};
  storage_.at_start[7] = MapStorage::Row{2, record.row_data};
  Open();
  std::map<int64_t, uint32_t> scanned;
  ASSERT_TRUE(tier_
                  ->Scan([&](const RecordHeader& header, uint32_t location) {
                    EXPECT_EQ(header.version, -1);
                    EXPECT_EQ(header.frequency, 0u);
                    EXPECT_EQ(header.num_columns, 2u);
                    scanned[header.key] = location;
                    return OkStatus();
                  })
                  .ok());
  ASSERT_EQ(scanned.size(), 2u);
  EXPECT_EQ(storage_.finds, 0);
  std::vector<uint8_t> row(record.row_data.size());
  ASSERT_TRUE(Read(7, scanned[7], &row).ok());
  EXPECT_EQ(row, record.row_data);
  EXPECT_EQ(Read(-1, scanned[-1]).code(), StatusCode::kDataLoss);
  // It has the columns that it was read with.
  ASSERT_TRUE(tier_->SetLayout(TierTestLayout(3)).ok());
  ASSERT_TRUE(Read(7, scanned[7]).ok());
  EXPECT_EQ(header_.num_columns, 2u);
}

TEST_F(ExternalTierTest, AStoreThatCannotBeOpenedIsNoTier) {
  storage_.listed = {7, 8, 7};
  EXPECT_EQ(ExternalTier::Open(name_, "table").status().message(), name_ + ".keys: expected each key once, found 7 twice");
  for (const char* function : {"keys", "open"}) {
    storage_.fail = {function};
    EXPECT_EQ(ExternalTier::Open(name_, "table").status().message(), StrCat(name_, ".", function, ": broken"));
  }
  EXPECT_THAT(ExternalTier::Open("nowhere", "table").status().message(),
              HasSubstr("external_storage: expected a storage that this process has registered, found 'nowhere'"));
  EXPECT_EQ(storage_.opened, storage_.closed + 1);  // tier_ is open
}

TEST_F(ExternalTierTest, AHeaderIsReadWithoutTheStore) {
  const TestRecord record(5, 1, 2);
  uint32_t location = 0;
  ASSERT_TRUE(Write(record, &location).ok());
  ReadRecord read;
  read.location = location;
  read.any_key = true;
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
  EXPECT_TRUE(read.status.ok());
  EXPECT_FALSE(read.any_key);
  EXPECT_EQ(read.key, 5);
  EXPECT_EQ(read.header.frequency, record.header.frequency);
  EXPECT_EQ(storage_.finds, 0);
  EXPECT_TRUE(tier_->MayReach(location, 1, 0));
  EXPECT_FALSE(tier_->MayReach(location, 2, 0));
}

TEST_F(ExternalTierTest, RowsOfOneCallHaveTheSameColumns) {
  ASSERT_TRUE(tier_->SetLayout(TierTestLayout(3)).ok());
  const TestRecord records[] = {{1, 1, 3}, {2, 1, 1}, {3, 1, 3}, {4, 1, 2}};
  std::vector<WriteRecord> batch;
  for (const TestRecord& record : records) batch.push_back(record.write());
  uint32_t locations[4];
  ASSERT_TRUE(tier_->Write(batch, locations).ok());
  std::vector<std::vector<uint8_t>> rows(4, std::vector<uint8_t>(TierTestLayout(3)->row_bytes()));
  std::vector<ReadRecord> reads(4);
  for (size_t i = 0; i < 4; ++i) {
    reads[i].key = records[i].header.key;
    reads[i].location = locations[i];
    reads[i].row_data = rows[i].data();
  }
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(reads)).ok());
  EXPECT_EQ(storage_.finds, 3);
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(reads[i].status.ok()) << reads[i].status.ToString();
    EXPECT_EQ(reads[i].header.num_columns, records[i].header.num_columns);
    rows[i].resize(records[i].row_data.size());
    EXPECT_EQ(rows[i], records[i].row_data);
  }
}

TEST_F(ExternalTierTest, AnEndedStorageIsNotCalled) {
  uint32_t location = 0;
  ASSERT_TRUE(Write(TestRecord(5, 1, 2), &location).ok());
  multitier_end_storage(name_.c_str());
  EXPECT_THAT(Read(5, location).message(), HasSubstr(".find: the storage has ended"));
  EXPECT_EQ(storage_.finds, 0);
  tier_.reset();
  EXPECT_EQ(storage_.closed, 0);
}

TEST(ExternalStorageTest, ATableOfFunctionsThatLacksSomeIsRefused) {
  multitier_storage functions = {};
  char error[MULTITIER_ERROR_BYTES];
  EXPECT_NE(multitier_register_storage("x", &functions, error), 0);
  EXPECT_STREQ(error, "storage 'x': version: expected 1, found 0");
  functions.version = MULTITIER_STORAGE_VERSION;
  EXPECT_NE(multitier_register_storage("x", &functions, error), 0);
  EXPECT_STREQ(error, "storage 'x': functions: expected open, find, insert, erase and close, found a null pointer");
  EXPECT_FALSE(CheckExternalStorage("x").ok());
}

}  // namespace
}  // namespace multitier
