// RelocatingTier: a MemoryTier that moves records at every Write and that reports itself as durable. For tests.
//
// It moves a few random records, old ones and just written ones, by the protocol of tier.h. It stops the process if its owner
// breaks the protocol: frees a location that the owner no longer refers to, refers to a discarded location, or frees a record
// as the newest of a key that was removed. For every key it also tracks whether the newest entry is a record or a tombstone,
// which is what a recovery would find.
//
// Thread-safe: all methods.

#ifndef CC_TIER_TEST_TIERS_RELOCATING_TIER_H_
#define CC_TIER_TEST_TIERS_RELOCATING_TIER_H_

#include <map>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier {

class RelocatingTier : public Tier {
 public:
  explicit RelocatingTier(uint64_t seed) : random_(seed) {}

  MemoryTier* memory() { return &memory_; }
  // The keys of which a recovery would find a record.
  std::set<int64_t> RecoverableKeys() const;
  // The n-th Remove from now on and the `calls` - 1 calls after it fail and do nothing.
  void FailRemove(int64_t n, Status status, int64_t calls = 1);
  int64_t relocated() const;

  const char* name() const override { return "relocating"; }
  TierCapabilities capabilities() const override;
  Status SetLayout(std::shared_ptr<const RowLayout> layout) override;
  void SetRelocator(Relocator relocator) override;
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override;
  Status Read(Span<ReadRecord> records) override { return memory_.Read(records); }
  void Free(Span<const KeyLocation> records) override;
  Status Remove(Span<const KeyLocation> records) override;
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) override;
  uint64_t location_end() const override { return memory_.location_end(); }
  Status Sync() override { return memory_.Sync(); }
  TierStats stats() const override;

 private:
  void RelocateSome();
  // Copies up to `n` held records.
  std::vector<Relocation> Choose(size_t n) MT_REQUIRES(mu_);

  MemoryTier memory_;
  std::mutex relocation_mu_;  // one relocation at a time; taken before mu_
  Relocator relocator_;       // read with relocation_mu_ held; changed with both held
  mutable Mutex mu_;
  std::shared_ptr<const RowLayout> layout_ MT_GUARDED_BY(mu_);
  std::mt19937_64 random_ MT_GUARDED_BY(mu_);
  std::map<uint32_t, int64_t> held_ MT_GUARDED_BY(mu_);  // location: key
  std::map<uint32_t, bool> leaving_ MT_GUARDED_BY(mu_);  // locations being copied: whether they were freed since
  std::set<uint32_t> copies_ MT_GUARDED_BY(mu_);         // of them, not held yet
  std::map<int64_t, bool> newest_ MT_GUARDED_BY(mu_);    // key: a record (true) or a tombstone
  int64_t relocated_ MT_GUARDED_BY(mu_) = 0;
  int64_t remove_skip_ MT_GUARDED_BY(mu_) = 0, remove_failures_ MT_GUARDED_BY(mu_) = 0;
  Status remove_fault_ MT_GUARDED_BY(mu_);
};

}  // namespace multitier

#endif  // CC_TIER_TEST_TIERS_RELOCATING_TIER_H_
