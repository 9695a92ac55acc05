// What recovery finds after a crash of the process, a loss of power, and damage of every file.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"
#include "cc/tier/ssdhash/log_owner.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

SsdHashOptions Options(Env* env, const std::string& directory) {
  SsdHashOptions options;
  options.env = env;
  options.directory = directory;
  options.recover = true;
  options.keep = true;
  options.min_segment_bytes = 32 << 10;
  return options;
}

// A tier in memory, and who uses it.
class RecoveryTest : public testing::Test {
 protected:
  RecoveryTest() { EXPECT_TRUE(memory_.CreateDir("d").ok()); }
  ~RecoveryTest() override { Close(); }

  Status Open(Env* env = nullptr) {
    Close();
    Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(env == nullptr ? &memory_ : env, "d"));
    if (!tier.ok()) return tier.status();
    tier_ = *std::move(tier);
    owner_.Attach(tier_.get());
    return OkStatus();
  }
  void Close() {
    if (tier_ != nullptr) owner_.Detach();
    tier_.reset();
  }
  std::vector<std::string> Segments() {
    std::vector<std::string> found;
    const Result<std::vector<std::string>> names = memory_.ListDir("d");
    for (const std::string& name : *names) {
      if (name.size() > 10) found.push_back("d/" + name);
    }
    return found;
  }

  void CopyFiles(InMemoryEnv* to) {
    ASSERT_TRUE(to->CreateDir("d").ok());
    const Result<std::vector<std::string>> names = memory_.ListDir("d");
    for (const std::string& name : *names) {
      std::unique_ptr<RandomAccessFile> from = *memory_.NewRandomAccessFile("d/" + name);
      std::string bytes(*from->Size(), '\0');
      ASSERT_TRUE(from->Read(0, bytes.size(), bytes.data()).ok());
      ASSERT_TRUE((*to->NewWritableFile("d/" + name))->Append(bytes.data(), bytes.size()).ok());
    }
  }
  // *was_zero: the whole file was zero already.
  static void ZeroSector(InMemoryEnv* env, const std::string& path, uint64_t offset, bool* was_zero) {
    std::unique_ptr<RandomAccessFile> file = *env->NewRandomAccessFile(path);
    std::string bytes(*file->Size(), '\0');
    ASSERT_TRUE(file->Read(0, bytes.size(), bytes.data()).ok());
    *was_zero = bytes.find_first_not_of('\0') == std::string::npos;
    bytes.replace(offset, 512, 512, '\0');
    ASSERT_TRUE((*env->NewWritableFile(path))->Append(bytes.data(), bytes.size()).ok());
  }
  // That a read of the key names it, its file, and the offset of its record, which holds the damaged byte.
  void ExpectDataLoss(int64_t key, const std::string& path, uint64_t damaged) {
    ReadRecord read;
    read.key = key;
    read.location = owner_.location(key);
    ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
    EXPECT_EQ(read.status.code(), StatusCode::kDataLoss);
    const std::string& message = read.status.message();
    EXPECT_NE(message.find(StrCat("key ", key, " ")), std::string::npos) << message;
    EXPECT_NE(message.find(path), std::string::npos) << message;
    const size_t at = message.find("offset ");
    ASSERT_NE(at, std::string::npos) << message;
    const uint64_t offset = std::strtoull(message.c_str() + at + 7, nullptr, 10);
    EXPECT_LE(offset, damaged);
    EXPECT_GT(offset + 68, damaged);
  }

  InMemoryEnv memory_;
  std::unique_ptr<SsdHashTier> tier_;
  LogOwner owner_;
};

TEST_F(RecoveryTest, EmptyDirectoryIsAnEmptyTier) {
  ASSERT_TRUE(Open().ok());
  EXPECT_EQ(tier_->recovery().segments, 0);
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
    std::map<int64_t, uint64_t> acknowledged;    // generation; 0: removed
    std::map<int64_t, std::set<uint64_t>> later;  // generations since
    uint64_t generation = 0;
    for (int life = 0; life < 3; ++life) {
      ASSERT_TRUE(Open(&env).ok());
      EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
      for (int64_t key = 0; key < 700; ++key) {
        const uint64_t found = owner_.generation(key);
        const bool known = acknowledged.count(key) > 0 ? found == acknowledged[key] : found == 0;
        EXPECT_TRUE(known || later[key].count(found) > 0)
            << "round " << round << " life " << life << " key " << key << ": found " << found << ", expected " << acknowledged[key];
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

// One bit of every byte of every file: recovery fails with DataLoss naming the file, or every row it gives is right, or
// DataLoss naming key, file and offset.
TEST_F(RecoveryTest, FlippedBitIsReportedOrHarmlessNeverAWrongRow) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  ASSERT_TRUE(owner_.Put(Range(0, 30), 2).ok());
  ASSERT_TRUE(owner_.Remove(Range(50, 60)).ok());
  Close();
  std::vector<std::string> files = Segments();
  ASSERT_EQ(files.size(), 1u);
  files.push_back("d/ssd.id");
  int refused = 0, reported = 0, harmless = 0;
  for (const std::string& path : files) {
    const uint64_t size = *(*memory_.NewRandomAccessFile(path))->Size();
    for (uint64_t offset = 0; offset < size; ++offset) {
      InMemoryEnv copy;
      CopyFiles(&copy);
      ASSERT_TRUE(copy.FlipBit(path, offset, static_cast<int>(offset % 8)).ok());
      const Status opened = Open(&copy);
      if (!opened.ok()) {
        EXPECT_TRUE(opened.code() == StatusCode::kDataLoss || opened.code() == StatusCode::kUnimplemented) << opened.ToString();
        EXPECT_NE(opened.message().find(path), std::string::npos) << opened.ToString();
        ++refused;
        continue;
      }
      EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
      EXPECT_EQ(owner_.size(), 80u) << path << " offset " << offset;
      EXPECT_EQ(owner_.Wrong(StatusCode::kDataLoss), std::vector<int64_t>()) << path << " offset " << offset;
      const std::vector<int64_t> damaged = owner_.Wrong();
      ++(damaged.empty() ? harmless : reported);
      EXPECT_LE(damaged.size(), 1u);
      for (const int64_t key : damaged) ExpectDataLoss(key, path, offset);
      Close();
      if (HasFailure()) return;
    }
  }
  std::printf("%d refused, %d reported when read, %d harmless\n", refused, reported, harmless);
  EXPECT_GT(refused, 4000);   // the header, the id
  EXPECT_GT(reported, 5000);  // 80 records
}

// The same under a tier that is in use.
TEST_F(RecoveryTest, BitFlippedUnderALiveTierIsReportedOrHarmless) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  ASSERT_TRUE(Open().ok());  // sealed, all of it in the file
  EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
  const std::string path = Segments()[0];
  const uint64_t size = *(*memory_.NewRandomAccessFile(path))->Size();
  int reported = 0;
  for (uint64_t offset = 0; offset < size; ++offset) {
    ASSERT_TRUE(memory_.FlipBit(path, offset, static_cast<int>(offset % 8)).ok());
    EXPECT_EQ(owner_.Wrong(StatusCode::kDataLoss), std::vector<int64_t>()) << offset;
    const std::vector<int64_t> damaged = owner_.Wrong();
    EXPECT_LE(damaged.size(), 1u);
    for (const int64_t key : damaged) ExpectDataLoss(key, path, offset);
    reported += static_cast<int>(damaged.size());
    ASSERT_TRUE(memory_.FlipBit(path, offset, static_cast<int>(offset % 8)).ok());
    if (HasFailure()) return;
  }
  EXPECT_EQ(reported, 90 * 68);
}

TEST_F(RecoveryTest, ScanGoesPastDamagedRecordsAndNamesTheFirst) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  ASSERT_TRUE(Open().ok());  // sealed
  const std::string path = Segments()[0];
  const uint64_t size = *(*memory_.NewRandomAccessFile(path))->Size();
  ASSERT_TRUE(memory_.FlipBit(path, size - 4096 + 8, 3).ok());  // the footer
  for (const int slot : {20, 40}) ASSERT_TRUE(memory_.FlipBit(path, 4096 + static_cast<uint64_t>(slot) * 68 + 1, 3).ok());
  std::set<int64_t> seen;
  const Status status = tier_->Scan([&](const RecordHeader& header, uint32_t) {
    seen.insert(header.key);
    return OkStatus();
  });
  EXPECT_EQ(seen.size(), 88u);
  EXPECT_EQ(seen.count(20) + seen.count(40), 0u);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  for (const std::string& part : {path, StrCat("offset ", 4096 + 20 * 68), std::string("2 records")}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  }
}

TEST_F(RecoveryTest, DamagedRecordIsDataLossNamingKeyFileAndOffsetAndTheRestMovesOn) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 3000), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  ASSERT_TRUE(memory_.FlipBit(Segments()[1], 4096 + 50, 3).ok());  // its first record: key 0. [0] is in reserve
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>{0});
  ReadRecord read;
  read.key = 0;
  read.location = owner_.location(0);
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
  EXPECT_EQ(read.status.code(), StatusCode::kDataLoss);
  for (const std::string& part : {std::string("key 0"), Segments()[1], std::string("offset 4096")}) {
    EXPECT_NE(read.status.message().find(part), std::string::npos) << read.status.ToString();
  }
  // Compaction cannot move it, and moves everything else; in the end the owner gives it up.
  for (uint64_t generation = 2; generation < 12; ++generation) {
    for (int64_t from = 1; from < 3000; from += 500) ASSERT_TRUE(owner_.Put(Range(from, from + 250), generation).ok());
  }
  ASSERT_TRUE(tier_->Compact().ok());
  EXPECT_EQ(tier_->stats().compaction_debt_bytes, 0);
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>{0});
  ASSERT_TRUE(owner_.Remove({0}).ok());
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
}

// What a killed process leaves: an open segment without a footer.
TEST_F(RecoveryTest, UnsealedSegmentIsReadUpToItsLastGoodRecordAndBadOnesAreCounted) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 100), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  InMemoryEnv copy;
  CopyFiles(&copy);
  Close();
  const std::string path = "d/ssd-0000000000000002-0.seg";  // the first is what compaction has in reserve
  ASSERT_TRUE(copy.FlipBit(path, 4096 + 20 * 68 + 1, 3).ok());
  ASSERT_TRUE(Open(&copy).ok());
  EXPECT_EQ(tier_->recovery().unsealed_segments, 1);
  EXPECT_EQ(tier_->recovery().damaged_records, 1);
  EXPECT_EQ(tier_->recovery().first_damage, StrCat("'", path, "' at offset ", 4096 + 20 * 68));
  EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
  EXPECT_EQ(owner_.size(), 99u);
  EXPECT_EQ(owner_.generation(20), 0u);
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
  Close();
}

// A header that was acknowledged and is gone is no segment that was never written.
TEST_F(RecoveryTest, HeaderOfZerosIsReadWithTheLayoutOfAnotherSegment) {
  for (const bool sealed : {true, false}) {
    SCOPED_TRACE(sealed);
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    ASSERT_TRUE(owner_.Put(Range(0, 3000), 1).ok());
    ASSERT_TRUE(owner_.Remove(Range(5, 10)).ok());
    ASSERT_TRUE(tier_->Sync().ok());
    if (sealed) Close();
    for (const std::string& path : Segments()) {
      for (const uint64_t sector : {0, 7}) {
        InMemoryEnv copy;
        CopyFiles(&copy);
        bool reserve = false;
        ASSERT_NO_FATAL_FAILURE(ZeroSector(&copy, path, sector * 512, &reserve));
        LogOwner owner;
        Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(&copy, "d"));
        ASSERT_TRUE(tier.ok()) << tier.status().ToString();
        owner.Attach(tier->get());
        EXPECT_EQ((*tier)->recovery().lost_headers, reserve ? 0 : 1) << path;
        EXPECT_EQ((*tier)->recovery().first_damage, reserve ? "" : StrCat("'", path, "' at offset 0"));
        EXPECT_EQ(owner.Adopt(), std::vector<int64_t>());
        EXPECT_EQ(owner.size(), 2995u) << path;
        EXPECT_EQ(owner.Wrong(), std::vector<int64_t>()) << path;
        EXPECT_TRUE(owner.Put(Range(0, 3000), 2).ok());  // compaction goes over it
        EXPECT_TRUE((*tier)->Compact().ok());
        EXPECT_EQ(owner.Wrong(), std::vector<int64_t>()) << path;
        owner.Detach();
      }
    }
    Close();
    for (const std::string& path : Segments()) ASSERT_TRUE(memory_.DeleteFile(path).ok());
  }
}

TEST_F(RecoveryTest, HeaderOfZerosIsReadWithTheFirstColumnsOfAWiderSegment) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  ASSERT_TRUE(tier_->SetLayout(TierTestLayout(3)).ok());
  ASSERT_TRUE(owner_.Put(Range(90, 180), 1).ok());
  Close();
  ASSERT_EQ(Segments().size(), 2u);
  bool reserve = false;
  ASSERT_NO_FATAL_FAILURE(ZeroSector(&memory_, Segments()[0], 0, &reserve));
  Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(&memory_, "d"));
  ASSERT_TRUE(tier.ok()) << tier.status().ToString();
  EXPECT_EQ((*tier)->recovery().lost_headers, 1);
  EXPECT_EQ((*tier)->recovery().rows, 180);
  ASSERT_TRUE((*tier)->SetLayout(TierTestLayout(3)).ok());
  const auto check = [&](const RecordHeader& header, uint32_t location) {
    const TestRecord wanted(header.key, 1, 2);
    std::vector<uint8_t> data(TierTestLayout(3)->row_bytes());
    ReadRecord read;
    read.key = header.key;
    read.location = location;
    read.row_data = data.data();
    MT_RETURN_IF_ERROR((*tier)->Read(Span<ReadRecord>(&read, 1)));
    EXPECT_TRUE(read.status.ok()) << read.status.ToString();
    EXPECT_TRUE(std::equal(wanted.row_data.begin(), wanted.row_data.end(), data.begin())) << header.key;
    return OkStatus();
  };
  EXPECT_TRUE((*tier)->Scan(check).ok());
}

TEST_F(RecoveryTest, HeaderOfZerosWithoutAnotherSegmentIsDataLossNamingTheFileWhichStays) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  Close();
  ASSERT_EQ(Segments().size(), 1u);
  const std::string path = Segments()[0];
  bool reserve = false;
  ASSERT_NO_FATAL_FAILURE(ZeroSector(&memory_, path, 0, &reserve));
  for (int again = 0; again < 2; ++again) {
    const Status refused = Open();
    EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
    EXPECT_NE(refused.message().find(StrCat("'", path, "' at offset 0")), std::string::npos) << refused.ToString();
  }
  ASSERT_TRUE(memory_.Truncate(path, 1000).ok());
  EXPECT_EQ(Open().code(), StatusCode::kDataLoss);
  EXPECT_EQ(Segments().size(), 1u);
  ASSERT_TRUE(memory_.Truncate(path, 0).ok());  // made, and never written
  EXPECT_TRUE(Open().ok());
}

TEST_F(RecoveryTest, FilesOfAnotherInstanceAreRefused) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 10), 1).ok());
  Close();
  const std::string path = Segments()[0];
  std::string bytes(*(*memory_.NewRandomAccessFile(path))->Size(), '\0');
  ASSERT_TRUE((*memory_.NewRandomAccessFile(path))->Read(0, bytes.size(), bytes.data()).ok());
  ASSERT_TRUE(memory_.DeleteFile(path).ok());
  ASSERT_TRUE(memory_.DeleteFile("d/ssd.id").ok());
  ASSERT_TRUE(Open().ok());
  Close();
  ASSERT_TRUE((*memory_.NewWritableFile(path))->Append(bytes.data(), bytes.size()).ok());
  const Status refused = Open();
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_NE(refused.message().find("another instance"), std::string::npos) << refused.ToString();
  EXPECT_EQ(Segments().size(), 1u);  // and left alone
}

// The parent knows from a pipe what the child acknowledged when it was killed.
TEST(CrashTest, KilledProcessLosesNothingAcknowledged) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "under ThreadSanitizer the child of a process with threads may not start any";
#endif
  const char* rounds_text = std::getenv("MT_CRASH_ROUNDS");
  const int rounds = rounds_text == nullptr ? 5 : std::atoi(rounds_text);
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
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
    ::usleep(static_cast<useconds_t>(20000 + random() % 100000));
    ::kill(child, SIGKILL);
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
                static_cast<unsigned long long>(last + 1 - generation), static_cast<unsigned long long>(synced + 1 - generation),
                static_cast<long long>(owner.size()));
    generation = last + 100;
    if (testing::Test::HasFailure()) break;
  }
  SsdHashOptions last = Options(Env::Posix(), directory);
  last.keep = false;
  EXPECT_TRUE(SsdHashTier::Open(last).ok());  // deletes the files
}

// An instance of another process: refused while it lives, taken over once it is killed, and removed by the next of its name
// if nobody does.
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
}  // namespace multitier
