// Files of a kept LevelDB that are deleted or cut while it uses them: Sync does not acknowledge rows that recovery would not
// find.

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "cc/tier/leveldb/leveldb_test_util.h"

namespace multitier::leveldb_names_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its rows

namespace {

namespace fs = std::filesystem;

class LevelDbNamesTest : public LevelDbTierTest {
 protected:
  // Rows in table files and in the log, all of them acknowledged where `durable`.
  void OpenWithRows(bool durable) {
    held_.clear();
    LevelDbOptions options = SmallOptions();
    options.durable = durable;
    Open(options);
    ASSERT_TRUE(Write(0, 2000, 1).ok());
    Flush();
    ASSERT_TRUE(Write(2000, 100, 1).ok());
    ASSERT_TRUE(tier_->Sync().ok());
  }
  void Reopen() {
    tier_.reset();
    LevelDbOptions options = SmallOptions();
    options.directory = directory_;
    options.durable = options.recover = true;
    Open(options);
  }
  // CURRENT, the manifest, the log and the table files.
  std::vector<std::string> Files() {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(directory_)) {
      const std::string name = entry.path().filename();
      if (name != "LOCK" && name != "LOG" && name != "synced.list" && entry.file_size() > 0) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  void ExpectDataLossOf(const std::string& path) {
    for (int again = 0; again < 2; ++again) {
      const Status synced = tier_->Sync();
      EXPECT_EQ(synced.code(), StatusCode::kDataLoss) << synced.ToString();
      EXPECT_NE(synced.message().find(path), std::string::npos) << synced.ToString();
    }
  }
};

TEST_F(LevelDbNamesTest, SyncAfterAnyFileWasDeletedIsDataLossAndRowsStayReadable) {
  OpenWithRows(true);
  const size_t n = Files().size();
  ASSERT_GE(n, 4u);
  for (const bool reopened : {false, true}) {
    for (size_t i = 0; i < n; ++i) {
      OpenWithRows(true);
      if (reopened) {
        ASSERT_NO_FATAL_FAILURE(Reopen());
        ASSERT_NO_FATAL_FAILURE(TakeOverLocations());
      }
      if (i >= Files().size()) continue;
      const std::string path = Files()[i];
      SCOPED_TRACE(path);
      ASSERT_NO_FATAL_FAILURE(ExpectAllHeld());  // LevelDB has all files open
      fs::remove(path);
      (void)Write(5000, 10, 2);
      ASSERT_NO_FATAL_FAILURE(ExpectDataLossOf(path));
      ASSERT_NO_FATAL_FAILURE(ExpectAllHeld());
    }
  }
}

// A log that was cut is filled with zeros up to the next write: Sync does not see it, and recovery does.
TEST_F(LevelDbNamesTest, SyncAfterAnyFileButTheLogWasCutIsDataLoss) {
  OpenWithRows(true);
  for (size_t i = 0; i < Files().size(); ++i) {
    OpenWithRows(true);
    const std::string path = Files()[i];
    SCOPED_TRACE(path);
    if (fs::path(path).extension() == ".log") continue;
    fs::resize_file(path, fs::file_size(path) / 2);
    ASSERT_NO_FATAL_FAILURE(ExpectDataLossOf(path));
  }
}

TEST_F(LevelDbNamesTest, SyncWhileCompactionDeletesFilesIsNoLoss) {
  OpenWithRows(true);
  for (uint64_t generation = 2; generation < 40; ++generation) {
    ASSERT_TRUE(Write(0, 500, generation).ok());
    const Status synced = tier_->Sync();
    ASSERT_TRUE(synced.ok()) << synced.ToString();
  }
  ASSERT_NO_FATAL_FAILURE(ExpectAllHeld());
}

TEST_F(LevelDbNamesTest, TierThatIsNotKeptDoesNotLookAtItsFiles) {
  OpenWithRows(false);
  fs::remove(directory_ + "/CURRENT");
  EXPECT_TRUE(tier_->Sync().ok());
}

TEST_F(LevelDbNamesTest, StoredBytesOfARecoveredTierAreThoseOfItsFiles) {
  OpenWithRows(true);
  const int64_t before = tier_->stats().stored_bytes;
  ASSERT_NO_FATAL_FAILURE(Reopen());
  int64_t on_disk = 0;
  for (const std::string& path : Files()) on_disk += static_cast<int64_t>(fs::file_size(path));
  EXPECT_EQ(tier_->stats().stored_bytes, on_disk);
  EXPECT_GT(on_disk, before / 2);
}

}  // namespace
}  // namespace multitier::leveldb_names_test
