#include "cc/tier/leveldb/leveldb_cache.h"

#include "cc/base/small_blocks.h"

namespace multitier {

LevelDbCache::LevelDbCache(size_t capacity_bytes) : cache_(leveldb::NewLRUCache(capacity_bytes)) {}

LevelDbCache::Handle* LevelDbCache::Insert(const leveldb::Slice& key, void* value, size_t charge,
                                           void (*deleter)(const leveldb::Slice& key, void* value)) {
  KeepSmallBlocks(1);
  return cache_->Insert(key, value, charge, deleter);
}

}  // namespace multitier
