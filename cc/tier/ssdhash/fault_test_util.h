// FaultTest: a tier over files in memory whose calls can fail. Test only.

#ifndef CC_TIER_SSDHASH_FAULT_TEST_UTIL_H_
#define CC_TIER_SSDHASH_FAULT_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"
#include "cc/tier/ssdhash/ssdhash_test_util.h"

namespace multitier {

class FaultTest : public testing::Test {
 protected:
  void Start() {
    memory_ = std::make_unique<InMemoryEnv>();
    EXPECT_TRUE(memory_->CreateDir("d").ok());
    env_ = std::make_unique<FaultEnv>(memory_.get());
    Open();
  }
  void Open() {
    SsdHashOptions options;
    options.env = env_.get();
    options.directory = "d";
    options.recover = *memory_->FileExists("d/ssd.id");
    options.keep = keep_;
    options.min_segment_bytes = min_segment_bytes_;
    options.direct_io = direct_io_;
    Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(options);
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    tier_ = *std::move(tier);
    owner_ = std::make_unique<LogOwner>();
    owner_->Attach(tier_.get());
  }

  // Puts, removes and syncs that fill segments and compact. Returns the number of operations that failed.
  int Work(const Status& fault) {
    int failed = 0;
    const auto check = [&](const Status& status) {
      if (status.ok()) return;
      // An allocation that fails has no Status of its own.
      EXPECT_TRUE(status.code() == fault.code() || status.code() == StatusCode::kResourceExhausted) << status.ToString();
      ++failed;
    };
    for (uint64_t generation = 2; generation < 14; ++generation) {
      const int64_t from = static_cast<int64_t>(generation * 37 % 300);
      check(owner_->Put(Range(from, from + 200), generation));
      if (generation % 3 == 0) check(owner_->Remove(Range(from, from + 20)));
      if (generation % 4 == 0) check(tier_->Sync());
    }
    check(tier_->Compact());
    return failed;
  }

  // REQUIRES: everything was synced
  void CrashAndExpectTheSame(uint64_t n) {
    std::map<int64_t, uint64_t> before, after;
    for (int64_t key = 0; key < 1000; ++key) before[key] = owner_->generation(key);
    ASSERT_TRUE(env_->DropUnsyncedData().ok());
    owner_->Detach();
    tier_.reset();
    Open();
    EXPECT_EQ(owner_->Adopt(), std::vector<int64_t>());
    for (int64_t key = 0; key < 1000; ++key) after[key] = owner_->generation(key);
    ASSERT_EQ(before, after) << "call " << n;
    ASSERT_EQ(owner_->Wrong(), std::vector<int64_t>()) << "call " << n;
  }

  bool direct_io_ = true, keep_ = true;
  uint64_t min_segment_bytes_ = 32 << 10;
  std::unique_ptr<InMemoryEnv> memory_;
  std::unique_ptr<FaultEnv> env_;
  std::unique_ptr<LogOwner> owner_;
  std::unique_ptr<SsdHashTier> tier_;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_FAULT_TEST_UTIL_H_
