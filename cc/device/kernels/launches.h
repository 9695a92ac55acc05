// The launch functions of one compilation of the kernels: kernels.cu.cc lists them in its DeviceKernels.

#ifndef CC_DEVICE_KERNELS_LAUNCHES_H_
#define CC_DEVICE_KERNELS_LAUNCHES_H_

#include "cc/device/device_code.h"
#include "cc/device/kernels/kernels.h"

namespace multitier::device::MT_KERNELS_NAMESPACE {

Status Dedup(Stream stream, const DedupArgs& args);
Status Find(Stream stream, const FindArgs& args);
Status Compact(Stream stream, const CompactArgs& args);
Status Insert(Stream stream, const InsertArgs& args);
Status Exchange(Stream stream, const ExchangeArgs& args);
Status Gather(Stream stream, const GatherArgs& args);

}  // namespace multitier::device::MT_KERNELS_NAMESPACE

#endif  // CC_DEVICE_KERNELS_LAUNCHES_H_
