// What the host and the kernels tell each other of keys that miss, and of members of a group. See kernels.h.

#ifndef CC_DEVICE_KERNELS_MISSES_H_
#define CC_DEVICE_KERNELS_MISSES_H_

#include <cstdint>

namespace multitier::device {

// Of one member's keys, after localize.
struct MemberCounts {
  uint32_t first;           // number of its first distinct key
  uint32_t distinct;        // distinct keys
  uint32_t misses;          // of them, without a row
  uint32_t missed_entries;  // occurrences of the misses
  uint32_t provisional;     // keys with a row that reads as absent
  uint32_t used_pins;
  uint32_t first_bad;  // of the entries (OutputMember)
  uint32_t born;       // keys that got their rows here (BearArgs)
  uint32_t born_entries;
};

// What became of the misses of one table.
struct PlacedCounts {
  uint32_t to_place;
  uint32_t dirty_victims;
  uint32_t unplaced;        // of those to place: they have no row of the table
  uint32_t free_rows;       // of the table, if any were to be placed
  uint32_t absent_entries;  // occurrences of misses whose staged row reads as absent
  int32_t rows;             // of the table that came, less those that left; without provisional rows
};

// The staged rows of one table, in a launch for several.
struct StagedMember {
  int64_t offset;                   // bytes: the row of rank r is at offset + r * stride
  uint32_t stride;                  // 0: the table takes no part, and its misses get no rows
  bool insert, insert_provisional;  // as in StageArgs
};

// Words of 32 bits, copied from one place to another.
struct Piece {
  const uint32_t* from;
  uint32_t* to;
  uint32_t words;
};
struct PiecesArgs {
  const Piece* pieces;  // [n]
  uint32_t n;
};

}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_MISSES_H_
