// A kept tier whose files are in memory, and which can be reopened. Test only.

#ifndef CC_TIER_SSDHASH_RECOVERY_TEST_UTIL_H_
#define CC_TIER_SSDHASH_RECOVERY_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cc/env/memory_env.h"
#include "cc/tier/ssdhash/segment_list.h"
#include "cc/tier/ssdhash/ssdhash_test_util.h"

namespace multitier {

// Those of a tier that begins in an empty directory, and takes over one that holds a tier.
inline SsdHashOptions Options(Env* env, const std::string& directory) {
  SsdHashOptions options;
  options.env = env;
  options.directory = directory;
  options.recover = *env->FileExists(directory + "/ssd.id");
  options.keep = true;
  options.min_segment_bytes = 32 << 10;
  return options;
}

// A tier in memory, with its owner.
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

  // Empties the directory.
  void StartAnew() {
    Close();
    const Result<std::vector<std::string>> names = memory_.ListDir("d");
    for (const std::string& name : *names) ASSERT_TRUE(memory_.DeleteFile("d/" + name).ok());
  }
  // Makes the list of segments an empty one, as if nothing had been acknowledged.
  static void EmptyTheList(InMemoryEnv* env) {
    InstanceId instance;
    ASSERT_TRUE((*env->NewRandomAccessFile("d/ssd.id"))->Read(12, instance.size(), instance.data()).ok());
    ASSERT_TRUE(SegmentList(env, "d", instance).Replace({}).ok());
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
  // *was_zero: the whole file was zero already; *sector_was_zero (may be null): the sector was.
  static void ZeroSector(InMemoryEnv* env, const std::string& path, uint64_t offset, bool* was_zero,
                         bool* sector_was_zero = nullptr) {
    std::unique_ptr<RandomAccessFile> file = *env->NewRandomAccessFile(path);
    std::string bytes(*file->Size(), '\0');
    ASSERT_TRUE(file->Read(0, bytes.size(), bytes.data()).ok());
    *was_zero = bytes.find_first_not_of('\0') == std::string::npos;
    if (sector_was_zero != nullptr) *sector_was_zero = bytes.substr(offset, 512).find_first_not_of('\0') == std::string::npos;
    bytes.replace(offset, 512, 512, '\0');
    ASSERT_TRUE((*env->NewWritableFile(path))->Append(bytes.data(), bytes.size()).ok());
  }
  // Expects that the error of a read has the key, its file, and the offset of the record with the damaged byte.
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

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_RECOVERY_TEST_UTIL_H_
