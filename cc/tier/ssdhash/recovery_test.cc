// What recovery finds after a loss of power, and of whom. Crashes at any moment: crash_test.cc.

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "cc/env/fault_env.h"
#include "cc/tier/ssdhash/recovery_test_util.h"
#include "cc/tier/ssdhash/segment_format.h"

namespace multitier::recovery_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

TEST_F(RecoveryTest, EmptyDirectoryIsAnEmptyTier) {
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(tier_->recovery().files, 0);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(tier_->stats().rows, 0);
}

TEST_F(RecoveryTest, NewestRecordsComeBackAndRemovedKeysDoNot) {
  ASSERT_TRUE(Open().ok());
  for (uint64_t generation = 1; generation <= 5; ++generation) ASSERT_TRUE(owner_.Put(Range(0, 1000), generation).ok());
  ASSERT_TRUE(owner_.Remove(Range(100, 200)).ok());
  ASSERT_TRUE(owner_.Put(Range(150, 160), 6).ok());
  for (int reopened = 0; reopened < 3; ++reopened) {
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    EXPECT_EQ(owner_.size(), 910u);
    EXPECT_EQ(tier_->recovery().rows, 910);
    EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
    EXPECT_EQ(owner_.generation(5), 5u);
    EXPECT_EQ(owner_.generation(155), 6u);
    EXPECT_EQ(owner_.generation(165), 0u);
    ASSERT_EQ(tier_->recovered_columns().size(), 2u);
    EXPECT_EQ(tier_->recovered_columns()[1].name, "slot");
  }
  ASSERT_TRUE(owner_.Put(Range(0, 1000), 9).ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
  EXPECT_EQ(owner_.generation(165), 9u);
}

TEST_F(RecoveryTest, LayoutThatDoesNotExtendTheRecoveredOneIsRefused) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put({1}, 1).ok());
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(tier_->SetLayout(TierTestLayout(1)).code(), StatusCode::kFailedPrecondition);
  const auto other = std::make_shared<const RowLayout>(*RowLayout::Create(4, DType::kFloat32));
  EXPECT_EQ(tier_->SetLayout(other).code(), StatusCode::kFailedPrecondition);
  EXPECT_TRUE(tier_->SetLayout(TierTestLayout(3)).ok());
}

// Removed keys whose old records stand among records that stay, while the segments of their tombstones are compacted again
// and again.
TEST_F(RecoveryTest, TombstonesOutliveTheSegmentsTheyWereWrittenTo) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 4000), 1).ok());
  std::vector<int64_t> removed;
  for (int64_t key = 0; key < 4000; key += 40) removed.push_back(key);
  ASSERT_TRUE(owner_.Remove(removed).ok());
  for (uint64_t generation = 2; generation < 60; ++generation) ASSERT_TRUE(owner_.Put(Range(5000, 5600), generation).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  EXPECT_GT(tier_->stats().device_written_bytes, 0);
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
  EXPECT_EQ(owner_.size(), 4000u - removed.size() + 600u);
  for (const int64_t key : removed) ASSERT_EQ(owner_.generation(key), 0u) << key;
}

// A row that changes in memory gives its record up long before it has another.
TEST_F(RecoveryTest, NewestRecordThatWasFreedStaysUntilAnotherIsWritten) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 4000), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  std::vector<KeyLocation> given_up;
  for (int64_t key = 0; key < 4000; key += 3) owner_.Forget(key, &given_up);
  for (KeyLocation& record : given_up) record.newest = true;
  const int64_t rows = tier_->stats().rows;
  tier_->Free(given_up);
  EXPECT_EQ(tier_->stats().rows, rows - static_cast<int64_t>(given_up.size()));
  // Compaction goes over all that was there, several times.
  for (uint64_t generation = 2; generation < 30; ++generation) {
    std::vector<int64_t> others;
    for (const int64_t key : Range(0, 4000)) {
      if (key % 3 != 0) others.push_back(key);
    }
    ASSERT_TRUE(owner_.Put(others, generation).ok());
  }
  ASSERT_TRUE(owner_.Remove({3, 9}).ok());
  ASSERT_TRUE(owner_.Put({6}, 40).ok());
  ASSERT_TRUE(tier_->Compact().ok());
  EXPECT_GT(tier_->stats().relocated_rows, 0);
  EXPECT_LT(tier_->stats().stored_bytes, 1 << 20);  // of 5 MB written
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
  for (int reopened = 0; reopened < 2; ++reopened) {
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    EXPECT_EQ(owner_.size(), 3998u);
    EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
    EXPECT_EQ(owner_.generation(0), 1u);
    EXPECT_EQ(owner_.generation(3), 0u);
    EXPECT_EQ(owner_.generation(6), 40u);
    EXPECT_EQ(owner_.generation(7), 29u);
  }
}

// Random operations, a power loss, recovery: what was synced is there, or newer; what was removed and synced is not, unless
// written again; nothing is torn. Several lives.
TEST_F(RecoveryTest, PowerLossKeepsWhatWasAcknowledged) {
  const char* rounds_text = std::getenv("MT_CRASH_ROUNDS");
  const int rounds = rounds_text == nullptr ? 6 : std::atoi(rounds_text);
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    InMemoryEnv memory;
    ASSERT_TRUE(memory.CreateDir("d").ok());
    FaultEnv env(&memory);
    std::map<int64_t, uint64_t> acknowledged;     // generation; 0: removed
    std::map<int64_t, std::set<uint64_t>> later;  // generations since
    uint64_t generation = 0;
    for (int life = 0; life < 3; ++life) {
      ASSERT_TRUE(Open(&env).ok());
      EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
      for (int64_t key = 0; key < 700; ++key) {
        const uint64_t found = owner_.generation(key);
        const bool known = acknowledged.count(key) > 0 ? found == acknowledged[key] : found == 0;
        EXPECT_TRUE(known || later[key].count(found) > 0) << "round " << round << " life " << life << " key " << key
                                                          << ": found " << found << ", expected " << acknowledged[key];
        acknowledged[key] = found;
      }
      later.clear();
      EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
      if (HasFailure()) return;
      const int operations = 20 + static_cast<int>(random() % 60);
      for (int i = 0; i < operations; ++i) {
        const int64_t from = static_cast<int64_t>(random() % 600);
        const std::vector<int64_t> keys = Range(from, from + 1 + static_cast<int64_t>(random() % 99));
        const bool removes = random() % 4 == 0;
        ++generation;
        ASSERT_TRUE(removes ? owner_.Remove(keys).ok() : owner_.Put(keys, generation).ok());
        for (const int64_t key : keys) later[key].insert(removes ? 0 : generation);
        if (random() % 10 != 0) continue;
        ASSERT_TRUE(tier_->Sync().ok());
        for (const auto& [key, unused] : later) acknowledged[key] = owner_.generation(key);
        later.clear();
      }
      ASSERT_TRUE(env.DropUnsyncedData().ok());
      Close();
    }
  }
}

TEST_F(RecoveryTest, FilesOfAnotherInstanceAreRefused) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 10), 1).ok());
  Close();
  const std::string path = Segments()[0];
  std::string bytes(*(*memory_.NewRandomAccessFile(path))->Size(), '\0');
  ASSERT_TRUE((*memory_.NewRandomAccessFile(path))->Read(0, bytes.size(), bytes.data()).ok());
  ASSERT_NO_FATAL_FAILURE(StartAnew());
  ASSERT_TRUE(Open().ok());
  Close();
  ASSERT_TRUE((*memory_.NewWritableFile(path))->Append(bytes.data(), bytes.size()).ok());
  const Status refused = Open();
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_NE(refused.message().find("another instance"), std::string::npos) << refused.ToString();
  EXPECT_EQ(Segments().size(), 1u);  // and left alone
}

// An instance of another process: refused while it lives, taken over once it is killed, or removed by the next of its name.
TEST(InstanceTest, LiveInstanceIsRefusedAndADeadOneIsRecoveredOrRemoved) {
  const std::string storage = StrCat(testing::TempDir(), "/ssdhash_instance_test_", static_cast<int>(::getpid()));
  for (const bool take_over : {true, false}) {
    int pipe_ends[2];
    ASSERT_EQ(::pipe(pipe_ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      SsdHashOptions options;
      Result<std::unique_ptr<InstanceDirectory>> instance = InstanceDirectory::Create(storage, "table/part_0", false);
      if (!instance.ok()) ::_exit(1);
      options.instance = *std::move(instance);
      options.keep = true;
      Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
      if (!tier.ok()) ::_exit(2);
      LogOwner owner;
      owner.Attach(tier->get());
      if (!owner.Put(Range(0, 1000), 1).ok() || !(*tier)->Sync().ok()) ::_exit(3);
      const std::string path = options.instance->path();
      if (::write(pipe_ends[1], path.data(), path.size()) != static_cast<ssize_t>(path.size())) ::_exit(4);
      ::pause();
      ::_exit(5);
    }
    ::close(pipe_ends[1]);
    char text[512];
    const ssize_t bytes = ::read(pipe_ends[0], text, sizeof(text));
    ::close(pipe_ends[0]);
    ASSERT_GT(bytes, 0);
    const std::string path(text, static_cast<size_t>(bytes));
    const Status refused = InstanceDirectory::Open(path, false).status();
    EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(refused.message().find(StrCat("process ", static_cast<int>(child))), std::string::npos) << refused.ToString();
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    if (take_over) {
      SsdHashOptions options;
      options.instance = *InstanceDirectory::Open(path, false);
      options.recover = true;
      Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
      ASSERT_TRUE(tier.ok()) << tier.status().ToString();
      LogOwner owner;
      owner.Attach(tier->get());
      EXPECT_EQ(owner.Adopt(), std::vector<int64_t>());
      EXPECT_EQ(owner.size(), 1000u);
      EXPECT_EQ(owner.Wrong(), std::vector<int64_t>());
      owner.Detach();
    } else {
      EXPECT_TRUE(InstanceDirectory::Create(storage, "table/part_0", false).ok());
    }
    EXPECT_FALSE(*Env::Posix()->FileExists(path));
  }
  (void)Env::Posix()->DeleteDir(storage);
}

}  // namespace
}  // namespace multitier::recovery_test
