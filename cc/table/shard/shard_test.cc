#include "cc/table/shard/shard.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace multitier::shard_test {
namespace {

class ShardTest : public ::testing::Test {
 protected:
  ShardTest() {
    common_.env = Env::Posix();
    common_.levels.count = 1;
    shard_ = std::make_unique<Shard>(&common_, std::make_shared<const RowLayout>(*RowLayout::Create(4, DType::kFloat32)),
                                     ShardIndex::Limits{1 << 20}, nullptr);
  }

  ShardCommon common_;
  std::unique_ptr<Shard> shard_;
};

TEST_F(ShardTest, SharedLocksDoNotExcludeEachOther) {
  const Shard::Shared one(shard_.get());
  std::thread([this] { EXPECT_EQ(Shard::Shared(shard_.get())->counts().rows, 0); }).join();
}

TEST_F(ShardTest, AWriterWaitsForReadersAndReadersForAWriter) {
  std::atomic<bool> written{false};
  std::thread writer;
  {
    const Shard::Shared reader(shard_.get());
    writer = std::thread([&] {
      Shard::Locked lock(shard_);
      ++lock->counters().updates;
      written = true;
    });
    EXPECT_FALSE(written);
  }
  writer.join();
  EXPECT_EQ(Shard::Shared(shard_.get())->counters().updates, 1);
}

TEST_F(ShardTest, AWaitForAResolutionGivesTheLockUp) {
  uint64_t seen = 0;
  uint32_t id = 0;
  {
    Shard::Locked lock(shard_);
    ASSERT_TRUE(lock->ReserveWords(1).ok() && lock->Adopt(HashKey(7), 0, 40).ok());
    id = lock->records().BeginRead(7, HashKey(7), {}).id;
    seen = lock.resolutions();
  }
  std::thread waiter([&] {
    Shard::Locked lock(shard_);
    lock.WaitForResolution(seen);
    EXPECT_FALSE(lock->records().reading());
  });
  Shard::Locked(shard_)->records().EndRead(HashKey(7), id);
  waiter.join();
}

}  // namespace
}  // namespace multitier::shard_test
