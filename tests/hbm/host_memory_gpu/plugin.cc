// A device of type GPU for TensorFlow whose memory is the host's, so that tests without a GPU run what TensorFlow does for one:
// placement, colocation, host memory of kernels, copies between devices, its allocator.
//
// A plugin by TensorFlow's StreamExecutor C API; tests load it with load_pluggable_device_library. Each call does its work before
// it returns, so streams and events have no state. It has no kernels: ops run on it that have a kernel for GPUs, or for any device.

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"

struct SP_Stream_st {};
struct SP_Event_st {};
struct SP_Timer_st {};

namespace {

constexpr size_t kAlignment = 256;
constexpr int64_t kMemoryBytes = int64_t{1} << 30;

void Ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void* HostAllocate(const SP_Device*, uint64_t bytes) {
  return std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
}

void HostFree(const SP_Device*, void* memory) { std::free(memory); }

void Allocate(const SP_Device* device, uint64_t bytes, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = HostAllocate(device, bytes);
  memory->size = bytes;
}

void Free(const SP_Device*, SP_DeviceMemoryBase* memory) { std::free(memory->opaque); }

template <typename Handle>
void Create(const SP_Device*, Handle** handle, TF_Status* status) {
  *handle = new Handle;
  Ok(status);
}

template <typename Handle>
void Destroy(const SP_Device*, Handle* handle) {
  delete handle;
}

// What waits for work: it is done.
template <typename... Args>
void Done(Args..., TF_Status* status) {
  Ok(status);
}

void CopyDown(const SP_Device*, SP_Stream, void* to, const SP_DeviceMemoryBase* from, uint64_t bytes, TF_Status* status) {
  std::memcpy(to, from->opaque, bytes);
  Ok(status);
}

void CopyUp(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to, const void* from, uint64_t bytes, TF_Status* status) {
  std::memcpy(to->opaque, from, bytes);
  Ok(status);
}

void CopyInside(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t bytes,
                TF_Status* status) {
  std::memcpy(to->opaque, from->opaque, bytes);
  Ok(status);
}

void Fill32(const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint32_t value, uint64_t bytes, TF_Status* status) {
  for (uint64_t i = 0; i < bytes / sizeof value; ++i) static_cast<uint32_t*>(memory->opaque)[i] = value;
  Ok(status);
}

void FillExecutor(SP_StreamExecutor* e) {
  e->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  e->allocate = Allocate;
  e->deallocate = Free;
  e->host_memory_allocate = HostAllocate;
  e->host_memory_deallocate = HostFree;
  e->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return 0; };
  e->device_memory_usage = [](const SP_Device*, int64_t* free, int64_t* total) -> TF_Bool {
    *free = *total = kMemoryBytes;
    return 1;
  };
  e->create_stream = Create<SP_Stream_st>;
  e->destroy_stream = Destroy<SP_Stream_st>;
  e->create_stream_dependency = Done<const SP_Device*, SP_Stream, SP_Stream>;
  e->get_stream_status = Done<const SP_Device*, SP_Stream>;
  e->create_event = Create<SP_Event_st>;
  e->destroy_event = Destroy<SP_Event_st>;
  e->get_event_status = [](const SP_Device*, SP_Event) { return SE_EVENT_COMPLETE; };
  e->record_event = Done<const SP_Device*, SP_Stream, SP_Event>;
  e->wait_for_event = Done<const SP_Device*, SP_Stream, SP_Event>;
  e->create_timer = Create<SP_Timer_st>;
  e->destroy_timer = Destroy<SP_Timer_st>;
  e->start_timer = Done<const SP_Device*, SP_Stream, SP_Timer>;
  e->stop_timer = Done<const SP_Device*, SP_Stream, SP_Timer>;
  e->memcpy_dtoh = CopyDown;
  e->memcpy_htod = CopyUp;
  e->memcpy_dtod = CopyInside;
  e->sync_memcpy_dtoh = [](const SP_Device* device, void* to, const SP_DeviceMemoryBase* from, uint64_t bytes,
                           TF_Status* status) { CopyDown(device, nullptr, to, from, bytes, status); };
  e->sync_memcpy_htod = [](const SP_Device* device, SP_DeviceMemoryBase* to, const void* from, uint64_t bytes,
                           TF_Status* status) { CopyUp(device, nullptr, to, from, bytes, status); };
  e->sync_memcpy_dtod = [](const SP_Device* device, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t bytes,
                           TF_Status* status) { CopyInside(device, nullptr, to, from, bytes, status); };
  e->block_host_for_event = Done<const SP_Device*, SP_Event>;
  e->block_host_until_done = Done<const SP_Device*, SP_Stream>;
  e->synchronize_all_activity = Done<const SP_Device*>;
  e->mem_zero = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint64_t bytes, TF_Status* status) {
    std::memset(memory->opaque, 0, bytes);
    Ok(status);
  };
  e->memset = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint8_t value, uint64_t bytes, TF_Status* status) {
    std::memset(memory->opaque, value, bytes);
    Ok(status);
  };
  e->memset32 = Fill32;
  e->host_callback = [](const SP_Device*, SP_Stream, SE_StatusCallbackFn call, void* argument) -> TF_Bool {
    TF_Status* const status = TF_NewStatus();
    call(argument, status);
    TF_DeleteStatus(status);
    return 1;
  };
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void SE_InitPlugin(SE_PlatformRegistrationParams* params,
                                                                     TF_Status* status) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "HOST_MEMORY";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = 1;
  params->platform->force_memory_growth = 1;
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  SP_PlatformFns* const fns = params->platform_fns;
  fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  fns->get_device_count = [](const SP_Platform*, int* count, TF_Status* its) {
    *count = 1;
    Ok(its);
  };
  fns->create_device = [](const SP_Platform*, SE_CreateDeviceParams* its, TF_Status* made) {
    its->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    its->device->ordinal = its->ordinal;
    its->device->hardware_name = "host memory";
    its->device->device_vendor = "tests";
    its->device->pci_bus_id = "0000:00:00.0";
    Ok(made);
  };
  fns->destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns->create_device_fns = [](const SP_Platform*, SE_CreateDeviceFnsParams* its, TF_Status* made) {
    its->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
    Ok(made);
  };
  fns->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns->create_stream_executor = [](const SP_Platform*, SE_CreateStreamExecutorParams* its, TF_Status* made) {
    FillExecutor(its->stream_executor);
    Ok(made);
  };
  fns->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns->create_timer_fns = [](const SP_Platform*, SP_TimerFns* its, TF_Status* made) {
    its->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    its->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
    Ok(made);
  };
  fns->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  Ok(status);
}
