#include "cc/optimizer/rule_kernel.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace multitier {
namespace {

struct RangeCheck {
  bool ok;
  const char* expected;
};

RangeCheck CheckRange(HyperRange range, float x) {
  constexpr float kLargestCount = 16777216.0f;
  switch (range) {
    case HyperRange::kFinite: return {true, "finite"};
    case HyperRange::kPositive: return {x > 0, "positive and finite"};
    case HyperRange::kNonNegative: return {x >= 0, "finite and not negative"};
    case HyperRange::kNonPositive: return {x <= 0, "finite and not positive"};
    case HyperRange::kZeroToOne: return {x >= 0 && x <= 1, "in [0, 1]"};
    case HyperRange::kBelowOne: return {x >= 0 && x < 1, "in [0, 1)"};
    case HyperRange::kFlag: return {x == 0 || x == 1, "0 or 1"};
    case HyperRange::kWholeNumber:
      return {x >= 0 && x <= kLargestCount && std::floor(x) == x, "a whole number in [0, 2^24]"};
  }
  return {false, "of a known range"};
}

}  // namespace

KernelRule::KernelRule(const char* name, Span<const SlotSpec> slots, Span<const HyperSpec> hyper,
                       const UpdateFunction* update)
    : name_(name), slots_(slots), hyper_(hyper), update_(update) {
  for (const HyperSpec& spec : hyper) hyper_names_.push_back(spec.name);
}

Status KernelRule::Validate(const float* hyper) const {
  for (size_t i = 0; i < hyper_.size(); ++i) {
    const RangeCheck check = CheckRange(hyper_[i].range, hyper[i]);
    if (check.ok && std::isfinite(hyper[i])) continue;
    return InvalidArgumentError("optimizer ", name_, ": ", hyper_[i].name, " must be ", check.expected, ", found ",
                                hyper[i]);
  }
  return OkStatus();
}

void KernelRule::Update(const UpdateBatch& batch) const {
  static const Isa isa = BestIsa();
  UpdateOn(isa, batch);
}

void KernelRule::UpdateOn(Isa isa, const UpdateBatch& batch) const {
  const ScopedIeeeArithmetic ieee;
  update_[static_cast<int>(isa)](batch);
}

#if defined(__SSE__)

constexpr unsigned kFlushOrRound = 0x8000 | 0x6000 | 0x0040;  // flush to zero, rounding mode, subnormals are zero

ScopedIeeeArithmetic::ScopedIeeeArithmetic() : saved_(_mm_getcsr()) {
  if (saved_ & kFlushOrRound) _mm_setcsr(static_cast<unsigned>(saved_) & ~kFlushOrRound);
}

ScopedIeeeArithmetic::~ScopedIeeeArithmetic() {
  if (saved_ & kFlushOrRound) _mm_setcsr(static_cast<unsigned>(saved_));
}

#elif defined(__aarch64__)

constexpr uint64_t kFlushOrRound = (uint64_t{1} << 24) | (uint64_t{3} << 22) | (uint64_t{1} << 19);

ScopedIeeeArithmetic::ScopedIeeeArithmetic() {
  asm volatile("mrs %0, fpcr" : "=r"(saved_));
  if (saved_ & kFlushOrRound) asm volatile("msr fpcr, %0" : : "r"(saved_ & ~kFlushOrRound));
}

ScopedIeeeArithmetic::~ScopedIeeeArithmetic() {
  if (saved_ & kFlushOrRound) asm volatile("msr fpcr, %0" : : "r"(saved_));
}

#else

ScopedIeeeArithmetic::ScopedIeeeArithmetic() : saved_(0) {}
ScopedIeeeArithmetic::~ScopedIeeeArithmetic() = default;

#endif

}  // namespace multitier
