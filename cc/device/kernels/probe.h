// The probe of one bucket, for files of kernels: 8 lanes read its 128 digests, 16 bytes each.

#ifndef CC_DEVICE_KERNELS_PROBE_H_
#define CC_DEVICE_KERNELS_PROBE_H_

#include "cc/device/device_code.h"
#include "cc/device/kernels/table.h"

namespace multitier::device {
namespace {

constexpr int kProbeLanes = 8;  // of a key: 4 keys a warp

// Bytes of `word` that are `digest`: bits 0, 8, 16, 24.
__device__ __forceinline__ uint32_t MatchingBytes(uint32_t word, uint32_t digest) {
  return __vcmpeq4(word, digest * 0x01010101u) & 0x01010101u;
}

// The slot of the key in its bucket among those of this lane, or -1. REQUIRES: nothing in this launch writes digests or keys.
__device__ __forceinline__ int ProbeLane(const Table& table, Place place, int64_t key, int lane) {
  const FourWords words = LoadFourWords(table.digests + static_cast<size_t>(place.bucket) * kBucketSlots + lane * 16);
  const Slot* const slots = table.slots + static_cast<size_t>(place.bucket) * kBucketSlots;
  MT_UNROLL for (int w = 0; w < 4; ++w) {
    for (uint32_t bytes = MatchingBytes(words.word[w], place.digest); bytes != 0; bytes &= bytes - 1) {
      const int slot = lane * 16 + w * 4 + (__ffs(static_cast<int>(bytes)) - 1) / 8;
      if (slots[slot].key == key) return slot;
    }
  }
  return -1;
}

}  // namespace
}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_PROBE_H_
