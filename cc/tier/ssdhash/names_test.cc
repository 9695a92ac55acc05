// Files of a kept tier that are deleted, cut or replaced while it uses them: Sync does not acknowledge rows that recovery would
// not find, whether the tier has the files open or not. The rows that it can read stay readable.

#include <unistd.h>

#include <algorithm>
#include <functional>

#include "cc/env/file_cache.h"
#include "cc/tier/ssdhash/recovery_test_util.h"

namespace multitier::names_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

constexpr int64_t kKeys = 1500;

// By whether the files are in memory, and whether the tier keeps them open.
class NamesTest : public testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  NamesTest() : capacity_(CachedFile::capacity()) {
    if (!in_memory()) directory_ = StrCat(testing::TempDir(), "/ssdhash_names_test_", static_cast<int>(::getpid()));
    EXPECT_TRUE(env()->CreateDir(directory_).ok());
    if (!keeps_open()) CachedFile::SetCapacity(1);
    Start();
  }
  ~NamesTest() override {
    CachedFile::SetCapacity(capacity_);
    Clear();
    (void)env()->DeleteDir(directory_);
  }
  static bool in_memory() { return std::get<0>(GetParam()); }
  static bool keeps_open() { return std::get<1>(GetParam()); }
  Env* env() { return in_memory() ? &memory_ : Env::Posix(); }

  void Clear() {
    if (tier_ != nullptr) owner_.Detach();
    tier_.reset();
    for (const std::string& path : Files()) EXPECT_TRUE(env()->DeleteFile(path).ok());
  }
  Status Open() {
    Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(env(), directory_));
    if (!tier.ok()) return tier.status();
    tier_ = *std::move(tier);
    owner_.Attach(tier_.get());
    return OkStatus();
  }
  // An empty tier, and rows in sealed and open segments that were acknowledged.
  void Start() {
    Clear();
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    // Once: with no dead record no segment is compacted, so that all files stay.
    ASSERT_TRUE(owner_.Put(Range(0, kKeys), 1).ok());
    ASSERT_TRUE(tier_->Sync().ok());
  }
  std::vector<std::string> Files() {
    Result<std::vector<std::string>> names = env()->ListDir(directory_);
    for (std::string& name : *names) name = StrCat(directory_, "/", name);
    return *names;
  }
  std::string Read(const std::string& path) {
    const std::unique_ptr<RandomAccessFile> file = *env()->NewRandomAccessFile(path);
    std::string bytes(*file->Size(), '\0');
    EXPECT_TRUE(file->Read(0, bytes.size(), bytes.data()).ok());
    return bytes;
  }
  void ReplaceByCopy(const std::string& path) {
    const std::string bytes = Read(path);
    ASSERT_TRUE((*env()->NewWritableFile(path + "+"))->Append(bytes.data(), bytes.size()).ok());
    ASSERT_TRUE(env()->RenameFile(path + "+", path).ok());
  }
  // Sync is DataLoss naming the file, and no row reads wrong. What a Sync acknowledges, now or once no row needs the file any
  // more, recovery finds.
  bool RefusedOrWhole(const std::string& path) {
    const Status synced = tier_->Sync();
    if (!synced.ok()) {
      EXPECT_EQ(synced.code(), StatusCode::kDataLoss) << synced.ToString();
      EXPECT_NE(synced.message().find(StrCat("'", path, "'")), std::string::npos) << synced.ToString();
      (void)owner_.Put(Range(0, 10), 9);
      EXPECT_EQ(owner_.Wrong(keeps_open() ? StatusCode::kOk : StatusCode::kDataLoss), std::vector<int64_t>());
    }
    if (tier_->Sync().ok()) ExpectWholeOnceReopened();
    return !synced.ok();
  }
  void ExpectWholeOnceReopened() {
    std::vector<uint64_t> acknowledged;
    for (int64_t key = 0; key < kKeys + 300; ++key) acknowledged.push_back(owner_.generation(key));
    owner_.Detach();
    tier_.reset();
    const Status opened = Open();
    ASSERT_TRUE(opened.ok()) << opened.ToString();
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
    for (int64_t key = 0; key < kKeys + 300; ++key)
      EXPECT_GE(owner_.generation(key), acknowledged[static_cast<size_t>(key)]) << key;
  }
  // Does it to each file, in a tier of its own; to each second one before more rows are written.
  int RefusalsOfEach(const std::function<void(const std::string& path)>& lose) {
    int refused = 0;
    for (size_t i = 0; i < Files().size() && !HasFailure(); ++i) {
      Start();
      const std::string path = Files()[i];
      SCOPED_TRACE(path);
      lose(path);
      if (i % 2 == 0) {
        (void)owner_.Put(Range(kKeys, kKeys + 300), 8);
      }
      refused += RefusedOrWhole(path) ? 1 : 0;
    }
    return refused;
  }

  const size_t capacity_;
  InMemoryEnv memory_;
  std::string directory_ = "d";
  std::unique_ptr<SsdHashTier> tier_;
  LogOwner owner_;
};
INSTANTIATE_TEST_SUITE_P(Files, NamesTest, testing::Combine(testing::Bool(), testing::Bool()),
                         [](const testing::TestParamInfo<std::tuple<bool, bool>>& info) {
                           return StrCat(std::get<0>(info.param) ? "InMemory" : "OnDisk",
                                         std::get<1>(info.param) ? "Open" : "Closed");
                         });

TEST_P(NamesTest, SyncOfATierOfWhichAFileWasDeletedIsDataLoss) {
  const int refused = RefusalsOfEach([this](const std::string& path) { ASSERT_TRUE(env()->DeleteFile(path).ok()); });
  EXPECT_GE(refused, 3);  // the id and at least two segments
}

// A file that is closed is used under its name: the copy is as good.
TEST_P(NamesTest, SyncOfATierOfWhichAFileWasReplacedByACopyIsDataLossWhereItIsOpen) {
  if (in_memory()) return;  // files in memory have no identity
  const int refused = RefusalsOfEach([this](const std::string& path) { ReplaceByCopy(path); });
  if (keeps_open()) {
    EXPECT_GE(refused, 2);
  }
}

TEST_P(NamesTest, SyncOfATierOfWhichAllFilesWereDeletedIsDataLoss) {
  for (const std::string& path : Files()) ASSERT_TRUE(env()->DeleteFile(path).ok());
  (void)owner_.Put(Range(kKeys, kKeys + 300), 8);
  EXPECT_TRUE(RefusedOrWhole(StrCat(directory_, "/ssd.id")));
}

TEST_P(NamesTest, SyncOfATierOfWhichFilesWereCutIsDataLoss) {
  for (const std::string& path : Files()) {
    if (path.find(".seg") == std::string::npos) continue;
    if (in_memory()) {
      ASSERT_TRUE((*env()->OpenPositionedFile(path, Env::OpenMode::kWrite, false))->Truncate(8192).ok());
    } else {
      ASSERT_EQ(::truncate(path.c_str(), 8192), 0);
    }
  }
  EXPECT_EQ(tier_->Sync().code(), StatusCode::kDataLoss);
}

TEST_P(NamesTest, TierThatIsNotKeptDoesNotLookAtItsFiles) {
  Clear();
  SsdHashOptions options = Options(env(), directory_);
  options.keep = false;
  tier_ = *SsdHashTier::Open(options);
  owner_.Attach(tier_.get());
  EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
  ASSERT_TRUE(owner_.Put(Range(0, 300), 1).ok());
  ASSERT_TRUE(env()->DeleteFile(directory_ + "/ssd.id").ok());
  EXPECT_TRUE(tier_->Sync().ok());
}

}  // namespace
}  // namespace multitier::names_test
