// Random rows are filled in groups of 16 lanes, a lane being one Philox block, that is four elements of one key:
//
//   keys     k0        k0        k0         k1        k1 ...     16 lanes, as arrays of counter words
//   blocks   0         1         2          0         1  ...
//     | Philox, all lanes at once
//   bits     [ 4 words | 4 words | 4 words  | 4 words | ... ]    64 words
//     | distribution, all words at once
//   floats   [ row of k0, to a multiple of 4 | row of k1 ... ]   copied to where the rows are
//
// Both steps are loops of a fixed length without branches, compiled once per instruction set; what a lane computes does
// not depend on its place, so batch, single and every instruction set give the same bits.

#include "cc/row/initializer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "cc/row/value_column.h"

namespace multitier {
namespace {

constexpr size_t kGroupLanes = 16;
constexpr int64_t kDebugValues = 100000;
constexpr double kFarthestCutOff = 1e30;  // in deviations
constexpr size_t kTileLanes = 64;         // lanes prepared at once; their arrays stay in the L1 cache

// What the random kinds need, free of the class so that the entry points below can be plain functions.
struct Parameters : RandomParameters {
  NormalBetween between;
};

struct Tile {
  alignas(64) uint32_t key_low[kTileLanes];
  alignas(64) uint32_t key_high[kTileLanes];
  alignas(64) uint32_t block[kTileLanes];
  alignas(64) uint32_t bits[kGroupLanes * 4];
  alignas(64) float values[kTileLanes * 4];
};

struct Uniform {
  static MT_ALWAYS_INLINE float Value(const Parameters& p, uint32_t bits) { return UniformValue(p, bits); }
};
struct Normal {
  static MT_ALWAYS_INLINE float Value(const Parameters& p, uint32_t bits) { return NormalValue(p, bits); }
};
struct TruncatedNormal {
  static MT_ALWAYS_INLINE float Value(const Parameters& p, uint32_t bits) { return TruncatedNormalValue(p, bits); }
};
struct Between {
  static MT_ALWAYS_INLINE float Value(const Parameters& p, uint32_t bits) { return NumberBetween(p.between, bits); }
};

// Computes tile->values of lanes [0, lanes) and, to whole groups, some more.
template <typename Kind>
MT_ALWAYS_INLINE void ComputeTile(const Parameters& parameters, size_t lanes, Tile* tile) {
  const Parameters p = parameters;
  for (size_t first = 0; first < lanes; first += kGroupLanes) {
    const uint32_t* low = tile->key_low + first;
    const uint32_t* high = tile->key_high + first;
    const uint32_t* block = tile->block + first;
    uint32_t* bits = tile->bits;
    float* values = tile->values + first * 4;
#pragma GCC ivdep
    for (size_t lane = 0; lane < kGroupLanes; ++lane) {
      const PhiloxBlock random = Philox4x32(low[lane], high[lane], block[lane], 0, p.seed_low, p.seed_high);
      for (size_t word = 0; word < 4; ++word) bits[lane * 4 + word] = random.v[word];
    }
    for (size_t i = 0; i < kGroupLanes * 4; ++i) values[i] = Kind::Value(p, bits[i]);
  }
}

// Writes the two halves of a key to the lanes of its blocks, for n keys.
MT_ALWAYS_INLINE void SpreadKeys(const int64_t* keys, size_t n, size_t row_blocks, Tile* tile) {
  uint32_t* low = tile->key_low;
  uint32_t* high = tile->key_high;
  for (size_t k = 0; k < n; ++k) {
    const uint64_t key = static_cast<uint64_t>(keys[k]);
    for (size_t b = 0; b < row_blocks; ++b) {
      *low++ = static_cast<uint32_t>(key);
      *high++ = static_cast<uint32_t>(key >> 32);
    }
  }
}

// A copy of a constant size takes a few instructions, of another one a call: the usual short rows are named.
MT_ALWAYS_INLINE void CopyValues(const float* values, size_t n, float* out) {
  switch (n) {
    case 1:
      *out = *values;
      return;
    case 4:
      std::memcpy(out, values, 4 * sizeof(float));
      return;
    case 8:
      std::memcpy(out, values, 8 * sizeof(float));
      return;
    case 16:
      std::memcpy(out, values, 16 * sizeof(float));
      return;
    case 32:
      std::memcpy(out, values, 32 * sizeof(float));
      return;
    default:
      std::memcpy(out, values, n * sizeof(float));
      return;
  }
}

template <typename Kind>
MT_ALWAYS_INLINE void FillRows(const Parameters& parameters, size_t dim, const int64_t* keys, size_t n, float* const* out) {
  Tile tile;
  const size_t blocks = (dim + 3) / 4;
  const size_t tile_blocks = std::min(blocks, kTileLanes);  // a long row takes several tiles, a tile several short rows
  const size_t tile_keys = std::min(kTileLanes / tile_blocks, n);
  // The last group may be computed with lanes that no key uses; they must hold something.
  const size_t computed = (tile_keys * tile_blocks + kGroupLanes - 1) / kGroupLanes * kGroupLanes;
  std::fill_n(tile.key_low, computed, 0u);
  std::fill_n(tile.key_high, computed, 0u);
  std::fill_n(tile.block, computed, 0u);
  for (size_t first_block = 0; first_block < blocks; first_block += tile_blocks) {
    const size_t row_blocks = std::min(tile_blocks, blocks - first_block);
    const size_t row_values = std::min(row_blocks * 4, dim - first_block * 4);
    for (size_t lane = 0; lane < tile_keys * row_blocks; ++lane) {
      tile.block[lane] = static_cast<uint32_t>(first_block + lane % row_blocks);
    }
    for (size_t i = 0; i < n; i += tile_keys) {
      const size_t count = std::min(tile_keys, n - i);
      switch (row_blocks) {
        case 1:
          SpreadKeys(keys + i, count, 1, &tile);
          break;
        case 2:
          SpreadKeys(keys + i, count, 2, &tile);
          break;
        case 4:
          SpreadKeys(keys + i, count, 4, &tile);
          break;
        default:
          SpreadKeys(keys + i, count, row_blocks, &tile);
      }
      ComputeTile<Kind>(parameters, count * row_blocks, &tile);
      for (size_t k = 0; k < count; ++k) {
        CopyValues(tile.values + k * row_blocks * 4, row_values, out[i + k] + first_block * 4);
      }
    }
  }
}

MT_ALWAYS_INLINE void FillRowsOfKind(InitializerKind kind, const Parameters& parameters, size_t dim, const int64_t* keys,
                                     size_t n, float* const* out) {
  switch (kind) {
    case InitializerKind::kUniform:
      return FillRows<Uniform>(parameters, dim, keys, n, out);
    case InitializerKind::kNormal:
      return FillRows<Normal>(parameters, dim, keys, n, out);
    case InitializerKind::kTruncatedNormal:
      return FillRows<TruncatedNormal>(parameters, dim, keys, n, out);
    case InitializerKind::kNormalBetween:
      return FillRows<Between>(parameters, dim, keys, n, out);
    case InitializerKind::kConstant:
    case InitializerKind::kMatrix:
    case InitializerKind::kDebug:
      MT_CHECK(false);
  }
}

void FillRowsBaseline(InitializerKind kind, const Parameters& parameters, size_t dim, const int64_t* keys, size_t n,
                      float* const* out) {
  FillRowsOfKind(kind, parameters, dim, keys, n, out);
}
MT_TARGET_AVX2 void FillRowsAvx2(InitializerKind kind, const Parameters& parameters, size_t dim, const int64_t* keys, size_t n,
                                 float* const* out) {
  FillRowsOfKind(kind, parameters, dim, keys, n, out);
}
MT_TARGET_AVX512 void FillRowsAvx512(InitializerKind kind, const Parameters& parameters, size_t dim, const int64_t* keys,
                                     size_t n, float* const* out) {
  FillRowsOfKind(kind, parameters, dim, keys, n, out);
}

int64_t EuclideanModulo(int64_t key, int64_t n) {
  const int64_t rest = key % n;
  return rest < 0 ? rest + n : rest;
}

Status Invalid(const std::string& expected) { return InvalidArgumentError("initializer: ", expected); }

Status CheckMatrix(const InitializerSpec& spec, int dim) {
  const size_t found = spec.matrix == nullptr ? 0 : spec.matrix->size();
  if (spec.matrix_rows < 1) return Invalid(StrCat("matrix_rows: expected at least 1, found ", spec.matrix_rows));
  if (found % static_cast<size_t>(dim) != 0 || found / static_cast<size_t>(dim) != static_cast<uint64_t>(spec.matrix_rows)) {
    return Invalid(StrCat("matrix: expected ", spec.matrix_rows, " x ", dim, " values, found ", found));
  }
  for (const float v : *spec.matrix) {
    if (!std::isfinite(v)) return Invalid(StrCat("matrix: expected finite numbers, found ", v));
  }
  return OkStatus();
}

Status CheckBetween(const InitializerSpec& spec) {
  if (!(spec.b > 0)) return Invalid(StrCat("standard deviation of a normal with cut-offs: expected > 0, found ", spec.b));
  if (!(spec.lower < spec.upper)) {
    return Invalid(StrCat("normal with cut-offs: expected lower < upper, found ", spec.lower, " and ", spec.upper));
  }
  const double nearest = std::clamp(spec.a, spec.lower, spec.upper);
  const double distance = std::fabs(nearest - spec.a) / spec.b;
  if (!(distance <= kFarthestCutOff)) {
    return Invalid(StrCat("normal with cut-offs: expected one at most 1e30 deviations from the mean, found mean ", spec.a,
                          ", deviation ", spec.b, ", lower ", spec.lower, ", upper ", spec.upper));
  }
  if (std::isinf(spec.lower) || std::isinf(spec.upper)) {
    if (!std::isfinite(std::fabs(nearest) + 7.0f * spec.b)) {
      return Invalid(StrCat("normal of mean ", spec.a, " and deviation ", spec.b, ": values would not be finite"));
    }
  }
  return OkStatus();
}

// *kind: of the loop that draws the numbers.
Parameters ParametersOf(const Initializer& initializer, InitializerKind* kind) {
  const InitializerSpec& spec = initializer.spec();
  *kind = spec.kind;
  Parameters parameters;
  parameters.seed_low = static_cast<uint32_t>(spec.seed);
  parameters.seed_high = static_cast<uint32_t>(spec.seed >> 32);
  parameters.offset = spec.a;
  parameters.scale = spec.kind == InitializerKind::kUniform ? spec.b - spec.a : spec.b;
  parameters.last = std::nextafterf(spec.b, -std::numeric_limits<float>::infinity());
  parameters.between = initializer.between();
  if (spec.kind == InitializerKind::kNormalBetween && parameters.between.narrow) {
    *kind = InitializerKind::kUniform;
    parameters.offset = spec.lower;
    parameters.scale = spec.upper - spec.lower;
    parameters.last = spec.upper;
  }
  return parameters;
}

}  // namespace

namespace {

// The largest absolute value that the initializer may give.
float LargestValue(const InitializerSpec& spec) {
  switch (spec.kind) {
    case InitializerKind::kUniform:
      return std::max(std::fabs(spec.a), std::fabs(spec.b));
    case InitializerKind::kNormal:
      return std::fabs(spec.a) + 7.0f * spec.b;
    case InitializerKind::kTruncatedNormal:
      return std::fabs(spec.a) + 2.0f * spec.b;
    case InitializerKind::kNormalBetween: {
      const float low = std::max(spec.lower, spec.a - 7.0f * spec.b), high = std::min(spec.upper, spec.a + 7.0f * spec.b);
      return std::max(std::fabs(std::min(low, spec.upper)), std::fabs(std::max(high, spec.lower)));
    }
    case InitializerKind::kMatrix: {
      float most = 0.0f;
      for (const float x : *spec.matrix) most = std::max(most, std::fabs(x));
      return most;
    }
    case InitializerKind::kDebug:
      return static_cast<float>(kDebugValues - 1);
    case InitializerKind::kConstant:
      break;
  }
  return std::fabs(spec.a);
}

// InvalidArgument where values may be too large for the dtype.
Status CheckRange(const InitializerSpec& spec, DType dtype) {
  const float most = LargestValue(spec), largest = LargestOf(dtype);
  if (most <= largest) return OkStatus();
  return Invalid(
      StrCat("expected values of at most ", largest, ", the largest of ", DTypeName(dtype), ", found values up to ", most));
}

}  // namespace

Result<Initializer> Initializer::Create(const InitializerSpec& spec, int dim, DType dtype) {
  if (dim < 1) return Invalid(StrCat("dim: expected at least 1, found ", dim));
  if (!std::isfinite(spec.a) || !std::isfinite(spec.b)) {
    return Invalid(StrCat("parameters: expected finite numbers, found ", spec.a, " and ", spec.b));
  }
  switch (spec.kind) {
    case InitializerKind::kConstant:
    case InitializerKind::kDebug:
      break;
    case InitializerKind::kNormalBetween:
      MT_RETURN_IF_ERROR(CheckBetween(spec));
      break;
    case InitializerKind::kUniform:
      if (!(spec.a < spec.b)) return Invalid(StrCat("uniform: expected minimum < maximum, found ", spec.a, " and ", spec.b));
      if (!std::isfinite(spec.b - spec.a)) {
        return Invalid(StrCat("uniform from ", spec.a, " to ", spec.b, ": the width is not finite"));
      }
      break;
    case InitializerKind::kNormal:
    case InitializerKind::kTruncatedNormal:
      if (spec.b < 0) return Invalid(StrCat("standard deviation: expected at least 0, found ", spec.b));
      if (!std::isfinite(std::fabs(spec.a) + 7.0f * spec.b)) {
        return Invalid(StrCat("normal of mean ", spec.a, " and deviation ", spec.b, ": values would not be finite"));
      }
      break;
    case InitializerKind::kMatrix:
      MT_RETURN_IF_ERROR(CheckMatrix(spec, dim));
      break;
    default:
      return Invalid(StrCat("unknown kind ", static_cast<int>(spec.kind)));
  }
  if (dtype != DType::kFloat32) MT_RETURN_IF_ERROR(CheckRange(spec, dtype));
  Initializer made(spec, dim, dtype);
  if (spec.kind == InitializerKind::kNormalBetween) {
    made.between_ = NormalBetween::Of(spec.a, spec.b, spec.lower, spec.upper);
  }
  return made;
}

bool Initializer::GetComputed(ComputedColumns* columns) const {
  InitializerKind kind;
  const Parameters parameters = ParametersOf(*this, &kind);
  *columns = ComputedColumns{Distribution::kConstant, static_cast<uint32_t>(dim_), parameters};
  switch (kind) {
    case InitializerKind::kConstant:
      return true;
    case InitializerKind::kUniform:
      columns->distribution = Distribution::kUniform;
      return true;
    case InitializerKind::kNormal:
      columns->distribution = Distribution::kNormal;
      return true;
    case InitializerKind::kTruncatedNormal:
      columns->distribution = Distribution::kTruncatedNormal;
      return true;
    case InitializerKind::kMatrix:
    case InitializerKind::kNormalBetween:
    case InitializerKind::kDebug:
      break;
  }
  return false;
}

void Initializer::Fill(int64_t key, float* out) const { FillBatch(&key, 1, &out); }

void Initializer::FillBatch(const int64_t* keys, size_t n, float* const* out) const {
  static const Isa isa = BestIsa();
  initializer_internal::FillBatch(*this, isa, keys, n, out);
  if (dtype_ == DType::kFloat32) return;
  for (size_t i = 0; i < n; ++i) RoundValues(dtype_, out[i], static_cast<size_t>(dim_));
}

void Initializer::FillRows(const int64_t* keys, size_t n, uint8_t* const* out) const {
  constexpr size_t kRows = 32, kFloats = 4096;
  const auto dim = static_cast<size_t>(dim_);
  float* values[kRows];
  if (dtype_ == DType::kFloat32) {
    for (size_t from = 0; from < n; from += kRows) {
      const size_t some = std::min(kRows, n - from);
      for (size_t i = 0; i < some; ++i) values[i] = reinterpret_cast<float*>(out[from + i]);
      FillBatch(keys + from, some, values);
    }
    return;
  }
  const size_t at_once = std::clamp<size_t>(kFloats / dim, 1, kRows);
  std::vector<float> floats(at_once * dim);
  for (size_t i = 0; i < at_once; ++i) values[i] = floats.data() + i * dim;
  for (size_t from = 0; from < n; from += at_once) {
    const size_t some = std::min(at_once, n - from);
    FillBatch(keys + from, some, values);
    for (size_t i = 0; i < some; ++i) WriteColumn(dtype_, values[i], dim, out[from + i]);
  }
}

namespace initializer_internal {

void FillBatch(const Initializer& initializer, Isa isa, const int64_t* keys, size_t n, float* const* out) {
  const InitializerSpec& spec = initializer.spec();
  const size_t dim = static_cast<size_t>(initializer.dim());
  if (spec.kind == InitializerKind::kConstant) {
    for (size_t i = 0; i < n; ++i) std::fill_n(out[i], dim, spec.a);
    return;
  }
  if (spec.kind == InitializerKind::kMatrix) {
    for (size_t i = 0; i < n; ++i) {
      const auto row = static_cast<size_t>(EuclideanModulo(keys[i], spec.matrix_rows));
      std::memcpy(out[i], spec.matrix->data() + row * dim, dim * sizeof(float));
    }
    return;
  }
  if (spec.kind == InitializerKind::kDebug) {
    for (size_t i = 0; i < n; ++i) std::fill_n(out[i], dim, static_cast<float>(EuclideanModulo(keys[i], kDebugValues)));
    return;
  }
  InitializerKind kind;
  const Parameters parameters = ParametersOf(initializer, &kind);
  switch (isa) {
    case Isa::kBaseline:
      return FillRowsBaseline(kind, parameters, dim, keys, n, out);
    case Isa::kAvx2:
      return FillRowsAvx2(kind, parameters, dim, keys, n, out);
    case Isa::kAvx512:
      return FillRowsAvx512(kind, parameters, dim, keys, n, out);
  }
}

}  // namespace initializer_internal
}  // namespace multitier
