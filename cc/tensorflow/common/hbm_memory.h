// HbmMemoryOf: TensorFlow's memory of a GPU as the memory of tables in HBM. TensorFlow takes nearly all memory of a GPU when it
// starts, so tables get theirs from its allocator, also those of a variable that TensorFlow has placed on the CPU.

#ifndef CC_TENSORFLOW_COMMON_HBM_MEMORY_H_
#define CC_TENSORFLOW_COMMON_HBM_MEMORY_H_

#include <memory>

#include "cc/hbm/device_memory.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {

inline constexpr int kGpuOfTables = 0;  // TensorFlowGpu::ordinal; see device::DefaultDevice

// The memory of the GPU that tables are on: the first one, or, if they are emulated (TF_MULTITIER_DEVICE), one of a plugin.
// Null if the kernel is on another GPU, or on the CPU of a process in which TensorFlow has no such GPU. The allocator and the
// stream are the process's, so a table may live longer than a session.
std::shared_ptr<const hbm::MemorySource> HbmMemoryOf(tensorflow::OpKernelConstruction* context);

}  // namespace multitier

#endif  // CC_TENSORFLOW_COMMON_HBM_MEMORY_H_
