#include "cc/tensorflow/checkpoint/saved_chain.h"

#include <cstddef>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "tensorflow/core/platform/errors.h"

namespace multitier {
namespace {

constexpr absl::string_view kDelta = ".delta-";

// Splits "<base>.delta-<number>", of at least four digits. False if the prefix has another form.
bool ParseDelta(absl::string_view prefix, std::string* base, int* number) {
  const size_t at = prefix.rfind(kDelta);
  if (at == absl::string_view::npos) return false;
  const absl::string_view digits = prefix.substr(at + kDelta.size());
  if (digits.size() < 4 || !absl::c_all_of(digits, absl::ascii_isdigit) || !absl::SimpleAtoi(digits, number)) return false;
  *base = std::string(prefix.substr(0, at));
  return *number >= 1;
}

}  // namespace

absl::Status CheckContinues(const std::string& prefix, const std::vector<Manifest>& delta, const std::string& previous,
                            const std::vector<Manifest>& before) {
  bool continues = delta.size() == before.size();
  for (size_t i = 0; continues && i < delta.size(); ++i) {
    continues = delta[i].since != 0 && delta[i].since == before[i].save_id;
  }
  if (continues) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("delta ", prefix, ": expected one that continues ", previous,
                                          ", found one that continues another save: a delta is missing or of another chain"));
}

absl::Status SavedChain::Add(const std::string& prefix, const char* tensor) {
  Save save;
  save.reader = std::make_unique<PartReader>(env_, prefix, name_, tensor);
  TF_RETURN_IF_ERROR(save.reader->ReadManifests(&save.manifests));
  saves_.push_back(std::move(save));
  return absl::OkStatus();
}

absl::Status SavedChain::Open() {
  const absl::Status full = Add(prefix_, "manifest");
  std::string base;
  int number = 0;
  if (!absl::IsNotFound(full) || !env_->FileExists(prefix_ + ".index").ok() || !ParseDelta(prefix_, &base, &number))
    return full;
  TF_RETURN_IF_ERROR(Add(base, "manifest"));
  std::string previous = base;
  for (int i = 1; i <= number; ++i) {
    const std::string delta = absl::StrCat(base, kDelta, absl::StrFormat("%04d", i));
    const absl::Status found = Add(delta, "delta");
    if (absl::IsNotFound(found)) {
      return absl::DataLossError(
          absl::StrCat("checkpoint ", prefix_, ": expected all deltas from 1 to ", number, ": ", found.message()));
    }
    TF_RETURN_IF_ERROR(found);
    TF_RETURN_IF_ERROR(CheckContinues(delta, saves_.back().manifests, previous, saves_[saves_.size() - 2].manifests));
    previous = delta;
  }
  return absl::OkStatus();
}

}  // namespace multitier
