#include "cc/env/slot_file.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"

namespace multitier::slot_file_test {
namespace {

constexpr char kPath[] = "/d/list";
constexpr size_t kSectorBytes = 512;

class SlotFileTest : public testing::Test {
 protected:
  SlotFileTest() : env_(&memory_) {
    EXPECT_TRUE(env_.CreateDir("/d").ok());
    EXPECT_TRUE(env_.SyncDir("/").ok());
  }
  std::string ReadFile() {
    Result<std::unique_ptr<RandomAccessFile>> file = env_.NewRandomAccessFile(kPath);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    const Result<uint64_t> size = (*file)->Size();
    std::string bytes(*size, '\0');
    EXPECT_TRUE((*file)->Read(0, bytes.size(), bytes.data()).ok());
    return bytes;
  }
  void WriteFile(const std::string& bytes) {
    Result<std::unique_ptr<WritableFile>> file = env_.NewWritableFile(kPath);
    ASSERT_TRUE(file.ok() && (*file)->Append(bytes.data(), bytes.size()).ok());
  }
  std::string Load() {
    const Result<std::string> loaded = SlotFile(&env_, kPath).Load();
    EXPECT_TRUE(loaded.ok()) << loaded.status().ToString();
    return loaded.ok() ? *loaded : "";
  }
  // Contents of some length, different for each number.
  static std::string Contents(int number) {
    std::string out;
    std::mt19937 random(number);
    for (size_t n = static_cast<size_t>(number) * 611 % 3500; n > 0; --n) out.push_back(static_cast<char>(random()));
    return out + std::to_string(number);
  }

  InMemoryEnv memory_;
  FaultEnv env_;
};

TEST_F(SlotFileTest, HasWhatWasWrittenLast) {
  EXPECT_EQ(SlotFile(&env_, kPath).Load().status().code(), StatusCode::kNotFound);
  for (int life = 0; life < 3; ++life) {
    SlotFile file(&env_, kPath);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(file.Replace(Contents(20 * life + i)).ok());
      EXPECT_EQ(Load(), Contents(20 * life + i));
    }
    ASSERT_TRUE(file.Replace("").ok());
    EXPECT_EQ(Load(), "");
  }
}

TEST_F(SlotFileTest, ReplacingSyncsOneFileAndMakesNone) {
  SlotFile file(&env_, kPath);
  ASSERT_TRUE(file.Replace(Contents(1)).ok());
  const uint64_t made = env_.calls(FaultKind::kCreate), synced = env_.calls(FaultKind::kSync);
  const uint64_t directories = env_.calls(FaultKind::kSyncDir);
  ASSERT_TRUE(file.Replace(Contents(2)).ok());
  EXPECT_EQ(env_.calls(FaultKind::kCreate), made);
  EXPECT_EQ(env_.calls(FaultKind::kSync), synced + 1);
  EXPECT_EQ(env_.calls(FaultKind::kSyncDir), directories);
}

TEST_F(SlotFileTest, GrowsWithItsContentsAndTakesTheRoomBeforehand) {
  SlotFile file(&env_, kPath);
  ASSERT_TRUE(file.Replace("small").ok());
  const std::string large(100000, 'x');
  ASSERT_TRUE(file.Replace(large).ok());
  EXPECT_EQ(Load(), large);
  file.KeepRoom(300000);
  EXPECT_EQ(Load(), large);
  env_.FailFrom(FaultKind::kExtend, 1, ResourceExhaustedError("no space left on device"));
  EXPECT_TRUE(file.Replace(std::string(300000, 'y')).ok());
  file.KeepRoom(3000000);  // in vain
  EXPECT_TRUE(file.Replace("small").ok());
  EXPECT_EQ(file.Replace(std::string(3000000, 'z')).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(Load(), "small");
  EXPECT_TRUE(file.Replace("again").ok());
  env_.Disarm();
  EXPECT_EQ(Load(), "again");
}

// Every call fails once; and then the power does, at once or after the next success.
TEST_F(SlotFileTest, AfterAFailedCallOneOfBothIsThereAndTheNextSuccessLasts) {
  for (const bool goes_on : {false, true}) {
    bool fired = true;
    for (uint64_t n = 1; fired; ++n) {
      SlotFile file(&env_, kPath);
      ASSERT_TRUE(file.Replace("first").ok());
      env_.FailNth(FaultKind::kAny, n, UnavailableError("input/output error"));
      const bool replaced = file.Replace("second").ok() && file.Replace(std::string(9000, '3')).ok();
      fired = env_.Disarm();
      EXPECT_NE(replaced, fired) << n;
      const std::string found = Load();
      EXPECT_TRUE(found == "first" || found == "second" || found[0] == '3') << n << ": " << found;
      if (goes_on) {
        ASSERT_TRUE(file.Replace("fourth").ok());
        EXPECT_EQ(Load(), "fourth");
      }
      ASSERT_TRUE(env_.DropUnsyncedData().ok());
      const std::string left = Load();
      const bool of_before = left == "first" || left == "second" || left[0] == '3';
      EXPECT_TRUE(goes_on ? left == "fourth" : of_before) << n << ": " << left;
    }
  }
}

// A process that read the file does not know whether it is on the disk.
TEST_F(SlotFileTest, WhatAProcessDidNotSyncIsNoDangerToTheNextOne) {
  SlotFile first(&env_, kPath);
  ASSERT_TRUE(first.Replace("one").ok());
  env_.FailFrom(FaultKind::kSync, 1, UnavailableError("the process died"));
  EXPECT_FALSE(first.Replace("two").ok());
  env_.Disarm();
  SlotFile second(&env_, kPath);
  env_.FailFrom(FaultKind::kSync, 1, UnavailableError("the power failed"));
  EXPECT_FALSE(second.Replace("three").ok());
  env_.Disarm();
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_EQ(Load(), "one");
}

TEST_F(SlotFileTest, ASlotThatWasWrittenInPartIsNotTaken) {
  std::mt19937 random(7);
  std::set<int> taken, left;
  SlotFile file(&env_, kPath);
  ASSERT_TRUE(file.Replace(Contents(100)).ok());
  for (int round = 0; round < 300; ++round) {
    const std::string old_contents = Contents(round), new_contents = Contents(round + 1);
    ASSERT_TRUE(file.Replace(old_contents).ok());
    const std::string before = ReadFile();
    ASSERT_TRUE(file.Replace(new_contents).ok());
    const std::string whole = ReadFile();
    std::string torn = whole;
    if (before.size() != torn.size()) continue;
    for (size_t at = 0; at < torn.size(); at += kSectorBytes) {
      if (random() % 2 == 0) torn.replace(at, kSectorBytes, before, at, kSectorBytes);
    }
    WriteFile(torn);
    const std::string found = Load();
    EXPECT_TRUE(found == new_contents || (found == old_contents && torn != whole)) << round;
    (found == new_contents ? &taken : &left)->insert(round);
    WriteFile(whole);
  }
  EXPECT_GT(taken.size(), 10u);
  EXPECT_GT(left.size(), 100u);
}

TEST_F(SlotFileTest, EveryFlippedBitAndEveryCutIsDataLoss) {
  SlotFile file(&env_, kPath);
  ASSERT_TRUE(file.Replace(Contents(1)).ok());
  ASSERT_TRUE(file.Replace(Contents(2)).ok());
  const std::string whole = ReadFile();
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
    WriteFile(damaged);
    const Status status = file.Load().status();
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << at;
    ASSERT_NE(status.message().find("'/d/list' at offset " + std::to_string(at / kSectorBytes * kSectorBytes)),
              std::string::npos)
        << status.message();
  }
  for (size_t bytes = 0; bytes < whole.size(); bytes += bytes % kSectorBytes == 0 ? 1 : kSectorBytes - 1) {
    WriteFile(whole.substr(0, bytes));
    ASSERT_EQ(file.Load().status().code(), StatusCode::kDataLoss) << bytes;
  }
}

}  // namespace
}  // namespace multitier::slot_file_test
