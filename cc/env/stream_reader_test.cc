// Whether what StreamReader gives is the file, whatever the order and size of reads, and whether it leaves the page cache
// alone.

#include "cc/env/stream_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/env/memory_env.h"

namespace multitier::stream_reader_test {
namespace {

std::string RandomBytes(size_t n) {
  std::mt19937_64 random(n);
  std::string bytes(n, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

void WriteFile(Env* env, const std::string& path, const std::string& bytes) {
  auto file = env->NewWritableFile(path);
  ASSERT_TRUE(file.ok());
  ASSERT_TRUE((*file)->Append(bytes.data(), bytes.size()).ok());
  ASSERT_TRUE((*file)->Sync().ok());
  ASSERT_TRUE((*file)->Close().ok());
}

void DropFromCache(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  EXPECT_EQ(::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED), 0);
  ::close(file);
}

void CheckReads(StreamReader* reader, const std::string& bytes) {
  std::mt19937_64 random(7);
  uint64_t offset = 0;
  for (int i = 0; i < 200; ++i) {
    const size_t n = random() % std::min<size_t>(bytes.size() - offset + 1, size_t{3} << 20);
    std::string found(n, '\0');
    ASSERT_TRUE(reader->Read(offset, n, found.data()).ok());
    ASSERT_TRUE(found == bytes.substr(offset, n)) << "at " << offset << ", " << n << " bytes";
    offset = i % 5 == 0 ? random() % bytes.size() : offset + n;  // most reads go on
    if (offset == bytes.size()) offset = 0;
  }
}

TEST(StreamReaderTest, ReadsGiveTheFileInAnyOrder) {
  const std::string path = testing::TempDir() + "/stream_reader_test";
  for (const size_t size : {size_t{1}, size_t{4095}, size_t{4096}, size_t{4097}, (size_t{9} << 20) + 123}) {
    const std::string bytes = RandomBytes(size);
    WriteFile(Env::Posix(), path, bytes);
    for (const bool cached : {true, false}) {
      if (!cached) DropFromCache(path);
      auto reader = StreamReader::Open(Env::Posix(), path);
      ASSERT_TRUE(reader.ok());
      EXPECT_FALSE(cached && (*reader)->direct());
      CheckReads(reader->get(), bytes);
    }
  }
  ::unlink(path.c_str());
}

TEST(StreamReaderTest, AReadBeyondTheEndIsDataLoss) {
  const std::string path = testing::TempDir() + "/stream_reader_test_end";
  WriteFile(Env::Posix(), path, RandomBytes(10000));
  for (const bool cached : {true, false}) {
    if (!cached) DropFromCache(path);
    auto reader = StreamReader::Open(Env::Posix(), path);
    ASSERT_TRUE(reader.ok());
    std::string found(10001, '\0');
    EXPECT_TRUE((*reader)->Read(0, 10000, found.data()).ok());
    for (const uint64_t offset : {0, 9000, 10000, 20000}) {
      EXPECT_EQ((*reader)->Read(offset, 10001, found.data()).code(), StatusCode::kDataLoss);
    }
  }
  ::unlink(path.c_str());
}

// Gives files that claim to be direct() and refuse to be read so.
class RefusingEnv : public InMemoryEnv {
 public:
  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override {
    if (!direct) return InMemoryEnv::OpenPositionedFile(path, mode, direct);
    return std::unique_ptr<PositionedFile>(new RefusingFile);
  }

 private:
  class RefusingFile : public PositionedFile {
   public:
    Status Write(uint64_t, const void*, size_t) override { return Refused(); }
    Status Read(uint64_t, size_t, void*) const override { return Refused(); }
    Status Sync() override { return Refused(); }
    Status Allocate(uint64_t) override { return Refused(); }
    Status Truncate(uint64_t) override { return Refused(); }
    Result<uint64_t> Size() const override { return Refused(); }
    bool direct() const override { return true; }

   private:
    static Status Refused() { return Status(StatusCode::kUnavailable, "direct", EINVAL); }
  };
};

TEST(StreamReaderTest, WhereDirectReadsAreRefusedTheCacheIsUsed) {
  RefusingEnv env;
  const std::string bytes = RandomBytes(100000);
  WriteFile(&env, "file", bytes);
  auto reader = StreamReader::Open(&env, "file");
  ASSERT_TRUE(reader.ok());
  EXPECT_TRUE((*reader)->direct());
  CheckReads(reader->get(), bytes);
  EXPECT_FALSE((*reader)->direct());
}

// Gives files that count their direct reads, and refuse those from an offset on.
class CountingEnv : public InMemoryEnv {
 public:
  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override {
    Result<std::unique_ptr<PositionedFile>> file = InMemoryEnv::OpenPositionedFile(path, mode, false);
    if (!direct || !file.ok()) return file;
    return std::unique_ptr<PositionedFile>(new CountedFile(this, *std::move(file)));
  }

  // False if there are fewer after a minute.
  bool WaitForReads(int n) {
    MutexLock lock(mutex_);
    return lock.WaitFor(changed_, std::chrono::minutes(1), [&]() MT_REQUIRES(mutex_) { return reads_ >= n; });
  }
  int reads() {
    MutexLock lock(mutex_);
    return reads_;
  }

  std::atomic<uint64_t> damaged_from{~uint64_t{0}};

 private:
  void CountRead() {
    MutexLock lock(mutex_);
    ++reads_;
    changed_.notify_all();
  }

  class CountedFile : public PositionedFile {
   public:
    CountedFile(CountingEnv* env, std::unique_ptr<PositionedFile> file) : env_(env), file_(std::move(file)) {}
    Status Write(uint64_t offset, const void* data, size_t bytes) override { return file_->Write(offset, data, bytes); }
    Status Read(uint64_t offset, size_t bytes, void* out) const override {
      if (offset >= env_->damaged_from) return UnavailableError("damaged");
      MT_RETURN_IF_ERROR(file_->Read(offset, bytes, out));
      env_->CountRead();
      return OkStatus();
    }
    Status Sync() override { return file_->Sync(); }
    Status Allocate(uint64_t bytes) override { return file_->Allocate(bytes); }
    Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }
    Result<uint64_t> Size() const override { return file_->Size(); }
    bool direct() const override { return true; }

   private:
    CountingEnv* const env_;
    const std::unique_ptr<PositionedFile> file_;
  };

  Mutex mutex_;
  std::condition_variable changed_;
  int reads_ MT_GUARDED_BY(mutex_) = 0;
};

constexpr uint64_t kWindow = StreamReader::kWindowBytes;

TEST(StreamReaderTest, TheNextWindowIsReadBeforeTheCallerComesToIt) {
  CountingEnv env;
  const std::string bytes = RandomBytes(4 * kWindow + 5);
  WriteFile(&env, "file", bytes);
  auto reader = StreamReader::Open(&env, "file");
  ASSERT_TRUE(reader.ok());
  std::string found(bytes.size(), '\0');
  ASSERT_TRUE((*reader)->Read(0, kWindow + 1, found.data()).ok());  // of two windows, so the third follows
  EXPECT_TRUE(env.WaitForReads(3));
  ASSERT_TRUE((*reader)->Read(kWindow + 1, bytes.size() - kWindow - 1, found.data() + kWindow + 1).ok());
  EXPECT_TRUE(found == bytes);
  EXPECT_EQ(env.reads(), 4);  // each window once
}

TEST(StreamReaderTest, AnErrorOfTheNextWindowComesWithItsBytes) {
  CountingEnv env;
  const std::string bytes = RandomBytes(4 * kWindow);
  WriteFile(&env, "file", bytes);
  env.damaged_from = 2 * kWindow;
  auto reader = StreamReader::Open(&env, "file");
  ASSERT_TRUE(reader.ok());
  std::string found(bytes.size(), '\0');
  ASSERT_TRUE((*reader)->Read(0, 2 * kWindow, found.data()).ok());
  EXPECT_EQ((*reader)->Read(2 * kWindow, 1, found.data()).code(), StatusCode::kUnavailable);
  env.damaged_from = ~uint64_t{0};  // the device is there again
  ASSERT_TRUE((*reader)->Read(0, bytes.size(), found.data()).ok());
  EXPECT_TRUE(found == bytes);
}

TEST(StreamReaderTest, FilesWithoutADescriptorAreRead) {
  InMemoryEnv env;
  const std::string bytes = RandomBytes(100000);
  WriteFile(&env, "file", bytes);
  auto reader = StreamReader::Open(&env, "file");
  ASSERT_TRUE(reader.ok());
  CheckReads(reader->get(), bytes);
  EXPECT_EQ(StreamReader::Open(&env, "none").status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace multitier::stream_reader_test
