// ExternalTier: rows in a store that a user wrote (external_storage.h), as the last tier.
//
//   the store     the row of each key: its bytes, and nothing of a record's header
//   KeySlots      in memory: the key, version, frequency and number of columns of the record at each location
//
// The store has one row of a key. So a Write of a key hides the record that the key had: a Read of it finds nothing. If the
// store refuses the row, the older record is there again. Free forgets a location, and the row stays in the store, unread,
// until the key is written or removed. A record's header is read without the store.
//
// Keys that the store lists when it is opened are records of the tier, with version -1 and frequency 0. Until its row was read
// once, such a record counts as one with all columns that the table has then.
//
// The store is not trusted: a key without its row is DataLoss, with its name; an error of the user's code is the tier's.
// REQUIRES of the store: insert takes all rows or none. Otherwise a Write that failed leaves rows that no record has, and the
// next Write of their keys replaces.
//
// The tier has no bound of its own. Durable as the store is: Sync is the store's flush.
//
// Owns the store. No lock is held while it works. Thread-safe. In a forked child calls fail.

#ifndef CC_TIER_EXTERNAL_EXTERNAL_TIER_H_
#define CC_TIER_EXTERNAL_EXTERNAL_TIER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/tier/external/external_store.h"
#include "cc/tier/external/key_slots.h"
#include "cc/tier/tier.h"

namespace multitier {

class ExternalTier : public Tier {
 public:
  // Opens a store of the registered storage for the table. InvalidArgument if there is none of that name, or keys are listed
  // twice.
  static Result<std::unique_ptr<ExternalTier>> Open(const std::string& storage, const std::string& table);

  const char* name() const override { return "external"; }
  TierCapabilities capabilities() const override;
  Status SetLayout(std::shared_ptr<const RowLayout> layout) override;
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override;
  Status Read(Span<ReadRecord> records) override;
  bool MayReach(uint32_t location, int64_t min_version, int64_t min_frequency) const override;
  // Stops the process if a location has no record of the key.
  void Free(Span<const KeyLocation> records) override;
  Status Remove(Span<const KeyLocation> records) override;
  // Holds no lock while visiting; a record that is written or freed meanwhile may or may not be visited.
  Status Scan(const std::function<Status(const RecordHeader&, uint32_t location)>& visit) override;
  uint64_t location_end() const override;
  Status Sync() override;
  // row_bytes counts every row at the layout's full width, and as stored: where, the store knows.
  TierStats stats() const override;

 private:
  // A record that was hidden: its location and number.
  using Hidden = std::vector<std::pair<uint32_t, uint32_t>>;
  // A record to be read.
  struct Wanted {
    uint32_t record;  // its place in the batch
    uint32_t number, num_columns;
  };

  explicit ExternalTier(std::unique_ptr<ExternalStore> store) : store_(std::move(store)) {}

  std::shared_ptr<const RowLayout> layout() const;
  Hidden Hide(const std::vector<int64_t>& keys);
  void Show(const Hidden& hidden);
  RecordHeader HeaderOf(const KeySlots::Slot& slot) const MT_REQUIRES(mutex_);
  Status Insert(const RowLayout& layout, Span<const WriteRecord> records);
  // Of the same number of columns.
  Status InsertAlike(const RowLayout& layout, Span<const WriteRecord> records, const std::vector<uint32_t>& which);
  Status ReadAlike(const RowLayout& layout, Span<ReadRecord> records, Span<const Wanted> wanted);

  const std::unique_ptr<ExternalStore> store_;
  mutable Mutex mutex_;
  std::shared_ptr<const RowLayout> layout_ MT_GUARDED_BY(mutex_);
  KeySlots slots_ MT_GUARDED_BY(mutex_);
};

}  // namespace multitier

#endif  // CC_TIER_EXTERNAL_EXTERNAL_TIER_H_
