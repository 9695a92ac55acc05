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
  reader->window_ = static_cast<char*>(env->AllocatePages(kWindowBytes, /*huge=*/true));
  if (reader->window_ == nullptr) {
    return ResourceExhaustedError("reading '", path, "': no memory for ", kWindowBytes, " bytes");
  }
  reader->direct_ = std::move(direct);
  return reader;
}

StreamReader::~StreamReader() {
  if (window_ != nullptr) env_->FreePages(window_, kWindowBytes);
}

Status StreamReader::MoveWindow(uint64_t offset) {
  window_bytes_ = 0;  // also if the read fails
  window_begin_ = offset / kAlignment * kAlignment;
  const size_t bytes = std::min<uint64_t>(kWindowBytes, direct_end_ - window_begin_);
  MT_RETURN_IF_ERROR(direct_->Read(window_begin_, bytes, window_));
  window_bytes_ = bytes;
  return OkStatus();
}

Status StreamReader::Read(uint64_t offset, size_t bytes, char* out) {
  while (bytes > 0) {
    if (direct_ == nullptr || offset >= direct_end_) return cached_->Read(offset, bytes, out);
    if (offset < window_begin_ || offset >= window_begin_ + window_bytes_) {
      const Status moved = MoveWindow(offset);
      if (!moved.ok() && moved.os_error() != EINVAL) return moved;
      if (!moved.ok()) {  // a file system that opens files for direct reads and then refuses these
        direct_ = nullptr;
        continue;
      }
    }
    const size_t skipped = offset - window_begin_;
    const size_t n = std::min(bytes, window_bytes_ - skipped);
    std::memcpy(out, window_ + skipped, n);
    offset += n;
    out += n;
    bytes -= n;
  }
  return OkStatus();
}

}  // namespace multitier
