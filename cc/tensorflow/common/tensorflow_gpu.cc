#include "cc/tensorflow/common/tensorflow_gpu.h"

#include "cc/tensorflow/common/tensorflow_versions.h"
#include "xla/stream_executor/stream.h"

namespace multitier {

std::optional<TensorFlowGpu> GpuOf(const tensorflow::DeviceBase& device) {
  const auto* const accelerator = device.tensorflow_accelerator_device_info();
  if (accelerator == nullptr || accelerator->default_context == nullptr) return std::nullopt;
  TensorFlowGpu gpu;
  gpu.is_plugin = accelerator->default_context->IsPluggableDevice();
  if (gpu.is_plugin) return gpu;
  stream_executor::Stream* const stream = accelerator->default_context->stream();
  if (stream == nullptr) return std::nullopt;
  gpu.ordinal = OrdinalOf(*stream, accelerator->gpu_id);
  gpu.stream = stream->platform_specific_handle().stream;
  return gpu;
}

}  // namespace multitier
