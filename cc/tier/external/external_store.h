// ExternalStore: a store of a user (external_storage.h) as the tier calls it, and the storages of the process by name.
//
// A call that fails is a Status with the name of storage and function: "users.Store.find: RuntimeError: no connection". After
// multitier_end_storage, all fail.
//
// Owns the store, which it closes. In a forked child the store is the parent's: calls fail, and it is not closed.
// Thread-safe.

#ifndef CC_TIER_EXTERNAL_EXTERNAL_STORE_H_
#define CC_TIER_EXTERNAL_EXTERNAL_STORE_H_

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/row/row_layout.h"
#include "cc/tier/external/external_storage.h"

namespace multitier {

class RegisteredStorage;

// InvalidArgument, with its cure, if the process has no storage of that name.
Status CheckExternalStorage(const std::string& name);

// Calls `work` without the locks that functions of the storage need in other threads: in Python, without the GIL. For what
// waits until background work ends. A storage that the process does not have has no such lock. In a function of a storage
// (where Python may collect garbage), a thread of its own does the work: that of the function may be what the work waits for.
// multitier_end_storage waits for that thread.
void RunUnlocked(const std::string& storage, const std::function<void()>& work);

class ExternalStore {
 public:
  static Result<std::unique_ptr<ExternalStore>> Open(const std::string& storage, const std::string& table);
  ~ExternalStore();

  // found: [keys.size()]. rows: [keys.size(), bytes of the first num_columns columns], zeros.
  Status Find(Span<const int64_t> keys, const RowLayout& layout, uint32_t num_columns, uint8_t* found, uint8_t* rows);
  Status Insert(Span<const int64_t> keys, const RowLayout& layout, uint32_t num_columns, const uint8_t* rows);
  Status Erase(Span<const int64_t> keys);
  Status Keys(std::vector<int64_t>* keys);
  Status Flush();
  const std::string& name() const;

 private:
  explicit ExternalStore(std::shared_ptr<RegisteredStorage> storage);

  const std::shared_ptr<RegisteredStorage> storage_;
  const pid_t pid_;
  void* store_ = nullptr;
};

}  // namespace multitier

#endif  // CC_TIER_EXTERNAL_EXTERNAL_STORE_H_
