#include "cc/device/default_device.h"

#ifdef MULTITIER_CUDA

#include <unistd.h>

#include <mutex>

#include "cc/device/cuda_device.h"

namespace multitier::device {

Result<std::shared_ptr<Device>> DefaultDevice() {
  static auto* const mutex = new std::mutex;
  static auto* const opened = new std::shared_ptr<Device>;  // never closed: CUDA may end before static objects do
  static pid_t opened_by = 0;
  const std::lock_guard<std::mutex> lock(*mutex);
  if (*opened == nullptr) {
    MT_ASSIGN_OR_RETURN(*opened, OpenCudaDevice(0));
    opened_by = getpid();
  }
  if (opened_by != getpid()) {
    return FailedPreconditionError("the GPU was opened by process ", opened_by, "; a forked child (here ", getpid(),
                                   ") cannot use it");
  }
  return *opened;
}

}  // namespace multitier::device

#else

namespace multitier::device {

Result<std::shared_ptr<Device>> DefaultDevice() { return UnimplementedError("this build has no CUDA"); }

}  // namespace multitier::device

#endif
