#include "cc/optimizer/rule_kernel.h"

namespace multitier {
namespace {

struct RangeCheck {
  bool ok;
  const char* expected;
};

RangeCheck CheckRange(HyperRange range, float x) {
  constexpr float kLargestCount = 16777216.0f;
  switch (range) {
    case HyperRange::kFinite:
      return {true, "a finite number"};
    case HyperRange::kPositive:
      return {x > 0, "a finite number, more than 0"};
    case HyperRange::kNonNegative:
      return {x >= 0, "a finite number, at least 0"};
    case HyperRange::kNonPositive:
      return {x <= 0, "a finite number, at most 0"};
    case HyperRange::kZeroToOne:
      return {x >= 0 && x <= 1, "0 to 1"};
    case HyperRange::kBelowOne:
      return {x >= 0 && x < 1, "at least 0 and less than 1"};
    case HyperRange::kFlag:
      return {x == 0 || x == 1, "0 or 1"};
    case HyperRange::kWholeNumber:
      return {x >= 0 && x <= kLargestCount && std::floor(x) == x, "a whole number, 0 to 2^24"};
  }
  return {false, "of a known range"};
}

}  // namespace

KernelRule::KernelRule(const char* name, Span<const SlotSpec> slots, Span<const HyperSpec> hyper, const UpdateFunction* update)
    : name_(name), slots_(slots), hyper_(hyper), update_(update) {
  for (const HyperSpec& spec : hyper) hyper_names_.push_back(spec.name);
}

Status KernelRule::Validate(const float* hyper) const {
  for (size_t i = 0; i < hyper_.size(); ++i) {
    const RangeCheck check = CheckRange(hyper_[i].range, hyper[i]);
    if (check.ok && std::isfinite(hyper[i])) continue;
    return InvalidArgumentError("optimizer ", name_, ": ", hyper_[i].name, ": expected ", check.expected, ", found ", hyper[i]);
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

}  // namespace multitier
