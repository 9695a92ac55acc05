// Crashes of the process and losses of power at any call, in several lives: recovery finds what was acknowledged, or newer.

#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <map>
#include <random>
#include <set>

#include "cc/env/crash_env.h"
#include "cc/tier/ssdhash/recovery_test_util.h"

namespace multitier::crash_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

constexpr int64_t kKeys = 700;

// What recovery finds after a crash: readable, and what may be found. Generations by key.
CrashHistory::States RecoverFrom(const Crash& crash) {
  SCOPED_TRACE(crash.power_lost ? "the power was lost" : "the process died");
  InMemoryEnv memory;
  EXPECT_TRUE(crash.CopyTo(&memory, "d").ok());
  CrashHistory::States found;
  SsdHashOptions options = Options(&memory, "d");
  options.keep = false;
  Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  if (!tier.ok()) return found;
  LogOwner owner;
  owner.Attach(tier->get());
  EXPECT_EQ(owner.Adopt(), std::vector<int64_t>());
  EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
  int wrong = 0;
  for (int64_t key = 0; key < kKeys; ++key) {
    found[key] = static_cast<int64_t>(owner.generation(key));
    if (crash.Allows(key, found[key]) || wrong++ > 0) continue;
    ADD_FAILURE() << "key " << key << ": found " << found[key] << ", known " << crash.Known(key);
  }
  EXPECT_EQ(wrong, 0) << "of " << kKeys << " keys; " << (*tier)->recovery().damaged_records << " damaged records, "
                      << (*tier)->recovery().lost_headers << " lost headers, the first " << (*tier)->recovery().first_damage;
  owner.Detach();
  return found;
}

// Against files that take their time, so that rounds of SyncAndDelete, compaction and writes overlap. It sleeps two thirds of
// its time: the parts are for the shards of the test.
class CrashAtAnyCallTest : public testing::TestWithParam<int> {};
constexpr int kParts = 4;
INSTANTIATE_TEST_SUITE_P(Part, CrashAtAnyCallTest, testing::Range(0, kParts));

TEST_P(CrashAtAnyCallTest, RecoveryFindsWhatWasAcknowledged) {
  std::mt19937_64 random(CrashSeed() + static_cast<uint64_t>(GetParam()));
  size_t crashes = 0;
  const int rounds = CrashRounds(12, 1500) / kParts;
  for (int round = 0; round < rounds; ++round) {
    std::map<std::string, Crash::File> files;
    uint64_t generation = 0;
    CrashHistory history;
    for (int life = 0; life < 4; ++life) {
      CrashEnv env("d", files, random(), &history);
      SsdHashOptions options = Options(&env, "d");
      options.async_compaction = random() % 2 == 0;
      options.direct_io = random() % 3 != 0;
      options.min_segment_bytes = uint64_t{8 << 10} << random() % 4;
      SCOPED_TRACE(StrCat("round ", round, ", life ", life, ", compaction ", options.async_compaction ? "beside" : "in",
                          " writes, ", options.direct_io ? "direct" : "buffered"));
      Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
      ASSERT_TRUE(tier.ok()) << tier.status().ToString();
      LogOwner owner;
      owner.Attach(tier->get());
      EXPECT_EQ(owner.Adopt(), std::vector<int64_t>());
      const uint64_t per_sync = random() % 2 == 0 ? 40 : 8;
      for (uint64_t left = 20 + random() % 100; left > 0; --left) {
        const auto from = static_cast<int64_t>(random() % (kKeys - 100));
        const std::vector<int64_t> keys = Range(from, from + 1 + static_cast<int64_t>(random() % 99));
        const bool removes = random() % 4 == 0;
        ++generation;
        for (const int64_t key : keys) history.Begin(key, removes ? 0 : static_cast<int64_t>(generation));
        const Status done = removes ? owner.Remove(keys) : owner.Put(keys, generation);
        ASSERT_TRUE(done.ok()) << done.ToString();
        if (random() % 40 == 0) {
          ASSERT_TRUE((*tier)->Compact().ok());
        }
        if (random() % per_sync != 0) continue;
        ASSERT_TRUE((*tier)->Sync().ok());
        CrashHistory::States now;
        for (int64_t key = 0; key < kKeys; ++key) now[key] = static_cast<int64_t>(owner.generation(key));
        history.Acknowledge(now);
      }
      owner.Detach();
      tier->reset();
      const std::vector<Crash> taken = env.Take();  // closing included
      if (taken.empty()) break;
      crashes += taken.size();
      CrashHistory::States found;
      for (const Crash& crash : taken) {
        found = RecoverFrom(crash);
        if (testing::Test::HasFailure()) return;
      }
      // Another life begins with what the last of them left.
      files = taken.back().files;
      history = taken.back().history;
      history.Found(found, taken.back().power_lost);
    }
  }
  std::printf("%zu crashes\n", crashes);
  EXPECT_GT(crashes, static_cast<size_t>(rounds));
}

// The parent knows from a pipe what the child acknowledged when it was killed.
// Has the kernel kill this process, wherever it is then.
bool KillThisProcessIn(uint64_t micros) {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer;
  if (::timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return false;
  itimerspec when = {};
  when.it_value.tv_sec = static_cast<time_t>(micros / 1000000);
  when.it_value.tv_nsec = static_cast<long>(micros % 1000000 * 1000);
  return ::timer_settime(timer, 0, &when, nullptr) == 0;
}

TEST(CrashTest, OfAProcessThatIsKilled) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "under ThreadSanitizer the child of a process with threads may not start any";
#endif
  const int rounds = CrashRounds(20, 1000);
  std::mt19937_64 random(CrashSeed());
  const std::string directory = StrCat(testing::TempDir(), "/ssdhash_crash_test_", static_cast<int>(::getpid()));
  ASSERT_TRUE(Env::Posix()->CreateDir(directory).ok());
  constexpr int64_t kKeys = 3000;
  uint64_t generation = 1;
  std::map<int64_t, uint64_t> acknowledged;
  for (int round = 0; round < rounds; ++round) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const uint64_t child_seed = random();
    // What is done with generation g follows from (child_seed, g), for the parent too.
    const auto operation = [&](uint64_t g, bool* removes) {
      std::mt19937_64 r(child_seed ^ g);
      const int64_t from = static_cast<int64_t>(r() % (kKeys - 200));
      *removes = r() % 4 == 0;
      return Range(from, from + 1 + static_cast<int64_t>(r() % 199));
    };
    const uint64_t micros = 20000 + random() % 100000;
    const pid_t child = ::fork();
    if (child == 0) {
      ::close(pipe_ends[0]);
      SsdHashOptions options = Options(Env::Posix(), directory);
      options.async_compaction = round % 2 == 1;
      options.direct_io = round % 3 != 2;
      Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
      if (!tier.ok()) ::_exit(2);
      LogOwner owner;
      owner.Attach(tier->get());
      (void)owner.Adopt();
      if (!KillThisProcessIn(micros)) ::_exit(6);
      const uint64_t ready = 0;
      if (::write(pipe_ends[1], &ready, sizeof(ready)) != sizeof(ready)) ::_exit(5);
      for (uint64_t g = generation;; ++g) {
        bool removes = false;
        const std::vector<int64_t> keys = operation(g, &removes);
        if (!(removes ? owner.Remove(keys) : owner.Put(keys, g)).ok()) ::_exit(3);
        if (g % 7 != 0) continue;
        if (!(*tier)->Sync().ok()) ::_exit(4);
        if (::write(pipe_ends[1], &g, sizeof(g)) != sizeof(g)) ::_exit(5);
      }
    }
    ::close(pipe_ends[1]);
    uint64_t ready = 1;
    ASSERT_EQ(::read(pipe_ends[0], &ready, sizeof(ready)), static_cast<ssize_t>(sizeof(ready)));
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "child exited with " << WEXITSTATUS(status);
    uint64_t synced = generation - 1, g = 0;
    while (::read(pipe_ends[0], &g, sizeof(g)) == sizeof(g)) synced = g;
    ::close(pipe_ends[0]);
    for (uint64_t done = generation; done <= synced; ++done) {
      bool removes = false;
      for (const int64_t key : operation(done, &removes)) acknowledged[key] = removes ? 0 : done;
    }
    Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(Env::Posix(), directory));
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    LogOwner owner;
    owner.Attach(tier->get());
    EXPECT_EQ(owner.Adopt(), std::vector<int64_t>());
    EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
    uint64_t last = synced;
    for (int64_t key = 0; key < kKeys; ++key) last = std::max(last, owner.generation(key));
    for (int64_t key = 0; key < kKeys; ++key) {
      const uint64_t found = owner.generation(key);
      std::set<uint64_t> possible = {acknowledged[key]};
      for (uint64_t later = synced + 1; later <= last + 60; ++later) {
        bool removes = false;
        const std::vector<int64_t> keys = operation(later, &removes);
        if (key >= keys.front() && key <= keys.back()) possible.insert(removes ? 0 : later);
      }
      EXPECT_EQ(possible.count(found), 1u) << "round " << round << " key " << key << " found " << found << " acknowledged "
                                           << acknowledged[key];
      acknowledged[key] = found;
    }
    owner.Detach();
    std::printf("round %d: %llu operations, %llu acknowledged, %lld rows\n", round,
                static_cast<unsigned long long>(last + 1 - generation),
                static_cast<unsigned long long>(synced + 1 - generation), static_cast<long long>(owner.size()));
    generation = last + 100;
    if (testing::Test::HasFailure()) break;
  }
  SsdHashOptions last = Options(Env::Posix(), directory);
  last.keep = false;
  EXPECT_TRUE(SsdHashTier::Open(last).ok());  // deletes the files
}

}  // namespace
}  // namespace multitier::crash_test
