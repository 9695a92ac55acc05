// One optimizer's step on each row of a batch: the arithmetic is that of cc/optimizer. A group of lanes updates kRowsOf
// rows: it loads their values, slots and gradients, each once, then computes in registers, then stores.
//
// kHalves: values have 16 bits. They are widened as they are loaded, and rounded as they are stored.

#include "cc/device/kernels/member_of.h"
#include "cc/device/kernels/row_lanes.h"
#include "cc/device/kernels/scan.h"
#include "cc/optimizer/adagrad_kernel.h"
#include "cc/optimizer/adam_kernel.h"
#include "cc/optimizer/ftrl_kernel.h"
#include "cc/optimizer/momentum_kernel.h"
#include "cc/optimizer/rmsprop_kernel.h"
#include "cc/optimizer/rounding_bits.h"
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

// Where the slots of a rule are in row data, in registers.
template <typename Rule>
struct SlotsOf {
  uint32_t offsets[Rule::kSlots + Rule::kRowSlots + 1];

  __device__ __forceinline__ explicit SlotsOf(const UpdateArgs& args) {
    MT_UNROLL for (int s = 0; s < Rule::kSlots + Rule::kRowSlots; ++s) offsets[s] = args.slot_offsets[s];
  }
  __device__ __forceinline__ float* In(uint8_t* data, int slot) const { return reinterpret_cast<float*>(data + offsets[slot]); }
};

// Rows whose loads come before the first store: at least four loads.
template <typename Rule>
constexpr int kRowsOf = Rule::kSlots > 1 ? 1 : 2;

template <typename Rule, typename Part>
struct RowParts {
  Part value, slots[Rule::kSlots > 0 ? Rule::kSlots : 1], grad;
};

template <typename Rule, typename Part, bool kHalves>
__device__ __forceinline__ RowParts<Rule, Part> LoadParts(DType dtype, const SlotsOf<Rule>& slots, uint8_t* data,
                                                          const float* grad, uint32_t p) {
  RowParts<Rule, Part> row;
  row.value = ToFloats(dtype, Load(reinterpret_cast<const Stored<Part, kHalves>*>(data) + p));
  MT_UNROLL for (int s = 0; s < Rule::kSlots; ++s) row.slots[s] = Load(reinterpret_cast<const Part*>(slots.In(data, s)) + p);
  row.grad = Load(reinterpret_cast<const Part*>(grad) + p);
  return row;
}

// How values of 16 bits are rounded.
struct Rounding {
  DType dtype;
  bool stochastic;
  int64_t step;
};

template <typename Half>
__device__ __forceinline__ uint16_t Rounded(const Rounding& rounding, float x, uint32_t random) {
  Half half;
  if (rounding.stochastic) {
    StoreStochastically(x, random, &half);
  } else {
    StoreValue(x, &half);
  }
  return half.bits;
}

__device__ __forceinline__ uint16_t Rounded(const Rounding& rounding, float x, uint32_t random) {
  return rounding.dtype == DType::kBFloat16 ? Rounded<BFloat16>(rounding, x, random) : Rounded<Float16>(rounding, x, random);
}

// Part p of the value of a key.
__device__ __forceinline__ void StoreHalves(const Rounding& rounding, int64_t key, uint8_t* data, uint32_t p, float value) {
  PhiloxBlock random{};
  if (rounding.stochastic) random = RoundingBits(key, rounding.step, p / 4);
  const uint32_t word = p % 4;
  const uint32_t bits = word == 0 ? random.v[0] : word == 1 ? random.v[1] : word == 2 ? random.v[2] : random.v[3];
  Store(reinterpret_cast<uint16_t*>(data) + p, Rounded(rounding, value, bits));
}

__device__ __forceinline__ void StoreHalves(const Rounding& rounding, int64_t key, uint8_t* data, uint32_t p,
                                            const Four& value) {
  PhiloxBlock random{};
  if (rounding.stochastic) random = RoundingBits(key, rounding.step, p);
  TwoWords halves{};
  MT_UNROLL for (int k = 0; k < 4; ++k) {
    halves.word[k / 2] |= static_cast<uint32_t>(Rounded(rounding, value.x[k], random.v[k])) << 16 * (k % 2);
  }
  Store(reinterpret_cast<TwoWords*>(data) + p, halves);
}

template <typename Rule, typename Part>
__device__ __forceinline__ void StoreSlots(const SlotsOf<Rule>& slots, uint8_t* data, uint32_t p,
                                           const RowParts<Rule, Part>& row) {
  MT_UNROLL for (int s = 0; s < Rule::kSlots; ++s) Store(reinterpret_cast<Part*>(slots.In(data, s)) + p, row.slots[s]);
}

template <typename Rule, typename Part>
__device__ __forceinline__ void StepOfElement(const Rule& rule, int k, RowParts<Rule, Part>* row) {
  float &w = Element(row->value, k), &a = Element(row->slots[0], k);
  const float g = Element(row->grad, k);
  if constexpr (Rule::kSlots == 0) {
    rule(w, g);
  } else if constexpr (Rule::kSlots == 1) {
    rule(w, a, g);
  } else if constexpr (Rule::kSlots == 2) {
    rule(w, a, Element(row->slots[1], k), g);
  } else {
    static_assert(Rule::kSlots == 3, "add a call for more slots");
    rule(w, a, Element(row->slots[1], k), Element(row->slots[2], k), g);
  }
}

// Rules that need many registers. Their elements wait in shared memory and are computed one after the other.
template <typename Rule>
constexpr bool kOneByOne = false;
template <bool kShrinks>
constexpr bool kOneByOne<FtrlKernel<false, kShrinks>> = true;

template <typename Rule>
__device__ __forceinline__ void StepOneByOne(const Rule& rule, RowParts<Rule, Four>* row) {
  using Waiting = float[4][4][kBlock];  // of each element: value, two slots, gradient; each thread has its own
  static_assert(Rule::kSlots == 2, "four numbers of an element");
  MT_SHARED(Waiting, waiting);
  MT_UNROLL for (int k = 0; k < 4; ++k) {
    waiting[k][0][threadIdx.x] = row->value.x[k];
    waiting[k][1][threadIdx.x] = row->slots[0].x[k];
    waiting[k][2][threadIdx.x] = row->slots[1].x[k];
    waiting[k][3][threadIdx.x] = row->grad.x[k];
  }
  MT_NO_UNROLL for (int k = 0; k < 4; ++k) {
    float w = waiting[k][0][threadIdx.x], a = waiting[k][1][threadIdx.x], b = waiting[k][2][threadIdx.x];
    rule(w, a, b, waiting[k][3][threadIdx.x]);
    waiting[k][0][threadIdx.x] = w;
    waiting[k][1][threadIdx.x] = a;
    waiting[k][2][threadIdx.x] = b;
  }
  MT_UNROLL for (int k = 0; k < 4; ++k) {
    row->value.x[k] = waiting[k][0][threadIdx.x];
    row->slots[0].x[k] = waiting[k][1][threadIdx.x];
    row->slots[1].x[k] = waiting[k][2][threadIdx.x];
  }
}

// A staged row, which is not in the table, has no rank.
__device__ __forceinline__ void SetRank(const Table& table, const DeviceRowHeader* header) {
  const auto* const row = reinterpret_cast<const uint8_t*>(header);
  if (row < table.rows || row >= table.rows + static_cast<size_t>(table.capacity) * table.row_stride) return;
  const uint32_t slot = table.slot_of_row[static_cast<size_t>(row - table.rows) / table.row_stride];
  table.ranks[slot] = RankOf(table.rank_by, *header);
}

template <typename Rule, typename Part>
__device__ __forceinline__ void StepOfParts(const Rule& rule, RowParts<Rule, Part>* row) {
  constexpr int kElements = static_cast<int>(sizeof(Part) / sizeof(float));
  if constexpr (kOneByOne<Rule> && kElements > 1) {
    StepOneByOne(rule, row);
  } else {
    MT_UNROLL for (int k = 0; k < kElements; ++k) StepOfElement(rule, k, row);
  }
}

// One lane's work. The other lanes of the group have read the header's flags before.
__device__ __forceinline__ void UpdateHeader(const UpdateArgs& args, DeviceRowHeader* header, uint64_t occurrences) {
  const bool provisional = (header->flags & kRowProvisional) != 0;
  if (provisional) AtomicAdd<kRelaxed>(args.created, 1u);
  const uint64_t frequency = (provisional ? 0 : header->frequency) + occurrences;
  header->frequency = frequency < 0xffffffffu ? static_cast<uint32_t>(frequency) : 0xffffffffu;
  header->version = args.version;
  header->flags = static_cast<uint16_t>(((header->flags & ~kRowProvisional) | kRowDirty) | (provisional ? kRowNew : 0));
  if (args.ranked != nullptr) SetRank(*args.ranked, header);
}

// Rows that a group of lanes updates at one time. A row that it does not update may be read all the same.
template <typename Rule>
struct RowsOf {
  static constexpr int kRows = kRowsOf<Rule>;
  uint8_t* data[kRows];
  const float* grads[kRows];
  bool updates[kRows];
  int64_t keys[kRows];  // of halves
  Rounding rounding;    // of halves
};

// Of a rule with a row slot: the step of each row. A warp has these rows, and all its lanes compute it.
template <typename Rule>
__device__ __forceinline__ void BeginRows(const SlotsOf<Rule>& slots, uint32_t dim, const RowsOf<Rule>& rows,
                                          Rule (&of_row)[kRowsOf<Rule>]) {
  float x[kRowsOf<Rule>];
  MT_UNROLL for (int r = 0; r < kRowsOf<Rule>; ++r) {
    const float squares = SumOfSquaresInWarp(rows.grads[r], dim);
    x[r] = *slots.In(rows.data[r], Rule::kSlots);
    of_row[r].BeginRow(&x[r], squares);
  }
  __syncwarp();  // every lane has read the slots
  if (threadIdx.x % 32 != 0) return;
  MT_UNROLL for (int r = 0; r < kRowsOf<Rule>; ++r) {
    if (rows.updates[r]) *slots.In(rows.data[r], Rule::kSlots) = x[r];
  }
}

// of_row: of the first row, and of the others.
template <typename Part, bool kHalves, typename Rule>
__device__ __forceinline__ void UpdateElements(const SlotsOf<Rule>& slots, const RowsOf<Rule>& rows, const Rule& first,
                                               const Rule& others, uint32_t parts, const Lanes& mine) {
  MT_NO_UNROLL for (uint32_t p = mine.lane; p < parts; p += mine.lanes) {
    RowParts<Rule, Part> row[kRowsOf<Rule>];
    MT_UNROLL for (int r = 0; r < kRowsOf<Rule>; ++r) {
      row[r] = LoadParts<Rule, Part, kHalves>(rows.rounding.dtype, slots, rows.data[r], rows.grads[r], p);
    }
    MT_UNROLL for (int r = 0; r < kRowsOf<Rule>; ++r) {
      if (!rows.updates[r]) continue;
      StepOfParts(r == 0 ? first : others, &row[r]);
      const uint32_t to = Again(p);  // addresses take no registers meanwhile
      if constexpr (kHalves) {
        StoreHalves(rows.rounding, rows.keys[r], rows.data[r], to, row[r].value);
      } else {
        Store(reinterpret_cast<Part*>(rows.data[r]) + to, row[r].value);
      }
      StoreSlots(slots, rows.data[r], to, row[r]);
    }
  }
}

// The rows [begin, end) of a batch, by a warp.
template <typename Part, bool kHalves, typename Rule>
__device__ __forceinline__ void UpdateRows(const UpdateArgs& args, const Rule& rule, uint32_t begin, uint32_t end) {
  constexpr uint32_t kRows = kRowsOf<Rule>;
  const SlotsOf<Rule> slots(args);
  const uint32_t parts = PartsOf<Part>(args.dim);
  const uint32_t sharing = Rule::kRowSlots > 0 ? 32 : parts;
  while (begin < end) {  // all lanes of the warp together
    const Lanes mine = LanesFor(sharing);
    const uint32_t own = begin + mine.group;
    RowsOf<Rule> rows{};
    if constexpr (kHalves) rows.rounding = Rounding{args.value_dtype, args.stochastic, args.step};
    MT_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t i = own + r * mine.groups, at = i < end ? i : own < end ? own : begin;
      uint8_t* const row = args.rows[at];
      rows.data[r] = row + sizeof(DeviceRowHeader);
      rows.grads[r] = args.sums + static_cast<size_t>(at) * args.dim;
      const bool skips = args.skip_provisional && (reinterpret_cast<const DeviceRowHeader*>(row)->flags & kRowProvisional) != 0;
      rows.updates[r] = i < end && !skips;
      if (kHalves && args.stochastic) rows.keys[r] = args.keys[at];
    }
    if constexpr (Rule::kRowSlots > 0) {
      static_assert(kRows == 2, "a rule for each row");
      Rule of_row[kRows] = {rule, rule};
      BeginRows(slots, args.dim, rows, of_row);
      UpdateElements<Part, kHalves>(slots, rows, of_row[0], of_row[1], parts, mine);
    } else if (own < end) {
      UpdateElements<Part, kHalves>(slots, rows, rule, rule, parts, mine);
    }
    __syncwarp();
    const Lanes again = LanesFor(Again(sharing));
    MT_UNROLL for (uint32_t r = 0; r < kRows; ++r) {
      const uint32_t i = begin + again.group + r * again.groups;
      if (again.lane != 0 || !rows.updates[r]) continue;
      UpdateHeader(args, reinterpret_cast<DeviceRowHeader*>(rows.data[r] - sizeof(DeviceRowHeader)),
                   args.occurrences != nullptr ? args.occurrences[i] : args.counts[i]);
    }
    begin += kRows * again.groups;
  }
}

template <typename Rule, bool kHalves>
__device__ __forceinline__ void UpdateItems(const UpdateArgs& args, uint32_t begin, uint32_t end) {
  const Rule rule(args.hyper, static_cast<int>(args.dim));
  if (IsOfFours(args.dim, args.dim, args.sums)) {
    UpdateRows<Four, kHalves>(args, rule, begin, end);
  } else {
    UpdateRows<float, kHalves>(args, rule, begin, end);
  }
}

template <typename Rule, bool kHalves>
__global__ void __launch_bounds__(kBlock, 4) UpdateKernel(UpdateArgs args) {
  ForItems(*args.num_keys, [&](uint32_t begin, uint32_t end) {
    UpdateItems<Rule, kHalves>(args, begin, end);
    return end;
  });
}

template <typename Rule, bool kHalves>
__global__ void __launch_bounds__(kBlock, 4) UpdateMembersKernel(UpdateMembersArgs args) {
  ForItemsOfMembers(
      args, [](const UpdateArgs& member, uint32_t begin, uint32_t end) { UpdateItems<Rule, kHalves>(member, begin, end); });
}

template <typename Rule>
Status Launch(Stream stream, const UpdateArgs& args) {
  const unsigned grid = Grid(args.max_keys, kBlock / 32 * kFewestItems);
  if (args.value_dtype == DType::kFloat32) return MT_LAUNCH(stream, grid, kBlock, (UpdateKernel<Rule, false>), args);
  return MT_LAUNCH(stream, grid, kBlock, (UpdateKernel<Rule, true>), args);
}

template <typename Rule>
Status Launch(Stream stream, const UpdateMembersArgs& args) {
  const unsigned grid = Grid(args.items, kBlock / 32 * kFewestItems);
  if (!args.halves) return MT_LAUNCH(stream, grid, kBlock, (UpdateMembersKernel<Rule, false>), args);
  return MT_LAUNCH(stream, grid, kBlock, (UpdateMembersKernel<Rule, true>), args);
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
