// The header that each file of kernels (*.cu.cc) includes, for nvcc and for g++. It defines CUDA's names, and
//
//   MT_SHARED(type, name)       a shared variable of the block
//   Atomic*<order>(p, ...)      atomics of device scope with a memory order
//   LoadFourWords(p)            one load of 16 bytes that no thread of the launch writes
//   LoadOwnFourWords(p)         the same, of 16 bytes that this thread alone may have written
//   LoadFour, StoreFour         four floats, or any 16 bytes, by one load or store
//   LoadTwo, StoreTwo           8 bytes by one load or store
//   CountAddition()             tells the emulator's Stats of one in a chain of additions
//   MT_UNROLL for (...)         a loop of constant length whose variables stay in registers
//   MT_NO_UNROLL for (...)      a loop that would take too many registers if the compiler unrolled it
//   Again(x)                    x, from which the compiler computes again what it would have kept in registers
//   MT_LAUNCH(...)              launches a kernel; returns the Status of the launch
//
// Rules for kernels:
// - Include only this header and use no library. Pass arguments as one struct, by value. Kernels have internal linkage.
// - Do not rely on lockstep. Shuffles and votes order no memory; __syncwarp and __syncthreads do.
// - Use only Atomic* for memory that another thread of the same launch may write. Memory that no thread of the launch writes
//   may be read directly.
// - No fused multiply-add and no fast math: values equal those of the CPU, bit for bit.
//
// nvcc and g++ compile each file into different namespaces (MT_KERNELS_NAMESPACE), so that one library can contain both.

#ifndef CC_DEVICE_DEVICE_CODE_H_
#define CC_DEVICE_DEVICE_CODE_H_

#include <cstdint>

#include "cc/base/status.h"
#include "cc/device/stream.h"

namespace multitier::device {

struct alignas(16) FourWords {
  uint32_t word[4];
};

struct __attribute__((aligned(16), may_alias)) Four {
  float x[4];
};

struct __attribute__((aligned(8), may_alias)) TwoWords {
  uint32_t word[2];
};

}  // namespace multitier::device

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#include <cuda/atomic>

#define MT_KERNELS_NAMESPACE cuda_kernels
#define MT_UNROLL _Pragma("unroll")
#define MT_NO_UNROLL _Pragma("unroll 1")
#define MT_SHARED(type, name) __shared__ type name
#define MT_LAUNCH(stream, grid, block, kernel, args)                              \
  [&] {                                                                           \
    const ::multitier::device::OnGpu here((stream).gpu);                          \
    kernel<<<grid, block, 0, static_cast<cudaStream_t>((stream).native)>>>(args); \
    return ::multitier::device::LaunchStatus(#kernel);                            \
  }()

namespace multitier::device {

enum Order { kRelaxed, kAcquire, kRelease, kAcqRel };

Status LaunchStatus(const char* kernel);  // of cuda_device.cu.cc: cudaGetLastError

// While it exists, the calls of this thread go to this GPU. A launch fails if the stream belongs to another GPU.
class OnGpu {
 public:
  explicit OnGpu(int gpu) {
    (void)cudaGetDevice(&before_);
    changed_ = before_ != gpu;
    if (changed_) (void)cudaSetDevice(gpu);
  }
  ~OnGpu() {
    if (changed_) (void)cudaSetDevice(before_);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

template <Order order>
__device__ constexpr cuda::std::memory_order StdOrder() {
  return order == kRelaxed   ? cuda::std::memory_order_relaxed
         : order == kAcquire ? cuda::std::memory_order_acquire
         : order == kRelease ? cuda::std::memory_order_release
                             : cuda::std::memory_order_acq_rel;
}
// The compiler splits a plain load where the words are used one after the other.
__device__ __forceinline__ FourWords LoadFourWords(const void* p) {
  const uint4 words = __ldg(static_cast<const uint4*>(p));
  return FourWords{{words.x, words.y, words.z, words.w}};
}
__device__ __forceinline__ Four LoadFour(const void* p) {
  const float4 four = *static_cast<const float4*>(p);
  return Four{{four.x, four.y, four.z, four.w}};
}
__device__ __forceinline__ void StoreFour(void* p, const Four& four) {
  *static_cast<float4*>(p) = make_float4(four.x[0], four.x[1], four.x[2], four.x[3]);
}
__device__ __forceinline__ TwoWords LoadTwo(const void* p) {
  const uint2 words = *static_cast<const uint2*>(p);
  return TwoWords{{words.x, words.y}};
}
__device__ __forceinline__ void StoreTwo(void* p, const TwoWords& words) {
  *static_cast<uint2*>(p) = make_uint2(words.word[0], words.word[1]);
}
__device__ __forceinline__ void CountAddition() {}
__device__ __forceinline__ uint32_t Again(uint32_t x) {
  asm volatile("" : "+r"(x));
  return x;
}

__device__ __forceinline__ FourWords LoadOwnFourWords(const void* p) {
  const uint4 words = __ldcg(static_cast<const uint4*>(p));
  return FourWords{{words.x, words.y, words.z, words.w}};
}

template <typename T>
using Ref = cuda::atomic_ref<T, cuda::thread_scope_device>;

template <Order order, typename T>
__device__ __forceinline__ T AtomicLoad(T* p) {
  return Ref<T>(*p).load(StdOrder<order>());
}
template <Order order, typename T>
__device__ __forceinline__ void AtomicStore(T* p, T value) {
  Ref<T>(*p).store(value, StdOrder<order>());
}
template <Order order, typename T>
__device__ __forceinline__ bool AtomicCas(T* p, T* expected, T desired) {
  return Ref<T>(*p).compare_exchange_strong(*expected, desired, StdOrder<order>(), cuda::std::memory_order_relaxed);
}
template <Order order, typename T>
__device__ __forceinline__ T AtomicExchange(T* p, T value) {
  return Ref<T>(*p).exchange(value, StdOrder<order>());
}
template <Order order, typename T>
__device__ __forceinline__ T AtomicAdd(T* p, T value) {
  return Ref<T>(*p).fetch_add(value, StdOrder<order>());
}
template <Order order, typename T>
__device__ __forceinline__ T AtomicMin(T* p, T value) {
  return Ref<T>(*p).fetch_min(value, StdOrder<order>());
}

}  // namespace multitier::device

#else

#include "cc/device/emulated_device.h"
#include "cc/device/simt/cuda_names.h"

#define MT_KERNELS_NAMESPACE emulated_kernels
#define MT_UNROLL _Pragma("GCC unroll 8")
#define MT_NO_UNROLL  // g++ does not unroll it
#define MT_SHARED(type, name)        \
  static const char name##_site = 0; \
  type& name = *static_cast<type*>(::multitier::simt::SharedMemory(&name##_site, sizeof(type)))
#define MT_LAUNCH(stream, grid, block, kernel, args)                                                                     \
  ::multitier::device::EnqueueKernel(                                                                                    \
      stream, #kernel, grid, block, [](const void* a) { kernel(*static_cast<const std::decay_t<decltype(args)>*>(a)); }, \
      &(args), sizeof(args))

namespace multitier::device {

enum Order {
  kRelaxed = __ATOMIC_RELAXED,
  kAcquire = __ATOMIC_ACQUIRE,
  kRelease = __ATOMIC_RELEASE,
  kAcqRel = __ATOMIC_ACQ_REL
};

__forceinline__ FourWords LoadFourWords(const void* p) { return *static_cast<const FourWords*>(p); }
__forceinline__ FourWords LoadOwnFourWords(const void* p) { return LoadFourWords(p); }
__forceinline__ Four LoadFour(const void* p) { return *static_cast<const Four*>(p); }
__forceinline__ void StoreFour(void* p, const Four& four) { *static_cast<Four*>(p) = four; }
__forceinline__ TwoWords LoadTwo(const void* p) { return *static_cast<const TwoWords*>(p); }
__forceinline__ void StoreTwo(void* p, const TwoWords& words) { *static_cast<TwoWords*>(p) = words; }
__forceinline__ void CountAddition() { simt::CountAddition(); }
__forceinline__ uint32_t Again(uint32_t x) { return x; }

template <Order order, typename T>
__forceinline__ T AtomicLoad(T* p) {
  simt::MaybeYield();
  return __atomic_load_n(p, order);
}
template <Order order, typename T>
__forceinline__ void AtomicStore(T* p, T value) {
  simt::MaybeYield();
  __atomic_store_n(p, value, order);
}
template <Order order, typename T>
__forceinline__ bool AtomicCas(T* p, T* expected, T desired) {
  simt::MaybeYield();
  return __atomic_compare_exchange_n(p, expected, desired, false, order, __ATOMIC_RELAXED);
}
template <Order order, typename T>
__forceinline__ T AtomicExchange(T* p, T value) {
  simt::MaybeYield();
  return __atomic_exchange_n(p, value, order);
}
template <Order order, typename T>
__forceinline__ T AtomicAdd(T* p, T value) {
  simt::MaybeYield();
  return __atomic_fetch_add(p, value, order);
}
template <Order order, typename T>
__forceinline__ T AtomicMin(T* p, T value) {
  T seen = AtomicLoad<kRelaxed>(p);
  while (value < seen && !AtomicCas<order>(p, &seen, value)) {
  }
  return seen;
}

}  // namespace multitier::device

#endif

#endif  // CC_DEVICE_DEVICE_CODE_H_
