// The only file that calls CUDA's runtime, except for launches (device_code.h). Host code alone: the kernels are in
// kernels/.

#include "cc/device/cuda_device.h"

#include <cuda_runtime.h>

#include <cub/device/device_radix_sort.cuh>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/device/device_code.h"
#include "cc/device/kernels/kernels.h"

namespace multitier::device {
namespace {

// The error of a call. cudaGetLastError forgets it, so that the next launch
// does not report it again; an error that has broken the context comes back by
// itself.
Status ToStatus(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return OkStatus();
  (void)cudaGetLastError();
  return InternalError("CUDA: ", call, " failed: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
}

#define MT_CUDA(call) ToStatus(#call, call)

cudaStream_t Get(Stream stream) { return static_cast<cudaStream_t>(stream.native); }
cudaEvent_t Get(Event event) { return static_cast<cudaEvent_t>(event.native); }

class CudaDevice : public Device {
 public:
  CudaDevice(int ordinal, std::string name) : ordinal_(ordinal), name_(std::move(name)) {}
  ~CudaDevice() override {
    const OnGpu here(ordinal_);
    MutexLock lock(mutex_);
    for (const cudaEvent_t event : idle_events_) (void)cudaEventDestroy(event);
  }

  const char* name() const override { return name_.c_str(); }
  const DeviceKernels& kernels() const override { return CudaKernels(); }

  Result<void*> Allocate(size_t bytes) override {
    if (bytes == 0) return static_cast<void*>(nullptr);
    const OnGpu here(ordinal_);
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, bytes);
    if (error == cudaSuccess) return memory;
    if (error != cudaErrorMemoryAllocation) return ToStatus("cudaMalloc", error);
    (void)cudaGetLastError();
    size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    return ResourceExhaustedError(name_, ": no memory for ", bytes, " bytes; ", free, " of ", total, " bytes are free");
  }
  void Free(void* memory) override {
    const OnGpu here(ordinal_);
    (void)cudaFree(memory);
  }
  Result<void*> AllocatePinned(size_t bytes) override {
    if (bytes == 0) return static_cast<void*>(nullptr);
    const OnGpu here(ordinal_);
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
    if (error == cudaSuccess) return memory;
    if (error != cudaErrorMemoryAllocation) return ToStatus("cudaHostAlloc", error);
    (void)cudaGetLastError();
    return ResourceExhaustedError(name_, ": no pinned memory for ", bytes, " bytes");
  }
  void FreePinned(void* memory) override { (void)cudaFreeHost(memory); }

  Result<Stream> NewStream() override {
    const OnGpu here(ordinal_);
    cudaStream_t stream = nullptr;
    MT_RETURN_IF_ERROR(MT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    return Stream{stream, ordinal_};
  }
  void Delete(Stream stream) override { (void)cudaStreamDestroy(Get(stream)); }
  Stream Wrap(void* native) override { return Stream{native, ordinal_}; }

  Status Copy(Stream stream, void* to, const void* from, size_t bytes) override {
    if (bytes == 0) return OkStatus();
    const OnGpu here(ordinal_);
    return MT_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Get(stream)));
  }
  Status Fill(Stream stream, void* memory, int byte, size_t bytes) override {
    if (bytes == 0) return OkStatus();
    const OnGpu here(ordinal_);
    return MT_CUDA(cudaMemsetAsync(memory, byte, bytes, Get(stream)));
  }

  size_t SortScratchBytes(uint32_t n) override {
    const OnGpu here(ordinal_);
    size_t bytes = 0;
    (void)cub::DeviceRadixSort::SortKeys(nullptr, bytes, static_cast<const uint64_t*>(nullptr), static_cast<uint64_t*>(nullptr),
                                         n, 32, 64);
    return bytes;
  }
  Status SortByUpper(Stream stream, const uint64_t* from, uint64_t* to, uint32_t n, int bits, void* scratch) override {
    if (n == 0) return OkStatus();
    const OnGpu here(ordinal_);
    size_t bytes = SortScratchBytes(n);
    return ToStatus("cub::DeviceRadixSort::SortKeys",
                    cub::DeviceRadixSort::SortKeys(scratch, bytes, from, to, n, 32, 32 + bits, Get(stream)));
  }

  Result<Event> NewEvent() override { return NewEventWith(cudaEventDisableTiming); }
  Result<Event> NewTimedEvent() override { return NewEventWith(cudaEventDefault); }
  Result<double> Seconds(Event from, Event to) override {
    float milliseconds = 0;
    MT_RETURN_IF_ERROR(MT_CUDA(cudaEventElapsedTime(&milliseconds, Get(from), Get(to))));
    return static_cast<double>(milliseconds) / 1000;
  }
  void Delete(Event event) override { (void)cudaEventDestroy(Get(event)); }
  Status Record(Stream stream, Event event) override { return MT_CUDA(cudaEventRecord(Get(event), Get(stream))); }
  Status Wait(Stream stream, Event event) override { return MT_CUDA(cudaStreamWaitEvent(Get(stream), Get(event), 0)); }
  Result<bool> Happened(Event event) override {
    const cudaError_t error = cudaEventQuery(Get(event));
    if (error == cudaSuccess) return true;
    if (error != cudaErrorNotReady) return ToStatus("cudaEventQuery", error);
    (void)cudaGetLastError();
    return false;
  }
  // On an event, as cudaStreamSynchronize keeps a core busy.
  Status Synchronize(Stream stream) override {
    const OnGpu here(ordinal_);
    MT_ASSIGN_OR_RETURN(const cudaEvent_t event, BlockingEvent());
    const Status recorded = MT_CUDA(cudaEventRecord(event, Get(stream)));
    const Status waited = recorded.ok() ? MT_CUDA(cudaEventSynchronize(event)) : recorded;
    MutexLock lock(mutex_);
    idle_events_.push_back(event);
    return waited;
  }

 private:
  Result<Event> NewEventWith(unsigned flags) {
    const OnGpu here(ordinal_);
    cudaEvent_t event = nullptr;
    MT_RETURN_IF_ERROR(MT_CUDA(cudaEventCreateWithFlags(&event, flags)));
    return Event{event};
  }
  Result<cudaEvent_t> BlockingEvent() {
    MutexLock lock(mutex_);
    cudaEvent_t event = nullptr;
    if (idle_events_.empty()) {
      MT_RETURN_IF_ERROR(MT_CUDA(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming)));
      return event;
    }
    event = idle_events_.back();
    idle_events_.pop_back();
    return event;
  }

  const int ordinal_;
  const std::string name_;
  Mutex mutex_;
  std::vector<cudaEvent_t> idle_events_ MT_GUARDED_BY(mutex_);  // as many as threads waited at the same time
};

}  // namespace

Status LaunchStatus(const char* kernel) { return ToStatus(kernel, cudaGetLastError()); }

Result<std::shared_ptr<Device>> OpenCudaDevice(int ordinal) {
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted != cudaSuccess) {
    (void)cudaGetLastError();
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    return FailedPreconditionError("no GPU: ", cudaGetErrorString(counted), "; this build has CUDA ", CUDART_VERSION / 1000,
                                   ".", CUDART_VERSION % 1000 / 10, ", the driver is for CUDA ", driver / 1000, ".",
                                   driver % 1000 / 10);
  }
  if (ordinal >= count) return FailedPreconditionError("expected GPU ", ordinal, ", found ", count, " GPUs");
  cudaDeviceProp properties;
  MT_RETURN_IF_ERROR(MT_CUDA(cudaGetDeviceProperties(&properties, ordinal)));
  if (properties.major < 8) {
    return FailedPreconditionError("GPU ", ordinal, " (", properties.name,
                                   "): expected compute capability 8.0 or newer, found ", properties.major, ".",
                                   properties.minor);
  }
  return std::shared_ptr<Device>(std::make_shared<CudaDevice>(ordinal, properties.name));
}

}  // namespace multitier::device
