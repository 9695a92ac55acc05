// A table in device memory, as kernels see it.
//
//   digests     [buckets, 128] u8                 0: the slot is empty; else other bits of the key's hash
//   slots       [buckets, 128] {key, row}
//   last_used   [buckets, 128] u32                the last operation that used the row
//   ranks       [buckets, 128] u64                only where rows leave by rank (RankBy): the lowest first
//   rows        [capacity, row_stride]            {version, frequency, flags} and the row data
//   slot_of_row [capacity] u32                    bucket * 128 + slot; kNone for a free row
//   free_rows   [capacity] u32                    a stack; num_free of them are free
//   heads       [buckets] u32                     scratch of insertion: kNone between launches
//
// The search for a victim reads digests, last_used and ranks of a bucket: 640 bytes, or 1,664 with ranks. Those of empty slots
// are read, too, so a new table has them set.
//
// A key belongs to one bucket and is never in another. Every int64 is a valid key: the digest shows an empty slot.
// Rows are separate from slots: a row never moves, and every row can be used even if keys fall into buckets unevenly.
// One stream orders all operations on a table, so a kernel needs to synchronize only its own threads.

#ifndef CC_DEVICE_KERNELS_TABLE_H_
#define CC_DEVICE_KERNELS_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "cc/base/host_device.h"

namespace multitier::device {

constexpr uint32_t kNone = 0xffffffffu;
constexpr int kBucketSlots = 128;

struct alignas(16) Slot {
  int64_t key;
  uint32_t row;
  uint32_t unused;  // one load of 16 bytes has both
};

// What the rank of a row is. Of equal ranks, the least recently used row leaves first.
enum class RankBy : uint32_t {
  kNothing,  // no ranks: the least recently used row leaves first
  kFrequency,
  kVersion,
};

// A pinned row was last used in the future: its last operation is kPinAhead after that of its prefetch, so no floor is behind
// it. Its next use makes that the present.
constexpr uint32_t kPinAhead = 1u << 30;
MT_HOST_DEVICE bool IsPinned(uint32_t last_operation, uint32_t now) {
  return static_cast<int32_t>(last_operation - now) > static_cast<int32_t>(kPinAhead / 2);
}

enum DeviceRowFlags : uint16_t {
  kRowDirty = 1,        // changed since it was read from the table below
  kRowProvisional = 2,  // made by a training lookup whose update has not run: reads as absent
  kRowNew = 4,          // created here: the table below has no row of the key yet
};

// The header in front of every row on the device.
struct alignas(16) DeviceRowHeader {
  int64_t version;
  uint32_t frequency;
  uint16_t flags;
  uint16_t unused;
};

struct Table {
  uint8_t* digests;
  Slot* slots;
  uint32_t* last_used;
  uint64_t* ranks;  // null: rank_by is kNothing
  RankBy rank_by;
  uint32_t buckets;
  uint32_t capacity;
  uint8_t* rows;
  uint32_t row_stride;  // bytes, a multiple of 16, header included
  uint32_t* slot_of_row;
  uint32_t* free_rows;
  uint32_t* num_free;  // one number
  uint32_t* heads;
};

// The rank of a row: smaller is colder.
MT_HOST_DEVICE uint64_t RankOf(RankBy rank_by, const DeviceRowHeader& header) {
  return rank_by == RankBy::kFrequency ? header.frequency : static_cast<uint64_t>(header.version) ^ uint64_t { 1 } << 63;
}

// The bucket and the digest of a key. Uses the same hash as the index on the host (cc/base/hash.h).
struct Place {
  uint32_t bucket;
  uint8_t digest;
};
MT_HOST_DEVICE Place PlaceOf(int64_t key, uint32_t buckets) {
  uint64_t x = static_cast<uint64_t>(key) + 0x9e3779b97f4a7c15ull;
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  x ^= x >> 33;
  Place place;
  place.bucket = static_cast<uint32_t>((x >> 32) * buckets >> 32);
  place.digest = static_cast<uint8_t>(1 + ((x & 0xff) * 255 >> 8));
  return place;
}

}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_TABLE_H_
