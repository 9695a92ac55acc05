// Tiers that are opened read-only: any number at once, without a change of the files, and as they were opened.

#include <cstring>
#include <map>

#include "cc/tier/ssdhash/recovery_test_util.h"

namespace multitier::reader_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

constexpr int64_t kKeys = 1500;

class ReaderTest : public RecoveryTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    ASSERT_TRUE(owner_.Put(Range(0, kKeys), 1).ok());
    ASSERT_TRUE(owner_.Put(Range(0, 100), 2).ok());
    Close();
  }
  Result<std::unique_ptr<SsdHashTier>> OpenReader() {
    SsdHashOptions options = Options(&memory_, "d");
    options.keep = false;
    options.read_only = true;
    return SsdHashTier::Open(std::move(options));
  }
  // {key: location} of what a reader holds.
  static std::map<int64_t, uint32_t> RowsOf(SsdHashTier* tier) {
    EXPECT_TRUE(tier->SetLayout(TierTestLayout(1)).ok());
    std::map<int64_t, uint32_t> rows;
    const auto visit = [&](const RecordHeader& header, uint32_t location) {
      EXPECT_EQ(header.num_columns, 1u);
      rows[header.key] = location;
      return OkStatus();
    };
    EXPECT_TRUE(tier->Scan(visit).ok());
    return rows;
  }
  // Expects rows of SetUp: values alone.
  static void ExpectRows(SsdHashTier* tier, const std::map<int64_t, uint32_t>& rows) {
    ASSERT_EQ(rows.size(), static_cast<size_t>(kKeys));
    const size_t row_bytes = TierTestLayout(1)->row_bytes();
    std::vector<uint8_t> data(rows.size() * row_bytes);
    std::vector<ReadRecord> batch;
    for (const auto& [key, location] : rows) {
      ReadRecord read;
      read.key = key;
      read.location = location;
      read.row_data = data.data() + batch.size() * row_bytes;
      batch.push_back(read);
    }
    ASSERT_TRUE(tier->Read(Span<ReadRecord>(batch)).ok());
    for (const ReadRecord& read : batch) {
      ASSERT_TRUE(read.status.ok()) << read.status.ToString();
      const TestRecord expected(read.key, read.key < 100 ? 2 : 1, LogOwner::kColumns);
      EXPECT_EQ(read.header.num_columns, 1u);
      EXPECT_EQ(std::memcmp(read.row_data, expected.row_data.data(), row_bytes), 0) << read.key;
    }
  }
  std::map<std::string, std::string> Contents() {
    std::map<std::string, std::string> contents;
    const Result<std::vector<std::string>> names = memory_.ListDir("d");
    for (const std::string& name : *names) {
      std::unique_ptr<RandomAccessFile> file = *memory_.NewRandomAccessFile("d/" + name);
      std::string& bytes = contents[name];
      bytes.resize(*file->Size());
      EXPECT_TRUE(file->Read(0, bytes.size(), bytes.data()).ok());
    }
    return contents;
  }
};

TEST_F(ReaderTest, ReadersAtOnceFindTheNewestRowsAndChangeNoFile) {
  const auto before = Contents();
  std::unique_ptr<SsdHashTier> tiers[2] = {*OpenReader(), *OpenReader()};
  for (const auto& tier : tiers) ExpectRows(tier.get(), RowsOf(tier.get()));
  EXPECT_EQ(Contents(), before);
  for (auto& tier : tiers) tier.reset();
  EXPECT_EQ(Contents(), before);
}

TEST_F(ReaderTest, ChangesAreRefusedOrStayInMemory) {
  const auto before = Contents();
  const std::unique_ptr<SsdHashTier> tier = *OpenReader();
  LogOwner owner;
  owner.Attach(tier.get());
  EXPECT_EQ(owner.Adopt(), std::vector<int64_t>());
  EXPECT_EQ(owner.Put(Range(0, 10), 3).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(tier->Compact().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(owner.Remove(Range(0, 10)).ok());
  EXPECT_TRUE(tier->Sync().ok());
  EXPECT_EQ(tier->stats().rows, kKeys - 10);
  owner.Detach();
  EXPECT_EQ(Contents(), before);
}

TEST_F(ReaderTest, AReaderReadsWhatItOpenedAfterTheOwnerDeletedItsFiles) {
  const std::unique_ptr<SsdHashTier> tier = *OpenReader();
  const std::map<int64_t, uint32_t> rows = RowsOf(tier.get());
  const std::vector<std::string> before = Segments();
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
  for (uint64_t value = 3; value < 6; ++value) ASSERT_TRUE(owner_.Put(Range(0, kKeys), value).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  ASSERT_TRUE(tier_->Compact().ok());
  ASSERT_TRUE(tier_->Sync().ok());
  for (const std::string& path : before) EXPECT_FALSE(*memory_.FileExists(path)) << path;
  ExpectRows(tier.get(), rows);
}

TEST_F(ReaderTest, OptionsThatContradictAReaderAreRefused) {
  SsdHashOptions options = Options(&memory_, "d");
  options.read_only = true;
  EXPECT_EQ(SsdHashTier::Open(options).status().code(), StatusCode::kInvalidArgument);
  options.keep = options.recover = false;
  EXPECT_EQ(SsdHashTier::Open(options).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace multitier::reader_test
