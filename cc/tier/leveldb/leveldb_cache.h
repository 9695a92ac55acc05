// LevelDbCache: LevelDB's cache of blocks, where an insertion always finds memory.
//
// LevelDB's cache calls malloc for each entry and uses the result unchecked, so want of memory would end the process. All its
// other memory comes from operator new, which takes from the reserve (base/memory_reserve.h). The cache of open files, which
// LevelDB makes itself, does the same; LevelDbEnv::NewRandomAccessFile, which LevelDB calls before, provides for it.
//
// Thread-safe.

#ifndef CC_TIER_LEVELDB_LEVELDB_CACHE_H_
#define CC_TIER_LEVELDB_LEVELDB_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "leveldb/cache.h"

namespace multitier {

class LevelDbCache : public leveldb::Cache {
 public:
  explicit LevelDbCache(size_t capacity_bytes);

  Handle* Insert(const leveldb::Slice& key, void* value, size_t charge,
                 void (*deleter)(const leveldb::Slice& key, void* value)) override;
  Handle* Lookup(const leveldb::Slice& key) override { return cache_->Lookup(key); }
  void Release(Handle* handle) override { cache_->Release(handle); }
  void* Value(Handle* handle) override { return cache_->Value(handle); }
  void Erase(const leveldb::Slice& key) override { cache_->Erase(key); }
  uint64_t NewId() override { return cache_->NewId(); }
  void Prune() override { cache_->Prune(); }
  size_t TotalCharge() const override { return cache_->TotalCharge(); }

 private:
  const std::unique_ptr<leveldb::Cache> cache_;
};

}  // namespace multitier

#endif  // CC_TIER_LEVELDB_LEVELDB_CACHE_H_
