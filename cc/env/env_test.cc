// What every Env promises, for the posix and the in-memory one; then what only one of them has.

#include "cc/env/env.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cc/env/memory_env.h"

namespace multitier::env_test {
namespace {

class EnvTest : public testing::TestWithParam<bool> {
 protected:
  EnvTest() : env_(GetParam() ? Env::Posix() : &memory_env_) {
    static int tests = 0;
    dir_ = StrCat(testing::TempDir(), "/env_test_", static_cast<int>(::getpid()), "_", ++tests);
    EXPECT_TRUE(env_->CreateDir(dir_).ok());
  }
  ~EnvTest() override { Remove(dir_); }

  // Removes what is there, directories of this test's depth included.
  void Remove(const std::string& path) {
    const Result<std::vector<std::string>> names = env_->ListDir(path);
    if (!names.ok()) {
      (void)env_->DeleteFile(path);
      return;
    }
    for (const std::string& name : *names) Remove(path + "/" + name);
    (void)env_->DeleteDir(path);
  }

  std::string Path(const std::string& name) const { return dir_ + "/" + name; }

  void Write(const std::string& name, const std::string& bytes) {
    Result<std::unique_ptr<WritableFile>> file = env_->NewWritableFile(Path(name));
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    ASSERT_TRUE((*file)->Append(bytes.data(), bytes.size()).ok());
    ASSERT_TRUE((*file)->Close().ok());
  }

  // The bytes of a file, or the name of the error.
  std::string Contents(const std::string& name) {
    Result<std::unique_ptr<RandomAccessFile>> file = env_->NewRandomAccessFile(Path(name));
    if (!file.ok()) return StatusCodeName(file.status().code());
    std::string bytes(*(*file)->Size(), '\0');
    EXPECT_TRUE((*file)->Read(0, bytes.size(), bytes.data()).ok());
    return bytes;
  }

  InMemoryEnv memory_env_;
  Env* env_;
  std::string dir_;
};

INSTANTIATE_TEST_SUITE_P(Envs, EnvTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) { return info.param ? "Posix" : "Memory"; });

TEST_P(EnvTest, FileReadBackAfterSmallAndLargeAppendsHoldsTheirBytesInOrder) {
  Result<std::unique_ptr<WritableFile>> file = env_->NewWritableFile(Path("f"));
  ASSERT_TRUE(file.ok());
  std::string expected;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{65535}, size_t{2}, size_t{65536}, size_t{200000}, size_t{3}}) {
    const std::string part(bytes, static_cast<char>('a' + bytes % 26));
    ASSERT_TRUE((*file)->Append(part.data(), part.size()).ok());
    expected += part;
  }
  ASSERT_TRUE((*file)->Sync().ok());
  EXPECT_EQ(Contents("f"), expected);
  ASSERT_TRUE((*file)->Append("z", 1).ok());
  ASSERT_TRUE((*file)->Close().ok());
  EXPECT_EQ(Contents("f"), expected + "z");
}

TEST_P(EnvTest, WritableFileDestroyedWithoutCloseKeepsItsBytes) {
  {
    Result<std::unique_ptr<WritableFile>> file = env_->NewWritableFile(Path("f"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Append("abc", 3).ok());
  }
  EXPECT_EQ(Contents("f"), "abc");
}

TEST_P(EnvTest, AppendAfterCloseIsRefused) {
  Result<std::unique_ptr<WritableFile>> file = env_->NewWritableFile(Path("f"));
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Close().ok());
  EXPECT_TRUE((*file)->Close().ok());
  EXPECT_EQ((*file)->Append("a", 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ((*file)->Sync().code(), StatusCode::kFailedPrecondition);
}

TEST_P(EnvTest, ReadPastTheEndIsDataLossNamingFileOffsetAndSizes) {
  Write("f", "0123456789");
  Result<std::unique_ptr<RandomAccessFile>> file = env_->NewRandomAccessFile(Path("f"));
  ASSERT_TRUE(file.ok());
  char out[16];
  ASSERT_TRUE((*file)->Read(8, 2, out).ok());
  EXPECT_EQ(std::string(out, 2), "89");
  EXPECT_TRUE((*file)->Read(10, 0, out).ok());
  const Status status = (*file)->Read(8, 3, out);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find(Path("f")), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("offset 8: expected 3 bytes, found 2"), std::string::npos) << status.message();
  EXPECT_EQ((*file)->Read(100, 1, out).code(), StatusCode::kDataLoss);
}

TEST_P(EnvTest, OpeningAgainForWritingTruncates) {
  Write("f", "a long content");
  Write("f", "short");
  EXPECT_EQ(Contents("f"), "short");
}

TEST_P(EnvTest, RenameReplacesTheTargetAndOpenHandlesKeepReading) {
  Write("from", "new");
  Write("to", "old");
  Result<std::unique_ptr<RandomAccessFile>> old = env_->NewRandomAccessFile(Path("to"));
  ASSERT_TRUE(old.ok());
  ASSERT_TRUE(env_->RenameFile(Path("from"), Path("to")).ok());
  EXPECT_EQ(Contents("to"), "new");
  EXPECT_EQ(Contents("from"), "NotFound");
  char out[3];
  ASSERT_TRUE((*old)->Read(0, 3, out).ok());
  EXPECT_EQ(std::string(out, 3), "old");
}

TEST_P(EnvTest, ALinkedFileHasTwoNamesUntilOneIsDeleted) {
  Write("file", "content");
  ASSERT_TRUE(env_->LinkFile(Path("file"), Path("link")).ok());
  EXPECT_EQ(*env_->CountNames(Path("file")), 2u);
  EXPECT_TRUE(env_->SyncFile(Path("link")).ok());
  ASSERT_TRUE(env_->DeleteFile(Path("file")).ok());
  EXPECT_EQ(Contents("link"), "content");
  EXPECT_EQ(*env_->CountNames(Path("link")), 1u);
  Write("file", "another");
  EXPECT_EQ(env_->LinkFile(Path("file"), Path("link")).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(env_->LinkFile(Path("absent"), Path("new")).code(), StatusCode::kNotFound);
  EXPECT_EQ(env_->LinkFile(Path("file"), Path("absent/new")).code(), StatusCode::kNotFound);
  EXPECT_EQ(env_->CountNames(Path("absent")).status().code(), StatusCode::kNotFound);
}

TEST_P(EnvTest, PositionedFileIsWrittenAndReadAnywhere) {
  using Mode = Env::OpenMode;
  std::unique_ptr<PositionedFile> file = *env_->OpenPositionedFile(Path("f"), Mode::kCreate, false);
  EXPECT_EQ(env_->OpenPositionedFile(Path("f"), Mode::kCreate, false).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(env_->OpenPositionedFile(Path("g"), Mode::kRead, false).status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(file->Allocate(10).ok());
  EXPECT_EQ(*file->Size(), 10u);
  ASSERT_TRUE(file->Write(4, "abcd", 4).ok());
  ASSERT_TRUE(file->Sync().ok());
  ASSERT_TRUE(file->Truncate(8).ok());
  std::unique_ptr<PositionedFile> reader = *env_->OpenPositionedFile(Path("f"), Mode::kRead, false);
  char out[4];
  ASSERT_TRUE(reader->Read(4, 4, out).ok());
  EXPECT_EQ(std::string(out, 4), "abcd");
  EXPECT_EQ(reader->Read(6, 4, out).code(), StatusCode::kDataLoss);
  EXPECT_EQ(Contents("f"), std::string(4, '\0') + "abcd");
}

// On the disk, where the rest of a block behind the end of a file cannot be asked for.
TEST(PosixEnvTest, DirectReadPastTheEndOfAFileIsDataLoss) {
  const std::string path = StrCat(testing::TempDir(), "/direct_", static_cast<int>(::getpid()));
  {
    std::unique_ptr<WritableFile> file = *Env::Posix()->NewWritableFile(path);
    ASSERT_TRUE(file->Append(std::string(5000, 'x').data(), 5000).ok());
  }
  std::unique_ptr<PositionedFile> file = *Env::Posix()->OpenPositionedFile(path, Env::OpenMode::kRead, true);
  void* pages = Env::Posix()->AllocatePages(3 * 4096, false);
  for (const size_t bytes : {8192, 12288}) {
    const Status read = file->Read(0, bytes, pages);
    EXPECT_EQ(read.code(), StatusCode::kDataLoss) << read.ToString();
    EXPECT_NE(read.message().find("found 5000"), std::string::npos) << read.ToString();
  }
  Env::Posix()->FreePages(pages, 3 * 4096);
  EXPECT_TRUE(Env::Posix()->DeleteFile(path).ok());
}

TEST_P(EnvTest, CallsOnAbsentPathsAreNotFoundAndNameThem) {
  const std::string absent = Path("absent");
  for (const Status& status : {env_->NewRandomAccessFile(absent).status(), env_->NewWritableFile(absent + "/f").status(),
                               env_->RenameFile(absent, Path("b")), env_->DeleteFile(absent), env_->DeleteDir(absent),
                               env_->ListDir(absent).status(), env_->SyncDir(absent)}) {
    EXPECT_EQ(status.code(), StatusCode::kNotFound) << status.ToString();
    EXPECT_NE(status.message().find(absent), std::string::npos) << status.ToString();
  }
  EXPECT_FALSE(*env_->FileExists(absent));
}

TEST_P(EnvTest, CreateDirMakesParentsAndIsRepeatable) {
  ASSERT_TRUE(env_->CreateDir(Path("a/b//c/")).ok());
  ASSERT_TRUE(env_->CreateDir(Path("a/b/c")).ok());
  EXPECT_TRUE(*env_->FileExists(Path("a/b/c")));
  Write("a/b/c/f", "x");
  EXPECT_EQ(*env_->ListDir(Path("a/b")), std::vector<std::string>{"c"});
  EXPECT_TRUE(env_->SyncDir(Path("a/b/c")).ok());
}

TEST_P(EnvTest, CreateDirWhereAFileStandsIsRefused) {
  Write("f", "x");
  EXPECT_EQ(env_->CreateDir(Path("f")).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(env_->CreateDir(Path("f/g")).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(env_->CreateDir("").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(env_->NewWritableFile(dir_).status().code(), StatusCode::kUnavailable);
}

TEST_P(EnvTest, ListDirIsSortedAndDeleteDirNeedsAnEmptyOne) {
  for (const char* name : {"b", "a", "c"}) Write(name, name);
  EXPECT_EQ(*env_->ListDir(dir_), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(env_->DeleteDir(dir_).code(), StatusCode::kAlreadyExists);
  for (const char* name : {"b", "a", "c"}) ASSERT_TRUE(env_->DeleteFile(Path(name)).ok());
  EXPECT_TRUE(env_->DeleteDir(dir_).ok());
  EXPECT_FALSE(*env_->FileExists(dir_));
}

TEST_P(EnvTest, PagesAreZeroAlignedAndWritable) {
  for (const bool huge : {false, true}) {
    for (const size_t bytes : {size_t{1}, size_t{100000}, size_t{5} << 20}) {
      auto* pages = static_cast<unsigned char*>(env_->AllocatePages(bytes, huge));
      ASSERT_NE(pages, nullptr);
      const size_t alignment = huge && bytes >= (2 << 20) ? 2 << 20 : 4096;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pages) % alignment, 0u) << bytes;
      for (size_t i = 0; i < bytes; i += 997) ASSERT_EQ(pages[i], 0);
      std::memset(pages, 7, bytes);
      env_->CollapsePages(pages, bytes);
      EXPECT_EQ(pages[bytes - 1], 7);
      env_->FreePages(pages, bytes);
    }
  }
}

TEST_P(EnvTest, ReservationCostsNothingUntilTouched) {
  const size_t bytes = size_t{1} << 36;  // more than this machine has
  auto* pages = static_cast<unsigned char*>(env_->ReserveAddressSpace(bytes, true));
  if (pages == nullptr) GTEST_SKIP() << "64 GiB of address space are not to be had (ulimit -v, or a sanitizer)";
  EXPECT_EQ(reinterpret_cast<uintptr_t>(pages) % (2 << 20), 0u);
  ASSERT_TRUE(env_->CommitPages(pages + bytes / 2, 4096));
  EXPECT_EQ(pages[bytes / 2], 0);
  pages[bytes / 2] = 1;
  EXPECT_EQ(pages[bytes / 2], 1);
  env_->FreePages(pages, bytes);
}

TEST_P(EnvTest, MemoryThatCannotBeIsNull) {
  EXPECT_EQ(env_->AllocatePages(SIZE_MAX / 2, false), nullptr);
  EXPECT_EQ(env_->AllocatePages(SIZE_MAX, true), nullptr);
  EXPECT_EQ(env_->AllocatePages(0, false), nullptr);
  env_->FreePages(nullptr, 0);
}

TEST_P(EnvTest, ClockAdvancesByASleep) {
  const uint64_t before = env_->NowMicros();
  env_->SleepMicros(2000);
  EXPECT_GE(env_->NowMicros(), before + 2000);
}

TEST_P(EnvTest, ThreadsWriteReadAndListOneDirectory) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string name = StrCat("f", t, "_", i);
        Write(name, name);
        EXPECT_EQ(Contents(name), name);
        EXPECT_TRUE(env_->ListDir(dir_).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(env_->ListDir(dir_)->size(), 80u);
}

TEST(PosixEnvTest, WriteToAFullDeviceIsResourceExhaustedOnceAndRefusedAfter) {
  if (!*Env::Posix()->FileExists("/dev/full")) GTEST_SKIP() << "this system has no /dev/full";
  Result<std::unique_ptr<WritableFile>> file = Env::Posix()->NewWritableFile("/dev/full");
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  const std::string bytes(1 << 20, 'x');
  EXPECT_EQ((*file)->Append(bytes.data(), bytes.size()).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ((*file)->Append("x", 1).code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ((*file)->Sync().code(), StatusCode::kFailedPrecondition);
}

TEST(InMemoryEnvTest, FlipBitAndTruncateDamageAFileInPlace) {
  InMemoryEnv env;
  {
    Result<std::unique_ptr<WritableFile>> file = env.NewWritableFile("f");
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE((*file)->Append("abcd", 4).ok());
  }
  Result<std::unique_ptr<RandomAccessFile>> file = env.NewRandomAccessFile("./f");
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE(env.FlipBit("f", 1, 0).ok());
  ASSERT_TRUE(env.Truncate("f", 3).ok());
  char out[3];
  ASSERT_TRUE((*file)->Read(0, 3, out).ok());
  EXPECT_EQ(std::string(out, 3), "acc");
  EXPECT_EQ(*(*file)->Size(), 3u);
  EXPECT_EQ(env.FlipBit("f", 3, 0).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(env.FlipBit("f", 0, 8).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(env.Truncate("f", 4).code(), StatusCode::kOutOfRange);
  EXPECT_EQ(env.FlipBit("g", 0, 0).code(), StatusCode::kNotFound);
}

TEST(InMemoryEnvTest, PathsNormalizeToOneName) {
  EXPECT_EQ(NormalizePath("a//b/./c/"), "a/b/c");
  EXPECT_EQ(NormalizePath("//a"), "/a");
  EXPECT_EQ(NormalizePath("/"), "/");
  EXPECT_EQ(NormalizePath("./"), "");
  EXPECT_EQ(ParentPath("a/b"), "a");
  EXPECT_EQ(ParentPath("/a"), "/");
  EXPECT_EQ(ParentPath("a"), "");
}

}  // namespace
}  // namespace multitier::env_test
