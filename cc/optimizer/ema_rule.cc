#include "cc/optimizer/ema_rule.h"

#include "cc/optimizer/rule_kernel.h"

namespace multitier {
namespace {

constexpr SlotSpec kAverage[] = {{"average_offset", false, 0.0f}};
constexpr HyperSpec kMomentum[] = {{"ema_momentum", HyperRange::kZeroToOne}};

struct ToAverage {
  static constexpr int kSlots = 1;
  static constexpr int kRowSlots = 0;
  ToAverage(const float*, int) {}
  MT_ALWAYS_INLINE void operator()(float& w, float& average, float) const { average += w; }
};

struct ToOffset {
  static constexpr int kSlots = 1;
  static constexpr int kRowSlots = 0;
  ToOffset(const float* hyper, int) : momentum_(hyper[0]) {}
  MT_ALWAYS_INLINE void operator()(float& w, float& average, float) const { average = momentum_ * (average - w); }

 private:
  const float momentum_;
};

MT_UPDATE_FUNCTIONS(kToAverage, UpdateRows<ToAverage>)
MT_UPDATE_FUNCTIONS(kToOffset, UpdateRows<ToOffset>)

const KernelRule& BeginRule() {
  static const auto* const rule = new KernelRule("ema", SpanOf(kAverage), SpanOf(kMomentum), kToAverage);
  return *rule;
}

const KernelRule& EndRule() {
  static const auto* const rule = new KernelRule("ema", SpanOf(kAverage), SpanOf(kMomentum), kToOffset);
  return *rule;
}

}  // namespace

EmaRule::EmaRule(const UpdateRule* rule) : rule_(rule), name_(std::string(rule->name()) + kSuffix) {
  slots_.push_back(kAverage[0]);
  for (const SlotSpec& slot : rule->slots()) slots_.push_back(slot);
  for (const char* name : rule->hyperparameters()) hyper_names_.push_back(name);
  hyper_names_.push_back(kMomentum[0].name);
}

Status EmaRule::Validate(const float* hyper) const {
  MT_RETURN_IF_ERROR(EndRule().Validate(hyper + hyper_names_.size() - 1));
  return rule_->Validate(hyper);
}

void EmaRule::Update(const UpdateBatch& batch) const {
  Begin(batch);
  rule_->Update(OfRule(batch));
  End(batch);
}

void EmaRule::Begin(const UpdateBatch& batch) const { BeginRule().Update(batch); }

void EmaRule::End(const UpdateBatch& batch) const {
  UpdateBatch its = batch;
  its.hyper += hyper_names_.size() - 1;
  EndRule().Update(its);
}

}  // namespace multitier
