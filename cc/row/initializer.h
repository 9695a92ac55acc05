// Initializer: computes the initial value of a key. The value is a deterministic function of (key, seed, initializer). It is
// the same in every path, tier, batch, process and device.
//
//   constant            the constant
//   uniform, normal,    Philox4x32-10, with the seed as its key and (embedding key, block number) as its counter. So element i
//   truncated normal    of key k depends on nothing else. A normal number is the inverse of the normal distribution
//                       (distributions.h); nothing is rejected. Every ISA and a GPU give the same bits.
//   normal between      the same by double arithmetic (normal_between.h), for cut-offs anywhere
//   matrix              row `key mod N` (Euclidean) of a matrix of N rows
//   debug               `key mod 100,000` (Euclidean) in every element
//
// Each value is rounded to the dtype in which rows store it.
//
// Immutable after Create. Thread-safe.

#ifndef CC_ROW_INITIALIZER_H_
#define CC_ROW_INITIALIZER_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

#include "cc/base/multiversion.h"
#include "cc/base/status.h"
#include "cc/row/computed_value.h"
#include "cc/row/normal_between.h"
#include "cc/row/row_layout.h"

namespace multitier {

enum class InitializerKind : int {
  kConstant = 0,
  kUniform = 1,
  kNormal = 2,
  kTruncatedNormal = 3,
  kMatrix = 4,
  kNormalBetween = 5,
  kDebug = 6
};

struct TableInitializer;  // initializer_set.h

struct InitializerSpec {
  InitializerKind kind = InitializerKind::kConstant;
  float a = 0.0f;                                         // constant | minimum | mean
  float b = 0.0f;                                         // unused   | maximum (exclusive) | standard deviation
  float lower = -std::numeric_limits<float>::infinity();  // cut-offs of kNormalBetween
  float upper = std::numeric_limits<float>::infinity();
  uint64_t seed = 0;                                 // of the random kinds
  std::shared_ptr<const std::vector<float>> matrix;  // [matrix_rows, dim], kMatrix only
  int64_t matrix_rows = 0;
  // Null, or the initializers of several tables: then nothing else but the seed is set. Only InitializerSet reads it.
  std::shared_ptr<const std::vector<TableInitializer>> tables;
};

class Initializer {
 public:
  // InvalidArgument: dim < 1; uniform with a >= b; normal with b < 0; normal between
  // with b <= 0 or lower >= upper; a matrix without rows or of another size than matrix_rows
  // x dim; parameters or results that are not finite in the dtype.
  static Result<Initializer> Create(const InitializerSpec& spec, int dim, DType dtype = DType::kFloat32);

  // Writes the initial value of `key` to out[0, dim).
  void Fill(int64_t key, float* out) const;
  // Fill for n keys: out[i] points to dim floats. Cheaper per key than Fill.
  void FillBatch(const int64_t* keys, size_t n, float* const* out) const;
  // FillBatch into the value columns of n rows: out[i] points to the row data.
  void FillRows(const int64_t* keys, size_t n, uint8_t* const* out) const;

  // What computes the values, before they are rounded to the dtype, where the key alone gives each element. False: they need
  // more than that.
  bool GetComputed(ComputedColumns* columns) const;

  const InitializerSpec& spec() const { return spec_; }
  int dim() const { return dim_; }
  const NormalBetween& between() const { return between_; }  // of kNormalBetween

 private:
  Initializer(const InitializerSpec& spec, int dim, DType dtype) : spec_(spec), dim_(dim), dtype_(dtype) {}

  InitializerSpec spec_;
  int dim_ = 0;
  DType dtype_ = DType::kFloat32;
  NormalBetween between_{};
};

namespace initializer_internal {
// FillBatch on a chosen instruction set, for tests. REQUIRES: isa <= BestIsa()
void FillBatch(const Initializer& initializer, Isa isa, const int64_t* keys, size_t n, float* const* out);
}  // namespace initializer_internal

}  // namespace multitier

#endif  // CC_ROW_INITIALIZER_H_
