// CRC-32C (Castagnoli), the checksum of every on-disk record.

#ifndef CC_BASE_CRC32C_H_
#define CC_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>

namespace multitier {

// Checksum of the concatenation of some bytes whose checksum is `crc` (0: none) and data[0, bytes).
// SSE4.2 where the CPU has it, about 0.1 ns a byte; tables elsewhere, about 0.4.
uint32_t ExtendCrc32c(uint32_t crc, const void* data, size_t bytes);

inline uint32_t Crc32c(const void* data, size_t bytes) { return ExtendCrc32c(0, data, bytes); }

namespace crc32c_internal {
// The two ways, for tests. Equal results; ExtendHardware falls back to the table where the CPU lacks the instruction.
uint32_t ExtendPortable(uint32_t crc, const void* data, size_t bytes);
uint32_t ExtendHardware(uint32_t crc, const void* data, size_t bytes);
}  // namespace crc32c_internal

}  // namespace multitier

#endif  // CC_BASE_CRC32C_H_
