#include "cc/hbm/check/pair_check.h"

#include <algorithm>
#include <random>

#include "cc/hbm/check/pair_side.h"

namespace multitier::hbm {
namespace {

// Batches of one seed.
class Batches {
 public:
  explicit Batches(const PairCheckOptions& options) : options_(options), random_(options.seed) {}

  PairBatch Next(uint32_t number) {
    PairBatch batch;
    batch.number = number;
    batch.operation = 1000 + number * PairBatch::kOperations;
    batch.rule = static_cast<device::DeviceRule>((options_.first_rule + number) % PairCheckOptions::kRules);
    batch.smallest_dim = options_.dim;
    for (size_t m = 0; m < kMemberForms.size(); ++m) {
      batch.members.push_back(NextMember(kMemberForms[m], m, number % 3 == 1 && (m == 2 || m == 3)));
      const PairBatch::Member& member = batch.members.back();
      batch.keys.insert(batch.keys.end(), member.keys.begin(), member.keys.end());
      batch.ends.push_back(batch.n());
      batch.smallest_dim = std::min(batch.smallest_dim, member.dim);
    }
    batch.grads = Floats(size_t{batch.n()} * batch.smallest_dim);
    return batch;
  }

 private:
  uint32_t Draw(uint32_t n) { return static_cast<uint32_t>(random_() % n); }
  std::vector<float> Floats(size_t n) {
    std::vector<float> floats(n);
    for (float& x : floats) x = static_cast<float>(Draw(2001)) / 700.0f - 1.0f;
    return floats;
  }

  // Rows have 0 to 4 entries, of a dense member one. has_long_key: the first row has more of one key, whose gradients are
  // summed in pieces.
  PairBatch::Member NextMember(const MemberForm& form, size_t number, bool has_long_key) {
    PairBatch::Member member;
    const bool dense = form.columns == 0;
    member.batch = 1 + Draw(std::max(1u, dense ? options_.entries : options_.entries / 4));
    if (form.splits) member.indices.push_back(0);
    for (uint32_t row = 0; row < member.batch; ++row) {
      const bool is_long = has_long_key && row == 0;
      const uint32_t entries = is_long ? 2 * device::kPieceEntries + 88 : dense ? 1 : Draw(5);
      for (uint32_t i = 0; i < entries; ++i) {
        member.keys.push_back(is_long ? 7 : std::min(Draw(options_.keys), Draw(options_.keys)));
        if (form.columns > 0 && !form.splits) member.indices.push_back(row);
        if (form.columns > 1) member.indices.push_back(i);
      }
      if (form.splits) member.indices.push_back(static_cast<int64_t>(member.keys.size()));
    }
    if (form.out_of_order && !member.indices.empty()) member.indices[Draw(static_cast<uint32_t>(member.indices.size()))] = -1;
    if (form.weighted) member.weights = Floats(member.keys.size());
    member.dim = number % 3 == 0 ? options_.dim : std::max(1u, options_.dim * static_cast<uint32_t>(number + 5) / 16);
    member.stride = member.dim + static_cast<uint32_t>(number % 2) * 3;
    member.num_rows = member.batch * std::max(1u, form.steps);
    member.grads = Floats(size_t{member.num_rows} * member.stride);
    return member;
  }

  const PairCheckOptions options_;
  std::mt19937_64 random_;
};

Status Compare(const PairArrays& a, const PairArrays& b) {
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const auto& [name, x] = a[i];
    const std::vector<uint8_t>& y = b[i].second;
    if (x.size() != y.size()) return DataLossError(name, ": expected ", x.size(), " bytes, found ", y.size());
    const auto differs = std::mismatch(x.begin(), x.end(), y.begin());
    if (differs.first == x.end()) continue;
    return DataLossError(name, ", byte ", differs.first - x.begin(), " of ", x.size(), ": expected ",
                         static_cast<int>(*differs.first), ", found ", static_cast<int>(*differs.second));
  }
  return a.size() == b.size() ? OkStatus() : DataLossError("expected ", a.size(), " arrays, found ", b.size());
}

Status RunStep(PairSide* x, PairSide* y, const PairSide::Step& step) {
  PairArrays from_x, from_y;
  MT_RETURN_IF_ERROR(x->Run(step, &from_x));
  MT_RETURN_IF_ERROR(y->Run(step, &from_y));
  return Compare(from_x, from_y);
}

}  // namespace

Status CheckPair(const std::shared_ptr<device::Device>& a, const std::shared_ptr<device::Device>& b,
                 const PairCheckOptions& options) {
  PairSide x(a, options), y(b, options);
  MT_RETURN_IF_ERROR(x.Make());
  MT_RETURN_IF_ERROR(y.Make());
  Batches batches(options);
  for (uint32_t number = 0; number < options.batches; ++number) {
    const PairBatch batch = batches.Next(number);
    x.Begin(&batch);
    y.Begin(&batch);
    Status status;
    for (const PairSide::Step& step : PairSide::Steps()) {
      if (!status.ok()) break;
      const Status found = RunStep(&x, &y, step);
      if (!found.ok()) status = Status(found.code(), StrCat("batch ", number, ", ", step.launch, ", ", found.message()));
    }
    for (PairSide* side : {&x, &y}) {
      const Status ended = side->End();
      if (status.ok()) status = ended;
    }
    MT_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

std::vector<std::string> LaunchesOfPairCheck() {
  std::vector<std::string> launches;
  for (const PairSide::Step& step : PairSide::Steps()) launches.emplace_back(step.launch);
  return launches;
}

}  // namespace multitier::hbm
