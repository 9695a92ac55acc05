#include "cc/options/tier_kind.h"

#include <algorithm>
#include <cstring>

namespace multitier {
namespace {

std::vector<TierKind>* Registered() {
  static auto* const kinds = new std::vector<TierKind>;
  return kinds;
}

// The storage types whose last tier is DRAM or HBM.
constexpr StorageTypeName kInMemory[] = {{"DEFAULT", 0, "DRAM"}, {"DRAM", 1}, {"HBM", 6}, {"HBM_DRAM", 13}};

}  // namespace

RegisterTierKind::RegisterTierKind(void (*describe)(TierKind*)) {
  TierKind kind;
  describe(&kind);
  Registered()->push_back(std::move(kind));
}

const std::vector<TierKind>& TierKinds() {
  static const auto* const kinds = [] {
    auto* const sorted = new std::vector<TierKind>(*Registered());
    std::sort(sorted->begin(), sorted->end(),
              [](const TierKind& a, const TierKind& b) { return std::strcmp(a.name, b.name) < 0; });
    return sorted;
  }();
  return *kinds;
}

const TierKind* FindTierKind(const std::string& name) {
  for (const TierKind& kind : TierKinds()) {
    if (name == kind.name) return &kind;
  }
  return nullptr;
}

std::string TierNames(bool (*which)(const TierKind&)) {
  std::string names;
  for (const TierKind& kind : TierKinds()) {
    if (which(kind)) names += StrCat(names.empty() ? "" : " or ", kind.name);
  }
  return names;
}

std::string KeptTiers() {
  return TierNames([](const TierKind& kind) { return kind.not_kept == nullptr; });
}

const std::vector<StorageTypeName>& StorageTypeNames() {
  static const auto* const names = [] {
    auto* const all = new std::vector<StorageTypeName>(std::begin(kInMemory), std::end(kInMemory));
    for (const TierKind& kind : TierKinds()) all->insert(all->end(), kind.types.begin(), kind.types.end());
    std::sort(all->begin(), all->end(), [](const StorageTypeName& a, const StorageTypeName& b) { return a.number < b.number; });
    return all;
  }();
  return *names;
}

std::string CanonicalStorageType(const std::string& name) {
  for (const StorageTypeName& type : StorageTypeNames()) {
    if (name == type.name && type.same_as != nullptr) return type.same_as;
  }
  return name;
}

const std::vector<std::string>& StorageTypes() {
  static const auto* const types = [] {
    auto* const names = new std::vector<std::string>;
    for (const StorageTypeName& type : StorageTypeNames()) {
      if (type.same_as == nullptr) names->push_back(type.name);
    }
    return names;
  }();
  return *types;
}

std::vector<std::string> TiersOf(const std::string& storage_type) {
  std::vector<std::string> tiers;
  for (size_t from = 0; from <= storage_type.size();) {
    const size_t to = std::min(storage_type.find('_', from), storage_type.size());
    tiers.push_back(storage_type.substr(from, to - from));
    from = to + 1;
  }
  return tiers;
}

bool HasFiles(const std::string& storage_type) {
  const std::vector<std::string> tiers = TiersOf(storage_type);
  return std::any_of(tiers.begin(), tiers.end(), [](const std::string& tier) {
    const TierKind* const kind = FindTierKind(tier);
    return kind != nullptr && kind->has_files;
  });
}

}  // namespace multitier
