#include "cc/env/fault_env.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <vector>

#include "cc/env/memory_env.h"

namespace multitier::fault_env_test {
namespace {

Status Full() { return ResourceExhaustedError("no space left on device"); }

Status WriteFile(Env* env, const std::string& path, const std::string& bytes, bool sync) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<WritableFile> file, env->NewWritableFile(path));
  MT_RETURN_IF_ERROR(file->Append(bytes.data(), bytes.size()));
  if (sync) MT_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

// The bytes of a file, or the name of the error.
std::string Contents(Env* env, const std::string& path) {
  Result<std::unique_ptr<RandomAccessFile>> file = env->NewRandomAccessFile(path);
  if (!file.ok()) return StatusCodeName(file.status().code());
  std::string bytes(*(*file)->Size(), '\0');
  const Status status = (*file)->Read(0, bytes.size(), bytes.data());
  return status.ok() ? bytes : StatusCodeName(status.code());
}

TEST(FaultEnvTest, EachKindArmedFailsItsNextCallOnlyOnce) {
  InMemoryEnv memory;
  FaultEnv env(&memory);
  ASSERT_TRUE(env.CreateDir("d").ok());
  ASSERT_TRUE(WriteFile(&env, "f", "abcd", true).ok());
  std::unique_ptr<WritableFile> writable = *env.NewWritableFile("w");
  std::unique_ptr<RandomAccessFile> readable = *env.NewRandomAccessFile("f");
  std::unique_ptr<PositionedFile> positioned = *env.OpenPositionedFile("p", Env::OpenMode::kCreate, false);
  char out[4];
  void* pages = env.AllocatePages(4096, false);
  ASSERT_NE(pages, nullptr);
  const auto status_of = [](bool ok) { return ok ? OkStatus() : Full(); };
  const auto take = [&](void* p) {
    env.FreePages(p, p == nullptr ? 0 : 4096);
    return status_of(p != nullptr);
  };
  const std::vector<std::pair<FaultKind, std::function<Status()>>> calls = {
      {FaultKind::kAllocate, [&] { return take(env.AllocatePages(4096, false)); }},
      {FaultKind::kReserve, [&] { return take(env.ReserveAddressSpace(4096, false)); }},
      {FaultKind::kCommit, [&] { return status_of(env.CommitPages(pages, 4096)); }},
      {FaultKind::kCreate, [&] { return env.NewWritableFile("new").status(); }},
      {FaultKind::kOpen, [&] { return env.NewRandomAccessFile("f").status(); }},
      {FaultKind::kWrite, [&] { return writable->Append("x", 1); }},
      {FaultKind::kSync, [&] { return writable->Sync(); }},
      {FaultKind::kRead, [&] { return readable->Read(0, 4, out); }},
      {FaultKind::kSize, [&] { return readable->Size().status(); }},
      {FaultKind::kRename, [&] { return env.RenameFile("new", "renamed"); }},
      {FaultKind::kLink, [&] { return env.LinkFile("renamed", StrCat("link", env.calls(FaultKind::kLink))); }},
      {FaultKind::kDelete, [&] { return env.DeleteFile("renamed"); }},
      {FaultKind::kExists, [&] { return env.FileExists("f").status(); }},
      {FaultKind::kCreateDir, [&] { return env.CreateDir("e"); }},
      {FaultKind::kListDir, [&] { return env.ListDir("d").status(); }},
      {FaultKind::kSyncDir, [&] { return env.SyncDir("d"); }},
      {FaultKind::kDeleteDir, [&] { return env.DeleteDir("e"); }},
      {FaultKind::kExtend, [&] { return positioned->Allocate(8); }},
      {FaultKind::kTruncate, [&] { return positioned->Truncate(4); }},
      {FaultKind::kClose, [&] { return writable->Close(); }},
  };
  EXPECT_EQ(calls.size(), kNumFaultKinds - 1);
  for (const auto& [kind, call] : calls) {
    const uint64_t before = env.calls(kind);
    env.FailNth(kind, 1, Full());
    EXPECT_EQ(call(), Full()) << FaultKindName(kind);
    EXPECT_TRUE(call().ok()) << FaultKindName(kind);
    EXPECT_TRUE(env.Disarm()) << FaultKindName(kind);
    EXPECT_FALSE(env.Disarm());
    EXPECT_EQ(env.calls(kind), before + 2) << FaultKindName(kind);
  }
  env.FreePages(pages, 4096);
}

TEST(FaultEnvTest, LoopOverTheNthCallEndsWhenNoneFires) {
  uint64_t n = 1;
  for (;; ++n) {
    ASSERT_LT(n, 100u);
    InMemoryEnv memory;
    FaultEnv env(&memory);
    env.FailNth(FaultKind::kAny, n, Full());
    const Status status = WriteFile(&env, "f", "abcd", true);
    if (!env.Disarm()) {
      EXPECT_TRUE(status.ok());
      break;
    }
    EXPECT_EQ(status, Full()) << n;
  }
  EXPECT_EQ(n, 5u);  // after create, write, sync and close
}

TEST(FaultEnvTest, FailFromFailsUntilDisarmed) {
  InMemoryEnv memory;
  FaultEnv env(&memory);
  env.FailFrom(FaultKind::kWrite, 2, Full());
  EXPECT_TRUE(WriteFile(&env, "a", "1", false).ok());
  EXPECT_EQ(WriteFile(&env, "b", "1", false), Full());
  EXPECT_EQ(WriteFile(&env, "c", "1", false), Full());
  EXPECT_TRUE(env.Disarm());
  EXPECT_TRUE(WriteFile(&env, "d", "1", false).ok());
}

TEST(FaultEnvTest, FailedWriteLeavesTheFirstHalf) {
  InMemoryEnv memory;
  FaultEnv env(&memory);
  env.FailNth(FaultKind::kWrite, 1, Full());
  EXPECT_EQ(WriteFile(&env, "f", "abcdef", false), Full());
  EXPECT_EQ(Contents(&env, "f"), "abc");
}

class PowerLossTest : public testing::TestWithParam<bool> {
 protected:
  PowerLossTest() : base_(GetParam() ? Env::Posix() : &memory_), env_(base_) {
    static int tests = 0;
    parent_ = StrCat(testing::TempDir(), "/fault_env_test_", static_cast<int>(::getpid()), "_", ++tests);
    dir_ = parent_ + "/d";
    EXPECT_TRUE(base_->CreateDir(dir_).ok());
  }
  ~PowerLossTest() override { Remove(parent_); }

  void Remove(const std::string& path) {
    const Result<std::vector<std::string>> names = base_->ListDir(path);
    if (!names.ok()) {
      (void)base_->DeleteFile(path);
      return;
    }
    for (const std::string& name : *names) Remove(path + "/" + name);
    (void)base_->DeleteDir(path);
  }

  std::string Path(const std::string& name) const { return dir_ + "/" + name; }
  std::vector<std::string> Names() { return *env_.ListDir(dir_); }

  InMemoryEnv memory_;
  Env* base_;
  FaultEnv env_;
  std::string parent_;
  std::string dir_;
};

INSTANTIATE_TEST_SUITE_P(Bases, PowerLossTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) { return info.param ? "Posix" : "Memory"; });

TEST_P(PowerLossTest, BytesAfterTheLastSyncVanish) {
  std::unique_ptr<WritableFile> file = *env_.NewWritableFile(Path("f"));
  ASSERT_TRUE(file->Append("kept", 4).ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(file->Append("lost", 4).ok());
  ASSERT_TRUE(env_.SyncDir(dir_).ok());
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_EQ(Contents(&env_, Path("f")), "kept");
  EXPECT_EQ(file->Append("x", 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(file->Sync().code(), StatusCode::kFailedPrecondition);
  file.reset();
  EXPECT_EQ(Contents(&env_, Path("f")), "kept");
}

TEST_P(PowerLossTest, FileInADirectoryNotSyncedVanishes) {
  ASSERT_TRUE(WriteFile(&env_, Path("f"), "abc", true).ok());
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_TRUE(Names().empty());
}

TEST_P(PowerLossTest, RenameNotSyncedIsUndoneAndSyncedStays) {
  for (const bool sync : {false, true}) {
    ASSERT_TRUE(WriteFile(&env_, Path("to"), "old", true).ok());
    ASSERT_TRUE(WriteFile(&env_, Path("from"), "new", true).ok());
    ASSERT_TRUE(env_.SyncDir(dir_).ok());
    ASSERT_TRUE(env_.RenameFile(Path("from"), Path("to")).ok());
    EXPECT_EQ(Contents(&env_, Path("to")), "new");
    if (sync) {
      ASSERT_TRUE(env_.SyncDir(dir_).ok());
    }
    ASSERT_TRUE(env_.DropUnsyncedData().ok());
    EXPECT_EQ(Contents(&env_, Path("to")), sync ? "new" : "old");
    EXPECT_EQ(Contents(&env_, Path("from")), sync ? "NotFound" : "new");
  }
}

TEST_P(PowerLossTest, DeleteNotSyncedIsUndoneAlsoOfAFileThatWasThereBefore) {
  ASSERT_TRUE(WriteFile(base_, Path("before"), "abc", false).ok());
  ASSERT_TRUE(WriteFile(&env_, Path("f"), "def", true).ok());
  ASSERT_TRUE(env_.SyncDir(dir_).ok());
  ASSERT_TRUE(env_.DeleteFile(Path("before")).ok());
  ASSERT_TRUE(env_.DeleteFile(Path("f")).ok());
  EXPECT_TRUE(Names().empty());
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_EQ(Contents(&env_, Path("before")), "abc");
  EXPECT_EQ(Contents(&env_, Path("f")), "def");
  ASSERT_TRUE(env_.DeleteFile(Path("f")).ok());
  ASSERT_TRUE(env_.SyncDir(dir_).ok());
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_EQ(Names(), std::vector<std::string>{"before"});
}

TEST_P(PowerLossTest, DirectoryNotSyncedVanishesWithItsSyncedFiles) {
  ASSERT_TRUE(env_.CreateDir(Path("x/y")).ok());
  ASSERT_TRUE(WriteFile(&env_, Path("x/y/f"), "abc", true).ok());
  ASSERT_TRUE(env_.SyncDir(Path("x/y")).ok());
  ASSERT_TRUE(env_.SyncDir(Path("x")).ok());
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_TRUE(Names().empty());
  ASSERT_TRUE(env_.CreateDir(Path("x")).ok());
  ASSERT_TRUE(env_.SyncDir(dir_).ok());
  ASSERT_TRUE(env_.DeleteDir(Path("x")).ok());
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_EQ(Names(), std::vector<std::string>{"x"});
}

TEST_P(PowerLossTest, PositionedFileIsAsAtItsLastSync) {
  std::unique_ptr<PositionedFile> file = *env_.OpenPositionedFile(Path("f"), Env::OpenMode::kCreate, false);
  ASSERT_TRUE(file->Allocate(6).ok());
  ASSERT_TRUE(file->Write(0, "abcdef", 6).ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(env_.SyncDir(dir_).ok());
  ASSERT_TRUE(file->Write(1, "XYZ", 3).ok());
  ASSERT_TRUE(file->Truncate(5).ok());
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_EQ(Contents(&env_, Path("f")), "abcdef");
  EXPECT_EQ(file->Write(0, "x", 1).code(), StatusCode::kFailedPrecondition);
}

// The error is returned once; data written before it is never synced afterwards.
TEST_P(PowerLossTest, FailedSyncOfAPositionedFileIsReportedOnceAndLosesWhatWasWritten) {
  std::unique_ptr<PositionedFile> file = *env_.OpenPositionedFile(Path("f"), Env::OpenMode::kCreate, false);
  ASSERT_TRUE(file->Write(0, "abcdef", 6).ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(env_.SyncDir(dir_).ok());
  ASSERT_TRUE(file->Write(1, "XYZ", 3).ok());
  env_.FailNth(FaultKind::kSync, 1, UnavailableError("cable"));
  EXPECT_EQ(file->Sync().code(), StatusCode::kUnavailable);
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(Contents(&env_, Path("f")), "abcdef");
  ASSERT_TRUE(file->Write(4, "Z", 1).ok());
  EXPECT_TRUE(file->Sync().ok());
  EXPECT_EQ(Contents(&env_, Path("f")), "abcdZf");
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_EQ(Contents(&env_, Path("f")), "abcdef");
}

TEST_P(PowerLossTest, LifeGoesOnAfterwards) {
  ASSERT_TRUE(WriteFile(&env_, Path("f"), "first", true).ok());
  ASSERT_TRUE(env_.SyncDir(dir_).ok());
  std::unique_ptr<RandomAccessFile> reader = *env_.NewRandomAccessFile(Path("f"));
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  char out[5];
  EXPECT_EQ(reader->Read(0, 5, out).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(WriteFile(&env_, Path("f"), "second", true).ok());
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_EQ(Contents(&env_, Path("f")), "second");
}

}  // namespace
}  // namespace multitier::fault_env_test
