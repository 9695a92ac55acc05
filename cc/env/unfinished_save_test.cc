// Which files of other saves a save deletes: those of killed processes, and nothing else.

#include "cc/env/unfinished_save.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace multitier {
namespace {

class UnfinishedSaveTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/unfinished_save_" + std::to_string(::getpid()) + "_" + std::to_string(made_++);
    ASSERT_EQ(::mkdir(folder_.c_str(), 0700), 0);
    // The test cannot be run where the file system has no such locks and attributes.
    InChild([&] { Save("trial"); });
    UnfinishedSave::RemoveAbandoned(Path("next"));
    if (Exists("trial.data-aaaaa-of-aaaaa")) GTEST_SKIP() << folder_ << " has no locks or no attributes";
  }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  void Write(const std::string& name) const { std::ofstream(Path(name)) << name; }
  bool Exists(const std::string& name) const { return ::access(Path(name).c_str(), F_OK) == 0; }
  // A part file and a linked file of it.
  void Save(const std::string& prefix) const {
    UnfinishedSave::Begin(Path(prefix));
    Write(prefix + ".data-aaaaa-of-aaaaa");
    UnfinishedSave::Mark(Path(prefix), Path(prefix + ".data-aaaaa-of-aaaaa"));
    Write(prefix + ".data-aaaaa-of-aaaab");
  }
  // A process that does this and is killed.
  static void InChild(const std::function<void()>& work) {
    const pid_t child = ::fork();
    if (child == 0) {
      work();
      ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
  }

  static inline int made_ = 0;
  std::string folder_;
};

TEST_F(UnfinishedSaveTest, FilesOfAKilledSaveGoWithTheNextSaveOfAnyPrefix) {
  InChild([&] { Save("model-1"); });
  Write("model-1.data-bbbbb-of-aaaaa");  // without the mark of a save
  Write("model-1.data-00000-of-00001");  // TensorFlow's
  UnfinishedSave::RemoveAbandoned(Path("other-2"));
  EXPECT_FALSE(Exists("model-1.data-aaaaa-of-aaaaa"));
  EXPECT_FALSE(Exists("model-1.data-aaaaa-of-aaaab"));
  EXPECT_TRUE(Exists("model-1.data-bbbbb-of-aaaaa"));
  EXPECT_TRUE(Exists("model-1.data-00000-of-00001"));
}

TEST_F(UnfinishedSaveTest, FilesOfASaveThatRunsStay) {
  Save("own");  // of this process
  int ready[2], end[2];
  ASSERT_EQ(::pipe(ready) | ::pipe(end), 0);
  const pid_t child = ::fork();
  char byte = 0;
  if (child == 0) {
    Save("of-child");
    (void)!::write(ready[1], &byte, 1);
    (void)!::read(end[0], &byte, 1);
    ::_exit(0);
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  UnfinishedSave::RemoveAbandoned(Path("next"));
  EXPECT_TRUE(Exists("own.data-aaaaa-of-aaaaa") && Exists("own.data-aaaaa-of-aaaab"));
  EXPECT_TRUE(Exists("of-child.data-aaaaa-of-aaaaa") && Exists("of-child.data-aaaaa-of-aaaab"));
  ASSERT_EQ(::write(end[1], &byte, 1), 1);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  UnfinishedSave::RemoveAbandoned(Path("next"));
  EXPECT_TRUE(Exists("own.data-aaaaa-of-aaaaa"));
  EXPECT_FALSE(Exists("of-child.data-aaaaa-of-aaaaa"));
}

TEST_F(UnfinishedSaveTest, FilesOfACheckpointStayAndSoDoCopiesOfThemBeforeTheirIndexComes) {
  InChild([&] {
    Save("model-1");
    Write("model-1.index");
  });
  UnfinishedSave::RemoveAbandoned(Path("next"));
  EXPECT_TRUE(Exists("model-1.data-aaaaa-of-aaaaa") && Exists("model-1.data-aaaaa-of-aaaab"));
  ASSERT_EQ(::system(("cp -a " + Path("model-1.data-aaaaa-of-aaaaa") + " " + Path("copy.data-aaaaa-of-aaaaa")).c_str()), 0);
  UnfinishedSave::RemoveAbandoned(Path("next"));
  EXPECT_TRUE(Exists("copy.data-aaaaa-of-aaaaa"));
}

TEST_F(UnfinishedSaveTest, ASaveIsUnfinishedUntilItsIndexIsThere) {
  Save("model-1");
  Write("model-1.index");
  UnfinishedSave::Begin(Path("model-2"));  // notes that the first one is finished
  ASSERT_EQ(::unlink(Path("model-1.index").c_str()), 0);
  UnfinishedSave::RemoveAbandoned(Path("model-2"));
  EXPECT_FALSE(Exists("model-1.data-aaaaa-of-aaaaa")) << "its lock is given up";
  Save("model-3");
  UnfinishedSave::Begin(Path("model-4"));
  UnfinishedSave::RemoveAbandoned(Path("model-4"));
  EXPECT_TRUE(Exists("model-3.data-aaaaa-of-aaaaa"));
  UnfinishedSave::GiveUp(Path("model-3"));
  UnfinishedSave::RemoveAbandoned(Path("model-4"));
  EXPECT_FALSE(Exists("model-3.data-aaaaa-of-aaaaa"));
}

}  // namespace
}  // namespace multitier
