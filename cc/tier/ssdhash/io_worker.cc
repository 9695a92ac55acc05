#include "cc/tier/ssdhash/io_worker.h"

#include "cc/base/thread.h"

namespace multitier {

IoWorker* IoWorker::Get() { return OfThisProcess<IoWorker>(); }

bool IoWorker::TakeBuffer(uint64_t bytes) {
  MutexLock lock(buffer_mutex_);
  if (buffer_bytes_ + bytes > kWriteBufferBytes) return false;
  buffer_bytes_ += bytes;
  return true;
}

void IoWorker::GiveBuffer(uint64_t bytes) {
  MutexLock lock(buffer_mutex_);
  buffer_bytes_ -= bytes;
}

uint64_t IoWorker::buffer_bytes() {
  MutexLock lock(buffer_mutex_);
  return buffer_bytes_;
}

}  // namespace multitier
