// The rule runs on copies of the rows whose values are float32. What it leaves is rounded back; its slots are copied back.

#include "cc/optimizer/stochastic_update.h"

#include <cstring>
#include <vector>

#include "cc/optimizer/ema_rule.h"
#include "cc/optimizer/rounding_bits.h"
#include "cc/row/value_codec.h"
#include "cc/row/value_column.h"

namespace multitier {
namespace {

template <typename Half>
void StoreRow(const float* values, int dim, int64_t key, int64_t step, uint8_t* row) {
  auto* const out = reinterpret_cast<Half*>(row);
  for (int d = 0; d < dim; d += 4) {
    const PhiloxBlock random = RoundingBits(key, step, static_cast<uint32_t>(d / 4));
    for (int i = 0; i < 4 && d + i < dim; ++i) StoreStochastically(values[d + i], random.v[i], &out[d + i]);
  }
}

}  // namespace

void UpdateStochastically(const UpdateRule& rule, const UpdateBatch& batch, const int64_t* keys, int64_t step) {
  if (const auto* const ema = dynamic_cast<const EmaRule*>(&rule)) {  // it follows the rounded values
    ema->Begin(batch);
    UpdateStochastically(ema->rule(), ema->OfRule(batch), keys, step);
    return ema->End(batch);
  }
  const auto dim = static_cast<size_t>(batch.dim);
  const Span<const SlotSpec> slots = rule.slots();
  std::vector<size_t> elements;  // of each slot
  std::vector<uint32_t> offsets;
  size_t width = dim;
  for (const SlotSpec& slot : slots) {
    elements.push_back(slot.per_row ? 1 : dim);
    offsets.push_back(static_cast<uint32_t>(width * sizeof(float)));
    width += elements.back();
  }
  std::vector<float> copies(batch.n * width);
  std::vector<uint8_t*> rows(batch.n);
  for (size_t i = 0; i < batch.n; ++i) {
    float* const copy = copies.data() + i * width;
    rows[i] = reinterpret_cast<uint8_t*>(copy);
    ReadColumn(batch.value_dtype, batch.rows[i], dim, copy);
    for (size_t k = 0; k < elements.size(); ++k) {
      std::memcpy(rows[i] + offsets[k], batch.rows[i] + batch.slot_offsets[k], elements[k] * sizeof(float));
    }
  }
  UpdateBatch floats = batch;
  floats.rows = rows.data();
  floats.value_dtype = DType::kFloat32;
  floats.slot_offsets = offsets.data();
  rule.Update(floats);
  for (size_t i = 0; i < batch.n; ++i) {
    const float* const copy = copies.data() + i * width;
    if (batch.value_dtype == DType::kBFloat16) {
      StoreRow<BFloat16>(copy, batch.dim, keys[i], step, batch.rows[i]);
    } else {
      StoreRow<Float16>(copy, batch.dim, keys[i], step, batch.rows[i]);
    }
    for (size_t k = 0; k < elements.size(); ++k) {
      std::memcpy(batch.rows[i] + batch.slot_offsets[k], rows[i] + offsets[k], elements[k] * sizeof(float));
    }
  }
}

}  // namespace multitier
