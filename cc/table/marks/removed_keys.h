// RemovedKeys: the keys whose rows left a table, in the order in which they left, each with the newest version that the table
// had. A copy of the table asks for those since the version it is at, and deletes them (EmbeddingTable::RemovedSince).
//
//   Note    under a shard's lock: appends to memory. A table without files forgets the oldest beyond a bound.
//   Spill   no lock held: if half of the memory is used, writes it to the end of a file in the folder of the tiers. An
//   operation
//           calls it before it begins, and between the slices of a long one. So memory is at most the bound and what running
//           operations remove. If the file cannot be written, the table is one without files from then on.
//
// Entries have 16 bytes and are sorted by version, in the file and in memory, because the version is read under the mutex and
// never decreases. Of forgotten entries only the newest version is known: a question about it or an older one is
// FailedPrecondition. The file has no name, so no process finds it later: a table that takes over rows begins with a Forget.
//
// A part of a variable may be behind the others: a key that left it after version v of the variable can have an older version
// here. So the newest entries from before v are given as well. To delete a key that has no row is always right.
//
// Thread-safe. Its mutex is taken inside a shard's lock; its file's mutex outside of all shards' locks.

#ifndef CC_TABLE_MARKS_REMOVED_KEYS_H_
#define CC_TABLE_MARKS_REMOVED_KEYS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/mutex.h"
#include "cc/base/status.h"
#include "cc/env/env.h"

namespace multitier {

class RemovedKeys {
 public:
  // most_bytes: of memory; 0: nothing is noted. folder: of the file; empty: none. *newest_version: of the table, never
  // decreases, and outlives this object.
  RemovedKeys(Env* env, uint64_t most_bytes, std::string folder, const std::atomic<int64_t>* newest_version)
      : env_(env),
        most_(most_bytes / sizeof(Entry)),
        folder_(std::move(folder)),
        newest_version_(*newest_version),
        spills_(!folder_.empty()) {}
  RemovedKeys(const RemovedKeys&) = delete;
  RemovedKeys& operator=(const RemovedKeys&) = delete;

  void Note(int64_t key);
  // Forgets all entries: rows were removed, or came, of which it does not know.
  void Forget();
  // REQUIRES: the caller holds no shard's lock
  void Spill() {
    if (due_.load(std::memory_order_relaxed)) SpillNow();
  }
  // The keys noted at this version or a newer one, and those of the newest version before it, each once, sorted. Some may have
  // rows again. FailedPrecondition if entries of that version were forgotten, or nothing is noted. ResourceExhausted where
  // memory is short. The error of a file that cannot be read. REQUIRES: the caller holds no shard's lock
  Result<std::vector<int64_t>> Since(int64_t version);

  bool notes() const { return most_ != 0; }
  // Bytes of the file.
  int64_t file_bytes() const { return file_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Entry {
    int64_t key;
    int64_t version;
  };
  void SpillNow();
  Status Append(const std::vector<Entry>& entries) MT_REQUIRES(file_mutex_);
  void ForgetUpTo(int64_t version) MT_REQUIRES(mutex_);

  Env* const env_;
  const size_t most_;  // entries
  const std::string folder_;
  const std::atomic<int64_t>& newest_version_;
  std::atomic<bool> spills_;      // there is a folder, and no file in it has failed
  std::atomic<bool> due_{false};  // half of the memory is used, and it spills
  std::atomic<int64_t> file_bytes_{0};

  Mutex file_mutex_;                                                 // locked before mutex_; I/O under it
  std::shared_ptr<PositionedFile> file_ MT_GUARDED_BY(file_mutex_);  // null until the first Spill; answers hold it

  Mutex mutex_;
  std::vector<Entry> entries_ MT_GUARDED_BY(mutex_);  // the newest
  size_t first_ MT_GUARDED_BY(mutex_) = 0;            // those before it are forgotten
  static constexpr int64_t kNothingForgotten = std::numeric_limits<int64_t>::min();
  int64_t forgotten_ MT_GUARDED_BY(mutex_) = kNothingForgotten;  // newest version of an entry that was forgotten
};

}  // namespace multitier

#endif  // CC_TABLE_MARKS_REMOVED_KEYS_H_
