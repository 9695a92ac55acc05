// Files of a kept LevelDB that are lost, cut, zeroed or swapped while it is closed: recovery fails with DataLoss that names the
// file, or every acknowledged row is there.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <functional>
#include <future>

#include "cc/tier/leveldb/leveldb_test_util.h"

namespace multitier::leveldb_loss_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

namespace fs = std::filesystem;

class LevelDbLossTest : public LevelDbTierTest {
 protected:
  // A database of table files, a log, and rows in both; all acknowledged. Its files as a process that dies then leaves them.
  void FillAndCopy(const std::function<void()>& then = [] {}) {
    options_ = SmallOptions();
    options_.durable = true;
    Open(options_);
    for (uint64_t generation = 1; generation < 6; ++generation) {
      ASSERT_TRUE(Write(0, 3000, generation).ok());
      if (generation == 3) Flush();
    }
    Flush();  // nothing is left to do in the background
    ASSERT_TRUE(Write(500, 100, 7).ok());
    ASSERT_TRUE(tier_->Sync().ok());
    acknowledged_ = held_;
    then();
    tier_.reset();  // writes no list
    copy_ = CopyOf(directory_);
  }
  static std::string CopyOf(const std::string& from) {
    const fs::path to = Directories::New();
    for (const auto& file : fs::directory_iterator(from)) {
      if (file.path().filename() != "LOCK") fs::copy_file(file.path(), to / file.path().filename());
    }
    return to;
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const auto& file : fs::directory_iterator(copy_)) names.push_back(file.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  // True: refused, naming one of the files. False: every acknowledged row is there, or a newer one.
  bool RefusedOrWhole(const std::vector<std::string>& names, const std::function<void(const std::string& directory)>& lose) {
    LevelDbOptions options = options_;
    options.directory = CopyOf(copy_);
    options.recover = true;
    lose(options.directory);
    Result<std::unique_ptr<LevelDbTier>> opened = LevelDbTier::Open(options);
    if (!opened.ok()) {
      const std::string& message = opened.status().message();
      EXPECT_EQ(opened.status().code(), StatusCode::kDataLoss) << message;
      EXPECT_TRUE(std::any_of(names.begin(), names.end(), [&](const std::string& name) {
        return message.find(StrCat("'", options.directory, "/", name, "'")) != std::string::npos;
      })) << message;
      return true;
    }
    std::map<int64_t, uint64_t> found;
    EXPECT_TRUE((*opened)
                    ->Scan([&](const RecordHeader& header, uint32_t) {
                      found[header.key] = static_cast<uint64_t>(header.version);
                      return OkStatus();
                    })
                    .ok());
    for (const auto& [key, held] : acknowledged_) EXPECT_GE(found[key], held.data_generation) << key;
    EXPECT_EQ((*opened)->recovery().rows, static_cast<int64_t>(found.size()));
    return false;
  }
  // Every file deleted, emptied, cut and zeroed.
  void LoseEach() {
    EXPECT_FALSE(RefusedOrWhole({}, [](const std::string&) {}));
    for (const std::string& name : Names()) {
      SCOPED_TRACE(name);
      const std::vector<std::function<void(const std::string&)>> ways = {
          [](const std::string& path) { fs::remove(path); },
          [](const std::string& path) { fs::resize_file(path, 0); },
          [](const std::string& path) { fs::resize_file(path, fs::file_size(path) / 2); },
          [](const std::string& path) { Zero(path, 0, fs::file_size(path)); },
          [](const std::string& path) { Zero(path, fs::file_size(path) / 2, fs::file_size(path) / 4); },
      };
      for (size_t i = 0; i < ways.size(); ++i) {
        const auto lose = [&](const std::string& directory) { ways[i](directory + "/" + name); };
        EXPECT_TRUE(RefusedOrWhole({name}, lose) || name == spared_) << "way " << i;
      }
    }
  }
  static void Zero(const std::string& path, size_t from, size_t bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(from));
    file << std::string(bytes, '\0');
  }

  LevelDbOptions options_;
  std::map<int64_t, Held> acknowledged_;
  std::string copy_;
  std::string spared_;  // a file that no acknowledged row needs
};

TEST_F(LevelDbLossTest, EveryFileThatIsLostOrCutIsNamed) {
  ASSERT_NO_FATAL_FAILURE(FillAndCopy());
  EXPECT_GE(Names().size(), 5u);
  LoseEach();
}

TEST_F(LevelDbLossTest, EveryFileThatIsLostOrCutIsNamedAfterItWasOpenedAgain) {
  ASSERT_NO_FATAL_FAILURE(FillAndCopy([this] {
    tier_.reset();
    options_.recover = true;
    tier_ = OpenTier(options_);
    for (const auto& file : fs::directory_iterator(directory_)) {
      if (file.path().extension() == ".log") spared_ = file.path().filename();  // nothing was written since
    }
  }));
  LoseEach();
}

// What is written on, and flushed to table files, after the list.
TEST_F(LevelDbLossTest, FilesThatGrewOrWentSinceSyncAreNoLoss) {
  for (const int64_t more : {1, 100, 3000}) {
    held_.clear();
    ASSERT_NO_FATAL_FAILURE(FillAndCopy([this, more] { ASSERT_TRUE(Write(0, more, 8).ok()); }));
    EXPECT_FALSE(RefusedOrWhole({}, [](const std::string&) {})) << more;
  }
  held_.clear();
  ASSERT_NO_FATAL_FAILURE(FillAndCopy([this] { Flush(); }));  // the listed log was deleted
  EXPECT_FALSE(RefusedOrWhole({}, [](const std::string&) {}));
}

TEST_F(LevelDbLossTest, TableFilesThatWereSwappedAreNamed) {
  ASSERT_NO_FATAL_FAILURE(FillAndCopy([this] {
    for (int64_t first = 3000; first < 43000; first += 1000) ASSERT_TRUE(Write(first, 1000, 1).ok());
    Flush();
  }));
  std::vector<std::string> tables;
  for (const std::string& name : Names()) {
    if (fs::path(name).extension() == ".ldb") tables.push_back(name);
  }
  ASSERT_GT(tables.size(), 2u);
  int same_size = 0;
  for (size_t i = 1; i < tables.size(); ++i) {
    same_size += fs::file_size(copy_ + "/" + tables[0]) == fs::file_size(copy_ + "/" + tables[i]) ? 1 : 0;
    const auto swap = [&](const std::string& directory) {
      fs::rename(directory + "/" + tables[0], directory + "/x");
      fs::rename(directory + "/" + tables[i], directory + "/" + tables[0]);
      fs::rename(directory + "/x", directory + "/" + tables[i]);
    };
    EXPECT_TRUE(RefusedOrWhole({tables[0], tables[i]}, swap)) << tables[i];
  }
  EXPECT_GT(same_size, 0);  // whose lengths do not tell
}

TEST_F(LevelDbLossTest, DatabaseThatWasRepairedOpensWithItsListAndWithoutADamagedOne) {
  ASSERT_NO_FATAL_FAILURE(FillAndCopy());
  EXPECT_FALSE(RefusedOrWhole({}, [](const std::string& directory) {
    fs::remove(directory + "/synced.list");
    ASSERT_TRUE(leveldb::RepairDB(directory, leveldb::Options()).ok());
  }));
  EXPECT_FALSE(RefusedOrWhole(
      {}, [](const std::string& directory) { ASSERT_TRUE(leveldb::RepairDB(directory, leveldb::Options()).ok()); }));
}

// LevelDB does not look whether a full log reached the disk before it goes on in the next one.
TEST_F(LevelDbLossTest, SyncFailsAsLongAsALogThatWasClosedIsNotOnTheDisk) {
  options_ = SmallOptions();
  options_.durable = true;
  Open(options_);
  std::promise<void> may_flush;
  const std::shared_future<void> flushing = may_flush.get_future().share();
  std::atomic<int> log_syncs{0};
  tier_->disk()->set_fault([&](const char* call, const std::string& path) {
    if (std::string(call) == "create" && fs::path(path).extension() == ".ldb") flushing.wait();
    return std::string(call) == "sync" && fs::path(path).extension() == ".log" && ++log_syncs == 1 ? EIO : 0;
  });
  ASSERT_TRUE(Write(0, 1000, 1).ok());  // more than a log takes
  ASSERT_TRUE(Write(1000, 10, 1).ok());
  const Status refused = tier_->Sync();
  EXPECT_EQ(log_syncs, 2);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused.ToString();
  EXPECT_NE(refused.message().find(".log' could not be synced"), std::string::npos) << refused.ToString();
  may_flush.set_value();
  Flush();  // its rows are in a table file
  EXPECT_TRUE(tier_->Sync().ok());
  tier_->disk()->set_fault(nullptr);
}

}  // namespace
}  // namespace multitier::leveldb_loss_test
