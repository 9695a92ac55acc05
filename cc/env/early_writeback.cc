#include "cc/env/early_writeback.h"

#include <fcntl.h>
#include <unistd.h>

namespace multitier {

EarlyWriteback::EarlyWriteback(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}

EarlyWriteback::~EarlyWriteback() {
  if (fd_ >= 0) ::close(fd_);
}

void EarlyWriteback::Grew(uint64_t bytes) {
  if (fd_ < 0 || bytes < begun_ + kBytesAtOnce) return;
  (void)::sync_file_range(fd_, static_cast<off_t>(begun_), static_cast<off_t>(bytes - begun_), SYNC_FILE_RANGE_WRITE);
  begun_ = bytes;
}

}  // namespace multitier
