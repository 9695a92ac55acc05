// StreamReader: reads a large file from front to back.
//
// It reads past the page cache (PositionedFile::direct), a window at a time: a file that is read once would only push other
// files out of the cache, and copying each page from there costs more than reading it. Where the file is in the page cache
// already, or the file system refuses direct reads (as it is opened, or later), it reads through the cache.
//
//   file    | ...................................... | tail |
//                   |  window  |                      ^ the last multiple of the alignment; the tail is read through the cache
//
// Owns the window. Not thread-safe.

#ifndef CC_ENV_STREAM_READER_H_
#define CC_ENV_STREAM_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/status.h"
#include "cc/env/env.h"

namespace multitier {

class StreamReader {
 public:
  static constexpr size_t kWindowBytes = size_t{4} << 20;

  // Errors: those of Env::OpenPositionedFile; ResourceExhausted if there is no memory for the window.
  static Result<std::unique_ptr<StreamReader>> Open(Env* env, const std::string& path);
  ~StreamReader();
  StreamReader(const StreamReader&) = delete;
  StreamReader& operator=(const StreamReader&) = delete;

  // See RandomAccessFile::Read. Any order of reads works. A read that does not begin in the window or at its end moves the
  // window, which costs a read of kWindowBytes.
  Status Read(uint64_t offset, size_t bytes, char* out);

  // Whether it reads past the page cache.
  bool direct() const { return direct_ != nullptr; }

 private:
  StreamReader(Env* env, std::unique_ptr<PositionedFile> cached) : env_(env), cached_(std::move(cached)) {}
  Status MoveWindow(uint64_t offset);

  Env* const env_;
  const std::unique_ptr<PositionedFile> cached_;
  std::unique_ptr<PositionedFile> direct_;  // null: reads go through the page cache
  uint64_t direct_end_ = 0;                 // of what can be read directly
  char* window_ = nullptr;
  uint64_t window_begin_ = 0;
  size_t window_bytes_ = 0;  // that were read
};

}  // namespace multitier

#endif  // CC_ENV_STREAM_READER_H_
