#include "cc/tensorflow/common/hbm_memory.h"

#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/base/thread.h"
#include "cc/storage_types/storage.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/tensorflow_gpu.h"
#include "tensorflow/core/common_runtime/device_mgr.h"
#include "tensorflow/core/framework/allocator.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/function.h"

namespace multitier {
namespace {

constexpr size_t kAlignment = 256;

Result<void*> Allocate(tensorflow::Allocator* allocator, size_t bytes) {
  const tensorflow::AllocationAttributes no_retry(/*retry_on_failure=*/false, /*allocation_will_be_logged=*/false, nullptr);
  void* const memory = allocator->AllocateRaw(kAlignment, bytes, no_retry);
  if (memory != nullptr) return memory;
  const std::optional<tensorflow::AllocatorStats> stats = allocator->GetStats();
  if (!stats || !stats->bytes_limit) return ResourceExhaustedError(allocator->Name(), " has no memory for ", bytes, " bytes");
  return ResourceExhaustedError(allocator->Name(), " has no memory for ", bytes,
                                " bytes: ", *stats->bytes_limit - stats->bytes_in_use, " of ", *stats->bytes_limit,
                                " bytes are free");
}

bool TablesAreEmulated() {
  const char* const device = std::getenv(kDeviceVariable);
  return device != nullptr && *device != '\0';
}

// One for each allocator: tables that have one share their scratch memory.
struct Sources {
  Mutex mutex;
  std::map<std::pair<tensorflow::Allocator*, void*>, std::weak_ptr<const hbm::MemorySource>> of MT_GUARDED_BY(mutex);
};

// Null if tables are not in the memory of this device.
std::shared_ptr<const hbm::MemorySource> MemoryOf(tensorflow::DeviceBase* device) {
  const std::optional<TensorFlowGpu> gpu = GpuOf(*device);
  if (!gpu || gpu->is_plugin != TablesAreEmulated()) return nullptr;
  if (!gpu->is_plugin && gpu->ordinal != kGpuOfTables) return nullptr;
  tensorflow::Allocator* const allocator = device->GetAllocator(tensorflow::AllocatorAttributes());
  auto* const sources = OfThisProcess<Sources>();
  MutexLock lock(sources->mutex);
  std::weak_ptr<const hbm::MemorySource>& shared = sources->of[{allocator, gpu->stream}];
  if (std::shared_ptr<const hbm::MemorySource> source = shared.lock()) return source;
  auto source = std::make_shared<hbm::MemorySource>();
  source->allocate = [allocator](size_t bytes) { return Allocate(allocator, bytes); };
  source->free = [allocator](void* memory) { allocator->DeallocateRaw(memory); };
  source->stream.native = gpu->stream;
  shared = source;
  return source;
}

}  // namespace

std::shared_ptr<const hbm::MemorySource> HbmMemoryOf(OpKernelConstruction* context) {
  if (context->device_type() == tensorflow::DEVICE_GPU) return MemoryOf(context->device());
  const tensorflow::FunctionLibraryRuntime* const library = context->function_library();
  const tensorflow::DeviceMgr* const devices = library == nullptr ? nullptr : library->device_mgr();
  if (devices == nullptr) return nullptr;
  for (tensorflow::Device* device : devices->ListDevices()) {
    if (std::shared_ptr<const hbm::MemorySource> source = MemoryOf(device)) return source;
  }
  return nullptr;
}

}  // namespace multitier
