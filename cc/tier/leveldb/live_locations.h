// LiveLocations: the set of locations that hold a record, one bit each.
//
// Locations are given by counting up and live for very different times, so the bits come in chunks of 2,048, and a chunk
// exists only while one of its locations is live: about 0.13 bytes a row where most of a chunk lives, at worst (one row
// left in each) 264, plus 8 bytes for each 2,048 locations ever given.
//
// Not thread-safe.

#ifndef CC_TIER_LEVELDB_LIVE_LOCATIONS_H_
#define CC_TIER_LEVELDB_LIVE_LOCATIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace multitier {

class LiveLocations {
 public:
  bool Contains(uint32_t location) const;
  void Insert(uint32_t location);
  // False where it was not live.
  bool Erase(uint32_t location);
  // The first location from `location` on that is not live, going on from 0 after the last; never kNoLocation.
  // REQUIRES: size() < 2^32 - 1
  uint32_t NextFree(uint32_t location) const;
  int64_t size() const { return size_; }
  size_t resident_bytes() const;

 private:
  static constexpr int kShift = 11;
  static constexpr uint32_t kMask = (1u << kShift) - 1;
  struct Chunk {
    uint32_t live = 0;
    uint64_t words[(1u << kShift) / 64] = {};
  };

  std::vector<std::unique_ptr<Chunk>> chunks_;  // by location >> kShift; null: none is live
  size_t num_chunks_ = 0;                       // that are not null
  int64_t size_ = 0;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LIVE_LOCATIONS_H_
