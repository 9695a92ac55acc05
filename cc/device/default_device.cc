#include "cc/device/default_device.h"

#ifdef MULTITIER_CUDA

#include <unistd.h>

#include "cc/base/mutex.h"
#include "cc/device/cuda_device.h"

namespace multitier::device {
namespace {

struct Opened {
  Mutex mutex;
  std::shared_ptr<Device> device MT_GUARDED_BY(mutex);
  pid_t by MT_GUARDED_BY(mutex) = 0;
};

}  // namespace

Result<std::shared_ptr<Device>> DefaultDevice() {
  static auto* const opened = new Opened;  // never closed: CUDA may end before static objects do
  MutexLock lock(opened->mutex);
  if (opened->device == nullptr) {
    MT_ASSIGN_OR_RETURN(opened->device, OpenCudaDevice(0));
    opened->by = getpid();
  }
  if (opened->by != getpid()) {
    return FailedPreconditionError("the GPU was opened by process ", opened->by, "; a forked child (here ", getpid(),
                                   ") cannot use it");
  }
  return opened->device;
}

}  // namespace multitier::device

#else

namespace multitier::device {

Result<std::shared_ptr<Device>> DefaultDevice() { return UnimplementedError("this build has no CUDA"); }

}  // namespace multitier::device

#endif
