// One optimizer's step on each row of a batch. A warp updates a row, a lane an element: the arithmetic is that of cc/optimizer.

#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/scan.h"
#include "cc/optimizer/adagrad_kernel.h"
#include "cc/optimizer/adam_kernel.h"
#include "cc/optimizer/ftrl_kernel.h"
#include "cc/optimizer/momentum_kernel.h"
#include "cc/optimizer/rmsprop_kernel.h"
#include "cc/optimizer/rowwise_adagrad_step.h"
#include "cc/optimizer/sgd_kernel.h"

namespace multitier::device {
namespace {

constexpr uint32_t kSquareLanes = 16;

// x[0]^2 + ... + x[n - 1]^2 in the order of update_rule.h: 16 lanes, then pairwise. Both halves of the warp compute the same.
__device__ __forceinline__ float SumOfSquaresInWarp(const float* x, uint32_t n) {
  float sum = 0;
  for (uint32_t d = threadIdx.x % kSquareLanes; d < n; d += kSquareLanes) sum += x[d] * x[d];
  for (int lanes = kSquareLanes / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  return sum;
}

__device__ __forceinline__ float* SlotOf(const UpdateArgs& args, uint8_t* data, int slot) {
  return reinterpret_cast<float*>(data + args.slot_offsets[slot]);
}

template <typename Rule>
__device__ __forceinline__ void UpdateRow(const UpdateArgs& args, Rule rule, uint8_t* data, const float* grad) {
  const uint32_t lane = threadIdx.x % 32;
  auto* const value = reinterpret_cast<float*>(data);
  if constexpr (Rule::kRowSlots > 0) {
    const float squares = SumOfSquaresInWarp(grad, args.dim);
    float* const row_slot = SlotOf(args, data, Rule::kSlots);
    float x = *row_slot;  // every lane computes it; one writes it when all have read it
    rule.BeginRow(&x, squares);
    __syncwarp();
    if (lane == 0) *row_slot = x;
  }
  for (uint32_t d = lane; d < args.dim; d += 32) {
    if constexpr (Rule::kSlots == 0) {
      rule(value[d], grad[d]);
    } else if constexpr (Rule::kSlots == 1) {
      rule(value[d], SlotOf(args, data, 0)[d], grad[d]);
    } else if constexpr (Rule::kSlots == 2) {
      rule(value[d], SlotOf(args, data, 0)[d], SlotOf(args, data, 1)[d], grad[d]);
    } else {
      static_assert(Rule::kSlots == 3, "add a call for more slots");
      rule(value[d], SlotOf(args, data, 0)[d], SlotOf(args, data, 1)[d], SlotOf(args, data, 2)[d], grad[d]);
    }
  }
}

// A staged row, which is not in the table, has no rank.
__device__ __forceinline__ void SetRank(const Table& table, const DeviceRowHeader* header) {
  const auto* const row = reinterpret_cast<const uint8_t*>(header);
  if (row < table.rows || row >= table.rows + static_cast<size_t>(table.capacity) * table.row_stride) return;
  const uint32_t slot = table.slot_of_row[static_cast<size_t>(row - table.rows) / table.row_stride];
  table.ranks[slot] = RankOf(table.rank_by, *header);
}

// One lane's work. The other lanes of the warp have read the header's flags before.
__device__ __forceinline__ void UpdateHeader(const UpdateArgs& args, DeviceRowHeader* header, uint64_t occurrences) {
  const bool provisional = (header->flags & kRowProvisional) != 0;
  if (provisional) AtomicAdd<kRelaxed>(args.created, 1u);
  const uint64_t frequency = (provisional ? 0 : header->frequency) + occurrences;
  header->frequency = frequency < 0xffffffffu ? static_cast<uint32_t>(frequency) : 0xffffffffu;
  header->version = args.version;
  header->flags = static_cast<uint16_t>(((header->flags & ~kRowProvisional) | kRowDirty) | (provisional ? kRowNew : 0));
  if (args.ranked != nullptr) SetRank(*args.ranked, header);
}

// By the warp: row i of a batch.
template <typename Rule>
__device__ __forceinline__ void UpdateKey(const UpdateArgs& args, const Rule& rule, uint32_t i) {
  uint8_t* const row = args.rows[i];
  auto* const header = reinterpret_cast<DeviceRowHeader*>(row);
  if (args.skip_provisional && (header->flags & kRowProvisional) != 0) return;
  UpdateRow(args, rule, row + sizeof(DeviceRowHeader), args.sums + static_cast<size_t>(i) * args.dim);
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    UpdateHeader(args, header, args.occurrences != nullptr ? args.occurrences[i] : args.counts[i]);
  }
}

template <typename Rule>
__global__ void __launch_bounds__(kBlock, 4) UpdateKernel(UpdateArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  const uint32_t n = *args.num_keys;
  const Rule rule(args.hyper, static_cast<int>(args.dim));
  for (uint32_t i = warp; i < n; i += warps) UpdateKey(args, rule, i);
}

template <typename Rule>
__global__ void __launch_bounds__(kBlock, 4) UpdateMembersKernel(UpdateMembersArgs args) {
  const uint32_t warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
  for (uint32_t item = warp; item < args.items; item += warps) {
    const uint32_t member = MemberOf(args.ends, args.num_members, item);
    const UpdateArgs& m = args.members[member];
    UpdateKey(m, Rule(m.hyper, static_cast<int>(m.dim)), item - BeginOf(args.ends, member));
  }
}

template <typename Rule>
Status Launch(Stream stream, const UpdateArgs& args) {
  return MT_LAUNCH(stream, Grid(args.max_keys, kBlock / 32), kBlock, UpdateKernel<Rule>, args);
}

template <typename Rule>
Status Launch(Stream stream, const UpdateMembersArgs& args) {
  return MT_LAUNCH(stream, Grid(args.items, kBlock / 32), kBlock, UpdateMembersKernel<Rule>, args);
}

// Args: UpdateArgs or UpdateMembersArgs.
template <typename Args>
Status LaunchRule(Stream stream, DeviceRule rule, const Args& args) {
  switch (rule) {
    case DeviceRule::kSgd:
      return Launch<SgdKernel>(stream, args);
    case DeviceRule::kMomentum:
      return Launch<MomentumKernel<false>>(stream, args);
    case DeviceRule::kNesterov:
      return Launch<MomentumKernel<true>>(stream, args);
    case DeviceRule::kAdagrad:
      return Launch<AdagradKernel>(stream, args);
    case DeviceRule::kAdagradEpsilon:
      return Launch<AdagradEpsilonKernel>(stream, args);
    case DeviceRule::kRowwiseAdagrad:
      return Launch<RowwiseAdagradStep>(stream, args);
    case DeviceRule::kAdam:
      return Launch<AdamKernel>(stream, args);
    case DeviceRule::kSparseRmsProp:
      return Launch<SparseRmsPropKernel>(stream, args);
    case DeviceRule::kAdamW:
      return Launch<AdamWKernel>(stream, args);
    case DeviceRule::kRmsProp:
      return Launch<RmsPropKernel>(stream, args);
    case DeviceRule::kCenteredRmsProp:
      return Launch<CenteredRmsPropKernel>(stream, args);
    case DeviceRule::kFtrl:
      return Launch<FtrlKernel<true, false>>(stream, args);
    case DeviceRule::kFtrlShrinkage:
      return Launch<FtrlKernel<true, true>>(stream, args);
    case DeviceRule::kFtrlPower:
      return Launch<FtrlKernel<false, false>>(stream, args);
    case DeviceRule::kFtrlPowerShrinkage:
      return Launch<FtrlKernel<false, true>>(stream, args);
  }
  return InternalError("no update kernel of number ", static_cast<int>(rule));
}

}  // namespace

namespace MT_KERNELS_NAMESPACE {

Status Update(Stream stream, DeviceRule rule, const UpdateArgs& args) { return LaunchRule(stream, rule, args); }

Status UpdateMembers(Stream stream, DeviceRule rule, const UpdateMembersArgs& args) { return LaunchRule(stream, rule, args); }

}  // namespace MT_KERNELS_NAMESPACE
}  // namespace multitier::device
