// HbmMemoryOf: TensorFlow's memory of a GPU as the memory of tables in HBM. TensorFlow takes nearly all memory of a GPU when it
// starts, so the tables of a variable on a GPU get theirs from its allocator.

#ifndef CC_KERNELS_HBM_MEMORY_H_
#define CC_KERNELS_HBM_MEMORY_H_

#include <memory>

#include "cc/hbm/device_memory.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {

inline constexpr int kGpuOfTables = 0;  // TensorFlowGpu::ordinal; see device::DefaultDevice

// The memory of the kernel's device. Null if it is no GPU, or if tables are not in its memory: tables are on the first GPU, or
// emulated (TF_MULTITIER_DEVICE). The allocator and the stream are the process's, so a table may live longer than a session.
std::shared_ptr<const hbm::MemorySource> HbmMemoryOf(tensorflow::OpKernelConstruction* context);

}  // namespace multitier

#endif  // CC_KERNELS_HBM_MEMORY_H_
