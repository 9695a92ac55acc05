// CRC-32 (of zlib and gzip), the checksum in manifests of dumps, which other programs compute with zlib.
//
// Why not zlib's own: it takes 1 ns per byte here, as long as the disk takes.

#ifndef CC_BASE_CRC32_H_
#define CC_BASE_CRC32_H_

#include <cstddef>
#include <cstdint>

namespace multitier {

// The checksum of some bytes with checksum `crc` (0: no bytes), followed by data[0, bytes), as zlib's crc32.
uint32_t ExtendCrc32(uint32_t crc, const void* data, size_t bytes);

namespace crc32_internal {
// The two implementations, for tests. Their results are equal. ExtendFolding uses the table if the CPU lacks the instruction.
uint32_t ExtendPortable(uint32_t crc, const void* data, size_t bytes);
uint32_t ExtendFolding(uint32_t crc, const void* data, size_t bytes);
}  // namespace crc32_internal

}  // namespace multitier

#endif  // CC_BASE_CRC32_H_
