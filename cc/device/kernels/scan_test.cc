// The prefix sum of scan.h, through a kernel that uses it.

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cc/device/emulated_device.h"
#include "cc/device/kernels/kernels.h"
#include "cc/device/kernels/test_memory.h"

namespace multitier::device {
namespace {

// Of tiles whose own sums are known, and one before them whose prefix is.
TEST(ScanTest, APrefixSumLooksBackOverMoreTilesThanAWarpHasLanes) {
  constexpr uint32_t kTiles = 71, kLast = kTiles - 1, kKnown = 3;
  const auto device = std::make_shared<EmulatedDevice>(EmulatedDevice::Options(), &EmulatedKernels());
  const Stream stream = *device->NewStream();
  TestMemory memory(device, stream);
  std::vector<uint64_t> words = {kLast};  // the next tile that a block takes
  uint32_t before = 0;
  for (uint32_t tile = 0; tile < kTiles; ++tile)
    words.push_back(tile == kKnown ? uint64_t{90} << 2 | 2 : uint64_t{tile} << 2 | 1);
  for (uint32_t tile = kKnown; tile < kLast; ++tile) before += tile == kKnown ? 90 : tile;
  std::vector<uint32_t> marked(kTiles * ScanScratch::kTile, 0);
  marked[kLast * ScanScratch::kTile + 5] = marked.back() = 1;
  const auto n = static_cast<uint32_t>(marked.size());
  auto* const list = memory.Filled<uint32_t>(n, 0);
  auto* const length = memory.Filled<uint32_t>(1, 0);
  const CompactArgs args{memory.Up(marked), memory.Up(std::vector<uint32_t>{n}), n, {memory.Up(words)}, list, length};
  ASSERT_TRUE(device->kernels().compact(stream, args).ok());
  EXPECT_EQ(memory.Down(length, 1)[0], before + 2);
  EXPECT_EQ(memory.Down(list + before, 2), (std::vector<uint32_t>{kLast * ScanScratch::kTile + 5, n - 1}));
}

}  // namespace
}  // namespace multitier::device
