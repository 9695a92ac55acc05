#include "cc/policy/victim_order.h"

#include <algorithm>

#include "cc/base/prefetch.h"

namespace multitier {
namespace {

constexpr size_t kMinWindow = 64;
constexpr size_t kWindowSlotsPerVictim = 4;
constexpr size_t kAhead = 16;               // headers on their way into the processor's cache
constexpr size_t kFewOfHeap = 8;            // of a smaller share, the heap gives one after another
constexpr size_t kMostNewRows = 16 * 1024;  // 64 KiB of a shard
constexpr double kColdShare = 1.0 / 16;     // of the rows: those that may leave by score
constexpr size_t kSample = 256;             // rows
constexpr size_t kSamplesOfRows = 64;       // there is a new sample when 1/64 of the rows were chosen
constexpr Rank kWarmest{~uint64_t{0}, ~uint32_t{0}};

bool Colder(const LowerOrder::Entry& a, const LowerOrder::Entry& b) { return a.rank > b.rank; }

}  // namespace

void VictimOrder::Insert(const RowUse& row, uint64_t clock, int64_t version) {
  if (by_policy_ && policy_ == nullptr) policy_ = std::make_unique<ProbationClock>();
  if (policy_ != nullptr) policy_->Insert(Span<const RowUse>(&row, 1));
  if (by_score_ && new_.size() < kMostNewRows) new_.push_back(row.location);
  if (!exact_) return;
  const uint32_t location = row.location;
  if (location >= place_.size()) place_.resize(std::max<size_t>(location + 1, place_.size() * 2), kNoLocation);
  const Entry entry{RankOf(strategy_, version, dram_->Header(location)->frequency, dram_->Header(location)->recency, clock),
                    location};
  heap_.push_back(entry);
  Rise(heap_.size() - 1, entry);
}

void VictimOrder::Erase(uint32_t location) {
  if (policy_ != nullptr) policy_->Remove(Span<const uint32_t>(&location, 1));
  if (!exact_) return;
  const size_t at = place_[location];
  place_[location] = kNoLocation;
  const Entry last = heap_.back();
  heap_.pop_back();
  if (at == heap_.size()) return;
  Rise(at, last);
  Sink(place_[last.location], last);
}

void VictimOrder::Refresh(uint32_t location, uint64_t clock) {
  if (by_score_) left_ = std::min(left_, RankAt(location, clock));
  if (!exact_) return;
  const Entry entry{RankAt(location, clock), location};
  Rise(place_[location], entry);
  Sink(place_[location], entry);
}

void VictimOrder::Clear() {
  if (policy_ != nullptr) policy_->Clear();
  heap_.clear();
  place_.clear();
  is_heap_ = true;
  hand_ = 0;
  new_.clear();
  threshold_ = left_ = Rank();
  share_ = 0.0;
}

void VictimOrder::MakeHeap() {
  if (is_heap_) return;
  is_heap_ = true;
  for (size_t at = heap_.size() / 2; at-- > 0;) {
    const Entry entry = heap_[at];
    Sink(at, entry);
  }
}

void VictimOrder::Rise(size_t at, const Entry& entry) {
  while (is_heap_ && at > 0 && Less(entry, heap_[(at - 1) / 2])) {
    Put(at, heap_[(at - 1) / 2]);
    at = (at - 1) / 2;
  }
  Put(at, entry);
}

// An entry that sinks was used just now, or was the last of the heap. It nearly always belongs at the bottom. So the hole sinks
// to the bottom first, with one comparison for each level, and the entry rises from there.
void VictimOrder::Sink(size_t at, const Entry& entry) {
  const size_t top = at;
  for (size_t child = 2 * at + 1; is_heap_ && child < heap_.size(); child = 2 * at + 1) {
    child += static_cast<size_t>(child + 1 < heap_.size() && Less(heap_[child + 1], heap_[child]));
    Put(at, heap_[child]);
    at = child;
  }
  for (; at > top && Less(entry, heap_[(at - 1) / 2]); at = (at - 1) / 2) Put(at, heap_[(at - 1) / 2]);
  Put(at, entry);
}

std::vector<uint32_t> VictimOrder::Choose(size_t n, uint64_t clock) {
  if (exact_) return ChooseExact(n, clock);
  if (by_score_) return ChooseByScore(n, clock);
  if (by_policy_) return policy_ != nullptr ? ChooseByPolicy(n) : std::vector<uint32_t>();
  return ChooseFromWindows(n, clock);
}

Rank VictimOrder::Coldest(uint64_t clock) {
  if (!exact_) return left_;
  MakeHeap();
  while (!heap_.empty()) {
    const Entry top{RankAt(heap_[0].location, clock), heap_[0].location};
    if (!(top.rank > heap_[0].rank)) return heap_[0].rank;
    Sink(0, top);
  }
  return Rank();
}

std::vector<uint32_t> VictimOrder::ChooseByPolicy(size_t n) {
  std::vector<uint32_t> victims;
  std::vector<RowUse> used;
  const ProbationClock::Pinned pinned = [&](uint32_t location) {
    RowHeader* row = dram_->Header(location);
    if (!Evictable(*row)) return true;
    if (!row->has(kRowUses)) return false;
    for (; row->has(kRowUses); row->flags = static_cast<uint16_t>(row->flags - kRowUse)) {
      used.push_back(RowUse{location, row->frequency, 0});
    }
    return true;
  };
  // Where every row was used, the first round only finds that out.
  for (int round = 0; round < 2 && victims.size() < n; ++round) {
    used.clear();
    policy_->ChooseVictims(n, pinned, &victims);
    policy_->Touch(used);
    if (round == 0 && victims.size() < n) victims.clear();
  }
  return victims;
}

void VictimOrder::TakeColdest(size_t n, std::vector<Entry>* rows, std::vector<uint32_t>* victims) {
  std::nth_element(rows->begin(), rows->begin() + static_cast<long>(n), rows->end(), Less);
  std::sort(rows->begin(), rows->begin() + static_cast<long>(n), Less);
  for (size_t i = 0; i < n; ++i) victims->push_back((*rows)[i].location);
}

std::vector<uint32_t> VictimOrder::ChooseExact(size_t n, uint64_t clock) {
  std::vector<uint32_t> victims;
  if (n > heap_.size() / kFewOfHeap) {
    is_heap_ = false;
    std::vector<Entry> rows;
    rows.reserve(heap_.size());
    for (size_t i = 0; i < heap_.size(); ++i) {
      const Entry& entry = heap_[i];
      if (i + kAhead < heap_.size()) PrefetchLine(dram_->Header(heap_[i + kAhead].location));
      if (Evictable(*dram_->Header(entry.location))) rows.push_back(Entry{RankAt(entry.location, clock), entry.location});
    }
    TakeColdest(std::min(n, rows.size()), &rows, &victims);
    return victims;
  }
  MakeHeap();
  std::vector<Entry> taken;
  while (victims.size() < n && !heap_.empty()) {
    const Entry top{RankAt(heap_[0].location, clock), heap_[0].location};
    if (top.rank > heap_[0].rank) {
      Sink(0, top);
      continue;
    }
    if (Evictable(*dram_->Header(top.location))) victims.push_back(top.location);
    taken.push_back(heap_[0]);
    Erase(top.location);
  }
  for (const Entry& entry : taken) {
    heap_.push_back(entry);
    Rise(heap_.size() - 1, entry);
  }
  return victims;
}

std::vector<uint32_t> VictimOrder::ChooseFromWindows(size_t n, uint64_t clock) {
  std::vector<uint32_t> victims;
  const uint32_t end = dram_->end();
  uint64_t left = end;  // once around
  std::vector<Entry> window;
  while (victims.size() < n && left > 0) {
    const size_t wanted = n - victims.size();
    uint64_t slots = std::min<uint64_t>(left, std::max(kMinWindow, wanted * kWindowSlotsPerVictim));
    left -= slots;
    window.clear();
    for (; slots > 0; --slots) {
      if (hand_ >= end) hand_ = 0;
      if (Evictable(*dram_->Header(hand_))) window.push_back(Entry{RankAt(hand_, clock), hand_});
      ++hand_;
    }
    const size_t share = (window.size() + kWindowSlotsPerVictim - 1) / kWindowSlotsPerVictim;
    const size_t take = std::min(wanted, left == 0 ? window.size() : share);
    TakeColdest(take, &window, &victims);
  }
  return victims;
}

void VictimOrder::Sample(double share, uint64_t clock) {
  share_ = share;
  since_sample_ = 0;
  std::vector<Rank> ranks;
  for (size_t i = 0; i < kSample; ++i) {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    const auto location = static_cast<uint32_t>((random_ >> 32) * dram_->end() >> 32);
    if (Evictable(*dram_->Header(location))) ranks.push_back(RankAt(location, clock));
  }
  const auto colder = static_cast<size_t>(share * static_cast<double>(ranks.size()));
  if (colder >= ranks.size()) {
    threshold_ = kWarmest;
    return;
  }
  std::nth_element(ranks.begin(), ranks.begin() + static_cast<long>(colder), ranks.end());
  threshold_ = ranks[colder];
}

void VictimOrder::Walk(size_t n, const Rank& warmest, uint64_t clock, std::vector<Entry>* window) {
  window->clear();
  const uint32_t end = dram_->end();
  for (uint32_t left = end; left > 0 && window->size() < n; --left, ++hand_) {
    if (hand_ >= end) hand_ = 0;
    if (!Evictable(*dram_->Header(hand_))) continue;
    const Rank rank = RankAt(hand_, clock);
    if (!(rank > warmest)) window->push_back(Entry{rank, hand_});
  }
}

std::vector<uint32_t> VictimOrder::ChooseByScore(size_t n, uint64_t clock) {
  const size_t rows = dram_->rows();
  const double share = std::max(kColdShare, 2.0 * static_cast<double>(n) / static_cast<double>(std::max<size_t>(rows, 1)));
  if (share > share_ || since_sample_ * kSamplesOfRows >= rows) Sample(share, clock);
  std::vector<Entry> window;
  Walk(n, threshold_, clock, &window);
  if (window.size() < n && since_sample_ > 0) {  // the sample is too old
    Sample(share, clock);
    Walk(n, threshold_, clock, &window);
  }
  if (window.size() < n) Walk(n, kWarmest, clock, &window);
  AddNewRows(&window, clock);
  const size_t take = std::min(n, window.size());
  std::vector<uint32_t> victims;
  TakeColdest(take, &window, &victims);
  if (take > 0) left_ = window[take - 1].rank;
  since_sample_ += take;
  return victims;
}

void VictimOrder::AddNewRows(std::vector<Entry>* window, uint64_t clock) {
  if (new_.empty()) return;
  for (const uint32_t location : new_) {
    if (Evictable(*dram_->Header(location))) window->push_back(Entry{RankAt(location, clock), location});
  }
  new_.clear();
  auto by_location = [](const Entry& a, const Entry& b) { return a.location < b.location; };
  std::sort(window->begin(), window->end(), by_location);
  auto same = [](const Entry& a, const Entry& b) { return a.location == b.location; };
  window->erase(std::unique(window->begin(), window->end(), same), window->end());
}

void LowerOrder::Push(const Entry& entry) {
  heap_.push_back(entry);
  std::push_heap(heap_.begin(), heap_.end(), Colder);
}

LowerOrder::Entry LowerOrder::Pop() {
  std::pop_heap(heap_.begin(), heap_.end(), Colder);
  const Entry entry = heap_.back();
  heap_.pop_back();
  return entry;
}

void LowerOrder::Keep(const std::function<bool(const Entry&)>& is_valid) {
  heap_.erase(std::remove_if(heap_.begin(), heap_.end(), [&](const Entry& entry) { return !is_valid(entry); }), heap_.end());
  std::sort(heap_.begin(), heap_.end(), [](const Entry& a, const Entry& b) {
    return a.location != b.location ? a.location < b.location : a.rank > b.rank;
  });
  heap_.erase(std::unique(heap_.begin(), heap_.end(), [](const Entry& a, const Entry& b) { return a.location == b.location; }),
              heap_.end());
  std::make_heap(heap_.begin(), heap_.end(), Colder);
  threshold_ = std::max<size_t>(1024, 2 * heap_.size());
}

}  // namespace multitier
