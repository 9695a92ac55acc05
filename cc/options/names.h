// The names of the values of enums, as users write them and files keep them.

#ifndef CC_OPTIONS_NAMES_H_
#define CC_OPTIONS_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/status.h"
#include "cc/options/options.h"

namespace multitier {

template <typename E>
struct Named {
  const char* name;
  E value;
};

template <typename E>
const std::vector<Named<E>>& NamesOf();
template <>
const std::vector<Named<InitializerKind>>& NamesOf<InitializerKind>();
template <>
const std::vector<Named<AdmissionKind>>& NamesOf<AdmissionKind>();
template <>
const std::vector<Named<Score>>& NamesOf<Score>();
template <>
const std::vector<Named<Replacement>>& NamesOf<Replacement>();
template <>
const std::vector<Named<OnFull>>& NamesOf<OnFull>();
template <>
const std::vector<Named<OnCorruption>>& NamesOf<OnCorruption>();
template <>
const std::vector<Named<KeepDropped>>& NamesOf<KeepDropped>();
template <>
const std::vector<Named<DType>>& NamesOf<DType>();
template <>
const std::vector<Named<KeyType>>& NamesOf<KeyType>();

template <typename E>
const char* NameOf(E value) {
  for (const Named<E>& one : NamesOf<E>()) {
    if (one.value == value) return one.name;
  }
  return "";
}

// InvalidArgument: "option: expected one of ..., found 'name': did you mean ...?"
Status WrongName(std::string_view option, const std::vector<std::string>& names, std::string_view found);

// The value of that name.
template <typename E>
Status FromName(std::string_view option, std::string_view found, E* out) {
  std::vector<std::string> names;
  for (const Named<E>& one : NamesOf<E>()) {
    if (found == one.name) {
      *out = one.value;
      return OkStatus();
    }
    names.emplace_back(one.name);
  }
  return WrongName(option, names, found);
}

// ": did you mean 'X'?" of the name that is like `found`; empty if none is.
std::string DidYouMean(const std::vector<std::string>& names, std::string_view found);

// Bytes: "4096", "4GB", "512 MiB". KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB, TiB of 1024; in any case of letters.
// Nothing if it is none.
std::optional<uint64_t> ParseBytes(std::string_view text);

}  // namespace multitier

#endif  // CC_OPTIONS_NAMES_H_
