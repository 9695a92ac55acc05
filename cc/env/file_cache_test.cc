#include "cc/env/file_cache.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"
#include "cc/env/posix_error.h"

namespace multitier::file_cache_test {
namespace {

class FileCacheTest : public testing::Test {
 protected:
  FileCacheTest() : capacity_(CachedFile::capacity()) { EXPECT_TRUE(env_.CreateDir("d").ok()); }
  ~FileCacheTest() override { CachedFile::SetCapacity(capacity_); }

  const size_t capacity_;
  InMemoryEnv env_;
};

TEST_F(FileCacheTest, AHeldFileIsReadAfterItWasDeletedWhateverTheCapacity) {
  const uint8_t seven = 7;
  ASSERT_TRUE((*(*CachedFile::Create(&env_, "d/held", false))->Open())->Write(0, &seven, 1).ok());
  const std::shared_ptr<CachedFile> held = *CachedFile::HeldOpen(&env_, "d/held", false);
  ASSERT_TRUE(env_.DeleteFile("d/held").ok());
  CachedFile::SetCapacity(1);
  for (const char* other : {"d/1", "d/2"}) EXPECT_TRUE(CachedFile::Create(&env_, other, false).ok());
  uint8_t byte = 0;
  ASSERT_TRUE((*held->Open())->Read(0, 1, &byte).ok());
  EXPECT_EQ(byte, seven);
  EXPECT_EQ(CachedFile::HeldOpen(&env_, "d/held", false).status().code(), StatusCode::kNotFound);
}

TEST_F(FileCacheTest, FilesBeyondTheCapacityAreClosedAndOpenedAgainForWhatTheyWereOpenedFor) {
  CachedFile::SetCapacity(4);
  std::vector<std::shared_ptr<CachedFile>> files;
  for (uint8_t i = 0; i < 10; ++i) {
    files.push_back(*CachedFile::Create(&env_, StrCat("d/", int{i}), false));
    ASSERT_TRUE((*files.back()->Open())->Write(0, &i, 1).ok());
    EXPECT_LE(CachedFile::open_files(), 4u);
  }
  for (uint8_t i = 0; i < 10; ++i) {
    uint8_t byte = 0xff;
    const std::shared_ptr<PositionedFile> file = *files[i]->Open();
    ASSERT_TRUE(file->Read(0, 1, &byte).ok());
    EXPECT_EQ(byte, i);
    EXPECT_TRUE(file->Write(1, &byte, 1).ok());
  }
  files.clear();
  EXPECT_EQ(CachedFile::open_files(), 0u);
}

TEST_F(FileCacheTest, WhatIsHeldStaysUsableBeyondTheCapacity) {
  CachedFile::SetCapacity(1);
  const std::shared_ptr<CachedFile> first = *CachedFile::Create(&env_, "d/first", false);
  const std::shared_ptr<PositionedFile> held = *first->Open();
  const std::shared_ptr<CachedFile> second = *CachedFile::Create(&env_, "d/second", false);
  EXPECT_EQ(CachedFile::open_files(), 1u);
  EXPECT_TRUE(held->Write(0, "x", 1).ok());
}

TEST_F(FileCacheTest, ErrorsAreTheEnvs) {
  ASSERT_TRUE(CachedFile::Create(&env_, "d/here", true).ok());
  EXPECT_EQ(CachedFile::Create(&env_, "d/here", true).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(CachedFile::ForReading(&env_, "d/gone", true)->Open().status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(CachedFile::ForReading(&env_, "d/here", true)->Open().ok());
}

TEST_F(FileCacheTest, OpenFilesMakeRoomWhereDescriptorsAreShort) {
  FaultEnv env(&env_);
  std::vector<std::shared_ptr<CachedFile>> files;
  for (int i = 0; i < 8; ++i) files.push_back(*CachedFile::Create(&env, StrCat("d/", i), true));
  const Status none = PosixError("open", "d", EMFILE);
  env.FailNth(FaultKind::kSyncDir, 1, none);
  EXPECT_TRUE(CachedFile::SyncDir(&env, "d").ok());
  EXPECT_TRUE(env.Disarm());
  EXPECT_EQ(CachedFile::open_files(), 4u);
  env.FailNth(FaultKind::kListDir, 1, none);
  EXPECT_EQ(CachedFile::ListDir(&env, "d")->size(), 8u);
  EXPECT_TRUE(env.Disarm());
  EXPECT_EQ(CachedFile::open_files(), 2u);
  env.FailNth(FaultKind::kOpen, 1, none);
  EXPECT_TRUE(files[0]->Open().ok());  // one that was closed
  EXPECT_TRUE(env.Disarm());
  EXPECT_EQ(CachedFile::open_files(), 2u);
  env.FailFrom(FaultKind::kSyncDir, 1, none);
  EXPECT_EQ(CachedFile::SyncDir(&env, "d").code(), StatusCode::kResourceExhausted);
}

TEST_F(FileCacheTest, FullDiskClosesNoFileAndIsAskedOnce) {
  FaultEnv env(&env_);
  const std::shared_ptr<CachedFile> file = *CachedFile::Create(&env, "d/file", true);
  for (const int error : {ENOSPC, EDQUOT, ENOMEM}) {
    const Status full = PosixError("fsync", "d", error);
    env.FailNth(FaultKind::kSyncDir, 1, full);
    EXPECT_EQ(CachedFile::SyncDir(&env, "d"), full);
    EXPECT_TRUE(env.Disarm());
    EXPECT_EQ(CachedFile::open_files(), 1u);
  }
}

}  // namespace
}  // namespace multitier::file_cache_test
