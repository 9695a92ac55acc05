#include "cc/env/batch_reader.h"

#include <gtest/gtest.h>
#include <liburing.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/env/memory_env.h"

namespace multitier::batch_reader_test {
namespace {

// What the calls of io_uring do.
struct RingFaults {
  std::atomic<int> submissions_to_fail{0};
  std::atomic<int> error{0};
  std::atomic<uint32_t> spoil_every{0};  // completions; 0: none
  std::atomic<bool> spoiled_is_short{false};
  std::atomic<int> submissions{0}, spoiled{0};
} faults;

}  // namespace

extern "C" int __real_io_uring_submit_and_wait(io_uring* ring, unsigned n);
extern "C" int __wrap_io_uring_submit_and_wait(io_uring* ring, unsigned n) {
  ++faults.submissions;
  if (faults.submissions_to_fail > 0 && faults.submissions_to_fail-- > 0) return -faults.error;
  return __real_io_uring_submit_and_wait(ring, n);
}

extern "C" unsigned __real_io_uring_peek_batch_cqe(io_uring* ring, io_uring_cqe** found, unsigned most);
extern "C" unsigned __wrap_io_uring_peek_batch_cqe(io_uring* ring, io_uring_cqe** found, unsigned most) {
  static std::atomic<uint32_t> seen{0};
  const unsigned n = __real_io_uring_peek_batch_cqe(ring, found, most);
  for (unsigned i = 0; i < n && faults.spoil_every > 0; ++i) {
    if (++seen % faults.spoil_every != 0) continue;
    found[i]->res = faults.spoiled_is_short ? found[i]->res / 2 : -EIO;
    ++faults.spoiled;
  }
  return n;
}

namespace {

constexpr size_t kBlock = PositionedFile::kDirectAlignment;
constexpr size_t kBlocks = 500;

class BatchReaderTest : public testing::TestWithParam<BatchReader::Kind> {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<BatchReader>> reader = BatchReader::Create(GetParam());
    if (!reader.ok()) GTEST_SKIP() << reader.status().ToString();
    reader_ = *std::move(reader);
    path_ = StrCat(testing::TempDir(), "/batch_reader_test_", static_cast<int>(::getpid()));
    (void)Env::Posix()->DeleteFile(path_);
    file_ = *Env::Posix()->OpenPositionedFile(path_, Env::OpenMode::kCreate, true);
    auto* bytes = static_cast<uint8_t*>(std::aligned_alloc(kBlock, kBlock * kBlocks));
    for (size_t i = 0; i < kBlocks; ++i) std::memset(bytes + i * kBlock, static_cast<int>(i % 251), kBlock);
    EXPECT_TRUE(file_->Write(0, bytes, kBlock * kBlocks).ok());
    std::free(bytes);
  }
  void TearDown() override { (void)Env::Posix()->DeleteFile(path_); }

  // Reads of 1 to `longest` blocks at random; the number of those answered right, each exactly once.
  size_t ReadRandomly(size_t n, size_t longest, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<BlockRead> reads(n);
    for (BlockRead& read : reads) {
      const size_t blocks = 1 + random() % longest;
      read = BlockRead{file_.get(), random() % (kBlocks - blocks) * kBlock, static_cast<uint32_t>(blocks * kBlock)};
    }
    std::vector<std::atomic<int>> right(n);
    reader_->Read(reads, [&](size_t i, const Status& status, const uint8_t* data) {
      bool ok = status.ok();
      for (size_t b = 0; ok && b < reads[i].bytes; b += 512) ok = data[b] == (reads[i].offset + b) / kBlock % 251;
      right[i] += ok ? 1 : 1000;
    });
    size_t count = 0;
    for (const std::atomic<int>& r : right) count += r == 1;
    return count;
  }

  std::unique_ptr<BatchReader> reader_;
  std::string path_;
  std::unique_ptr<PositionedFile> file_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, BatchReaderTest, testing::Values(BatchReader::Kind::kRing, BatchReader::Kind::kThreads),
                         [](const testing::TestParamInfo<BatchReader::Kind>& info) {
                           return info.param == BatchReader::Kind::kRing ? "Ring" : "Threads";
                         });

TEST_P(BatchReaderTest, ReadsOfAnyNumberAndLengthAreAnsweredOnce) {
  for (const size_t n : {0, 1, 2, 127, 128, 129, 3000}) {
    EXPECT_EQ(ReadRandomly(n, 1, n), n);
    EXPECT_EQ(ReadRandomly(n, 9, n), n);
  }
}

TEST_P(BatchReaderTest, ReadPastTheEndFailsAloneAndNamesTheFile) {
  const BlockRead reads[] = {{file_.get(), 0, kBlock}, {file_.get(), kBlocks * kBlock, kBlock}};
  Status statuses[2];
  reader_->Read(Span<const BlockRead>(reads, 2), [&](size_t i, const Status& s, const uint8_t*) { statuses[i] = s; });
  EXPECT_TRUE(statuses[0].ok());
  EXPECT_EQ(statuses[1].code(), StatusCode::kDataLoss);
  EXPECT_NE(statuses[1].message().find(path_), std::string::npos);
}

TEST_P(BatchReaderTest, FilesWithoutADescriptorAreReadToo) {
  InMemoryEnv env;
  std::unique_ptr<PositionedFile> memory = *env.OpenPositionedFile("f", Env::OpenMode::kCreate, false);
  ASSERT_TRUE(memory->Write(0, "abcd", 4).ok());
  const BlockRead reads[] = {{memory.get(), 1, 3}, {file_.get(), kBlock, kBlock}};
  std::string found;
  reader_->Read(Span<const BlockRead>(reads, 2), [&](size_t i, const Status& status, const uint8_t* data) {
    ASSERT_TRUE(status.ok());
    if (i == 0) found.assign(reinterpret_cast<const char*>(data), 3);
  });
  EXPECT_EQ(found, "bcd");
}

TEST_P(BatchReaderTest, ThreadsReadAtOnce) {
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] { EXPECT_EQ(ReadRandomly(400, 3, t), 400u); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(BatchReaderTest, ForkedChildReadsWithItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer does not let a forked child make threads";
#endif
  EXPECT_EQ(ReadRandomly(100, 1, 1), 100u);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(ReadRandomly(100, 1, 2) == 100 ? 0 : 1);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ReadRandomly(100, 1, 3), 100u);
}

class RingFaultsTest : public BatchReaderTest {
 protected:
  void TearDown() override {
    faults.submissions_to_fail = 0;
    faults.spoil_every = 0;
    BatchReaderTest::TearDown();
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, RingFaultsTest, testing::Values(BatchReader::Kind::kRing));

TEST_P(RingFaultsTest, ReadsThatFailOrAreShortAreRepeated) {
  for (const bool is_short : {false, true}) {
    faults.spoiled_is_short = is_short;
    faults.spoiled = 0;
    faults.spoil_every = 3;
    EXPECT_EQ(ReadRandomly(1000, 9, 1), 1000u);
    EXPECT_EQ(faults.spoiled, 333);
    faults.spoil_every = 1;
    EXPECT_EQ(ReadRandomly(200, 1, 1), 200u);
  }
}

TEST_P(RingFaultsTest, RefusedSubmissionsAreTriedAgain) {
  for (const int error : {EAGAIN, ENOMEM, EINTR}) {
    faults.error = error;
    faults.submissions_to_fail = 3;
    EXPECT_EQ(ReadRandomly(1000, 9, 1), 1000u);
    EXPECT_LE(faults.submissions_to_fail, 0);
  }
  faults.submissions = 0;
  EXPECT_EQ(ReadRandomly(10, 1, 1), 10u);
  EXPECT_GT(faults.submissions, 0);
}

TEST_P(RingFaultsTest, AThreadWhoseRingIsRefusedForGoodReadsWithoutIt) {
  std::thread([this] {
    EXPECT_EQ(ReadRandomly(300, 1, 1), 300u);
    faults.error = EBADF;
    faults.submissions_to_fail = 1 << 30;
    EXPECT_EQ(ReadRandomly(1000, 9, 2), 1000u);
    faults.submissions_to_fail = 0;
    faults.submissions = 0;
    EXPECT_EQ(ReadRandomly(300, 1, 3), 300u);
    EXPECT_EQ(faults.submissions, 0);
  }).join();
}

}  // namespace
}  // namespace multitier::batch_reader_test
