// TableBelow: a table that is the home of rows of which another table keeps copies.
//
//   EmbeddingTable::Create(options with `above`)
//     1. TableBelow::Create makes the home of all rows
//     2. options.above makes the table above it (cc/hbm), which owns it, and which users see
//
// The table above is the only one that calls its table below. Thread-safe.

#ifndef CC_TABLE_HOST_TABLE_BELOW_H_
#define CC_TABLE_HOST_TABLE_BELOW_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "cc/table/api/embedding_table.h"
#include "cc/table/host/row_batch.h"

namespace multitier {

class TableBelow : public EmbeddingTable {
 public:
  // As EmbeddingTable::Create. REQUIRES: no options.above
  static Result<std::unique_ptr<TableBelow>> Create(TableOptions options);

  // Copies rows to the table above (row_batch.h). A key without a row gets what its row would begin with. Like Lookup it
  // creates no key. An error is a lower tier's: then facts and data are arbitrary. REQUIRES: rows.keys are distinct
  virtual Status CopyOut(const RowBatch& rows, CopyOutAs as) = 0;
  // Sets rows, frequencies and versions as the table above has them now. A key without a row gets one; no filter is asked. Like
  // an apply it happens wholly or not at all, and has the errors of one. REQUIRES: rows.keys are distinct
  virtual Status PutBack(const RowBatch& rows) = 0;
  // Expire, which adds the keys of the rows that it removed to *keys, also where it gives an error.
  virtual Status ExpireKeys(int64_t step, int64_t* expired, std::vector<int64_t>* keys) = 0;
  // For a table above that trains rows itself. What Apply would refuse, and where the rule's slots are in the data of a row:
  virtual Status CheckApply(const ApplyRequest& request, std::vector<uint32_t>* slot_offsets) const = 0;
  // An apply of rows that the table above has: it counts as one of this table.
  virtual NotedApply NoteApply(int64_t global_step) = 0;
  // Keys whose rows the table above removed before this table had them: RemovedSince gives them, too.
  virtual void NoteRemoved(Span<const int64_t> keys) = 0;
  // Keys whose rows this table has dropped (drop_coldest) since the last call. Demotes what is beyond the budgets first.
  virtual std::vector<int64_t> TakeGone() = 0;
  virtual bool AnyGone() const = 0;
  // The table above has put rows of these keys back: PopDropped does not give them.
  virtual void TakeBackDropped(Span<const int64_t> keys) = 0;
  // Adds occurrences of keys that have rows to a Bloom filter, whose counters keys share, or takes them out again. Does
  // nothing with any other filter. counts: [keys]
  virtual void CountInFilter(Span<const int64_t> keys, Span<const int64_t> counts, bool take_back) = 0;
  // Waits while a snapshot is far behind, as operations that change rows do at their start. The table above calls it before it
  // takes locks that a visitor may need, and then this table's methods inside a WithoutAwait (current_snapshot.h), where none
  // waits.
  virtual void AwaitSnapshot() const = 0;
};

}  // namespace multitier

#endif  // CC_TABLE_HOST_TABLE_BELOW_H_
