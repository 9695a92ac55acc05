#include "cc/env/stream_reader.h"

#include <errno.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace multitier {
namespace {

constexpr uint64_t kAlignment = PositionedFile::kDirectAlignment;

// Whether the page cache has the file: true if it has each of three bytes. A read that must not wait tells.
bool IsCached(const PositionedFile& file, uint64_t size) {
  for (const uint64_t quarter : {1, 2, 3}) {
    char byte;
    iovec to{&byte, 1};
    if (::preadv2(file.descriptor(), &to, 1, static_cast<off_t>(size / 4 * quarter), RWF_NOWAIT) != 1) return false;
  }
  return true;
}

}  // namespace

Result<std::unique_ptr<StreamReader>> StreamReader::Open(Env* env, const std::string& path) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<PositionedFile> cached,
                      env->OpenPositionedFile(path, Env::OpenMode::kRead, /*direct=*/false));
  std::unique_ptr<StreamReader> reader(new StreamReader(env, std::move(cached)));
  MT_ASSIGN_OR_RETURN(const uint64_t size, reader->cached_->Size());
  reader->direct_end_ = size / kAlignment * kAlignment;
  if (reader->direct_end_ == 0 || (reader->cached_->descriptor() >= 0 && IsCached(*reader->cached_, size))) return reader;
  MT_ASSIGN_OR_RETURN(std::unique_ptr<PositionedFile> direct,
                      env->OpenPositionedFile(path, Env::OpenMode::kRead, /*direct=*/true));
  if (!direct->direct()) return reader;
  for (Window* window : {&reader->window_, &reader->next_}) {
    window->data = static_cast<char*>(env->AllocatePages(kWindowBytes, /*huge=*/true));
    if (window->data != nullptr) continue;
    return ResourceExhaustedError("reading '", path, "': no memory for ", 2 * kWindowBytes, " bytes");
  }
  reader->direct_ = std::move(direct);
  return reader;
}

StreamReader::~StreamReader() {
  {
    MutexLock lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }
  thread_.Join();
  for (const Window* window : {&window_, &next_}) {
    if (window->data != nullptr) env_->FreePages(window->data, kWindowBytes);
  }
}

Status StreamReader::ReadWindow(uint64_t begin, Window* window) const {
  window->begin = begin;
  window->bytes = 0;  // also if the read fails
  const size_t bytes = std::min<uint64_t>(kWindowBytes, direct_end_ - begin);
  MT_RETURN_IF_ERROR(direct_->Read(begin, bytes, window->data));
  window->bytes = bytes;
  return OkStatus();
}

Status StreamReader::MoveWindow(uint64_t offset) {
  const uint64_t begin = offset / kAlignment * kAlignment;
  const bool follows = window_.bytes > 0 && begin == window_.begin + window_.bytes;
  Status status;
  if (TakeNext(begin, &status)) {
    std::swap(window_, next_);
  } else {
    status = ReadWindow(begin, &window_);
  }
  if (status.ok() && follows) BeginNext();
  return status;
}

void StreamReader::BeginNext() {
  next_.begin = window_.begin + window_.bytes;
  if (next_.begin >= direct_end_) return;
  if (!thread_.started() && !thread_.Start("mt-stream", [this] { ReadNextWindows(); }).ok()) return;
  has_next_ = true;
  MutexLock lock(mutex_);
  reading_ = true;
  changed_.notify_all();
}

bool StreamReader::TakeNext(uint64_t begin, Status* status) {
  if (!has_next_) return false;
  has_next_ = false;
  MutexLock lock(mutex_);
  lock.Wait(changed_, [this]() MT_REQUIRES(mutex_) { return !reading_; });
  if (next_.begin != begin) return false;
  *status = std::move(next_status_);
  return true;
}

void StreamReader::ReadNextWindows() {
  MutexLock lock(mutex_);
  for (;;) {
    lock.Wait(changed_, [this]() MT_REQUIRES(mutex_) { return reading_ || over_; });
    if (over_) return;
    lock.Unlock();
    next_status_ = ReadWindow(next_.begin, &next_);
    lock.Lock();
    reading_ = false;
    changed_.notify_all();
  }
}

Status StreamReader::Read(uint64_t offset, size_t bytes, char* out) {
  while (bytes > 0) {
    if (direct_ == nullptr || offset >= direct_end_) return cached_->Read(offset, bytes, out);
    if (offset < window_.begin || offset >= window_.begin + window_.bytes) {
      const Status moved = MoveWindow(offset);
      if (!moved.ok() && moved.os_error() != EINVAL) return moved;
      if (!moved.ok()) {  // a file system that opens files for direct reads and then refuses these
        direct_ = nullptr;
        continue;
      }
    }
    const size_t skipped = offset - window_.begin;
    const size_t n = std::min(bytes, window_.bytes - skipped);
    std::memcpy(out, window_.data + skipped, n);
    offset += n;
    out += n;
    bytes -= n;
  }
  return OkStatus();
}

}  // namespace multitier
