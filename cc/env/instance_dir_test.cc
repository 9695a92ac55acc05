#include "cc/env/instance_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace {

bool claims_stay = false;  // a disk that deletes no claims

}  // namespace

// In place of the C library's, for the whole test.
extern "C" int unlink(const char* path) noexcept {
  if (claims_stay && std::strstr(path, "instance.claim-") != nullptr) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_unlinkat, AT_FDCWD, path, 0));
}

namespace multitier {
namespace {

namespace fs = std::filesystem;

class InstanceDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/instance_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  void TearDown() override { EXPECT_TRUE(RemoveDirectoryTree(path_).ok()); }

  std::unique_ptr<InstanceDirectory> Create(const std::string& name, bool keep = false) {
    Result<std::unique_ptr<InstanceDirectory>> instance = InstanceDirectory::Create(path_, name, keep);
    EXPECT_TRUE(instance.ok()) << instance.status().ToString();
    return instance.ok() ? *std::move(instance) : nullptr;
  }
  static void WriteFile(const std::string& path) { std::ofstream(path) << "rows"; }
  // An instance of a process that was killed, with a file and a directory in it.
  std::string MakeLeftover(const std::string& name, bool keep = false) {
    return RunToDeath([&] {
      std::unique_ptr<InstanceDirectory> instance = Create(name, keep);
      WriteFile(instance->path() + "/segment");
      fs::create_directories(instance->path() + "/below");
      WriteFile(instance->path() + "/below/segment");
      Say(instance->path());
      ::raise(SIGKILL);
    });
  }

  // Runs `body` in a child, which ends by itself; what it said.
  std::string RunToDeath(const std::function<void()>& body) {
    Spawn(body);
    const std::string said = Hear();
    Wait();
    return said;
  }
  void Spawn(const std::function<void()>& body) {
    ASSERT_EQ(::pipe(pipe_), 0);
    child_ = ::fork();
    ASSERT_GE(child_, 0);
    if (child_ > 0) {
      ::close(pipe_[1]);
      return;
    }
    body();
    ::_exit(0);
  }
  void Say(const std::string& text) {  // in the child
    if (::write(pipe_[1], text.data(), text.size()) < 0) ::_exit(1);
  }
  std::string Hear() {
    char text[1024];
    const ssize_t n = ::read(pipe_[0], text, sizeof(text));
    return n < 0 ? "" : std::string(text, static_cast<size_t>(n));
  }
  void Wait() {
    ::close(pipe_[0]);
    EXPECT_EQ(::waitpid(child_, nullptr, 0), child_);
  }

  std::string path_;
  int pipe_[2] = {};
  pid_t child_ = 0;
};

TEST_F(InstanceDirectoryTest, ARelativePathStaysWhatItWasWhenTheProcessWorksElsewhere) {
  const fs::path before = fs::current_path();
  fs::create_directories(path_ + "/here/store");
  fs::create_directories(path_ + "/there");
  fs::current_path(path_ + "/here");
  Result<std::unique_ptr<InstanceDirectory>> made = InstanceDirectory::Create("store", "t", true);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const std::string instance = (*made)->path();
  EXPECT_EQ(fs::path(instance).parent_path(), fs::canonical(path_) / "here/store/t");
  fs::current_path(path_ + "/there");
  WriteFile(instance + "/segment");
  made->reset();
  fs::current_path(path_ + "/here/store/t");
  Result<std::unique_ptr<InstanceDirectory>> opened = InstanceDirectory::Open(fs::path(instance).filename(), false);
  ASSERT_TRUE(opened.ok()) << opened.status().ToString();
  EXPECT_EQ((*opened)->path(), instance);
  fs::current_path(path_ + "/there");
  opened->reset();
  EXPECT_FALSE(fs::exists(instance));
  fs::current_path(before);
}

TEST_F(InstanceDirectoryTest, TwoOfOneNameHaveTheirOwnAndLeaveNothing) {
  std::unique_ptr<InstanceDirectory> first = Create("user/id"), second = Create("user/id");
  EXPECT_NE(first->path(), second->path());
  EXPECT_EQ(fs::path(first->path()).parent_path(), path_ + "/user%2Fid");
  WriteFile(first->path() + "/segment");
  first.reset();
  EXPECT_TRUE(fs::exists(second->path()));
  second.reset();
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(InstanceDirectoryTest, LiveInstanceOfThisProcessIsRefusedAndStaysLocked) {
  std::unique_ptr<InstanceDirectory> live = Create("ev");
  for (int i = 0; i < 2; ++i) {
    const Status status = InstanceDirectory::Open(live->path(), false).status();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(status.message().find(StrCat("process ", ::getpid())), std::string::npos) << status.message();
  }
  // The refusals closed no descriptor of the lock file: another process still finds it held.
  const pid_t holder = ::getpid();
  const std::string said = RunToDeath([&] { Say(InstanceDirectory::Open(live->path(), false).status().message()); });
  EXPECT_NE(said.find(StrCat("in use by process ", holder)), std::string::npos) << said;
}

// What the claim is for: the lock would be granted to a process that has it.
TEST_F(InstanceDirectoryTest, WhatThisProcessHoldsIsNoLeftoverOfItsOwn) {
  std::unique_ptr<InstanceDirectory> live = Create("ev");
  WriteFile(live->path() + "/segment");
  EXPECT_EQ(Create("ev")->leftovers_removed(), 0);
  EXPECT_TRUE(fs::exists(live->path() + "/segment"));
  const std::string dead = MakeLeftover("ev");
  std::unique_ptr<InstanceDirectory> taken = *InstanceDirectory::Open(dead, false);
  EXPECT_EQ(Create("ev")->leftovers_removed(), 0);
  EXPECT_EQ(InstanceDirectory::Open(dead, false).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(fs::exists(dead + "/segment"));
}

TEST_F(InstanceDirectoryTest, ClaimsOfTheDeadGoAndThoseOfTheLivingStay) {
  const std::string kept = MakeLeftover("ev", /*keep=*/true);
  const auto claims = [&] {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(kept)) {
      const std::string name = entry.path().filename();
      if (name.rfind("instance.claim-", 0) == 0) names.push_back(name);
    }
    return names;
  };
  const std::vector<std::string> of_dead = claims();
  ASSERT_EQ(of_dead.size(), 1u);
  {
    std::unique_ptr<InstanceDirectory> taken = *InstanceDirectory::Open(kept, true);
    ASSERT_EQ(claims().size(), 1u);
    EXPECT_NE(claims(), of_dead);
    EXPECT_EQ(claims()[0].rfind(StrCat("instance.claim-", ::getpid(), "-"), 0), 0u);
  }
  EXPECT_TRUE(claims().empty());
}

// A process is not locked out of its own instance, nor let in twice.
TEST_F(InstanceDirectoryTest, AClaimThatCouldNotBeDeletedMeansNothing) {
  std::unique_ptr<InstanceDirectory> kept = Create("ev", /*keep=*/true);
  const std::string path = kept->path();
  const auto has_claim = [&] {
    for (const auto& entry : fs::directory_iterator(path)) {
      if (entry.path().filename().string().rfind("instance.claim-", 0) == 0) return true;
    }
    return false;
  };
  claims_stay = true;
  for (int again = 0; again < 3; ++again) {
    kept = nullptr;
    EXPECT_TRUE(has_claim());
    Result<std::unique_ptr<InstanceDirectory>> opened = InstanceDirectory::Open(path, true);
    ASSERT_TRUE(opened.ok()) << opened.status().ToString();
    kept = *std::move(opened);
    EXPECT_EQ(InstanceDirectory::Open(path, true).status().code(), StatusCode::kFailedPrecondition);
  }
  claims_stay = false;
  kept = nullptr;
  EXPECT_FALSE(has_claim());
}

// A forked child has the descriptor of the claim, and does not hold it.
TEST_F(InstanceDirectoryTest, AnInstanceIsOpenedAgainWhileAForkedChildLives) {
  std::unique_ptr<InstanceDirectory> kept = Create("ev", /*keep=*/true);
  const std::string path = kept->path();
  int end[2];
  ASSERT_EQ(::pipe(end), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    char byte;
    ::close(end[1]);
    (void)!::read(end[0], &byte, 1);
    ::_exit(0);
  }
  kept = nullptr;
  EXPECT_TRUE(InstanceDirectory::Open(path, true).ok());
  ::close(end[0]);
  ::close(end[1]);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(InstanceDirectoryTest, KilledBetweenClaimAndLockFileIsALeftover) {
  fs::create_directories(path_ + "/ev/instance-1-1");
  WriteFile(path_ + "/ev/instance-1-1/instance.claim-1-2-3");
  EXPECT_EQ(Create("ev")->leftovers_removed(), 1);
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(InstanceDirectoryTest, LiveInstanceOfAnotherProcessIsRefusedAndNoLeftover) {
  Spawn([&] {
    std::unique_ptr<InstanceDirectory> live = Create("ev");
    Say(live->path());
    ::pause();
  });
  const std::string live_path = Hear();
  const Status status = InstanceDirectory::Open(live_path, false).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find(StrCat("in use by process ", child_)), std::string::npos) << status.message();
  EXPECT_EQ(Create("ev")->leftovers_removed(), 0);
  EXPECT_TRUE(fs::exists(live_path));
  ::kill(child_, SIGKILL);
  Wait();
  EXPECT_TRUE(InstanceDirectory::Open(live_path, false).ok());
}

TEST_F(InstanceDirectoryTest, LeftoversOfItsOwnNameGo) {
  const std::string kept = MakeLeftover("ev", /*keep=*/true), dead = MakeLeftover("ev"), other = MakeLeftover("ev2");
  fs::create_directories(path_ + "/ev/instance-1-1");  // killed before it had a lock file
  fs::create_directories(path_ + "/ev/somebody's");
  ASSERT_TRUE(fs::exists(dead + "/below/segment"));
  std::unique_ptr<InstanceDirectory> instance = Create("ev");
  EXPECT_EQ(instance->leftovers_removed(), 2);
  EXPECT_TRUE(instance->leftovers_status().ok()) << instance->leftovers_status().ToString();
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_FALSE(fs::exists(path_ + "/ev/instance-1-1"));
  EXPECT_TRUE(fs::exists(kept + "/segment"));
  EXPECT_TRUE(fs::exists(other + "/segment"));
  EXPECT_TRUE(fs::exists(path_ + "/ev/somebody's"));
}

TEST_F(InstanceDirectoryTest, KeptInstanceStaysAndIsOpenedAgain) {
  std::string kept;
  {
    std::unique_ptr<InstanceDirectory> instance = Create("ev", /*keep=*/true);
    kept = instance->path();
    WriteFile(kept + "/segment");
  }
  EXPECT_EQ(Create("ev")->leftovers_removed(), 0);
  ASSERT_TRUE(fs::exists(kept + "/segment"));
  {
    EXPECT_TRUE(InstanceDirectory::Open(kept, /*keep=*/true).ok());
  }
  ASSERT_TRUE(fs::exists(kept + "/segment"));
  {
    EXPECT_TRUE(InstanceDirectory::Open(kept, /*keep=*/false).ok());
  }
  EXPECT_FALSE(fs::exists(kept));
  EXPECT_EQ(InstanceDirectory::Open(kept, true).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(InstanceDirectory::Open(path_, true).status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(InstanceDirectoryTest, WhetherItIsKeptCanBeSaidLater) {
  std::string path;
  {
    std::unique_ptr<InstanceDirectory> instance = Create("ev");
    path = instance->path();
    EXPECT_TRUE(instance->SetKeep(true).ok());
  }
  EXPECT_EQ(Create("ev")->leftovers_removed(), 0);
  {
    std::unique_ptr<InstanceDirectory> taken = *InstanceDirectory::Open(path, true);
    EXPECT_TRUE(taken->SetKeep(false).ok());
  }
  EXPECT_FALSE(fs::exists(path));
  // A leftover that was looked at is one still.
  const std::string dead = MakeLeftover("ev");
  {
    EXPECT_TRUE(InstanceDirectory::Open(dead, true).ok());
  }
  EXPECT_EQ(Create("ev")->leftovers_removed(), 1);
}

TEST_F(InstanceDirectoryTest, DeadInstanceTakenOverIsHeldAgain) {
  const std::string dead = MakeLeftover("ev");
  std::unique_ptr<InstanceDirectory> taken = *InstanceDirectory::Open(dead, false);
  EXPECT_TRUE(fs::exists(taken->path() + "/segment"));
  EXPECT_EQ(Create("ev")->leftovers_removed(), 0);
}

TEST_F(InstanceDirectoryTest, OneOpenedForReadingChangesNothingAndTakesNoLock) {
  const std::string kept = Create("table", /*keep=*/true)->path();
  const auto names = [&] {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(kept)) found.insert(entry.path().filename());
    return found;
  };
  const std::set<std::string> before = names();
  std::unique_ptr<InstanceDirectory> reader = *InstanceDirectory::OpenForReading(kept);
  EXPECT_EQ(reader->path(), kept);
  EXPECT_EQ(names(), before);
  EXPECT_TRUE(InstanceDirectory::OpenForReading(kept).ok());
  std::unique_ptr<InstanceDirectory> owner = *InstanceDirectory::Open(kept, /*keep=*/true);
  EXPECT_EQ(InstanceDirectory::OpenForReading(kept).status().code(), StatusCode::kFailedPrecondition);
  reader.reset();
  // Neither looking at the lock nor the end of a reader has released it.
  EXPECT_EQ(RunToDeath([&] { Say(InstanceDirectory::Open(kept, true).ok() ? "opened" : "refused"); }), "refused");
  owner.reset();
  EXPECT_TRUE(InstanceDirectory::CheckUnused(kept).ok());
  EXPECT_EQ(names(), before);
  EXPECT_EQ(InstanceDirectory::CheckUnused(path_ + "/none").code(), StatusCode::kNotFound);
}

TEST_F(InstanceDirectoryTest, AReaderNamesTheProcessThatHoldsAnInstance) {
  Spawn([&] {
    std::unique_ptr<InstanceDirectory> instance = Create("table", /*keep=*/true);
    Say(instance->path());
    ::pause();
  });
  const std::string held = Hear();
  const Status used = InstanceDirectory::CheckUnused(held);
  EXPECT_EQ(used.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(used.message().find(StrCat("process ", static_cast<int>(child_))), std::string::npos) << used.message();
  ::kill(child_, SIGKILL);
  Wait();
  EXPECT_TRUE(InstanceDirectory::CheckUnused(held).ok());
}

TEST_F(InstanceDirectoryTest, ForkedChildHoldsNothingAndRemovesNothing) {
  std::unique_ptr<InstanceDirectory> instance = Create("ev");
  const std::string said = RunToDeath([&] {
    const std::string path = instance->path();
    instance.reset();  // the child's copy of the object
    const bool own = Create("ev") != nullptr;
    Say(StrCat(own, " ", InstanceDirectory::Open(path, false).status().message()));
  });
  EXPECT_EQ(said.substr(0, 5), "true ") << said;
  EXPECT_NE(said.find(StrCat("in use by process ", ::getpid())), std::string::npos) << said;
  EXPECT_TRUE(fs::exists(instance->path()));
}

// parent = our child, which forks one that outlives it.
TEST_F(InstanceDirectoryTest, KilledParentLeavesNoLockThoughItsChildLives) {
  Spawn([&] {
    std::unique_ptr<InstanceDirectory> instance = Create("ev");
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::pause();
    Say(StrCat(grandchild, " ", instance->path()));
    ::raise(SIGKILL);
  });
  const std::string said = Hear();
  Wait();
  const pid_t grandchild = static_cast<pid_t>(std::stol(said));
  const std::string dead = said.substr(said.find(' ') + 1);
  ASSERT_TRUE(fs::exists(dead));
  EXPECT_EQ(Create("ev")->leftovers_removed(), 1);
  EXPECT_FALSE(fs::exists(dead));
  ::kill(grandchild, SIGKILL);
}

TEST_F(InstanceDirectoryTest, ThreadsAndProcessesMakeAndRemoveOfOneNameAtOnce) {
  const auto churn = [&] {
    for (int round = 0; round < 100; ++round) {
      Result<std::unique_ptr<InstanceDirectory>> instance = InstanceDirectory::Create(path_, "ev", false);
      if (!instance.ok() || !fs::exists((*instance)->path() + "/instance.lock")) return false;
    }
    return true;
  };
  Spawn([&] { Say(churn() ? "ok" : "failed"); });
  bool ok[2] = {};
  std::thread other([&] { ok[1] = churn(); });
  ok[0] = churn();
  other.join();
  EXPECT_EQ(Hear(), "ok");
  Wait();
  EXPECT_TRUE(ok[0] && ok[1]);
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(InstanceDirectoryTest, ThreadsMakeANewStoragePathAtOnce) {
  constexpr int kThreads = 2, kRounds = 1000;
  std::atomic<int> arrived{0}, failed{0};
  const auto make = [&](const std::string& name) {
    for (int round = 0; round < kRounds; ++round) {
      for (++arrived; arrived < kThreads * (round + 1);) std::this_thread::yield();
      if (!InstanceDirectory::Create(StrCat(path_, "/new-", round), name, false).ok()) ++failed;
    }
  };
  std::thread other([&] { make("other"); });
  make("one");
  other.join();
  EXPECT_EQ(failed, 0);
}

TEST_F(InstanceDirectoryTest, BadStoragePathIsOneClearError) {
  const auto error = [](const std::string& path) { return InstanceDirectory::Create(path, "ev", false).status(); };
  EXPECT_EQ(error("").code(), StatusCode::kInvalidArgument);
  WriteFile(path_ + "/file");
  EXPECT_EQ(error(path_ + "/file").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(error(path_ + "/no/parent").code(), StatusCode::kNotFound);
  EXPECT_NE(error(path_ + "/no/parent").message().find(path_ + "/no/parent"), std::string::npos);
  EXPECT_FALSE(fs::exists(path_ + "/no"));
  EXPECT_TRUE(error(path_ + "/made").ok());
}

TEST_F(InstanceDirectoryTest, ReadOnlyStoragePathIsPermissionDenied) {
  ASSERT_EQ(::chmod(path_.c_str(), 0555), 0);
  const std::string said = RunToDeath([&] {
    if (::geteuid() == 0 && ::seteuid(65534) != 0) return Say("cannot become nobody");  // root may write anywhere
    const Status status = InstanceDirectory::Create(path_, "ev", false).status();
    Say(status.ToString());
  });
  ASSERT_EQ(::chmod(path_.c_str(), 0755), 0);
  if (said == "cannot become nobody") GTEST_SKIP() << said;
  EXPECT_EQ(said.rfind("PermissionDenied", 0), 0u) << said;
  EXPECT_NE(said.find(path_), std::string::npos) << said;
}

TEST(EncodeInstanceNameTest, GivesOneFileNameAPiece) {
  EXPECT_EQ(EncodeInstanceName("Ev_1-a"), "Ev_1-a");
  EXPECT_EQ(EncodeInstanceName("user/id.x y%"), "user%2Fid%2Ex%20y%25");
  EXPECT_EQ(EncodeInstanceName(".."), "%2E%2E");
  EXPECT_EQ(EncodeInstanceName("\xc3\xa9"), "%C3%A9");
  EXPECT_EQ(EncodeInstanceName(""), "%");
  const std::string longest(200, 'a');
  EXPECT_EQ(EncodeInstanceName(longest), longest);
  std::set<std::string> encoded;
  for (const char* end : {"a", "b", "/"}) encoded.insert(EncodeInstanceName(longest + end));
  EXPECT_EQ(encoded.size(), 3u);
  for (const std::string& name : encoded) EXPECT_EQ(name.size(), 200u);
}

}  // namespace
}  // namespace multitier
