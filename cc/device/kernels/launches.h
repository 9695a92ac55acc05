// The launch functions of one compilation of the kernels: kernels.cu.cc lists them in its DeviceKernels.

#ifndef CC_DEVICE_KERNELS_LAUNCHES_H_
#define CC_DEVICE_KERNELS_LAUNCHES_H_

#include "cc/device/device_code.h"
#include "cc/device/kernels/kernels.h"

namespace multitier::device::MT_KERNELS_NAMESPACE {

Status Dedup(Stream stream, const DedupArgs& args);
Status Find(Stream stream, const FindArgs& args);
Status Compact(Stream stream, const CompactArgs& args);
Status ChainMisses(Stream stream, const InsertArgs& args);
Status PlaceMisses(Stream stream, const InsertArgs& args);
Status ReclaimRows(Stream stream, const InsertArgs& args);
Status Exchange(Stream stream, const ExchangeArgs& args);
Status Bear(Stream stream, const BearArgs& args);
Status Gather(Stream stream, const GatherArgs& args);
Status Stage(Stream stream, const StageArgs& args);
Status Sum(Stream stream, const SumArgs& args);
Status Update(Stream stream, DeviceRule rule, const UpdateArgs& args);
Status UpdateMembers(Stream stream, DeviceRule rule, const UpdateMembersArgs& args);
Status ListDirty(Stream stream, const ListDirtyArgs& args);
Status TakeListed(Stream stream, const TakeListedArgs& args);
Status Mark(Stream stream, const MarkArgs& args);
Status TakeOut(Stream stream, const TakeOutArgs& args);
Status Forget(Stream stream, const ForgetArgs& args);
Status CountForgotten(Stream stream, const ForgetArgs& args);
Status Reset(Stream stream, const ResetArgs& args);
Status MoveIndex(Stream stream, const MoveArgs& args);
Status MoveRows(Stream stream, const MoveArgs& args);
Status Renumber(Stream stream, const RenumberArgs& args);
Status Pin(Stream stream, const PinArgs& args);
Status SweepPins(Stream stream, const SweepPinsArgs& args);
Status Widen(Stream stream, const WidenArgs& args);
Status Pieces(Stream stream, const PiecesArgs& args);
Status Localize(Stream stream, const LocalizeArgs& args);
Status EntryRows(Stream stream, const OutputArgs& args);
Status Scales(Stream stream, const OutputArgs& args);
Status Values(Stream stream, const OutputArgs& args);
Status Begins(Stream stream, const BeginsArgs& args);
Status Gradients(Stream stream, const GradientArgs& args);
Status Corrections(Stream stream, const GradientArgs& args);

}  // namespace multitier::device::MT_KERNELS_NAMESPACE

#endif  // CC_DEVICE_KERNELS_LAUNCHES_H_
