// HbmOver: TableOptions::above of a table whose first tier is HBM.

#ifndef CC_HBM_HBM_ABOVE_H_
#define CC_HBM_HBM_ABOVE_H_

#include <cstdint>
#include <memory>

#include "cc/device/device.h"
#include "cc/hbm/device_memory.h"
#include "cc/table/api/embedding_table.h"

namespace multitier::hbm {

// grows_from_rows, memory: see HbmOptions.
TableOptions::MakeAbove HbmOver(std::shared_ptr<device::Device> device, uint64_t grows_from_rows = 0,
                                std::shared_ptr<const MemorySource> memory = nullptr);

}  // namespace multitier::hbm

#endif  // CC_HBM_HBM_ABOVE_H_
