// Files of a kept tier that are lost, cut, zeroed or replaced behind its back: recovery fails with DataLoss that names the
// file, or every acknowledged row is there. Never an older one.

#include <functional>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "cc/env/fault_env.h"
#include "cc/tier/ssdhash/recovery_test_util.h"
#include "cc/tier/ssdhash/segment_list.h"

namespace multitier {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

constexpr char kList[] = "d/ssd.list";
constexpr int64_t kKeys = 1500;

using Files = std::map<std::string, std::string>;

class LossTest : public RecoveryTest {
 protected:
  // What a process that dies now leaves.
  Files TakeFiles() {
    Files files;
    const Result<std::vector<std::string>> names = memory_.ListDir("d");
    for (const std::string& name : *names) {
      std::unique_ptr<RandomAccessFile> file = *memory_.NewRandomAccessFile("d/" + name);
      std::string& bytes = files["d/" + name];
      bytes.resize(*file->Size());
      EXPECT_TRUE(file->Read(0, bytes.size(), bytes.data()).ok());
    }
    return files;
  }
  static void PutFiles(const Files& files, InMemoryEnv* env) {
    ASSERT_TRUE(env->CreateDir("d").ok());
    for (const auto& [path, bytes] : files) {
      ASSERT_TRUE((*env->NewWritableFile(path))->Append(bytes.data(), bytes.size()).ok());
    }
  }
  // The segments of the list, by path.
  static std::map<std::string, ListedSegment> Listed(const Files& files) {
    InMemoryEnv env;
    PutFiles(files, &env);
    InstanceId instance;
    std::copy_n(files.at("d/ssd.id").begin() + 12, instance.size(), instance.begin());
    SegmentList list(&env, "d", instance);
    EXPECT_TRUE(list.Load().ok());
    std::map<std::string, ListedSegment> listed;
    for (const ListedSegment& segment : list.segments()) {
      char name[48];
      std::snprintf(name, sizeof(name), "d/ssd-%016llx-%u.seg", static_cast<unsigned long long>(segment.id), segment.attempt);
      listed[name] = segment;
    }
    return listed;
  }

  // Rows in sealed and open segments of both heads, some removed, and all acknowledged.
  void FillAndSync() {
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    for (uint64_t generation = 1; generation < 5; ++generation) {
      for (int64_t from = 0; from < kKeys; from += 300) ASSERT_TRUE(owner_.Put(Range(from, from + 300), generation).ok());
      ASSERT_TRUE(owner_.Put(Range(0, 700), generation + 10).ok());
      ASSERT_TRUE(owner_.Remove(Range(40, 60)).ok());
      ASSERT_TRUE(tier_->Sync().ok());
    }
    Acknowledge();
  }
  void Acknowledge() {
    for (int64_t key = 0; key < kKeys; ++key) acknowledged_[key] = owner_.generation(key);
  }
  // True: refused, with an error that names one of `paths`. False: opened, and every row is as it was acknowledged, or newer.
  bool RefusedOrWhole(const Files& files, const std::set<std::string>& paths) {
    InMemoryEnv env;
    PutFiles(files, &env);
    SsdHashOptions options = Options(&env, "d");
    options.keep = false;
    Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
    if (!tier.ok()) {
      EXPECT_EQ(tier.status().code(), StatusCode::kDataLoss) << tier.status().ToString();
      const auto named = [&](const std::string& path) {
        return tier.status().message().find(StrCat("'", path, "'")) != std::string::npos;
      };
      EXPECT_TRUE(std::any_of(paths.begin(), paths.end(), named)) << tier.status().ToString();
      return true;
    }
    LogOwner owner;
    owner.Attach(tier->get());
    EXPECT_EQ(owner.Adopt(), std::vector<int64_t>());
    EXPECT_EQ(owner.Wrong(StatusCode::kDataLoss), std::vector<int64_t>());
    for (int64_t key = 0; key < kKeys; ++key) EXPECT_GE(owner.generation(key), acknowledged_[key]) << "key " << key;
    owner.Detach();
    return false;
  }
  // The files with the one at `path` changed.
  static Files With(const Files& files, const std::string& path, const std::function<void(std::string*)>& change) {
    Files changed = files;
    change(&changed.at(path));
    return changed;
  }
  static Files Without(Files files, const std::string& path) {
    files.erase(path);
    return files;
  }

  // Every file deleted, emptied, zeroed, cut. `listed` must be refused, in any of these ways.
  void LoseEach(const Files& files) {
    const std::map<std::string, ListedSegment> listed = Listed(files);
    EXPECT_GE(listed.size(), 3u);
    EXPECT_FALSE(RefusedOrWhole(files, {}));
    for (const auto& [path, bytes] : files) {
      const bool must = listed.count(path) > 0 || path == kList;
      SCOPED_TRACE(path);
      const auto lose = [&, &file = path](const Files& lost) {
        const bool refused = RefusedOrWhole(lost, {file});
        EXPECT_TRUE(refused || !must);
      };
      lose(Without(files, path));
      lose(With(files, path, [](std::string* file) { file->clear(); }));
      lose(With(files, path, [](std::string* file) { file->assign(file->size(), '\0'); }));
      const auto entry = listed.find(path);
      const uint64_t needed = entry == listed.end() ? bytes.size() : entry->second.bytes;
      for (const uint64_t size : {needed - 1, needed / 2, needed / 3, uint64_t{kBlockBytes}, uint64_t{512}}) {
        if (size < needed) lose(With(files, path, [size](std::string* file) { file->resize(size); }));
      }
      if (HasFailure()) return;
    }
  }

  std::map<int64_t, uint64_t> acknowledged_;
};

TEST_F(LossTest, EveryListedFileThatIsLostOrCutIsNamedAfterSync) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  LoseEach(TakeFiles());
}

TEST_F(LossTest, EveryListedFileThatIsLostOrCutIsNamedWhereMoreWasWrittenSinceSync) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  for (int64_t from = 0; from < kKeys; from += 300) ASSERT_TRUE(owner_.Put(Range(from, from + 150), 100).ok());
  LoseEach(TakeFiles());
}

TEST_F(LossTest, EveryListedFileThatIsLostOrCutIsNamedAfterClose) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  Close();
  LoseEach(TakeFiles());
}

// As the documentation's first promise: no acknowledged row is replaced by an older one, wherever zeros stand.
TEST_F(LossTest, ZerosAnywhereInAListedFileAreRefusedOrReportedWhenRead) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  for (const bool closed : {false, true}) {
    if (closed) Close();
    const Files files = TakeFiles();
    int refused = 0;
    for (const auto& [path, segment] : Listed(files)) {
      for (uint64_t at = 0; at < segment.bytes; at += 1024) {
        const Files zeroed = With(files, path, [at](std::string* file) {
          const size_t bytes = std::min<size_t>(1024, file->size() - at);
          file->replace(at, bytes, bytes, '\0');
        });
        refused += RefusedOrWhole(zeroed, {path}) ? 1 : 0;
        if (HasFailure()) return;
      }
    }
    if (!closed) {
      EXPECT_GT(refused, 0);  // no footer tells the keys
    }
  }
}

TEST_F(LossTest, FilesThatWereSwappedOrAreOfAnotherMomentOrInstanceAreNamed) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  const Files before = TakeFiles();
  ASSERT_TRUE(owner_.Put(Range(0, 30), 200).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  Acknowledge();
  const Files files = TakeFiles();
  ASSERT_NO_FATAL_FAILURE(StartAnew());
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  acknowledged_.clear();
  const Files others = TakeFiles();
  int older = 0, strange = 0;
  const auto listed = Listed(files);
  for (auto a = listed.begin(); a != listed.end(); ++a) {
    for (auto b = std::next(a); b != listed.end(); ++b) {
      Files swapped = files;
      std::swap(swapped[a->first], swapped[b->first]);
      EXPECT_TRUE(RefusedOrWhole(swapped, {a->first, b->first})) << a->first << " " << b->first;
    }
    const std::string& path = a->first;
    if (before.count(path) > 0 && before.at(path) != files.at(path)) {
      ++older;
      EXPECT_TRUE(RefusedOrWhole(With(files, path, [&](std::string* file) { *file = before.at(path); }), {path})) << path;
    }
    if (others.count(path) > 0) {
      ++strange;
      EXPECT_TRUE(RefusedOrWhole(With(files, path, [&](std::string* file) { *file = others.at(path); }), {path})) << path;
    }
  }
  EXPECT_GT(older, 0);
  EXPECT_GT(strange, 0);
  EXPECT_TRUE(RefusedOrWhole(With(files, kList, [&](std::string* file) { *file = others.at(kList); }), {kList}));
}

TEST_F(LossTest, EveryFlippedBitAndEveryCutOfTheListIsNamed) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  const Files files = TakeFiles();
  const size_t size = files.at(kList).size();
  for (size_t at = 0; at < size; ++at) {
    const auto flip = [at](std::string* list) { (*list)[at] = static_cast<char>((*list)[at] ^ 1 << at % 8); };
    EXPECT_TRUE(RefusedOrWhole(With(files, kList, flip), {kList})) << at;
    EXPECT_TRUE(RefusedOrWhole(With(files, kList, [at](std::string* list) { list->resize(at); }), {kList})) << at;
    if (HasFailure()) return;
  }
}

TEST_F(LossTest, NothingButTheListIsNoEmptyTier) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  const Files files = TakeFiles();
  EXPECT_TRUE(RefusedOrWhole(Files{{kList, files.at(kList)}}, {"d/ssd.id"}));
  EXPECT_TRUE(RefusedOrWhole(Files{{"d/ssd.id", files.at("d/ssd.id")}}, {kList}));
}

// A directory of the format before opens, is not held against anything, and has a list from its first Sync on.
TEST_F(LossTest, DirectoryWithoutAListOpensAndGetsOne) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  Close();
  ASSERT_NO_FATAL_FAILURE(TakeListAway(&memory_));
  Files files = TakeFiles();
  EXPECT_FALSE(RefusedOrWhole(files, {}));
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(tier_->recovery().listed_files, 0);
  EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
  ASSERT_TRUE(tier_->Sync().ok());
  files = TakeFiles();
  EXPECT_EQ(files.at("d/ssd.id")[8], 3);
  LoseEach(files);
  Close();
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(tier_->recovery().listed_files, tier_->recovery().files);
}

// What recovery once found damaged, of writes that nobody acknowledged, is no loss the next time.
TEST_F(LossTest, RecordsLostInACrashBeforeAreNoLossOnceTheyAreListed) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  const Files before = TakeFiles();
  ASSERT_TRUE(owner_.Put(Range(0, 30), 300).ok());
  ASSERT_TRUE(owner_.Put(Range(30, 60), 301).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  Files files = TakeFiles();
  files[kList] = before.at(kList);  // the crash came before the list
  int holes = 0;
  for (const auto& [path, segment] : Listed(before)) {
    if (segment.sealed || files.at(path) == before.at(path)) continue;
    files[path].replace(segment.bytes + 100, 100, 100, '\0');
    ++holes;
  }
  ASSERT_EQ(holes, 1);
  InMemoryEnv crashed;
  PutFiles(files, &crashed);
  for (int life = 0; life < 3; ++life) {
    ASSERT_TRUE(Open(&crashed).ok());
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    EXPECT_GT(tier_->recovery().damaged_records, 0);
    ASSERT_TRUE(tier_->Sync().ok());
  }
  Close();
}

// On a full disk compaction deletes listed segments, for which the list is written anew.
TEST_F(LossTest, ListIsWrittenOnAFullDisk) {
  FaultEnv env(&memory_);
  ASSERT_TRUE(Open(&env).ok());
  env.LimitSpace(360 << 10);
  Status status;
  for (uint64_t generation = 1; generation < 60; ++generation) {
    for (int64_t from = 0; from < kKeys; from += 300) {
      status = owner_.Put(Range(from, from + 300), generation);
      ASSERT_TRUE(status.ok()) << generation << ": " << status.ToString();
    }
    ASSERT_TRUE(tier_->Sync().ok());
  }
  Acknowledge();
  LoseEach(TakeFiles());
  Close();
}

// A list that cannot be written fails Sync, and no file goes that the list on the disk names.
TEST_F(LossTest, SyncFailsWhereTheListCannotBeWrittenAndNothingListedGoes) {
  FaultEnv env(&memory_);
  ASSERT_TRUE(Open(&env).ok());
  for (const FaultKind kind : {FaultKind::kRename, FaultKind::kSyncDir}) {
    SCOPED_TRACE(FaultKindName(kind));
    ASSERT_TRUE(owner_.Put(Range(0, kKeys), 1).ok());
    ASSERT_TRUE(tier_->Sync().ok());
    Acknowledge();
    env.FailFrom(kind, 1, UnavailableError("no"));
    for (uint64_t generation = 2; generation < 12; ++generation) {
      ASSERT_TRUE(owner_.Put(Range(0, kKeys), generation).ok());
      EXPECT_FALSE(tier_->Sync().ok());
      EXPECT_FALSE(RefusedOrWhole(TakeFiles(), {}));
    }
    EXPECT_TRUE(env.Disarm());
    ASSERT_TRUE(tier_->Sync().ok());
    Acknowledge();
    EXPECT_FALSE(RefusedOrWhole(TakeFiles(), {}));
  }
  EXPECT_LT(tier_->stats().stored_bytes, 2 << 20);
  Close();
}

}  // namespace
}  // namespace multitier
