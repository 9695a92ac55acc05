// Second names of sealed segments: which files a checkpoint may share, what is durable before it does, and what a full disk
// makes of space that a checkpoint still holds. Snapshots over them are tested in checkpoint_files/linked_snapshot_test.cc.

#include <errno.h>

#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cc/env/posix_error.h"
#include "cc/tier/ssdhash/fault_test_util.h"

namespace multitier::linked_files_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

constexpr int64_t kKeys = 12000;

class LinkedFilesTest : public FaultTest {
 protected:
  LinkedFilesTest() { min_segment_bytes_ = 128 << 10; }  // smaller files are not worth a link
  void Fill() {
    Start();
    PutAll(1);
    EXPECT_TRUE(tier_->PrepareLinks("d/trial"));
  }
  void PutAll(uint64_t generation) {
    for (int64_t from = 0; from < kKeys; from += 500) ASSERT_TRUE(owner_->Put(Range(from, from + 500), generation).ok());
  }
  void End() {
    owner_->Detach();
    tier_.reset();
  }
  std::set<std::string> Taken() {
    std::set<std::string> paths;
    for (const SealedFile& file : tier_->TakeSealedFiles().files) paths.insert(file.path);
    return paths;
  }
  // Gives every file that may be shared a second name. The number of them.
  int LinkAll(const std::string& stem) {
    int n = 0;
    for (const SealedFile& file : tier_->TakeSealedFiles().files) {
      EXPECT_TRUE(tier_->LinkSealedFile(file, StrCat(stem, n++)).ok());
    }
    return n;
  }
};

TEST_F(LinkedFilesTest, AFileIsSyncedBeforeItIsLinked) {
  keep_ = false;  // such a tier syncs nothing by itself
  Start();
  PutAll(1);
  ASSERT_TRUE(tier_->Compact().ok());  // seals, and syncs nothing
  SealedFile file = tier_->TakeSealedFiles().files.at(0);
  const uint64_t links = env_->calls(FaultKind::kLink);
  env_->FailNth(FaultKind::kSync, 1, PosixError("fsync", file.path, EIO));
  const Status refused = tier_->LinkSealedFile(file, "d/link");
  EXPECT_TRUE(env_->Disarm()) << "nothing was synced";
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused.ToString();
  EXPECT_EQ(env_->calls(FaultKind::kLink), links);
  EXPECT_FALSE(*env_->FileExists("d/link"));
  // The kernel may have dropped what was written. Linux says so once: the next sync of the file would succeed.
  EXPECT_FALSE(tier_->LinkSealedFile(file, "d/link").ok());
  EXPECT_EQ(Taken().count(file.path), 0u);
  file.hold.reset();  // before the tier
  End();
}

// So that the rows that wait while files are linked are few.
TEST_F(LinkedFilesTest, FilesAreSyncedBeforeTheMomentOfASave) {
  keep_ = false;
  Fill();
  const uint64_t syncs = env_->calls(FaultKind::kSync);
  EXPECT_GT(syncs, 4u);
  EXPECT_GT(LinkAll("d/link-"), 4);
  EXPECT_EQ(env_->calls(FaultKind::kSync), syncs);
  End();
}

TEST_F(LinkedFilesTest, ALinkedFileSurvivesALossOfPower) {
  keep_ = false;
  Fill();
  SealedFile file = tier_->TakeSealedFiles().files.at(0);
  ASSERT_TRUE(tier_->LinkSealedFile(file, "d/link").ok());
  ASSERT_TRUE(env_->SyncDir("d").ok());
  std::string before(file.bytes, '\0'), after(file.bytes, '\0');
  ASSERT_TRUE((*env_->NewRandomAccessFile("d/link"))->Read(0, file.bytes, before.data()).ok());
  ASSERT_TRUE(env_->DropUnsyncedData().ok());
  ASSERT_TRUE((*env_->NewRandomAccessFile("d/link"))->Read(0, file.bytes, after.data()).ok());
  EXPECT_TRUE(before == after);
  file.hold.reset();  // before the tier
  End();
}

TEST_F(LinkedFilesTest, AFileInWhichAReaderMetDamageIsNotLinked) {
  Fill();
  ASSERT_TRUE(tier_->Sync().ok());
  const std::set<std::string> before = Taken();
  const std::string path = *before.begin();
  ASSERT_TRUE(memory_->FlipBit(path, 4096 + 50, 3).ok());  // its first record
  EXPECT_EQ(Taken(), before) << "nobody has read it";
  EXPECT_EQ(owner_->Wrong().size(), 1u);
  std::set<std::string> expected = before;
  expected.erase(path);
  EXPECT_EQ(Taken(), expected);
  End();
}

TEST_F(LinkedFilesTest, AReaderOfFilesOfAnotherProcessGivesNone) {
  Fill();
  ASSERT_TRUE(tier_->Sync().ok());
  ASSERT_FALSE(Taken().empty());
  End();
  SsdHashOptions options;
  options.env = env_.get();
  options.directory = "d";
  options.recover = true;
  options.keep = false;
  options.read_only = true;
  Result<std::unique_ptr<SsdHashTier>> reader = SsdHashTier::Open(options);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  tier_ = *std::move(reader);
  ASSERT_TRUE(tier_->SetLayout(TierTestLayout(1)).ok());
  const uint64_t links = env_->calls(FaultKind::kLink);
  EXPECT_FALSE(tier_->PrepareLinks("d/trial"));
  EXPECT_EQ(env_->calls(FaultKind::kLink), links);
  const SealedFiles taken = tier_->TakeSealedFiles();
  EXPECT_TRUE(taken.files.empty());
  EXPECT_EQ(taken.rows, kKeys);
  tier_.reset();
}

// A checkpoint keeps the space of what it links, whatever compaction does. Updates are refused, none is lost, and no update
// costs more than a try; when the checkpoint is deleted, compaction has room again.
TEST_F(LinkedFilesTest, OnAFullDiskSpaceOfLinkedFilesIsNotFree) {
  Fill();
  const int links = LinkAll("d/link-");
  ASSERT_GT(links, 4);
  env_->LimitSpace(static_cast<uint64_t>(tier_->stats().stored_bytes) * 23 / 20);
  std::mt19937_64 random(5);
  int accepted = 0, refused = 0;
  const auto put = [&](uint64_t generation) {
    std::set<int64_t> keys;
    while (keys.size() < 100) keys.insert(static_cast<int64_t>(random() % kKeys));
    const Status status = owner_->Put(std::vector<int64_t>(keys.begin(), keys.end()), generation);
    EXPECT_TRUE(status.ok() || status.code() == StatusCode::kResourceExhausted) << status.ToString();
    ++(status.ok() ? accepted : refused);
  };
  for (uint64_t generation = 2; generation < 200; ++generation) put(generation);
  const int64_t relocated = tier_->stats().relocated_rows;
  EXPECT_GT(refused, 0);
  EXPECT_LT(relocated, kKeys / 2) << "compaction goes on, where it cannot free anything; " << refused << " were refused";
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  for (int i = 0; i < links; ++i) ASSERT_TRUE(env_->DeleteFile(StrCat("d/link-", i)).ok());
  accepted = refused = 0;
  for (uint64_t generation = 200; generation < 600; ++generation) put(generation);
  EXPECT_GT(accepted, 300);
  // Four fifths of the space are rows: compaction moves about three of them to free the room of one.
  EXPECT_LT(tier_->stats().relocated_rows - relocated, 4 * 100 * accepted);
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  env_->LimitSpace(0);
  PutAll(600);
  EXPECT_EQ(owner_->Wrong(), std::vector<int64_t>());
  End();
}

}  // namespace
}  // namespace multitier::linked_files_test
