// RemovedKeys: which keys are named since a version, what is forgotten, the file and its failures.

#include "cc/table/marks/removed_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"

namespace multitier::removed_keys_test {
namespace {

constexpr uint64_t kEntry = 16;  // bytes

class RemovedKeysTest : public testing::Test {
 protected:
  RemovedKeysTest() { EXPECT_TRUE(memory_.CreateDir("d").ok()); }

  InMemoryEnv memory_;
  FaultEnv env_{&memory_};
  std::atomic<int64_t> version_{0};
};

using Keys = std::vector<int64_t>;

TEST_F(RemovedKeysTest, GivesEachKeySinceAVersionOnce) {
  RemovedKeys removed(&env_, 100 * kEntry, "", &version_);
  removed.Note(7);
  version_ = 3;
  removed.Note(5);
  removed.Note(4);
  version_ = 9;
  removed.Note(5);
  EXPECT_EQ(*removed.Since(0), (Keys{4, 5, 7}));
  EXPECT_EQ(*removed.Since(1), (Keys{4, 5, 7})) << "7 may have left after version 1 of another part";
  EXPECT_EQ(*removed.Since(4), (Keys{4, 5}));
  version_ = 12;
  removed.Note(8);
  EXPECT_EQ(*removed.Since(4), (Keys{4, 5, 8}));
  EXPECT_EQ(*removed.Since(10), (Keys{5, 8}));
  EXPECT_EQ(*removed.Since(13), (Keys{8}));
}

TEST_F(RemovedKeysTest, WithoutAFileTheOldestAreForgottenAndAQuestionForThemIsRefused) {
  constexpr int kMost = 10;
  RemovedKeys removed(&env_, kMost * kEntry, "", &version_);
  for (int i = 0; i < 1000; ++i) {
    version_ = i / 2;
    removed.Note(i);
    removed.Spill();
    const int64_t oldest = std::max(0, i - kMost + 1);
    // Of a version of which one entry is forgotten, nothing is answered.
    const int64_t known = i < kMost ? 0 : (oldest - 1) / 2 + 1;
    if (i >= kMost) {
      const Status refused = removed.Since(known - 1).status();
      ASSERT_EQ(refused.code(), StatusCode::kFailedPrecondition) << i;
      EXPECT_NE(refused.message().find("expected a version above"), std::string::npos) << refused.ToString();
    }
    Keys expected;  // with those of the version before, where they are known
    for (int64_t key = std::max<int64_t>(oldest, known * 2 - 2); key <= i; ++key) expected.push_back(key);
    ASSERT_EQ(*removed.Since(known), expected) << i;
  }
  EXPECT_EQ(removed.file_bytes(), 0);
}

TEST_F(RemovedKeysTest, AFileHoldsWhatMemoryDoesNot) {
  RemovedKeys removed(&env_, 16 * kEntry, "d", &version_);
  std::multimap<int64_t, int64_t> model;  // version to key
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    if (random() % 3 == 0) ++version_;
    const auto key = static_cast<int64_t>(random() % 5000);
    removed.Note(key);
    model.emplace(version_, key);
    removed.Spill();
    if (i % 997 != 0) continue;
    const int64_t since = static_cast<int64_t>(random() % (static_cast<uint64_t>(version_) + 2));
    std::set<int64_t> expected;
    auto at = model.lower_bound(since);
    if (at != model.begin()) at = model.lower_bound(std::prev(at)->first);
    for (; at != model.end(); ++at) expected.insert(at->second);
    ASSERT_EQ(*removed.Since(since), Keys(expected.begin(), expected.end())) << i;
  }
  EXPECT_GT(removed.file_bytes(), 19000 * 16);
  EXPECT_TRUE(memory_.ListDir("d")->empty()) << "the file has no name";
}

// An operation notes all its keys before it can spill: with a file, none is forgotten.
TEST_F(RemovedKeysTest, AnOperationMayNoteMoreThanMemoryIsFor) {
  RemovedKeys removed(&env_, 8 * kEntry, "d", &version_);
  ASSERT_TRUE((*memory_.NewWritableFile("d/removed_keys"))->Append("left", 4).ok());  // by a process that died
  for (int64_t key = 0; key < 1000; ++key) removed.Note(key);
  EXPECT_EQ(removed.Since(0)->size(), 1000u);
  removed.Spill();
  EXPECT_EQ(removed.file_bytes(), 16000);
  EXPECT_EQ(removed.Since(0)->size(), 1000u);
}

TEST_F(RemovedKeysTest, ForgetLeavesWhatComesAfter) {
  RemovedKeys removed(&env_, 4 * kEntry, "d", &version_);
  for (int64_t key = 0; key < 9; ++key) {
    removed.Note(key);
    removed.Spill();
  }
  version_ = 5;
  removed.Forget();
  EXPECT_EQ(removed.file_bytes(), 0);
  EXPECT_EQ(removed.Since(5).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(*removed.Since(6), Keys());
  version_ = 6;
  removed.Note(77);
  EXPECT_EQ(*removed.Since(6), (Keys{77}));
}

// A write that fails loses what it was to write, and says so. Memory goes on.
TEST_F(RemovedKeysTest, AFullDiskForgetsTheOldest) {
  for (const FaultKind kind : {FaultKind::kCreate, FaultKind::kWrite}) {
    RemovedKeys removed(&env_, 8 * kEntry, "d", &version_);
    version_ = 1;
    env_.FailNth(kind, 1, ResourceExhaustedError("full"));
    for (int64_t key = 0; key < 4; ++key) removed.Note(key);
    removed.Spill();
    EXPECT_EQ(removed.Since(1).status().code(), StatusCode::kFailedPrecondition);
    version_ = 2;
    for (int64_t key = 4; key < 100; ++key) {
      version_ = key;
      removed.Note(key);
      removed.Spill();
    }
    EXPECT_EQ(*removed.Since(93), (Keys{92, 93, 94, 95, 96, 97, 98, 99}));
    EXPECT_EQ(removed.Since(91).status().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(removed.file_bytes(), 0);
  }
}

TEST_F(RemovedKeysTest, AFileThatCannotBeReadIsAnError) {
  RemovedKeys removed(&env_, 2 * kEntry, "d", &version_);
  for (int64_t key = 0; key < 4; ++key) {
    removed.Note(key);
    removed.Spill();
  }
  env_.FailNth(FaultKind::kRead, 1, UnavailableError("cable"));
  EXPECT_EQ(removed.Since(0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(*removed.Since(0), (Keys{0, 1, 2, 3}));
}

TEST_F(RemovedKeysTest, NoneIsNotedWithoutMemory) {
  RemovedKeys removed(&env_, 0, "d", &version_);
  removed.Note(1);
  EXPECT_FALSE(removed.notes());
  EXPECT_EQ(removed.Since(0).status().code(), StatusCode::kFailedPrecondition);
}

TEST_F(RemovedKeysTest, ThreadsNoteSpillAndAsk) {
  constexpr int64_t kKeys = 20000;
  RemovedKeys removed(&env_, 64 * kEntry, "d", &version_);
  std::vector<std::thread> threads;
  for (int64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t key = t; key < kKeys; key += 3) {
        if (key % 100 == 0) ++version_;
        removed.Note(key);
        if (key % 7 == 0) removed.Spill();
      }
    });
  }
  // A thread notes at most 7 keys before it spills, or waits for the one that does: nothing is forgotten.
  size_t most = 0;
  while (most < 5000) {
    const Result<Keys> keys = removed.Since(0);
    ASSERT_TRUE(keys.ok()) << keys.status().ToString();
    ASSERT_GE(keys->size(), most);
    most = keys->size();
  }
  for (std::thread& thread : threads) thread.join();
  Keys expected(kKeys);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(*removed.Since(0), expected);
}

}  // namespace
}  // namespace multitier::removed_keys_test
