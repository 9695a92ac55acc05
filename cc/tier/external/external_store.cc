#include "cc/tier/external/external_store.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "cc/base/gate.h"
#include "cc/base/mutex.h"
#include "cc/base/thread.h"

namespace multitier {

namespace {

thread_local int calls_of_this_thread = 0;  // of functions of storages, which run now

}  // namespace

// A storage of the process. Its functions run inside the gate, which End closes for good.
class RegisteredStorage {
 public:
  RegisteredStorage(std::string name, const multitier_storage& functions) : name_(std::move(name)), functions_(functions) {}

  const std::string& name() const { return name_; }
  const multitier_storage& functions() const { return functions_; }
  Gate* gate() { return &gate_; }
  Gate* works() { return &works_; }
  void End() {
    // In a forked child, threads of the parent may be inside for ever.
    if (::getpid() != pid_ || ended_.exchange(true)) return;
    works_.Close();
    gate_.Close();
  }

  // Runs call(error), which returns whether it was done.
  template <typename Call>
  Status Run(const char* function, Call call) {
    const MaybeInsideGate inside(&gate_);
    if (!inside.inside()) {
      return FailedPreconditionError(name_, ".", function, ": the storage has ended: close its tables before the program ends");
    }
    char error[MULTITIER_ERROR_BYTES] = "";
    ++calls_of_this_thread;
    const bool done = call(error);
    --calls_of_this_thread;
    if (done) return OkStatus();
    error[MULTITIER_ERROR_BYTES - 1] = '\0';
    return Status(StatusCode::kUnknown, StrCat(name_, ".", function, ": ", *error == '\0' ? "failed" : error));
  }

 private:
  const std::string name_;
  const multitier_storage functions_;
  const pid_t pid_ = ::getpid();
  std::atomic<bool> ended_{false};
  Gate works_;  // work of RunUnlocked in other threads, which needs the functions
  Gate gate_;
};

namespace {

// Of this process and its forked children, which have the functions, too. By name; the newest last.
struct Registry {
  Mutex mutex;
  std::map<std::string, std::vector<std::shared_ptr<RegisteredStorage>>> storages MT_GUARDED_BY(mutex);
};

Registry* TheRegistry() {
  static auto* const registry = new Registry;
  return registry;
}

std::vector<std::shared_ptr<RegisteredStorage>> FindStorages(const std::string& name) {
  Registry* const registry = TheRegistry();
  MutexLock lock(registry->mutex);
  const auto it = registry->storages.find(name);
  return it == registry->storages.end() ? std::vector<std::shared_ptr<RegisteredStorage>>() : it->second;
}

Result<std::shared_ptr<RegisteredStorage>> FindStorage(const std::string& name) {
  const auto found = FindStorages(name);
  if (!found.empty()) return found.back();
  return InvalidArgumentError("external_storage: expected a storage that this process has registered, found '", name,
                              "': call tf_multitier.external_storage.register(its class) first");
}

// The first num_columns columns for the user's functions.
class Columns {
 public:
  Columns(const RowLayout& layout, uint32_t num_columns) {
    for (uint32_t i = 0; i < num_columns; ++i) {
      const Column& column = layout.columns()[i];
      columns_.push_back({column.name.c_str(), static_cast<int32_t>(column.dtype), column.dim, column.offset});
      layout_.row_bytes = column.offset + column.bytes;
    }
    layout_.num_columns = num_columns;
    layout_.columns = columns_.data();
  }
  const multitier_row_layout* get() const { return &layout_; }

 private:
  std::vector<multitier_column> columns_;
  multitier_row_layout layout_ = {};
};

static_assert(static_cast<int>(DType::kFloat32) == MULTITIER_FLOAT32 &&
              static_cast<int>(DType::kBFloat16) == MULTITIER_BFLOAT16 &&
              static_cast<int>(DType::kFloat16) == MULTITIER_FLOAT16);

}  // namespace

Status CheckExternalStorage(const std::string& name) { return FindStorage(name).status(); }

void RunUnlocked(const std::string& storage, const std::function<void()>& work) {
  const Result<std::shared_ptr<RegisteredStorage>> found = FindStorage(storage);
  if (calls_of_this_thread > 0) {
    const auto inside = found.ok() ? std::make_shared<MaybeInsideGate>((*found)->works()) : nullptr;
    if (StartThread("storage_end", [work, inside] { work(); }).ok()) return;
  }
  if (!found.ok() || (*found)->functions().unlocked == nullptr) return work();
  const MaybeInsideGate inside((*found)->gate());
  if (!inside.inside()) return work();
  const multitier_storage& functions = (*found)->functions();
  functions.unlocked(
      functions.context, [](void* given) { (*static_cast<const std::function<void()>*>(given))(); },
      const_cast<std::function<void()>*>(&work));
}

ExternalStore::ExternalStore(std::shared_ptr<RegisteredStorage> storage) : storage_(std::move(storage)), pid_(::getpid()) {}

Result<std::unique_ptr<ExternalStore>> ExternalStore::Open(const std::string& storage, const std::string& table) {
  MT_ASSIGN_OR_RETURN(std::shared_ptr<RegisteredStorage> found, FindStorage(storage));
  std::unique_ptr<ExternalStore> store(new ExternalStore(std::move(found)));
  const multitier_storage& functions = store->storage_->functions();
  MT_RETURN_IF_ERROR(store->storage_->Run("open", [&](char* error) {
    store->store_ = functions.open(functions.context, table.c_str(), error);
    return store->store_ != nullptr;
  }));
  return store;
}

ExternalStore::~ExternalStore() {
  if (store_ == nullptr || ::getpid() != pid_) return;
  (void)storage_->Run("close", [this](char*) {
    storage_->functions().close(store_);
    return true;
  });
}

const std::string& ExternalStore::name() const { return storage_->name(); }

Status ExternalStore::Find(Span<const int64_t> keys, const RowLayout& layout, uint32_t num_columns, uint8_t* found,
                           uint8_t* rows) {
  const Columns columns(layout, num_columns);
  return storage_->Run("find", [&](char* error) {
    return storage_->functions().find(store_, keys.data(), keys.size(), columns.get(), found, rows, error) == 0;
  });
}

Status ExternalStore::Insert(Span<const int64_t> keys, const RowLayout& layout, uint32_t num_columns, const uint8_t* rows) {
  const Columns columns(layout, num_columns);
  return storage_->Run("insert", [&](char* error) {
    return storage_->functions().insert(store_, keys.data(), keys.size(), columns.get(), rows, error) == 0;
  });
}

Status ExternalStore::Erase(Span<const int64_t> keys) {
  return storage_->Run("erase",
                       [&](char* error) { return storage_->functions().erase(store_, keys.data(), keys.size(), error) == 0; });
}

Status ExternalStore::Keys(std::vector<int64_t>* keys) {
  if (storage_->functions().keys == nullptr) return OkStatus();
  const auto add = [](void* list, const int64_t* from, uint64_t n) {
    auto* const to = static_cast<std::vector<int64_t>*>(list);
    to->insert(to->end(), from, from + n);
  };
  return storage_->Run("keys", [&](char* error) { return storage_->functions().keys(store_, add, keys, error) == 0; });
}

Status ExternalStore::Flush() {
  if (storage_->functions().flush == nullptr) return OkStatus();
  return storage_->Run("flush", [&](char* error) { return storage_->functions().flush(store_, error) == 0; });
}

}  // namespace multitier

int multitier_register_storage(const char* name, const multitier_storage* storage, char* error) {
  using multitier::StrCat;
  std::string wrong;
  if (storage->version != MULTITIER_STORAGE_VERSION) {
    wrong = StrCat("version: expected ", MULTITIER_STORAGE_VERSION, ", found ", storage->version);
  } else if (storage->open == nullptr || storage->find == nullptr || storage->insert == nullptr || storage->erase == nullptr ||
             storage->close == nullptr) {
    wrong = "functions: expected open, find, insert, erase and close, found a null pointer";
  } else if (*name == '\0') {
    wrong = "name: expected text, found ''";
  }
  if (!wrong.empty()) {
    std::strncpy(error, StrCat("storage '", name, "': ", wrong).c_str(), MULTITIER_ERROR_BYTES - 1);
    error[MULTITIER_ERROR_BYTES - 1] = '\0';
    return 1;
  }
  multitier::Registry* const registry = multitier::TheRegistry();
  multitier::MutexLock lock(registry->mutex);
  registry->storages[name].push_back(std::make_shared<multitier::RegisteredStorage>(name, *storage));
  return 0;
}

void multitier_end_storage(const char* name) {
  auto storages = multitier::FindStorages(name);
  std::reverse(storages.begin(), storages.end());  // RunUnlocked is inside the newest, and may need an older one
  for (const auto& storage : storages) storage->End();
}
