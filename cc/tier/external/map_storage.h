// MapStorage: external storages in memory, for tests. A test can make one fail, forget and list keys.
//
//   MapStorage storage("map");                       registered by this name until the process ends
//   ExternalTier::Open("map", "table")               makes a store of it
//
// Thread-safe.

#ifndef CC_TIER_EXTERNAL_MAP_STORAGE_H_
#define CC_TIER_EXTERNAL_MAP_STORAGE_H_

#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cc/tier/external/external_storage.h"

namespace multitier {

class MapStorage {
 public:
  struct Row {
    uint64_t num_columns = 0;
    std::vector<uint8_t> bytes;
  };

  explicit MapStorage(const char* name) {
    multitier_storage functions = {};
    functions.version = MULTITIER_STORAGE_VERSION;
    functions.context = this;
    functions.open = &Open;
    functions.find = &Find;
    functions.insert = &Insert;
    functions.erase = &Erase;
    functions.keys = &Keys;
    functions.flush = &Flush;
    functions.close = &Close;
    char error[MULTITIER_ERROR_BYTES];
    registered = multitier_register_storage(name, &functions, error) == 0;
  }

  std::mutex mutex;             // of what follows
  std::set<std::string> fail;   // names of functions that fail with "broken"
  std::set<int64_t> forgotten;  // keys that find does not find
  std::vector<int64_t> listed;  // what keys lists, of stores opened from now on; `at_start` has their rows
  std::map<int64_t, Row> at_start;
  int opened = 0, closed = 0, flushes = 0, finds = 0;
  std::map<int64_t, Row> last;  // the rows of the last store that was closed
  bool registered = false;

 private:
  struct Store {
    MapStorage* storage;
    std::map<int64_t, Row> rows;
  };
  std::list<std::unique_ptr<Store>> stores;  // those that are open
  // Whether the function is to fail.
  bool Fails(const char* function, char* error) {
    if (fail.count(function) == 0) return false;
    std::strcpy(error, "broken");
    return true;
  }
  static void* Open(void* context, const char* table, char* error) {
    auto* const storage = static_cast<MapStorage*>(context);
    std::lock_guard<std::mutex> lock(storage->mutex);
    if (storage->Fails("open", error) || table == nullptr) return nullptr;
    ++storage->opened;
    storage->stores.push_back(std::make_unique<Store>(Store{storage, storage->at_start}));
    return storage->stores.back().get();
  }
  static int Find(void* store, const int64_t* keys, uint64_t n, const multitier_row_layout* layout, uint8_t* found,
                  uint8_t* rows, char* error) {
    auto* const its = static_cast<Store*>(store);
    std::lock_guard<std::mutex> lock(its->storage->mutex);
    if (its->storage->Fails("find", error)) return 1;
    ++its->storage->finds;
    for (uint64_t i = 0; i < n; ++i) {
      const auto it = its->rows.find(keys[i]);
      found[i] = it != its->rows.end() && its->storage->forgotten.count(keys[i]) == 0;
      if (found[i] == 0) continue;
      if (it->second.bytes.size() != layout->row_bytes) {
        std::strcpy(error, "rows of other columns");
        return 1;
      }
      std::memcpy(rows + i * layout->row_bytes, it->second.bytes.data(), layout->row_bytes);
    }
    return 0;
  }
  static int Insert(void* store, const int64_t* keys, uint64_t n, const multitier_row_layout* layout, const uint8_t* rows,
                    char* error) {
    auto* const its = static_cast<Store*>(store);
    std::lock_guard<std::mutex> lock(its->storage->mutex);
    if (its->storage->Fails("insert", error)) return 1;
    for (uint64_t i = 0; i < n; ++i) {
      const uint8_t* const row = rows + i * layout->row_bytes;
      its->rows[keys[i]] = Row{layout->num_columns, std::vector<uint8_t>(row, row + layout->row_bytes)};
    }
    return 0;
  }
  static int Erase(void* store, const int64_t* keys, uint64_t n, char* error) {
    auto* const its = static_cast<Store*>(store);
    std::lock_guard<std::mutex> lock(its->storage->mutex);
    if (its->storage->Fails("erase", error)) return 1;
    for (uint64_t i = 0; i < n; ++i) its->rows.erase(keys[i]);
    return 0;
  }
  static int Keys(void* store, void (*add)(void* list, const int64_t* keys, uint64_t n), void* list, char* error) {
    auto* const its = static_cast<Store*>(store);
    std::lock_guard<std::mutex> lock(its->storage->mutex);
    if (its->storage->Fails("keys", error)) return 1;
    add(list, its->storage->listed.data(), its->storage->listed.size());
    return 0;
  }
  static int Flush(void* store, char* error) {
    auto* const its = static_cast<Store*>(store);
    std::lock_guard<std::mutex> lock(its->storage->mutex);
    if (its->storage->Fails("flush", error)) return 1;
    ++its->storage->flushes;
    return 0;
  }
  static void Close(void* store) {
    auto* const its = static_cast<Store*>(store);
    MapStorage* const storage = its->storage;
    std::lock_guard<std::mutex> lock(storage->mutex);
    ++storage->closed;
    storage->last = its->rows;
    storage->stores.remove_if([its](const auto& store) { return store.get() == its; });
  }
};

}  // namespace multitier

#endif  // CC_TIER_EXTERNAL_MAP_STORAGE_H_
