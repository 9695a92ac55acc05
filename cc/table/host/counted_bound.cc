// BoundCounted: keeps the keys that a counter filter counts within AdmissionSpec::max_keys. When there are more after an
// update, those with the lowest counts leave, of equal counts those that were counted longest ago, until an eighth of the bound
// is free. So an update looks at the entries once in max_keys / 8 new keys, and below the bound every count is exact.

#include <algorithm>
#include <tuple>
#include <vector>

#include "cc/base/hash.h"
#include "cc/table/host/host_table.h"

namespace multitier {
namespace {

constexpr uint32_t kBoundSlice = 4096;  // entries looked at under one hold of a shard's lock

// Those that leave first are the least. The hash decides the rest, so that the number of shards does not.
using Standing = std::tuple<uint32_t, int64_t, uint64_t>;

Standing StandingOf(const CountedKey& counted) { return {counted.frequency, counted.version, HashKey(counted.key)}; }

// The n least of what is added, in memory for twice as many.
class LeastStandings {
 public:
  explicit LeastStandings(size_t n) : n_(n) {}
  void Add(const Standing& standing) {
    least_.push_back(standing);
    if (least_.size() >= 2 * n_) Cut();
  }
  // The greatest of them. REQUIRES: n were added
  Standing Last() {
    Cut();
    return *std::max_element(least_.begin(), least_.end());
  }
  size_t size() const { return least_.size(); }

 private:
  void Cut() {
    if (least_.size() <= n_) return;
    std::nth_element(least_.begin(), least_.begin() + static_cast<ptrdiff_t>(n_), least_.end());
    least_.resize(n_);
  }

  const size_t n_;
  std::vector<Standing> least_;
};

}  // namespace

template <typename Visit>
void HostTable::VisitCounted(Visit visit) {
  for (auto& shard : shards_) {
    for (uint32_t from = 0, end = 1; from < end; from += kBoundSlice) {
      Shard::Locked lock(shard.get());
      end = lock->scan().counted_slots();
      for (uint32_t location = from; location < std::min(end, from + kBoundSlice); ++location) {
        const CountedKey counted = lock->counted(location);
        if (counted.frequency != 0 && counted.pins == 0) visit(lock, counted);
      }
    }
  }
}

void HostTable::BoundCounted() {
  const int64_t most = options_.filter.max_keys;
  if (options_.filter.kind != AdmissionKind::kCounter || most == 0) return;
  MutexLock alone(bounding_counted_);
  int64_t found = 0;
  for (auto& shard : shards_) found += Shard::Locked(shard.get())->counts().counted_rows;
  if (found <= most) return;
  LeastStandings least(static_cast<size_t>(found - (most - most / 8)));
  VisitCounted([&](Shard::Locked&, const CountedKey& counted) { least.Add(StandingOf(counted)); });
  if (least.size() == 0) return;
  const Standing last = least.Last();
  VisitCounted([&](Shard::Locked& lock, const CountedKey& counted) {
    if (last < StandingOf(counted)) return;
    const Found entry = lock->Find(counted.key, HashKey(counted.key));
    if (entry.counted != nullptr) lock->EraseCount(entry);  // else it is about to be a row
  });
}

}  // namespace multitier
