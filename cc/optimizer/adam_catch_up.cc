// Adam that catches up: a row first gets the moves that it missed since the step of its last update, its version.
//
//   for each missed step   m = m * beta1,  v = v * beta2,  w -= (alpha of that step * m) / (sqrt(v) + epsilon)
//   then Adam's step: adam.cc
//
// The missed steps are summed at once by CatchUp, for which a table calls MoveRows; the rule itself is Adam's step. A row of
// version -1 has missed nothing.
//
// Source: Keras' Adam, which moves every row of a dense table in each step. After the step rows are equal to those, if the
// gradients are; between its updates a row reads as its last update left it.

#include <cmath>
#include <limits>

#include "cc/optimizer/catch_up.h"
#include "cc/optimizer/rule_kernel.h"

namespace multitier {
namespace {

// What MoveRows works on.
struct Batch {
  const CatchUp& catch_up;
  const UpdateBatch& rows;
  const int64_t* versions;
};

// kDim: the dim, or 0 for any.
template <typename Value, int kDim, int kTerms>
MT_ALWAYS_INLINE void MoveAll(const Batch& batch) {
  const UpdateBatch& its = batch.rows;
  const int dim = kDim > 0 ? kDim : its.dim;
  const float epsilon = its.hyper[3] + std::numeric_limits<float>::min();  // it may be 0, and m and v, too
  for (size_t i = 0; i < its.n; ++i) {
    CatchUp::Missed missed;
    if (!batch.catch_up.Since(batch.versions[i], &missed)) continue;
    Value* const value = reinterpret_cast<Value*>(its.rows[i]);
    float* const m = rule_internal::FloatsAt(its.rows[i], its.slot_offsets[0]);
    float* const v = rule_internal::FloatsAt(its.rows[i], its.slot_offsets[1]);
#pragma GCC ivdep
#pragma GCC unroll 1
    for (int d = 0; d < dim; ++d) {
      const float root = std::sqrt(v[d]), inverse = 1.0f / (root + epsilon), t = 2.0f * (root * inverse) - 1.0f;
      float sum = missed.terms[kTerms - 1];
#pragma GCC unroll 16
      for (int j = kTerms - 2; j >= 0; --j) sum = sum * t + missed.terms[j];
      StoreValue(LoadValue(value[d]) - (m[d] * inverse) * sum, &value[d]);
      m[d] *= missed.m_factor;
      v[d] *= missed.v_factor;
    }
  }
}

template <int kTerms>
MT_ALWAYS_INLINE void MoveAllOfType(const Batch& batch) {
  if (batch.rows.value_dtype == DType::kBFloat16) return MoveAll<BFloat16, 0, kTerms>(batch);
  if (batch.rows.value_dtype == DType::kFloat16) return MoveAll<Float16, 0, kTerms>(batch);
  if (batch.rows.dim == 16) return MoveAll<float, 16, kTerms>(batch);
  MoveAll<float, 0, kTerms>(batch);
}

MT_ALWAYS_INLINE void Move(const Batch& batch) {
  if (batch.catch_up.terms() == 4) return MoveAllOfType<4>(batch);
  if (batch.catch_up.terms() == 6) return MoveAllOfType<6>(batch);
  MoveAllOfType<CatchUp::kMostTerms>(batch);
}

void MoveBaseline(const Batch& batch) { Move(batch); }
MT_TARGET_AVX2 void MoveAvx2(const Batch& batch) { Move(batch); }
MT_TARGET_AVX512 void MoveAvx512(const Batch& batch) { Move(batch); }

class CatchUpRule final : public UpdateRule {
 public:
  const char* name() const override { return "adam_catch_up"; }
  Span<const SlotSpec> slots() const override { return adam_.slots(); }
  Span<const char* const> hyperparameters() const override { return adam_.hyperparameters(); }
  Status Validate(const float* hyper) const override {
    MT_RETURN_IF_ERROR(adam_.Validate(hyper));
    return CatchUp::Check(hyper[1], hyper[2]);
  }
  void Update(const UpdateBatch& batch) const override { adam_.Update(batch); }

 private:
  const UpdateRule& adam_ = **FindUpdateRule("adam");
};

}  // namespace

void CatchUp::MoveRows(const UpdateBatch& batch, const int64_t* versions) const {
  static const Isa isa = BestIsa();
  MoveRowsOn(isa, batch, versions);
}

void CatchUp::MoveRowsOn(Isa isa, const UpdateBatch& batch, const int64_t* versions) const {
  constexpr void (*kMove[])(const Batch&) = {MoveBaseline, MoveAvx2, MoveAvx512};
  const ScopedIeeeArithmetic ieee;
  kMove[static_cast<int>(isa)](Batch{*this, batch, versions});
}

const UpdateRule* AdamCatchUpRule() {
  static const CatchUpRule* const rule = new CatchUpRule;
  return rule;
}

bool CatchesUp(const UpdateRule& rule) { return &rule == AdamCatchUpRule(); }

}  // namespace multitier
