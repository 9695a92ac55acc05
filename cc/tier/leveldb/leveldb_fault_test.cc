// Failing reads and full disks: an error or a success, and nothing acknowledged is lost.

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <future>

#include "cc/tier/leveldb/leveldb_test_util.h"

namespace multitier::leveldb_fault_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

namespace fs = std::filesystem;

using LevelDbFaultTest = LevelDbTierTest;

TEST_F(LevelDbFaultTest, FailedReadIsUnavailableForItsKeyAlone) {
  Open(SmallOptions());
  ASSERT_TRUE(Write(0, 2000, 1).ok());
  Flush();
  tier_->disk()->set_fault([](const char* call, const std::string&) { return std::strcmp(call, "read") == 0 ? EIO : 0; });
  const Status status = Read(5);
  EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
  EXPECT_NE(status.message().find("key 5 "), std::string::npos) << status.message();
  tier_->disk()->set_fault(nullptr);
  ExpectAllHeld();
}

// The error is that of the call which failed, whatever failed before it.
TEST_F(LevelDbFaultTest, ErrorsHaveTheCodeOfTheCallThatFailed) {
  const std::map<int, StatusCode> codes = {{EMFILE, StatusCode::kResourceExhausted},
                                           {ENOMEM, StatusCode::kResourceExhausted},
                                           {EIO, StatusCode::kUnavailable},
                                           {EDQUOT, StatusCode::kResourceExhausted},
                                           {EROFS, StatusCode::kPermissionDenied}};
  for (const auto& [error, code] : codes) {
    for (const std::string call : {"write", "sync", "create", "read", "open"}) {
      held_.clear();
      Open(SmallOptions());
      ASSERT_TRUE(Write(0, 2000, 1).ok());
      Flush();
      const auto fail = [&](const char* failing, int with) {
        tier_->disk()->set_fault([=](const char* c, const std::string&) { return std::strcmp(c, failing) == 0 ? with : 0; });
      };
      fail("write", ENOSPC);
      ASSERT_EQ(Write(3000, 10, 1).code(), StatusCode::kResourceExhausted);
      fail("", 0);
      ASSERT_TRUE(Write(3000, 1000, 1).ok());  // opened again: no table file is open
      fail(call.c_str(), error);
      Status status = call == "read" || call == "open" ? Read(5) : OkStatus();
      for (int i = 0; i < 40 && status.ok(); ++i) status = Write(5000, 100, 1);
      EXPECT_EQ(status.code(), code) << call << ": " << status.ToString();
      EXPECT_EQ(status.os_error(), error) << call << ": " << status.ToString();
      fail("", 0);
      ASSERT_TRUE(Write(5000, 100, 2).ok()) << call;
      ExpectAllHeld();
    }
  }
}

// Writes wait between two attempts to open the database again. Compact does not: it would fail on a good disk.
TEST_F(LevelDbFaultTest, CompactDoesNotWaitOnceTheDiskWorksAgain) {
  LevelDbOptions options = SmallOptions();
  options.retry_us = uint64_t{3600} * 1000000;
  Open(options);
  ASSERT_TRUE(Write(0, 100, 1).ok());
  tier_->disk()->set_fault([](const char* call, const std::string&) {
    return std::strcmp(call, "write") == 0 || std::strcmp(call, "create") == 0 ? EIO : 0;
  });
  EXPECT_EQ(Write(100, 10, 1).code(), StatusCode::kUnavailable);
  tier_->disk()->set_fault(nullptr);
  EXPECT_EQ(Write(100, 10, 1).code(), StatusCode::kUnavailable);  // it is not time
  const Status status = tier_->Compact();
  EXPECT_TRUE(status.ok()) << status.ToString();
  EXPECT_TRUE(Write(100, 10, 1).ok());
  ExpectAllHeld();
}

// What failed in the background since a write succeeded is another failure, and no call has tried to mend it.
TEST_F(LevelDbFaultTest, AWriteThatMeetsANewFailureDoesNotWait) {
  for (int round = 0; round < 3; ++round) {
    LevelDbOptions options = SmallOptions();
    options.retry_us = uint64_t{3600} * 1000000;
    held_.clear();
    Open(options);  // anew: LevelDB may note the failure of a round after the round's last write
    std::promise<void> failed;
    std::atomic<bool> fails{true};
    tier_->disk()->set_fault([&](const char* call, const std::string& path) {
      const bool flush = std::strcmp(call, "create") == 0 && fs::path(path).extension() == ".ldb";
      if (!flush || !fails.exchange(false)) return 0;
      failed.set_value();
      return EIO;
    });
    ASSERT_TRUE(Write(0, 1000, 1).ok());  // more than a log takes: the next write makes a table file in the background
    const Status next = Write(1000, 1, 1);
    ASSERT_TRUE(next.ok()) << round << ": " << next.ToString();
    failed.get_future().wait();
    for (int64_t i = 0; i < 20; ++i) {
      const Status status = Write(1000 + i, 1, 1);
      ASSERT_TRUE(status.ok()) << round << ": " << status.ToString();
    }
    tier_->disk()->set_fault(nullptr);
    ExpectAllHeld();
  }
}

// The disk is full from the n-th call that changes a file on, or at that call only, for every n; then there is room again.
class LevelDbFullDiskTest : public LevelDbTierTest, public testing::WithParamInterface<bool> {};

TEST_P(LevelDbFullDiskTest, LosesNothingAcknowledgedAndPasses) {
  const bool lasting = GetParam();
  bool fired = true;
  int failures = 0;
  for (int n = 1; fired; n += n < 20 ? 1 : 7) {
    held_.clear();
    Open(SmallOptions());
    std::atomic<int> calls{0};
    std::atomic<bool> full{true}, hit{false};
    tier_->disk()->set_fault([&](const char* call, const std::string&) {
      if (!full || std::strcmp(call, "read") == 0 || std::strcmp(call, "open") == 0) return 0;
      const int number = ++calls;
      if (number < n || (number > n && !lasting)) return 0;
      hit = true;
      return ENOSPC;
    });
    for (int round = 0; round < 12; ++round) {
      const Status status = Write(round * 300 % 2000, 400, static_cast<uint64_t>(round) + 1);
      if (status.ok()) continue;
      ++failures;
      ASSERT_EQ(status.code(), StatusCode::kResourceExhausted) << "n " << n << ": " << status.ToString();
    }
    ExpectAllHeld();  // while opening again fails, too
    full = false;
    ASSERT_TRUE(Write(5000, 100, 99).ok());
    ExpectAllHeld();
    fired = hit;
    tier_->disk()->set_fault(nullptr);
    if (HasFailure()) FAIL() << "n " << n;
  }
  EXPECT_TRUE(!lasting || failures > 20) << failures;
}

INSTANTIATE_TEST_SUITE_P(Lasting, LevelDbFullDiskTest, testing::Bool());

TEST_F(LevelDbFaultTest, AFullDiskSaysHowMuchMustBeFreeToGoOn) {
  LevelDbOptions options = SmallOptions();
  options.write_buffer_bytes = 4 << 20;
  options.retry_us = uint64_t{1} << 40;  // it looks for room once
  Open(options);
  ASSERT_TRUE(Write(0, 2000, 1).ok());
  // Room for the log, none for a table file.
  tier_->disk()->set_fault([](const char*, const std::string& path) {
    return path.find(".ldb") != std::string::npos || path.find("probe") != std::string::npos ? ENOSPC : 0;
  });
  ASSERT_FALSE(tier_->Compact().ok());
  const int64_t logs = tier_->disk()->log_bytes();
  EXPECT_GT(logs, 2000 * 24);
  Status status = Write(5000, 10, 1);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
  const std::string says = "; writes continue when ";
  const size_t at = status.message().find(says);
  ASSERT_NE(at, std::string::npos) << status.message();
  EXPECT_EQ(status.message().find(says, at + 1), std::string::npos) << status.message();
  const int64_t needed = std::stoll(status.message().substr(at + says.size()));
  EXPECT_GE(needed, logs);
  EXPECT_LT(needed, 2 * logs + (512 << 10));
  EXPECT_EQ(Write(5000, 10, 1), status);
  ExpectAllHeld();
}

TEST_F(LevelDbFaultTest, FileSizeLimitIsResourceExhaustedUntilItIsRaised) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer stops a process that starts threads after a fork";
#endif
  // In a child, since the limit is the process's.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    Open(SmallOptions());
    struct rlimit limit;
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 40 << 10;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    Status status;
    for (int round = 0; round < 10 && status.ok(); ++round) status = Write(round * 200, 200, 1);
    const bool refused = status.code() == StatusCode::kResourceExhausted;
    const size_t before = held_.size();
    ExpectAllHeld();
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const bool resumed = Write(9000, 200, 1).ok();
    ExpectAllHeld();
    ::_exit(refused && resumed && before > 0 && !HasFailure() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// In a mount namespace of a child, so that nothing stays.
TEST_F(LevelDbFaultTest, FullFileSystemIsResourceExhaustedUntilThereIsRoom) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer stops a process that starts threads after a fork";
#endif
  LevelDbOptions options = SmallOptions();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const char* directory = options.directory.c_str();
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory, "tmpfs", 0, "size=2m") != 0) {
      std::printf("no mount here: %s\n", std::strerror(errno));
      ::_exit(0);
    }
    Open(options);
    for (int size_mb = 4; size_mb <= 16 && !HasFailure(); size_mb *= 2) {
      Status status;
      while (status.ok() && held_.size() < 200000) status = Write(static_cast<int64_t>(held_.size()), 500, 1);
      EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
      EXPECT_NE(status.message().find(directory), std::string::npos) << status.message();
      ExpectAllHeld();
      EXPECT_EQ(::mount("tmpfs", directory, "tmpfs", MS_REMOUNT, StrCat("size=", size_mb, "m").c_str()), 0);
      EXPECT_TRUE(Write(static_cast<int64_t>(held_.size()), 500, 1).ok());
    }
    EXPECT_GT(held_.size(), 20000u);
    tier_.reset();
    ::_exit(HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(LevelDbFaultTest, ReserveIsKeptFree) {
  LevelDbOptions options = SmallOptions();
  options.reserve_bytes = int64_t{1} << 60;
  Open(options);
  const Status status = Write(1, 1, 1);
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find(options.directory), std::string::npos) << status.message();
}

}  // namespace
}  // namespace multitier::leveldb_fault_test
