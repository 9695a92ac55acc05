// WriteBuffer: pages of an Env that a segment's records wait in until they are written. Pages that count against the process's
// limit (IoWorker) are returned to it. Not thread-safe.

#ifndef CC_TIER_SSDHASH_WRITE_BUFFER_H_
#define CC_TIER_SSDHASH_WRITE_BUFFER_H_

#include <cstdint>
#include <utility>

#include "cc/base/status.h"
#include "cc/env/env.h"

namespace multitier {

class WriteBuffer {
 public:
  WriteBuffer() = default;
  ~WriteBuffer() { Reset(); }
  WriteBuffer(WriteBuffer&& other) noexcept { *this = std::move(other); }
  WriteBuffer& operator=(WriteBuffer&& other) noexcept;

  // Replaces the contents by `bytes` of new pages. `bounded`: only within the limit. False: no memory, or over the limit; the
  // old pages stay.
  bool Allocate(Env* env, uint64_t bytes, bool bounded);
  void Reset();
  // The error of an Allocate that failed.
  static Status NoMemory(uint64_t bytes);
  uint8_t* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Env* env_ = nullptr;
  uint8_t* data_ = nullptr;
  uint64_t bytes_ = 0;
  bool bounded_ = false;
};

}  // namespace multitier

#endif  // CC_TIER_SSDHASH_WRITE_BUFFER_H_
