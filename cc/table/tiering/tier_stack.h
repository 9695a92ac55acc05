// TierStack: the tiers below DRAM as a table uses them. It says what each can do (TierLevels), frees and removes records, keeps
// the removals that a tier refused, lends tiers the relocator, and words their errors.
//
// One writer a shard. Only the holder of a shard's ShardWriter writes to the tiers or removes from them for keys of that shard,
// over I/O. So a tier learns of a key's writes and removals in the order in which the table decided them (tier.h, Order): a key
// that was removed cannot come back, and one that was created again cannot be lost. Write and Remove take the writer, so that
// the compiler keeps the rule. A thread takes a ShardWriter when it holds no lock, pin or pending word.
//
// Owns no tier and no shard. Its callers are operations, which hold no shard's lock, except for Free and RemoveLater.
// Thread-safe.

#ifndef CC_TABLE_TIERING_TIER_STACK_H_
#define CC_TABLE_TIERING_TIER_STACK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/table/shard/shard_set.h"

namespace multitier {

// The right to write a shard's records, from now to the end of the block. Waits for the thread that has it.
class ShardWriter {
 public:
  explicit ShardWriter(Shard* shard) : shard_(shard) { Shard::Locked(shard).BeginWriting(); }
  explicit ShardWriter(const std::unique_ptr<Shard>& shard) : ShardWriter(shard.get()) {}
  ~ShardWriter() { Shard::Locked(shard_).EndWriting(); }
  ShardWriter(const ShardWriter&) = delete;
  ShardWriter& operator=(const ShardWriter&) = delete;

  Shard* shard() const { return shard_; }

 private:
  Shard* const shard_;
};

// The same of all shards of a table. REQUIRES: the table's gate is closed, so that no other thread has one
class TableWriter {
 public:
  explicit TableWriter(const ShardSet& shards) {
    for (auto& shard : shards) writers_.push_back(std::make_unique<ShardWriter>(shard));
  }
  const ShardWriter& operator[](size_t s) const { return *writers_[s]; }

 private:
  std::vector<std::unique_ptr<ShardWriter>> writers_;
};

class TierStack {
 public:
  // refused: gets the error of a removal that a tier refused.
  TierStack(std::string table, TierLevels* levels, const ShardSet* shards, std::function<void(Status)> refused)
      : table_(std::move(table)), levels_(*levels), shards_(*shards), refused_(std::move(refused)), setup_(levels) {}

  // The next tier down. `bounded`: the table limits how many rows it holds. REQUIRES: before the first shard is made
  void Add(Tier* tier, bool bounded);
  // Lends every tier that moves records a relocator; takes it back.
  void LendRelocators();
  void TakeRelocatorsBack();

  int count() const { return levels_.count; }
  int last() const { return levels_.last(); }
  const char* name(int level) const { return levels_.tier[level]->name(); }
  uint64_t location_end(int level) const { return levels_.tier[level]->location_end(); }
  TierStats stats(int level) const { return levels_.tier[level]->stats(); }
  Status SetLayout(std::shared_ptr<const RowLayout> layout);

  // Reads do not need the writer: see Tier.
  Status Read(int level, Span<ReadRecord> records) { return levels_.tier[level]->Read(records); }
  Status ReadAndTell(int level, Span<ReadRecord> records, const Tier::Answered& answered) {
    return levels_.tier[level]->ReadAndTell(records, answered);
  }
  // Under a shard's lock.
  bool MayReach(int level, uint32_t location, int64_t min_version, int64_t min_frequency) const {
    return levels_.tier[level]->MayReach(location, min_version, min_frequency);
  }
  Status Scan(int level, const std::function<Status(const RecordHeader&, uint32_t location)>& visit) {
    return levels_.tier[level]->Scan(visit);
  }
  // Writes records of the writer's shard, all or none. First repeats the removals that this tier refused: where it refuses them
  // again nothing is written. The other tiers do not matter.
  Status Write(const ShardWriter& writer, int level, Span<const WriteRecord> records, uint32_t* locations);
  // Frees records that no index word names any more. Of a `newest` one the caller still has the lock under which its row came
  // to stand for it, or the shard's writer: else its key could be removed before, and the record would outlive the removal.
  void Free(FreedRecords* freed);
  // The same, and their keys were removed. A removal that a tier refuses is kept and repeated before the tier is written to for
  // the shard; the error goes to `refused`, and is returned.
  Status Remove(const ShardWriter&, FreedRecords* freed) { return RemoveOrKeep(freed); }
  Status Remove(const TableWriter&, FreedRecords* freed) { return RemoveOrKeep(freed); }
  // Of a caller without the writer: kept for the next one.
  void RemoveLater(Shard::Locked& lock, const FreedRecords& freed);
  // Repeats the removals that tiers refused, or have not seen yet, of the writer's shard; of every shard. Repeats all of them,
  // and returns the first error.
  Status RetryRemovals(const ShardWriter& writer);
  Status RetryAllRemovals();

  // See Tier. kRun locations at a time.
  SealedFiles TakeSealedFiles(int level) { return levels_.tier[level]->TakeSealedFiles(); }
  Status LinkSealedFile(int level, const SealedFile& file, const std::string& to) {
    return levels_.tier[level]->LinkSealedFile(file, to);
  }
  bool PrepareLinks(int level, const std::string& to) { return levels_.tier[level]->PrepareLinks(to); }
  Status Sync(int level);
  Status Compact();

  // "table 'x': what: tier y: ...". NotFound of a tier becomes DataLoss.
  Status Error(const std::string& what, int level, const Status& status) const;
  // Of a record that was read by its location: "what, key 5", where the tier found a key and the index has it there.
  Status RecordError(const std::string& what, int level, const ReadRecord& record) const;

 private:
  Status RemoveOrKeep(FreedRecords* freed);
  // What the tier says.
  Status RemoveOrKeep(int level, std::vector<KeyLocation>* records);
  void Relocate(int level, Span<Relocation> relocations);

  const std::string table_;
  const TierLevels& levels_;
  const ShardSet& shards_;
  const std::function<void(Status)> refused_;
  TierLevels* const setup_;          // what Add fills
  std::atomic<int64_t> pending_{0};  // removals that tiers have still to record, over all shards
};

}  // namespace multitier

#endif  // CC_TABLE_TIERING_TIER_STACK_H_
