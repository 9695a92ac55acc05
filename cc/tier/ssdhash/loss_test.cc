// Files of a kept tier that are lost, cut, zeroed or replaced behind its back: recovery fails with DataLoss that names the
// file, or every acknowledged row is there. Never an older one.

#include <functional>
#include <map>
#include <random>
#include <set>
#include <utility>

#include "cc/env/crash_env.h"
#include "cc/env/fault_env.h"
#include "cc/env/slot_file.h"
#include "cc/tier/ssdhash/recovery_test_util.h"
#include "cc/tier/ssdhash/segment_list.h"

namespace multitier::loss_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

constexpr char kList[] = "d/ssd.list", kId[] = "d/ssd.id";
constexpr int64_t kKeys = 1500;

using Files = std::map<std::string, std::string>;

// A disk on which calls of the list fail. What the list needs is made by "create": it fails where the first write did.
class ListFails : public FaultEnv {
 public:
  using FaultEnv::FaultEnv;
  void Fail(const std::string& call) { call_ = call; }
  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override {
    if (path.find("ssd.list") == std::string::npos) return FaultEnv::OpenPositionedFile(path, mode, direct);
    if (call_ == "create") return UnavailableError("no");
    MT_ASSIGN_OR_RETURN(std::unique_ptr<PositionedFile> file, FaultEnv::OpenPositionedFile(path, mode, direct));
    return std::unique_ptr<PositionedFile>(new File(this, std::move(file)));
  }

 private:
  class File : public PositionedFile {
   public:
    File(ListFails* env, std::unique_ptr<PositionedFile> file) : env_(env), file_(std::move(file)) {}
    Status Write(uint64_t offset, const void* data, size_t bytes) override {
      // "create": of a file that is there nothing is known, so that the next one must be made.
      if (env_->call_ != "") return env_->call_ == "sync" ? file_->Write(offset, data, bytes) : UnavailableError("no");
      return file_->Write(offset, data, bytes);
    }
    Status Read(uint64_t offset, size_t bytes, void* out) const override { return file_->Read(offset, bytes, out); }
    Status Sync() override { return env_->call_ == "sync" ? UnavailableError("no") : file_->Sync(); }
    Status Allocate(uint64_t bytes) override { return file_->Allocate(bytes); }
    Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }
    Result<uint64_t> Size() const override { return file_->Size(); }

   private:
    ListFails* const env_;
    const std::unique_ptr<PositionedFile> file_;
  };

  std::string call_;
};

class LossTest : public RecoveryTest {
 protected:
  // What a process that dies now leaves. The tier's thread may be at work: again, until the files and the list stay.
  Files TakeFiles() {
    for (Files files = ReadFiles();;) {
      Files again = ReadFiles();
      const auto same_name = [](const auto& a, const auto& b) { return a.first == b.first; };
      const bool same = files.size() == again.size() && std::equal(files.begin(), files.end(), again.begin(), same_name) &&
                        files[kList] == again[kList];
      if (same) return again;  // read while the list stayed as it is
      files = std::move(again);
    }
  }
  Files ReadFiles() {
    Files files;
    const Result<std::vector<std::string>> names = memory_.ListDir("d");
    for (const std::string& name : *names) {
      Result<std::unique_ptr<RandomAccessFile>> file = memory_.NewRandomAccessFile("d/" + name);
      if (file.status().code() == StatusCode::kNotFound) continue;  // deleted since
      const Result<uint64_t> size = (*file)->Size();
      std::string& bytes = files["d/" + name];
      bytes.resize(*size);
      EXPECT_TRUE((*file)->Read(0, bytes.size(), bytes.data()).ok());
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
    for (int64_t key = 0; key < kKeys; ++key) {
      acknowledged_[key] = owner_.generation(key);
      acknowledged_at_ = std::max(acknowledged_at_, acknowledged_[key]);
    }
  }
  // True: refused, with an error that names one of `paths`. False: opened, and every row is as it was acknowledged, or newer,
  // and no key that was acknowledged as removed is back.
  bool RefusedOrWhole(const Files& files, const std::set<std::string>& paths) {
    InMemoryEnv env;
    PutFiles(files, &env);
    SsdHashOptions options = Options(&env, "d");
    options.recover = true;
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
    for (int64_t key = 0; key < kKeys; ++key) {
      const uint64_t found = owner.generation(key), known = acknowledged_[key];
      // A key that was absent comes back only by a write that was not acknowledged yet.
      const bool allowed = known == 0 ? found == 0 || found > acknowledged_at_ : found >= known;
      EXPECT_TRUE(allowed) << "key " << key << ": found generation " << found << ", acknowledged " << known << " at "
                           << acknowledged_at_;
    }
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

  // Lengths around every sector of the header, and every place in blocks and records after it.
  static std::set<uint64_t> CutsBelow(uint64_t needed) {
    std::set<uint64_t> cuts = {1, needed / 3, needed / 2, 5001, needed - 1};
    for (const uint64_t at : {uint64_t{512}, uint64_t{kBlockBytes}, 2 * uint64_t{kBlockBytes}, RoundDownToBlock(needed)}) {
      for (const uint64_t more : {uint64_t{0}, uint64_t{1}, uint64_t{511}, uint64_t{512}, uint64_t{kBlockBytes} - 1}) {
        cuts.insert({at - 1, at + more});
      }
    }
    cuts.erase(cuts.lower_bound(needed), cuts.end());
    return cuts;
  }
  // Every file deleted, emptied, zeroed, cut. `listed` must be refused, in any of these ways.
  void LoseEach(const Files& files) {
    const std::map<std::string, ListedSegment> listed = Listed(files);
    EXPECT_GE(listed.size(), 3u);
    EXPECT_FALSE(RefusedOrWhole(files, {}));
    for (const auto& [path, bytes] : files) {
      const bool must = listed.count(path) > 0 || path == kList || path == kId;
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
      for (const uint64_t size : CutsBelow(needed)) lose(With(files, path, [size](std::string* file) { file->resize(size); }));
      if (HasFailure()) return;
    }
  }

  // What a process that opens these files and syncs leaves, wherever the power fails.
  void ExpectNoLossOfPowerIsRefused(const std::map<std::string, Crash::File>& files, const char* what) {
    SCOPED_TRACE(what);
    int crashes = 0;
    for (uint64_t seed = 1; seed < 9; ++seed) {
      CrashHistory unused;
      CrashEnv env("d", files, seed, &unused, /*every=*/1, /*most=*/60);
      ASSERT_TRUE(Open(&env).ok());
      EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
      ASSERT_TRUE(tier_->Compact().ok());  // deletes what holds nothing, before any Sync
      ASSERT_TRUE(tier_->Sync().ok());
      Close();
      for (const Crash& crash : env.Take()) {
        InMemoryEnv left;
        if (!crash.power_lost) continue;
        ++crashes;
        ASSERT_TRUE(crash.CopyTo(&left, "d").ok());
        const Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(&left, "d"));
        ASSERT_TRUE(tier.ok()) << "seed " << seed << ": " << tier.status().ToString();
        EXPECT_EQ((*tier)->recovery().rows, kKeys);
      }
    }
    EXPECT_GT(crashes, 20);
  }

  std::map<int64_t, uint64_t> acknowledged_;
  uint64_t acknowledged_at_ = 0;  // the newest of the generations then
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
  const auto acknowledged = acknowledged_;
  ASSERT_NO_FATAL_FAILURE(StartAnew());
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  acknowledged_ = acknowledged;
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
  for (size_t at = 0; at < size; at += 13) {  // slot_file_test.cc has all of them
    const auto flip = [at](std::string* list) { (*list)[at] = static_cast<char>((*list)[at] ^ 1 << at % 8); };
    EXPECT_TRUE(RefusedOrWhole(With(files, kList, flip), {kList})) << at;
    EXPECT_TRUE(RefusedOrWhole(With(files, kList, [at](std::string* list) { list->resize(at); }), {kList})) << at;
    if (HasFailure()) return;
  }
}

TEST_F(LossTest, NothingButTheListIsNoEmptyTier) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  const Files files = TakeFiles();
  EXPECT_TRUE(RefusedOrWhole(Files{{kList, files.at(kList)}}, {kId}));
  EXPECT_TRUE(RefusedOrWhole(Files{{kId, files.at(kId)}}, {kList}));
  EXPECT_TRUE(RefusedOrWhole(Files(), {kId}));
}

// What recovery once found damaged, of writes that were never acknowledged, is no loss the next time.
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

// A process wrote a list, and died before it was on the disk. The next one deletes segments that this list does not name. Then
// the power fails, and the list before is back: of a slot that was not synced, or of a name whose directory was not.
TEST_F(LossTest, ListThatWasNotSyncedByAProcessThatDiedIsWrittenAgainBeforeAnythingIsDeleted) {
  ASSERT_NO_FATAL_FAILURE(FillAndSync());
  const Files before = TakeFiles();
  ASSERT_TRUE(owner_.Put(Range(0, kKeys), 50).ok());
  ASSERT_TRUE(tier_->Compact().ok());
  ASSERT_TRUE(tier_->Sync().ok());
  const Files after = TakeFiles();
  Close();
  Files both = before;
  for (const auto& [path, bytes] : after) both[path] = bytes;
  ASSERT_GT(both.size(), after.size() + 5);  // segments that the list before names alone
  // The file before and after the list was replaced: one slot differs.
  InMemoryEnv lists;
  ASSERT_TRUE(lists.CreateDir("d").ok());
  SlotFile list_file(&lists, kList);
  std::string written[2];
  for (int i = 0; i < 2; ++i) {
    InMemoryEnv env;
    PutFiles(Files{{kList, (i == 0 ? before : after).at(kList)}}, &env);
    const Result<std::string> contents = SlotFile(&env, kList).Load();
    ASSERT_TRUE(contents.ok() && list_file.Replace(*contents).ok());
    const std::unique_ptr<RandomAccessFile> file = *lists.NewRandomAccessFile(kList);
    written[i].resize(*file->Size());
    ASSERT_TRUE(file->Read(0, written[i].size(), written[i].data()).ok());
  }
  for (const bool renamed : {false, true}) {
    std::map<std::string, Crash::File> files;
    for (const auto& [path, bytes] : both) files[path] = {bytes, bytes, true, true, false, ""};
    Crash::File& list = files[kList];
    if (renamed) {
      list = {written[1], written[1], true, false, true, written[0]};
    } else {
      list = {written[1], written[0], true, true, false, ""};
    }
    ExpectNoLossOfPowerIsRefused(files, renamed ? "the name" : "the slot");
  }
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
  ListFails env(&memory_);
  ASSERT_TRUE(Open(&env).ok());
  for (const char* const call : {"create", "write", "sync"}) {
    SCOPED_TRACE(call);
    ASSERT_TRUE(owner_.Put(Range(0, kKeys), 1).ok());
    ASSERT_TRUE(tier_->Sync().ok());
    Acknowledge();
    env.Fail(call);
    for (uint64_t generation = 2; generation < 12; ++generation) {
      ASSERT_TRUE(owner_.Put(Range(0, kKeys), generation).ok());
      EXPECT_FALSE(tier_->Sync().ok());
      EXPECT_FALSE(RefusedOrWhole(TakeFiles(), {}));
    }
    env.Fail("");
    ASSERT_TRUE(tier_->Sync().ok());
    Acknowledge();
    EXPECT_FALSE(RefusedOrWhole(TakeFiles(), {}));
  }
  EXPECT_LT(tier_->stats().stored_bytes, 2 << 20);
  Close();
}

}  // namespace
}  // namespace multitier::loss_test
