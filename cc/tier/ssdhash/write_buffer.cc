#include "cc/tier/ssdhash/write_buffer.h"

#include <errno.h>

#include "cc/tier/ssdhash/io_worker.h"

namespace multitier {

WriteBuffer& WriteBuffer::operator=(WriteBuffer&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  env_ = other.env_;
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  bounded_ = std::exchange(other.bounded_, false);
  return *this;
}

void WriteBuffer::Reset() {
  if (data_ == nullptr) return;
  env_->FreePages(data_, bytes_);
  if (bounded_) IoWorker::Get()->GiveBuffer(bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

bool WriteBuffer::Allocate(Env* env, uint64_t bytes, bool bounded) {
  if (bounded && !IoWorker::Get()->TakeBuffer(bytes)) return false;
  auto* data = static_cast<uint8_t*>(env->AllocatePages(bytes, false));
  if (data == nullptr) {
    if (bounded) IoWorker::Get()->GiveBuffer(bytes);
    return false;
  }
  Reset();
  env_ = env;
  data_ = data;
  bytes_ = bytes;
  bounded_ = bounded;
  return true;
}

Status WriteBuffer::NoMemory(uint64_t bytes) {
  return Status(StatusCode::kResourceExhausted, StrCat("ssdhash tier: no memory for a buffer of ", bytes, " bytes"), ENOMEM);
}

}  // namespace multitier
