// ShardRecords: the records of one shard's keys in the lower tiers: which are being read, which leave a bounded tier next, and
// where a tier moved them. ShardRows draws their life.
//
// Owns the orders in which records leave bounded tiers. Not thread-safe: see ShardRows. Never does I/O.

#ifndef CC_TABLE_SHARD_SHARD_RECORDS_H_
#define CC_TABLE_SHARD_SHARD_RECORDS_H_

#include <cstdint>
#include <vector>

#include "cc/policy/victim_order.h"
#include "cc/table/shard/shard_parts.h"

namespace multitier {

// What BeginRead found.
struct ReadProbe {
  enum Where { kMemory, kBegun, kReadByOthers } where = kMemory;
  Found found;    // kMemory
  int level = 0;  // kBegun: of the record to read
  uint32_t location = 0;
  uint32_t id = 0;  // for EndRead
};

class ShardRecords {
 public:
  explicit ShardRecords(ShardParts* parts) : parts_(*parts) {}
  ShardRecords(const ShardRecords&) = delete;
  ShardRecords& operator=(const ShardRecords&) = delete;

  // True if the record at `location` is the row of `key`, or the clean copy of its row in DRAM. The record may be being read.
  bool Names(int level, int64_t key, uint32_t location) const;

  // --- Records that are read.
  // Looks for a key. If it is not in memory: marks the first record with a matching tag as being read. Skips records at the
  // places in `excluded`.
  ReadProbe BeginRead(int64_t key, uint64_t hash, const std::vector<uint64_t>& excluded);
  // Ends the read: restores the index word that BeginRead replaced. REQUIRES: the caller's id
  KeyWord EndRead(uint64_t hash, uint32_t id);
  // Whether some record is being read.
  bool reading() const { return parts_.pending.any(); }
  // Takes a key whose row is a record out of the table. row_data: of the record; null where it cannot be read, or no snapshot
  // is being taken.
  void EraseRecord(KeyWord word, int level, uint32_t location, const RecordHeader& header, uint8_t* row_data,
                   FreedRecords* freed);

  // --- Moving the coldest records out of a bounded tier.
  struct Leaving {
    RecordHeader header;
    uint32_t location = 0;
    uint32_t id = 0;
    Rank rank;
  };
  // Up to n entries of the order. Some may be stale.
  std::vector<LowerOrder::Entry> PopColdest(int level, size_t n);
  enum class Leave {
    kBegun,      // *leaving; its word is pending
    kReadNow,    // an operation is reading it: try again later
    kNotColdest  // stale, or warmer than the order knew
  };
  // header: of the record, or null where it is damaged. clock: ShardCommon::accesses when the choice began.
  Leave BeginLeave(int level, const LowerOrder::Entry& entry, const RecordHeader* header, uint64_t clock, Leaving* leaving);
  void PutBack(int level, const LowerOrder::Entry& entry) { lower_order_[level].Push(entry); }
  void CancelLeave(int level, const Leaving& leaving);
  // The record is in tier `to` now.
  void MoveDown(int level, const Leaving& leaving, const RecordHeader& header, int to, uint32_t location, FreedRecords* freed);
  // The key leaves the table. row_data: as in EraseRecord. Needed only if ShardSnapshot::wants_record() is true.
  void DropRecord(int level, const Leaving& leaving, const RecordHeader& header, uint8_t* row_data, FreedRecords* freed);
  // Puts a record into the order of its tier.
  void Order(int level, const RecordHeader& header, uint32_t location);

  // --- Records that are copied, or moved by their tier.
  // Locations of all records of a level; false where some are being read now.
  bool RecordsOf(int level, std::vector<uint32_t>* locations) const;
  // The number of these locations at which the index names a record. REQUIRES: they are sorted
  int64_t CountNamed(int level, const std::vector<uint32_t>& locations) const;
  enum class Attached { kDone, kReadNow, kNotThere };
  // Makes record `copy` of the last tier the clean copy of the record at `location` of the middle tier.
  Attached AttachCopy(int64_t key, uint32_t location, uint32_t copy);
  void Relocate(int level, Relocation* relocation);

 private:
  friend class ShardRows;
  void Clear();
  // The word of the record that an entry says, or null: the row left, or another one is at its location.
  uint64_t* RecordWord(int level, const LowerOrder::Entry& entry);
  void Push(int level, const LowerOrder::Entry& entry);
  // Keeps what a snapshot, and a copy of the table, need of a record that is about to leave the table.
  void RecordGoes(int level, uint32_t location, int64_t key, const RecordHeader& header, uint8_t* row_data);

  ShardParts& parts_;
  LowerOrder lower_order_[kMaxLowerTiers];  // of bounded tiers
};

}  // namespace multitier

#endif  // CC_TABLE_SHARD_SHARD_RECORDS_H_
