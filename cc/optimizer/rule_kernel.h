// The common part of all rule files: the loop over rows and elements, the choice of the ISA, and the checks of hyperparameters.
//
// A rule file defines a kernel, which is the arithmetic of one element, and makes a KernelRule from it:
//
//   struct SgdKernel {
//     static constexpr int kSlots = 0;     // slots of `dim` elements: the first in slots(), at most 3
//     static constexpr int kRowSlots = 0;  // slots of one element: the rest, at most 1
//     SgdKernel(const float* hyper, int dim) : learning_rate_(hyper[0]) {}
//     MT_ALWAYS_INLINE void operator()(float& w, float g) const { w -= g * learning_rate_; }
//     ...
//   };
//   MT_UPDATE_FUNCTIONS(kUpdate, UpdateRows<SgdKernel>)
//
// The operator takes the value and each slot by reference, then the gradient. It is called once per element, in any order. A
// kernel that has a row slot, or that needs the whole gradient first, also has
//
//   MT_ALWAYS_INLINE void BeginRow(float* row_slot, const float* grad);
//
// which is called before the first element of a row. It may set members of the kernel for that row.
//
// The loop is compiled for each ISA and for common dims. All versions give the same bits (multiversion.h). It needs -O3
// -ffp-contract=off -fno-math-errno: see BUILD.

#ifndef CC_OPTIMIZER_RULE_KERNEL_H_
#define CC_OPTIMIZER_RULE_KERNEL_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cc/base/ieee.h"
#include "cc/base/multiversion.h"
#include "cc/base/prefetch.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/optimizer/update_rule.h"
#include "cc/row/row_layout.h"
#include "cc/row/value_codec.h"

namespace multitier {

// The allowed values of a hyperparameter. All ranges exclude NaN and infinities.
enum class HyperRange {
  kFinite,
  kPositive,
  kNonNegative,
  kNonPositive,
  kZeroToOne,   // [0, 1]
  kBelowOne,    // [0, 1)
  kFlag,        // 0 or 1
  kWholeNumber  // 0, 1, ... 2^24, which float32 represents exactly
};

struct HyperSpec {
  const char* name;
  HyperRange range;
};

using UpdateFunction = void (*)(const UpdateBatch&);

template <typename T, size_t n>
constexpr Span<const T> SpanOf(const T (&array)[n]) {
  return Span<const T>(array, n);
}

// A rule that consists of tables and one update function per Isa. Immutable. It lives as long as the process.
class KernelRule final : public UpdateRule {
 public:
  // The spans and `update` ([3], by Isa) must outlive the rule.
  KernelRule(const char* name, Span<const SlotSpec> slots, Span<const HyperSpec> hyper, const UpdateFunction* update);

  const char* name() const override { return name_; }
  Span<const SlotSpec> slots() const override { return slots_; }
  Span<const char* const> hyperparameters() const override {
    return Span<const char* const>(hyper_names_.data(), hyper_names_.size());
  }
  Status Validate(const float* hyper) const override;
  void Update(const UpdateBatch& batch) const override;

  // Update() compiled for that ISA. REQUIRES: isa <= BestIsa(). For tests.
  void UpdateOn(Isa isa, const UpdateBatch& batch) const;

 private:
  const char* const name_;
  const Span<const SlotSpec> slots_;
  const Span<const HyperSpec> hyper_;
  const UpdateFunction* const update_;  // [3]
  std::vector<const char*> hyper_names_;
};

namespace rule_internal {

constexpr size_t kPrefetchRows = 8;        // the caller has them in the second-level cache
constexpr size_t kMaxPrefetchBytes = 512;  // per row; the hardware prefetches the rest

// Bytes of row data from the value to the end of the last slot that the kernel uses.
template <typename Kernel, typename Value>
MT_ALWAYS_INLINE size_t TouchedBytes(const UpdateBatch& batch, int dim) {
  size_t end = sizeof(Value) * dim;
  for (int k = 0; k < Kernel::kSlots + Kernel::kRowSlots; ++k) {
    const size_t slot_end = batch.slot_offsets[k] + sizeof(float) * (k < Kernel::kSlots ? dim : 1);
    if (slot_end > end) end = slot_end;
  }
  return end < kMaxPrefetchBytes ? end : kMaxPrefetchBytes;
}

MT_ALWAYS_INLINE float* FloatsAt(uint8_t* row, uint32_t offset) { return reinterpret_cast<float*>(row + offset); }

template <typename Kernel, typename Value>
MT_ALWAYS_INLINE void UpdateRow(Kernel& kernel, const UpdateBatch& batch, uint8_t* row, const float* grad, int dim) {
  Value* const value = reinterpret_cast<Value*>(row);
  if constexpr (Kernel::kRowSlots > 0) {
    kernel.BeginRow(FloatsAt(row, batch.slot_offsets[Kernel::kSlots]), grad);
  }
  // ivdep: columns do not overlap each other or the gradient. unroll 1: if the compiler knows dim, it would unroll the loop
  // before it tries to vectorize.
  if constexpr (Kernel::kSlots == 0) {
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int d = 0; d < dim; ++d) {
      float w = LoadValue(value[d]);
      kernel(w, grad[d]);
      StoreValue(w, &value[d]);
    }
  } else if constexpr (Kernel::kSlots == 1) {
    float* const a = FloatsAt(row, batch.slot_offsets[0]);
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int d = 0; d < dim; ++d) {
      float w = LoadValue(value[d]), x = a[d];
      kernel(w, x, grad[d]);
      a[d] = x;
      StoreValue(w, &value[d]);
    }
  } else if constexpr (Kernel::kSlots == 2) {
    float* const a = FloatsAt(row, batch.slot_offsets[0]);
    float* const b = FloatsAt(row, batch.slot_offsets[1]);
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int d = 0; d < dim; ++d) {
      float w = LoadValue(value[d]), x = a[d], y = b[d];
      kernel(w, x, y, grad[d]);
      a[d] = x;
      b[d] = y;
      StoreValue(w, &value[d]);
    }
  } else {
    static_assert(Kernel::kSlots == 3, "add a loop for more slots");
    float* const a = FloatsAt(row, batch.slot_offsets[0]);
    float* const b = FloatsAt(row, batch.slot_offsets[1]);
    float* const c = FloatsAt(row, batch.slot_offsets[2]);
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int d = 0; d < dim; ++d) {
      float w = LoadValue(value[d]), x = a[d], y = b[d], z = c[d];
      kernel(w, x, y, z, grad[d]);
      a[d] = x;
      b[d] = y;
      c[d] = z;
      StoreValue(w, &value[d]);
    }
  }
}

// Updates all rows of the batch. kDim: the dim, or 0 for any dim above 1.
template <typename Kernel, typename Value, int kDim>
MT_ALWAYS_INLINE void UpdateRowsOfDim(const UpdateBatch& batch) {
  const int dim = kDim > 0 ? kDim : batch.dim;
  if (kDim == 0 && dim <= 1) __builtin_unreachable();  // kernels test dim == 1: removes that test from the loop
  Kernel kernel(batch.hyper, dim);
  const size_t touched = TouchedBytes<Kernel, Value>(batch, dim);
  for (size_t i = 0; i < batch.n && i < kPrefetchRows; ++i) PrefetchBytes(batch.rows[i], touched);
  for (size_t i = 0; i < batch.n; ++i) {
    if (i + kPrefetchRows < batch.n) PrefetchBytes(batch.rows[i + kPrefetchRows], touched);
    UpdateRow<Kernel, Value>(kernel, batch, batch.rows[i], batch.grads[i], dim);
  }
}

}  // namespace rule_internal

// Updates all rows of the batch with the kernel.
template <typename Kernel>
MT_ALWAYS_INLINE void UpdateRows(const UpdateBatch& batch) {
  using rule_internal::UpdateRowsOfDim;
  if (batch.value_dtype == DType::kFloat32) {
    switch (batch.dim) {
      case 1:
        return UpdateRowsOfDim<Kernel, float, 1>(batch);
      case 8:
        return UpdateRowsOfDim<Kernel, float, 8>(batch);
      case 16:
        return UpdateRowsOfDim<Kernel, float, 16>(batch);
      case 32:
        return UpdateRowsOfDim<Kernel, float, 32>(batch);
      default:
        return UpdateRowsOfDim<Kernel, float, 0>(batch);
    }
  }
  if (batch.value_dtype == DType::kBFloat16) {
    if (batch.dim == 1) return UpdateRowsOfDim<Kernel, BFloat16, 1>(batch);
    return UpdateRowsOfDim<Kernel, BFloat16, 0>(batch);
  }
  if (batch.dim == 1) return UpdateRowsOfDim<Kernel, Float16, 1>(batch);
  return UpdateRowsOfDim<Kernel, Float16, 0>(batch);
}

// Defines `functions`: the last argument, a MT_ALWAYS_INLINE function of a batch, compiled for each Isa.
#define MT_UPDATE_FUNCTIONS(functions, ...)                                                 \
  void functions##Baseline(const UpdateBatch& batch) { __VA_ARGS__(batch); }                \
  MT_TARGET_AVX2 void functions##Avx2(const UpdateBatch& batch) { __VA_ARGS__(batch); }     \
  MT_TARGET_AVX512 void functions##Avx512(const UpdateBatch& batch) { __VA_ARGS__(batch); } \
  constexpr UpdateFunction functions[3] = {functions##Baseline, functions##Avx2, functions##Avx512};

// x[0]^2 + ... + x[n - 1]^2, added in the order of update_rule.h: 16 lanes, then pairwise.
MT_ALWAYS_INLINE float SumOfSquares(const float* x, int n) {
  typedef float Lanes __attribute__((vector_size(64)));
  Lanes sum = {};
  int d = 0;
  for (; d + 16 <= n; d += 16) {
    Lanes v;
    std::memcpy(&v, x + d, sizeof(v));
    sum += v * v;
  }
  if (d < n) {
    Lanes v = {};
    std::memcpy(&v, x + d, (n - d) * sizeof(float));
    sum += v * v;
  }
  const auto eight = __builtin_shufflevector(sum, sum, 0, 1, 2, 3, 4, 5, 6, 7) +
                     __builtin_shufflevector(sum, sum, 8, 9, 10, 11, 12, 13, 14, 15);
  const auto four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) + __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

}  // namespace multitier

#endif  // CC_OPTIMIZER_RULE_KERNEL_H_
