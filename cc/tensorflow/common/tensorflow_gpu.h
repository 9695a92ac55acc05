// TensorFlowGpu: the GPU of an op, as TensorFlow sees it.

#ifndef CC_TENSORFLOW_COMMON_TENSORFLOW_GPU_H_
#define CC_TENSORFLOW_COMMON_TENSORFLOW_GPU_H_

#include <optional>

#include "tensorflow/core/framework/device_base.h"

namespace multitier {

struct TensorFlowGpu {
  bool is_plugin = false;  // not CUDA's: another program gave TensorFlow the device
  int ordinal = -1;        // its number among those that CUDA shows to the process; not of a plugin
  void* stream = nullptr;  // CUDA's, on which TensorFlow enqueues its ops; null for a plugin
};

// None if the device is a CPU.
std::optional<TensorFlowGpu> GpuOf(const tensorflow::DeviceBase& device);

}  // namespace multitier

#endif  // CC_TENSORFLOW_COMMON_TENSORFLOW_GPU_H_
