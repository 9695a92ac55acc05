// When a saving thread rests, and for how long. The clocks are numbers: nothing here waits.

#include "cc/table/snapshot/save_pace.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>

#include "cc/base/thread.h"

namespace multitier::save_pace_test {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr size_t kMost = 64 << 20;

// A saving thread that works 2 ms for each piece. The other threads of the process use `others` processors all the time.
class Program {
 public:
  Program(int processors, int threads, double others, int64_t delay = 0)
      : pace_(processors), threads_(threads), others_(others), delay_(delay) {}

  // The rest after a piece.
  int64_t Piece(size_t waiting = 0) {
    now_.thread += 2 * kMs;
    now_.delay += delay_;
    Pass(2 * kMs + delay_);
    now_.process += 2 * kMs * threads_;
    now_.saving += 2 * kMs * threads_;
    now_.threads = threads_;
    const int64_t rest = pace_.RestAt(now_, waiting, kMost);
    Pass(rest);
    return rest;
  }
  // After the first window.
  int64_t Later(size_t waiting = 0) {
    for (int i = 0; i < 30; ++i) (void)Piece(waiting);
    return Piece(waiting);
  }
  void SetOthers(double others) { others_ = others; }
  void SetThreads(int threads) { threads_ = threads; }

 private:
  void Pass(int64_t ns) {
    now_.wall += ns;
    now_.process += static_cast<int64_t>(others_ * static_cast<double>(ns));
  }

  SavePace pace_;
  SavePace::Times now_;
  int threads_;  // that save, this one included
  double others_;
  const int64_t delay_;  // before each piece
};

TEST(SavePace, TakesAnEighthOfAMachineThatIsInUse) {
  EXPECT_EQ(Program(2, 1, 1.9).Later(), 6 * kMs);  // a quarter of one processor
  EXPECT_EQ(Program(4, 1, 3.9).Later(), 2 * kMs);  // half of one
  EXPECT_EQ(Program(8, 1, 7.9).Later(), 0);        // all of one
  EXPECT_EQ(Program(8, 4, 7.9).Later(), 6 * kMs);  // a quarter of one, four times
}

TEST(SavePace, DoesNotRestWhileProcessorsAreIdle) {
  EXPECT_EQ(Program(2, 1, 0.0).Later(), 0);
  EXPECT_EQ(Program(2, 1, 1.0).Later(), 0);
  EXPECT_EQ(Program(4, 2, 2.0).Later(), 0);
  EXPECT_EQ(Program(2, 4, 0.0).Later(), 0);
}

TEST(SavePace, RestsWhereOtherProcessesUseTheMachine) {
  EXPECT_NEAR(Program(2, 1, 1.4, 2 * kMs).Later() / 1e6, 8, 0.5) << "1.6 processors; a fifth of one";
  EXPECT_NEAR(Program(2, 1, 0.7, 2 * kMs).Later() / 1e6, 18, 0.5) << "0.8 processors; a tenth of one";
  EXPECT_EQ(Program(2, 1, 0.2, 2 * kMs).Later(), 30 * kMs) << "at least a thirty-second of the machine";
  EXPECT_EQ(Program(2, 1, 0.5, kMs / 10).Later(), 0);
  EXPECT_EQ(Program(2, 1, 0.0, 2 * kMs).Later(), 0) << "the program does nothing else";
}

TEST(SavePace, RestsLessWhenMoreCopiesWait) {
  EXPECT_EQ(Program(2, 1, 1.9).Later(kMost / 2), 6 * kMs);
  EXPECT_EQ(Program(2, 1, 1.9).Later(kMost / 16 * 11), 3 * kMs);
  EXPECT_EQ(Program(2, 1, 1.9).Later(kMost / 8 * 7), 0);
  EXPECT_EQ(Program(2, 1, 1.9).Later(2 * kMost), 0);
}

TEST(SavePace, FollowsWhatTheProgramDoes) {
  Program program(2, 1, 0.0);
  EXPECT_EQ(program.Later(), 0);
  program.SetOthers(2.0);
  EXPECT_EQ(program.Later(), 6 * kMs);
  program.SetOthers(0.0);
  EXPECT_EQ(program.Later(), 0);
}

TEST(SavePace, FollowsTheNumberOfThreadsThatStillSave) {
  Program program(2, 4, 1.9);
  EXPECT_EQ(program.Later(), 30 * kMs);  // a sixteenth of a processor, four times
  program.SetThreads(1);                 // the other tables were small
  EXPECT_EQ(program.Later(), 6 * kMs);
  program.SetOthers(1.0);
  EXPECT_EQ(program.Later(), 0);
}

TEST(SavePace, AShortSaveDoesNotRest) {
  Program program(2, 1, 2.0);
  EXPECT_EQ(program.Piece(), 0);
  EXPECT_EQ(program.Piece(), 0);
}

TEST(SavePace, OfThisMachineComesBack) {
  SavingThreads threads;
  {
    SavePace pace(&threads);
    EXPECT_EQ(threads.running, 1);
    for (int i = 0; i < 3; ++i) pace.Rest([] { return size_t{0}; }, kMost);
    for (volatile int i = 0; i < 1'000'000;) i = i + 1;
  }
  EXPECT_EQ(threads.running, 0);
  EXPECT_GT(threads.took, 0);
}

bool SetPolicy(int policy) {
  const sched_param parameters{};
  return ::sched_setscheduler(0, policy, &parameters) == 0;
}

int PolicyOfANewThread() {
  int policy = -1;
  Thread thread;
  EXPECT_TRUE(thread.Start("mt-test", [&] { policy = ::sched_getscheduler(0); }).ok());
  thread.Join();
  return policy;
}

// Whether this thread may have SCHED_BATCH; it has SCHED_OTHER afterwards.
class SavePacePolicy : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!SetPolicy(SCHED_BATCH)) GTEST_SKIP() << "the system refuses SCHED_BATCH: " << std::strerror(errno);
    if (!SetPolicy(SCHED_OTHER)) GTEST_SKIP() << "the system refuses SCHED_OTHER: " << std::strerror(errno);
  }
  void TearDown() override { (void)SetPolicy(SCHED_OTHER); }
};

TEST_F(SavePacePolicy, IsBatchWhileItSaves) {
  SavingThreads threads;
  {
    const SavePace pace(&threads);
    EXPECT_EQ(::sched_getscheduler(0), SCHED_BATCH);
  }
  EXPECT_EQ(::sched_getscheduler(0), SCHED_OTHER);
}

TEST_F(SavePacePolicy, OfAThreadThatASavingThreadStartsIsOther) {
  SavingThreads threads;
  {
    const SavePace pace(&threads);
    EXPECT_EQ(PolicyOfANewThread(), SCHED_OTHER);
    EXPECT_EQ(::sched_getscheduler(0), SCHED_BATCH);
  }
  EXPECT_EQ(PolicyOfANewThread(), SCHED_OTHER);
}

TEST_F(SavePacePolicy, StaysBatchWhereTheProcessIsBatch) {
  ASSERT_TRUE(SetPolicy(SCHED_BATCH));
  SavingThreads threads;
  {
    const SavePace pace(&threads);
    EXPECT_EQ(PolicyOfANewThread(), SCHED_BATCH);
  }
  EXPECT_EQ(::sched_getscheduler(0), SCHED_BATCH);
  EXPECT_EQ(PolicyOfANewThread(), SCHED_BATCH);
}

}  // namespace
}  // namespace multitier::save_pace_test
