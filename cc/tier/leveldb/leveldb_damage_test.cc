// Files that are deleted, cut, zeroed or put in another's place while the tier is open: every row that is held reads as what it
// is, or as DataLoss.

#include <errno.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>

#include "cc/tier/leveldb/leveldb_test_util.h"

namespace multitier::leveldb_damage_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

namespace fs = std::filesystem;

constexpr int64_t kKeys = 6000;

class LevelDbDamageTest : public LevelDbTierTest {
 protected:
  // Rows in several table files and in the log.
  void OpenWithRows() {
    Open(SmallOptions());
    for (int64_t first = 0; first < kKeys; first += 500) ASSERT_TRUE(Write(first, 500, 1).ok());
    Flush();
    ASSERT_TRUE(Write(0, 100, 2).ok());  // in the first of them, too
    ASSERT_TRUE(Write(kKeys - 500, 500, 2).ok());
  }
  std::vector<std::string> Files(const std::string& kind) const {
    std::vector<std::string> files;
    for (const auto& file : fs::directory_iterator(directory_)) {
      const std::string name = file.path().filename();
      if (name.find(kind) != std::string::npos && file.file_size() > 0) files.push_back(file.path());
    }
    std::sort(files.begin(), files.end());
    EXPECT_FALSE(files.empty()) << kind;
    return files;
  }
  void Damage(const std::string& file, const std::string& how) const {
    const uintmax_t bytes = fs::file_size(file);
    if (how == "deleted") fs::remove(file);
    if (how == "cut") fs::resize_file(file, bytes / 2);
    if (how == "zeroed") {
      std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
      out.seekp(static_cast<std::streamoff>(bytes / 4));
      out << std::string(bytes / 2, '\0');
    }
    if (how == "swapped") {  // with the largest other file of its kind
      const std::string kind = file.substr(file.rfind('.') == std::string::npos ? 0 : file.rfind('.'));
      for (const std::string& other : Files(kind)) {
        if (other == file) continue;
        fs::rename(file, file + "_");
        fs::rename(other, file);
        fs::rename(file + "_", other);
        return;
      }
    }
  }
  // A write that fails, and one that succeeds where the database opens again.
  Status FailAWriteAndGoOn() {
    tier_->disk()->set_fault([](const char* call, const std::string&) { return std::strcmp(call, "write") == 0 ? ENOSPC : 0; });
    EXPECT_FALSE(Write(kKeys, 10, 1).ok());
    tier_->disk()->set_fault(nullptr);
    return Write(kKeys, 10, 1);
  }
  // How many rows are lost; all others are what was written, and a scan meets them.
  size_t CountLost() {
    std::set<int64_t> lost;
    for (const auto& [key, held] : held_) {
      std::vector<uint8_t> row_data(TierTestLayout(2)->row_bytes());
      const Status status = Read(key, &row_data);
      EXPECT_TRUE(status.ok() || status.code() == StatusCode::kDataLoss) << status.ToString();
      if (status.ok()) {
        EXPECT_EQ(row_data, TestRecord(key, held.data_generation, 2).row_data) << "key " << key;
      } else {
        EXPECT_NE(status.message().find(StrCat("key ", key, " ")), std::string::npos) << status.message();
        lost.insert(key);
      }
      if (HasFailure()) return lost.size();
    }
    size_t met = 0;
    const Status scanned = tier_->Scan([&](const RecordHeader& header, uint32_t location) {
      EXPECT_EQ(location, held_.at(header.key).location);
      ++met;
      return OkStatus();
    });
    EXPECT_LE(met, held_.size());
    // It also tells of damage that no row needs any more.
    EXPECT_TRUE(scanned.code() == StatusCode::kDataLoss || (scanned.ok() && met == held_.size())) << scanned.ToString();
    return lost.size();
  }
};

struct Kind {
  const char* file;
  const char* how;
};

class LevelDbFileDamageTest : public LevelDbDamageTest, public testing::WithParamInterface<Kind> {};

INSTANTIATE_TEST_SUITE_P(Files, LevelDbFileDamageTest,
                         testing::Values(Kind{"CURRENT", "deleted"}, Kind{"CURRENT", "cut"}, Kind{"CURRENT", "zeroed"},
                                         Kind{"MANIFEST", "deleted"}, Kind{"MANIFEST", "cut"}, Kind{"MANIFEST", "zeroed"},
                                         Kind{".log", "deleted"}, Kind{".log", "cut"}, Kind{".log", "zeroed"},
                                         Kind{".ldb", "deleted"}, Kind{".ldb", "cut"}, Kind{".ldb", "zeroed"},
                                         Kind{".ldb", "swapped"}),
                         [](const auto& info) {
                           const std::string file = info.param.file;
                           return (file[0] == '.' ? file.substr(1) : file) + "_" + info.param.how;
                         });

TEST_P(LevelDbFileDamageTest, WhileOpenNoRowReadsAsAbsentOrWrong) {
  OpenWithRows();
  Damage(Files(GetParam().file).front(), GetParam().how);
  EXPECT_LT(CountLost(), held_.size() / 2);
  const Status written = FailAWriteAndGoOn();
  EXPECT_TRUE(written.ok() || written.code() == StatusCode::kDataLoss) << written.ToString();
  const size_t after = CountLost();
  EXPECT_LT(after, held_.size() / 2) << "the database went with one file";
  // What it does not open again for is not tried again.
  if (!written.ok()) {
    EXPECT_EQ(Write(kKeys, 10, 1), written);
  }
  EXPECT_EQ(CountLost(), after);
}

TEST_P(LevelDbFileDamageTest, WhileOpenAndWithoutAFailedWriteCompactionStopsAtMost) {
  OpenWithRows();
  Damage(Files(GetParam().file).front(), GetParam().how);
  const Status compacted = tier_->Compact();
  EXPECT_TRUE(compacted.ok() || compacted.code() == StatusCode::kDataLoss) << compacted.ToString();
  EXPECT_LT(CountLost(), held_.size() / 2);
}

TEST_F(LevelDbDamageTest, AMissingTableFileIsDataLossForItsKeys) {
  OpenWithRows();
  ASSERT_TRUE(FailAWriteAndGoOn().ok());  // all files are closed now
  const std::string file = Files(".ldb").front();
  fs::remove(file);
  const size_t lost = CountLost();
  EXPECT_GT(lost, 100u);
  EXPECT_LT(lost, held_.size() / 2);
  int named = 0;
  for (const auto& [key, held] : held_) {
    const Status status = Read(key);
    named += !status.ok() && status.message().find(file) != std::string::npos;
  }
  EXPECT_EQ(named, static_cast<int>(lost));
}

TEST_F(LevelDbDamageTest, AZeroedStretchStopsWritesAndRemovalsAndLeavesTheRestReadable) {
  OpenWithRows();
  Damage(Files(".ldb").front(), "zeroed");
  EXPECT_EQ(tier_->Compact().code(), StatusCode::kDataLoss);
  const size_t lost = CountLost();
  EXPECT_GT(lost, 100u);
  const leveldb::DB* const before = tier_->database();
  const KeyLocation one{kKeys - 1, held_.at(kKeys - 1).location};
  for (int again = 0; again < 3; ++again) {
    EXPECT_EQ(tier_->Remove(Span<const KeyLocation>(&one, 1)).code(), StatusCode::kDataLoss);
    EXPECT_EQ(Write(kKeys, 10, 1).code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(tier_->database(), before) << "it was opened again";
  EXPECT_EQ(CountLost(), lost);
}

TEST_F(LevelDbDamageTest, ADirectoryThatWasDeletedIsDataLossAndMakesNoNewDatabase) {
  OpenWithRows();
  fs::remove_all(directory_);
  Status status;
  for (int i = 0; i < 100 && status.ok(); ++i) status = Write(0, 500, 3);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
  EXPECT_FALSE(fs::exists(directory_));
  (void)CountLost();
}

}  // namespace
}  // namespace multitier::leveldb_damage_test
