// The table of launch functions, once for each compiler.

#include "cc/device/kernels/kernels.h"

#include "cc/device/kernels/launches.h"

namespace multitier::device {

#if defined(__CUDACC__)
const DeviceKernels& CudaKernels() {
#else
const DeviceKernels& EmulatedKernels() {
#endif
  using namespace MT_KERNELS_NAMESPACE;  // NOLINT: the one place that chooses
  static constexpr DeviceKernels kKernels = {
      Dedup,          Find,      Compact,   ChainMisses,   PlaceMisses, ReclaimRows, Exchange,   Bear,    Gather,
      Stage,          Sum,       Update,    UpdateMembers, ListDirty,   TakeListed,  Mark,       TakeOut, Forget,
      CountForgotten, Reset,     MoveIndex, MoveRows,      Renumber,    Pin,         SweepPins,  Widen,   Pieces,
      Localize,       EntryRows, Scales,    Values,        Begins,      Gradients,   Corrections};
  return kKernels;
}

}  // namespace multitier::device
