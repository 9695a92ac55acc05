// How the lanes of a warp share rows, for files of kernels: 16 bytes a lane where memory allows, and as few lanes a row as it
// needs. A row is a number of parts: Fours, or floats where its length or its address is no multiple of 16 bytes.
//
//   16 floats, 4 Fours        lanes 0-3 row 0, lanes 4-7 row 1, ... lanes 28-31 row 7
//   128 floats, 32 Fours      all lanes row 0
//   7 floats                  lanes 0-7 row 0, ... lanes 24-31 row 3; the last one of each group is idle
//
// A group of lanes reads kInFlight rows before it writes the first of them. Of values of 16 bits a lane reads as many elements
// as the Part has that it writes or computes with: 8 bytes where dim is a multiple of four.

#ifndef CC_DEVICE_KERNELS_ROW_LANES_H_
#define CC_DEVICE_KERNELS_ROW_LANES_H_

#include "cc/device/device_code.h"
#include "cc/row/dtype.h"
#include "cc/row/value_codec.h"

namespace multitier::device {
namespace {

constexpr uint32_t kInFlight = 4;

struct Lanes {
  uint32_t lane;    // of this thread in its group
  uint32_t group;   // of this thread in the warp
  uint32_t lanes;   // of a group: a power of two
  uint32_t groups;  // of the warp
};

__device__ __forceinline__ Lanes LanesFor(uint32_t parts) {
  const int bits = parts > 16 ? 5 : parts <= 1 ? 0 : 32 - __clz(static_cast<int>(parts - 1));
  const uint32_t lane = threadIdx.x % 32, lanes = 1u << bits;
  return Lanes{lane & (lanes - 1), lane >> bits, lanes, 32u >> bits};
}

__device__ __forceinline__ uint32_t WarpOfGrid() { return (blockIdx.x * blockDim.x + threadIdx.x) / 32; }
__device__ __forceinline__ uint32_t WarpsOfGrid() { return gridDim.x * blockDim.x / 32; }

// Parts of a row of floats.
template <typename Part>
__device__ __forceinline__ uint32_t PartsOf(uint32_t floats) {
  return floats / static_cast<uint32_t>(sizeof(Part) / sizeof(float));
}

// Whether rows of `floats`, `stride` apart, are Fours. Of null, too.
__device__ __forceinline__ bool IsOfFours(uint32_t floats, uint32_t stride, const void* rows) {
  return (floats % 4 | stride % 4 | static_cast<uint32_t>(reinterpret_cast<uintptr_t>(rows) % sizeof(Four))) == 0;
}

__device__ __forceinline__ float Load(const float* p) { return *p; }
__device__ __forceinline__ Four Load(const Four* p) { return LoadFour(p); }
__device__ __forceinline__ void Store(float* p, float part) { *p = part; }
__device__ __forceinline__ void Store(Four* p, const Four& part) { StoreFour(p, part); }

// A part of a value as it is in a row.
template <typename Part, bool kHalves>
struct StoredPart {
  using Type = Part;
};
template <>
struct StoredPart<float, true> {
  using Type = uint16_t;
};
template <>
struct StoredPart<Four, true> {
  using Type = TwoWords;
};
template <typename Part, bool kHalves>
using Stored = typename StoredPart<Part, kHalves>::Type;

__device__ __forceinline__ uint16_t Load(const uint16_t* p) { return *p; }
__device__ __forceinline__ TwoWords Load(const TwoWords* p) { return LoadTwo(p); }
__device__ __forceinline__ void Store(uint16_t* p, uint16_t part) { *p = part; }
__device__ __forceinline__ void Store(TwoWords* p, const TwoWords& part) { StoreTwo(p, part); }

__device__ __forceinline__ float ToFloats(DType, float part) { return part; }
__device__ __forceinline__ Four ToFloats(DType, const Four& part) { return part; }
__device__ __forceinline__ float ToFloats(DType dtype, uint16_t half) {
  return dtype == DType::kBFloat16 ? LoadValue(BFloat16{half}) : LoadValue(Float16{half});
}
__device__ __forceinline__ Four ToFloats(DType dtype, const TwoWords& halves) {
  Four part;
  MT_UNROLL for (int k = 0; k < 4; ++k) {
    part.x[k] = ToFloats(dtype, static_cast<uint16_t>(halves.word[k / 2] >> 16 * (k % 2)));
  }
  return part;
}

__device__ __forceinline__ float& Element(float& part, int) { return part; }
__device__ __forceinline__ float& Element(Four& part, int k) { return part.x[k]; }

template <typename Part, typename Function>
__device__ __forceinline__ Part EachOf(Part part, Function function) {
  MT_UNROLL for (int k = 0; k < static_cast<int>(sizeof(Part) / sizeof(float)); ++k) {
    Element(part, k) = function(Element(part, k));
  }
  return part;
}

template <typename Part>
__device__ __forceinline__ void Add(Part* sum, Part part) {
  MT_UNROLL for (int k = 0; k < static_cast<int>(sizeof(Part) / sizeof(float)); ++k) Element(*sum, k) += Element(part, k);
  CountAddition();
}

// load(begin) + ... + load(end - 1), added in this order. REQUIRES: begin < end
template <typename Part, uint32_t kLoads = kInFlight, typename LoadPart>
__device__ __forceinline__ Part SumInOrder(uint32_t begin, uint32_t end, LoadPart load) {
  Part sum = load(begin);
  uint32_t i = begin + 1;
  MT_NO_UNROLL for (; end - i >= kLoads; i += kLoads) {
    Part next[kLoads];
    MT_UNROLL for (uint32_t k = 0; k < kLoads; ++k) next[k] = load(i + k);
    MT_UNROLL for (uint32_t k = 0; k < kLoads; ++k) Add(&sum, next[k]);
  }
  MT_NO_UNROLL for (; i < end; ++i) Add(&sum, load(i));
  return sum;
}

// Rows that a group copies at one time. parts: of each row; 0: there is none, and its pointers may be anything.
template <typename Part, typename From = Part>
struct RowCopies {
  Part* to[kInFlight];
  const From* from[kInFlight];
  uint32_t parts[kInFlight];
};

// dtype: of From, if it is no Part.
template <typename Part, typename From>
__device__ __forceinline__ void CopyRows(const RowCopies<Part, From>& rows, const Lanes& mine, DType dtype = DType::kFloat32) {
  uint32_t most = 0;
  MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) most = rows.parts[k] > most ? rows.parts[k] : most;
  for (uint32_t p = mine.lane; p < most; p += mine.lanes) {
    From part[kInFlight] = {};
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {
      if (p < rows.parts[k]) part[k] = Load(rows.from[k] + p);
    }
    MT_UNROLL for (uint32_t k = 0; k < kInFlight; ++k) {
      if (p < rows.parts[k]) Store(rows.to[k] + p, ToFloats(dtype, part[k]));
    }
  }
}

}  // namespace
}  // namespace multitier::device

#endif  // CC_DEVICE_KERNELS_ROW_LANES_H_
