// BatchReader: many block reads issued together, answered one by one as they complete.
//
//   io_uring   one ring per thread that reads, made at its first batch and kept until the thread ends; up to 128 reads are in
//              flight, a full queue is submitted and reaped, and completions refill it
//   pread      helper threads of this process that run nothing else, for where the kernel refuses io_uring (container
//              sandboxes often do): as many reads in flight as there are helpers, and the caller reads too
//
// The reader owns the buffers, 16 KiB for each read in flight (more only while a longer read runs), so memory does not grow
// with the batch. Files without a descriptor (memory, fault injection) are read on the calling thread.
//
// Thread-safe. A forked child has neither rings nor helpers of its parent, and makes its own.

#ifndef CC_ENV_BATCH_READER_H_
#define CC_ENV_BATCH_READER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/env/env.h"

namespace multitier {

// REQUIRES: what file->direct() asks of offset and bytes.
struct BlockRead {
  const PositionedFile* file = nullptr;
  uint64_t offset = 0;
  uint32_t bytes = 0;
};

class BatchReader {
 public:
  enum class Kind {
    kAuto,     // io_uring where the kernel lets us, else pread
    kRing,     // Unimplemented where the kernel refuses
    kThreads,
  };
  static Result<std::unique_ptr<BatchReader>> Create(Kind kind);
  virtual ~BatchReader() = default;

  // Reads all. done(i, status, data) is called once for each, in any order; data is good until it returns. The helpers of
  // kThreads call it too, several at once.
  using Done = std::function<void(size_t, const Status&, const uint8_t*)>;
  virtual void Read(Span<const BlockRead> reads, const Done& done) = 0;
  virtual const char* name() const = 0;  // "io_uring", "pread"
};

}  // namespace multitier

#endif  // CC_ENV_BATCH_READER_H_
