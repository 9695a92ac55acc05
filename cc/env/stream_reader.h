// StreamReader: reads a large file from front to back.
//
// It reads past the page cache (PositionedFile::direct), a window at a time: a file that is read once would only push other
// files out of the cache, and copying each page from there costs more than reading it. Where the file is in the page cache
// already, or the file system refuses direct reads (as it is opened, or later), it reads through the cache.
//
//   file    | ...................................... | tail |
//                   |  window  | next |               ^ the last multiple of the alignment; the tail is read through the cache
//
// While the caller works on a window that follows the one before, a thread reads the next one, so that neither the device nor
// the caller waits for the other. Where no thread can be started, the caller reads each window when it comes to it.
//
// Owns both windows and the thread. Not thread-safe.

#ifndef CC_ENV_STREAM_READER_H_
#define CC_ENV_STREAM_READER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/base/thread.h"
#include "cc/env/env.h"

namespace multitier {

class StreamReader {
 public:
  static constexpr size_t kWindowBytes = size_t{4} << 20;

  // Errors: those of Env::OpenPositionedFile; ResourceExhausted if there is no memory for the windows.
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
  struct Window {
    char* data = nullptr;
    uint64_t begin = 0;
    size_t bytes = 0;  // that were read
  };

  StreamReader(Env* env, std::unique_ptr<PositionedFile> cached) : env_(env), cached_(std::move(cached)) {}
  Status MoveWindow(uint64_t offset);
  Status ReadWindow(uint64_t begin, Window* window) const;
  // Has the thread read the window that follows, if the file goes on there.
  void BeginNext();
  // Waits until the thread reads nothing. True if `next_` begins at `begin`; *status: of its read.
  bool TakeNext(uint64_t begin, Status* status);
  void ReadNextWindows();  // the thread

  Env* const env_;
  const std::unique_ptr<PositionedFile> cached_;
  std::unique_ptr<PositionedFile> direct_;  // null: reads go through the page cache
  uint64_t direct_end_ = 0;                 // of what can be read directly
  Window window_;

  Mutex mutex_;
  std::condition_variable changed_;
  // The caller's, unless reading_; then the thread's.
  Window next_;
  Status next_status_;
  bool has_next_ = false;  // next_ was asked for
  bool reading_ MT_GUARDED_BY(mutex_) = false;
  bool over_ MT_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace multitier

#endif  // CC_ENV_STREAM_READER_H_
