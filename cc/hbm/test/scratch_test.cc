// The pool of scratch memory: what it lends again, and what it gives back to the device.

#include "cc/hbm/scratch.h"

#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::scratch_test {
namespace {

TEST(ScratchPool, TablesOfADeviceShareIt) {
  const auto device = NewEmulatedDevice();
  const auto lent = std::make_shared<std::atomic<int64_t>>(0);
  const auto source = CountingSource(device, lent);
  const auto options = [] { return TieredOptions(4, 8, std::make_shared<MemoryTier>()); };
  const auto first = MakeHbmTable(options(), 64, device, 0, source), second = MakeHbmTable(options(), 64, device, 0, source);
  MT_ASSERT_OK(Train(Sgd({1, 2, 3}, 1.0f, 4), first.get()));
  const int64_t before = *lent;
  MT_ASSERT_OK(Train(Sgd({1, 2, 3}, 1.0f, 4), second.get()));
  EXPECT_EQ(*lent, before);
}

TEST(ScratchPool, IsEmptiedWhenTooMuchLiesIdle) {
  const auto device = NewEmulatedDevice();
  const device::Stream stream = *device->NewStream();
  constexpr size_t kMost = 1024;
  {
    const auto pool = std::make_shared<ScratchPool>(DeviceMemory(device), stream, kMost);
    const auto take = [&](size_t bytes) { ASSERT_NE(Scratch(pool, "t").OnDevice<char>(bytes), nullptr); };
    for (const size_t bytes : {size_t{256}, size_t{512}, size_t{1024}}) take(bytes);
    EXPECT_EQ(device->used_bytes(), 1792u);
    take(1024);
    EXPECT_EQ(device->used_bytes(), 1792u);
    const auto take_two = [&](size_t bytes) {
      Scratch scratch(pool, "t");
      (void)scratch.OnDevice<char>(bytes);
      (void)scratch.OnDevice<char>(bytes);
    };
    take_two(256);
    take_two(512);
    EXPECT_EQ(device->used_bytes(), 2560u);  // 2 x 1,024 + 1,024 may lie idle
    take_two(1024);
    take_two(256);
    EXPECT_EQ(device->used_bytes(), 3584u);  // 2 x 2,048 + 1,024
    take(2048);
    EXPECT_EQ(device->used_bytes(), 3584u + 2048u);
    take(256);
    EXPECT_EQ(device->used_bytes(), 256u);
    MT_EXPECT_OK(device->Synchronize(stream));  // before the memory goes: the pool has filled it
  }
  EXPECT_EQ(device->used_bytes(), 0u);
  device->Delete(stream);
}

}  // namespace
}  // namespace multitier::hbm::scratch_test
