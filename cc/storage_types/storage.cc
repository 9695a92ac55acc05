// Makes the tiers of a storage type. A new kind of tier is added to the lists here: see the header.

#include "cc/storage_types/storage.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "cc/base/memory_reserve.h"
#include "cc/base/mutex.h"
#include "cc/base/thread.h"
#include "cc/device/default_device.h"
#include "cc/device/emulated_device.h"
#include "cc/device/kernels/kernels.h"
#include "cc/env/env.h"
#include "cc/hbm/hbm_above.h"
#include "cc/table/demotion_pool.h"
#include "cc/tier/leveldb/leveldb_tier.h"
#include "cc/tier/pmem/pmem_row_memory.h"
#include "cc/tier/pmem/pmem_tier.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier {
namespace {

constexpr int64_t kDefaultBytes = int64_t{1} << 30;
constexpr int64_t kDefaultEmulatedBytes = int64_t{1} << 20;  // of HBM: each row costs the emulator time
constexpr uint64_t kFirstRows = 1024;                        // of HBM alone, which grows
constexpr int64_t kMaxRows = int64_t{1} << 32;               // of a tier: a table has no more
constexpr int64_t kMaxBytes = int64_t{1} << 60;              // also hbm::kUnboundedBytes
constexpr size_t kScratchBytes = size_t{1} << 20;            // what making the tiers needs, without the rows of a recovered one

std::string Joined(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

// "DRAM_SSDHASH": {"DRAM", "SSDHASH"}
std::vector<std::string> TiersOf(const std::string& type) {
  std::vector<std::string> tiers;
  for (size_t from = 0; from <= type.size();) {
    const size_t to = std::min(type.find('_', from), type.size());
    tiers.push_back(type.substr(from, to - from));
    from = to + 1;
  }
  return tiers;
}

Result<bool> AsyncCompactionFromEnvironment() {
  const char* value = std::getenv(kAsyncCompactionVariable);
  if (value == nullptr || *value == '\0' || std::strcmp(value, "0") == 0) return false;
  if (std::strcmp(value, "1") == 0) return true;
  return InvalidArgumentError("environment variable ", kAsyncCompactionVariable, ": expected 0 or 1, found '", value, "'");
}

Result<std::string> DeviceOf(const StorageSpec& spec) {
  const char* value = std::getenv(kDeviceVariable);
  const bool given = !spec.device.empty();
  const std::string device = given ? spec.device : value == nullptr ? "" : value;
  if (device.empty() || device == "emulated") return device;
  if (given) return InvalidArgumentError("device: expected emulated, or none for a GPU; found '", device, "'");
  return InvalidArgumentError("environment variable ", kDeviceVariable, ": expected emulated, or unset for a GPU; found '",
                              device, "'");
}

Status ValidateHbm(const StorageSpec& spec, size_t tiers) {
  MT_ASSIGN_OR_RETURN(const std::string device, DeviceOf(spec));
  if (device.empty()) {
    const Status gpu = device::DefaultDevice().status();
    if (!gpu.ok()) {
      return Status(gpu.code(), StrCat("storage_type ", spec.type, ": its HBM tier needs a build with CUDA and a GPU: ",
                                       gpu.message(), "; use ", tiers == 1 ? "DRAM" : spec.type.substr(4)));
    }
  }
  if (spec.cache_strategy == Replacement::kScore) {
    return InvalidArgumentError("cache_strategy SCORE: expected a storage_type without HBM, found ", spec.type,
                                ": HBM keeps rows by their last use or frequency; use LRU or LFU");
  }
  if (spec.drop_coldest) {
    return InvalidArgumentError("drop_coldest (on_full drop): expected a storage_type without HBM, found ", spec.type,
                                ": the tiers below HBM would drop rows that are hot in HBM");
  }
  return OkStatus();
}

// Whether processes can share the files of the type.
Status ValidateReadOnly(const std::string& type, const std::vector<std::string>& tiers) {
  for (const std::string& tier : tiers) {
    const bool last = &tier == &tiers.back();
    if (last ? tier == "SSDHASH" : tier != "PMEM") continue;
    return UnimplementedError("in_place: expected a storage_type with SSDHASH as the only tier with files, found ", type,
                              tier == "LEVELDB" ? ": LevelDB opens a database for one process at a time" : "");
  }
  return OkStatus();
}

// The emulated device of this process, as long as a table uses it: as a GPU, it is shared by all tables.
struct SharedEmulatedDevice {
  Mutex mutex;
  std::weak_ptr<device::Device> device MT_GUARDED_BY(mutex);
};

std::shared_ptr<device::Device> EmulatedDeviceOfThisProcess() {
  auto* const shared = OfThisProcess<SharedEmulatedDevice>();
  MutexLock lock(shared->mutex);
  if (std::shared_ptr<device::Device> device = shared->device.lock()) return device;
  device::EmulatedDevice::Options options;
  options.memory_bytes = size_t{64} << 30;
  options.simt.max_switches = uint64_t{1} << 40;  // a large batch is slow, and no error
  auto device = std::make_shared<device::EmulatedDevice>(options, &device::EmulatedKernels());
  shared->device = device;
  return device;
}

Status ComposeHbm(const StorageSpec& spec, bool alone, TableOptions* options) {
  MT_ASSIGN_OR_RETURN(const std::string name, DeviceOf(spec));
  const bool emulated = name == "emulated";
  std::shared_ptr<device::Device> device;
  if (emulated) {
    device = EmulatedDeviceOfThisProcess();
  } else {
    MT_ASSIGN_OR_RETURN(device, device::DefaultDevice());
  }
  const int64_t without_size = alone ? kMaxBytes : emulated ? kDefaultEmulatedBytes : kDefaultBytes;
  const uint64_t first_rows = std::max(kFirstRows, static_cast<uint64_t>(spec.initial_rows));
  options->above = hbm::HbmOver(std::move(device), alone ? first_rows : 0, spec.hbm_memory);
  options->hbm_budget_bytes = static_cast<uint64_t>(spec.sizes.empty() ? without_size : spec.sizes[0]);
  if (!spec.rows.empty()) {
    options->hbm_budget_bytes = 0;
    options->hbm_budget_rows = static_cast<uint64_t>(spec.rows[0]);
  }
  return OkStatus();
}

// An object with files in the instance's directory keeps the instance open for its own lifetime.
template <typename Base, typename T>
Result<std::shared_ptr<Base>> Holding(std::shared_ptr<InstanceDirectory> instance, Result<std::unique_ptr<T>> made) {
  MT_RETURN_IF_ERROR(made.status());
  return std::shared_ptr<Base>(made->release(), [instance = std::move(instance)](Base* gone) mutable {
    delete gone;
    instance.reset();
  });
}

// The folder of a tier. Creates it unless the tier is recovered.
Result<std::string> PrepareFolder(const InstanceDirectory& instance, const std::string& tier, bool recover) {
  std::string path = instance.path() + "/";
  for (const char c : tier) path.push_back(static_cast<char>(c - 'A' + 'a'));
  Env* const env = Env::Posix();
  if (!recover) {
    MT_RETURN_IF_ERROR(env->CreateDir(path));
    return path;
  }
  MT_ASSIGN_OR_RETURN(const bool exists, env->FileExists(path));
  if (!exists) return DataLossError("recovery: '", path, "' is missing");
  return path;
}

// Creates a tier of that name in its folder of the instance. `recover`: it opens the files in that folder.
Result<std::shared_ptr<Tier>> MakeTier(const std::string& name, bool keep, bool recover, bool read_only,
                                       const std::shared_ptr<InstanceDirectory>& instance) {
  MT_ASSIGN_OR_RETURN(std::string folder, PrepareFolder(*instance, name, recover));
  if (name == "SSDHASH") {
    SsdHashOptions options;
    MT_ASSIGN_OR_RETURN(options.async_compaction, AsyncCompactionFromEnvironment());
    options.directory = std::move(folder);
    options.keep = keep;
    options.recover = recover;
    options.read_only = read_only;
    return Holding<Tier>(instance, SsdHashTier::Open(std::move(options)));
  }
  if (name == "LEVELDB") {
    LevelDbOptions options;
    options.directory = std::move(folder);
    options.durable = keep;
    options.recover = recover;
    return Holding<Tier>(instance, LevelDbTier::Open(options));
  }
  PmemOptions options;
  options.directory = std::move(folder);
  return Holding<Tier>(instance, PmemTier::Open(options));
}

}  // namespace

const std::vector<std::string>& StorageTypes() {
  static const auto* const types = new std::vector<std::string>{"DRAM",
                                                                "HBM",
                                                                "PMEM",
                                                                "LEVELDB",
                                                                "SSDHASH",
                                                                "DRAM_PMEM",
                                                                "DRAM_LEVELDB",
                                                                "DRAM_SSDHASH",
                                                                "DRAM_PMEM_LEVELDB",
                                                                "DRAM_PMEM_SSDHASH",
                                                                "HBM_DRAM",
                                                                "HBM_DRAM_PMEM",
                                                                "HBM_DRAM_LEVELDB",
                                                                "HBM_DRAM_SSDHASH",
                                                                "HBM_DRAM_PMEM_LEVELDB",
                                                                "HBM_DRAM_PMEM_SSDHASH"};
  return *types;
}

Result<Replacement> ParseCacheStrategy(const std::string& name) {
  if (name == "DEFAULT") return Replacement::kDefault;
  if (name == "LRU") return Replacement::kLru;
  if (name == "LFU") return Replacement::kLfu;
  if (name == "SCORE") return Replacement::kScore;
  return InvalidArgumentError("cache_strategy: expected DEFAULT, LRU, LFU or SCORE; found '", name, "'");
}

Result<OnCorruption> ParseOnCorruption(const std::string& name) {
  if (name == "error") return OnCorruption::kError;
  if (name == "reinit") return OnCorruption::kReinit;
  if (name == "drop") return OnCorruption::kDrop;
  return InvalidArgumentError("on_corruption: expected error, reinit or drop; found '", name, "'");
}

Result<KeepDropped> ParseKeepDropped(const std::string& name) {
  if (name == "none") return KeepDropped::kNothing;
  if (name == "keys") return KeepDropped::kKeys;
  if (name == "rows") return KeepDropped::kRows;
  return InvalidArgumentError("dropped: expected none, keys or rows; found '", name, "'");
}

Status ParseOnFull(const std::string& name, StorageSpec* spec) {
  if (name != "error" && name != "warn" && name != "drop") {
    return InvalidArgumentError("on_full: expected error, warn or drop; found '", name, "'");
  }
  if (spec->drop_coldest && name == "warn") {
    return InvalidArgumentError("on_full: expected drop, or error, with drop_coldest; found 'warn'");
  }
  spec->drop_coldest = spec->drop_coldest || name == "drop";
  spec->on_full = name == "warn" ? OnFull::kRefuse : OnFull::kError;
  return OkStatus();
}

namespace {

// The amount of each tier, fastest first. unit: "bytes" or "rows"
Status ValidateAmounts(const char* option, Span<const int64_t> amounts, int64_t most, const char* unit, const StorageSpec& spec,
                       size_t tiers) {
  if (amounts.size() > tiers) {
    return InvalidArgumentError(option, ": expected at most ", tiers, ", one for each tier of ", spec.type, "; found ",
                                amounts.size());
  }
  for (size_t i = 0; i < amounts.size(); ++i) {
    if (amounts[i] >= 1 && amounts[i] <= most) continue;
    return InvalidArgumentError(option, "[", i, "]: expected 1 to ", most, " ", unit, ", found ", amounts[i]);
  }
  return OkStatus();
}

}  // namespace

Status ValidateStorage(const StorageSpec& spec) {
  const std::vector<std::string>& types = StorageTypes();
  if (std::find(types.begin(), types.end(), spec.type) == types.end()) {
    return InvalidArgumentError("storage_type: expected one of ", Joined(types), "; found '", spec.type, "'");
  }
  const std::vector<std::string> tiers = TiersOf(spec.type);
  if (tiers[0] == "HBM") {
    MT_RETURN_IF_ERROR(ValidateHbm(spec, tiers.size()));
  } else {
    MT_RETURN_IF_ERROR(DeviceOf(spec).status());
  }
  MT_RETURN_IF_ERROR(ValidateAmounts("storage_size", spec.sizes, kMaxBytes, "bytes", spec, tiers.size()));
  MT_RETURN_IF_ERROR(ValidateAmounts("storage_rows", spec.rows, kMaxRows, "rows", spec, tiers.size()));
  if (!spec.rows.empty() && !spec.sizes.empty()) {
    return InvalidArgumentError("storage_rows: expected no storage_size with it, found ", spec.sizes.size(), " sizes");
  }
  if (spec.initial_rows < 0 || spec.initial_rows > kMaxRows) {
    return InvalidArgumentError("initial_rows: expected 0 to ", kMaxRows, ", found ", spec.initial_rows);
  }
  if (spec.dropped_bytes < 0 || spec.dropped_bytes > kMaxBytes) {
    return InvalidArgumentError("dropped_bytes: expected 0 to ", kMaxBytes, ", found ", spec.dropped_bytes);
  }
  if (spec.removed_bytes < 0 || spec.removed_bytes > kMaxBytes) {
    return InvalidArgumentError("removed_bytes: expected 0 to ", kMaxBytes, ", found ", spec.removed_bytes);
  }
  if (spec.on_full == OnFull::kRefuse && tiers[0] == "HBM") {
    return InvalidArgumentError("on_full warn: expected a storage_type without HBM, found ", spec.type,
                                ": an update in HBM trains every key of its batch; use on_full error");
  }
  const bool without_files = tiers.back() == "DRAM" || tiers.back() == "HBM";
  if (spec.path.empty() && !without_files) {
    return InvalidArgumentError("storage_path: expected a directory for the files of storage_type ", spec.type, ", found ''");
  }
  if (spec.keep && without_files) {
    return InvalidArgumentError("keep: expected a storage_type with files, found ", spec.type);
  }
  if ((spec.keep || spec.recover != nullptr) && tiers.back() == "PMEM") {
    return UnimplementedError("keep: expected a storage_type whose last tier is LEVELDB or SSDHASH, found ", spec.type,
                              ": the files of PMEM do not record which rows the table has; use a checkpoint");
  }
  if (spec.read_only) MT_RETURN_IF_ERROR(ValidateReadOnly(spec.type, tiers));
  if (spec.drop_coldest && std::max(spec.sizes.size(), spec.rows.size()) < tiers.size()) {
    return InvalidArgumentError("drop_coldest: expected the size of the last tier of ", spec.type, " to be given too, found ",
                                std::max(spec.sizes.size(), spec.rows.size()), " of ", tiers.size(), " sizes");
  }
  if (spec.refuse_colder && (!spec.drop_coldest || !MayComeColdest(spec.cache_strategy))) {
    return InvalidArgumentError(
        "refuse_colder: expected drop_coldest=true and cache_strategy SCORE or LFU, found drop_coldest=",
        spec.drop_coldest ? "true and another cache_strategy" : "false");
  }
  return OkStatus();
}

namespace {

// The size of each tier. Their tiers are made later.
std::vector<LowerTierOptions> BudgetsOf(const StorageSpec& spec, size_t tiers) {
  std::vector<LowerTierOptions> budgets(tiers);
  for (size_t i = 0; i < tiers; ++i) {
    const bool last = i + 1 == tiers;
    if (i < spec.rows.size()) {
      budgets[i].budget_rows = static_cast<uint64_t>(spec.rows[i]);
    } else {
      budgets[i].budget_bytes = static_cast<uint64_t>(i < spec.sizes.size() ? spec.sizes[i] : last ? 0 : kDefaultBytes);
    }
  }
  return budgets;
}

// Sets the options of HBM, and takes it out of the tiers. HBM alone: every row stays in HBM, and the host has copies, in DRAM
// without a bound.
Status TakeHbm(const StorageSpec& spec, TableOptions* options, std::vector<std::string>* names,
               std::vector<LowerTierOptions>* budgets) {
  options->above = nullptr;
  options->hbm_budget_bytes = options->hbm_budget_rows = 0;
  if (names->front() != "HBM") return OkStatus();
  if (options->value_dtype != DType::kFloat32) {
    return InvalidArgumentError("value_dtype: expected float32 with storage_type ", spec.type, ", found ",
                                DTypeName(options->value_dtype), ": rows in HBM are float32");
  }
  const bool alone = names->size() == 1;
  MT_RETURN_IF_ERROR(ComposeHbm(spec, alone, options));
  names->erase(names->begin());
  budgets->erase(budgets->begin());
  if (alone) {
    *names = {"DRAM"};
    *budgets = {LowerTierOptions()};
  }
  return OkStatus();
}

// Makes the tiers with files in `directory`, from number `first` on.
Status MakeTiers(const StorageSpec& spec, const std::vector<std::string>& names, size_t first,
                 const std::vector<LowerTierOptions>& budgets, const std::shared_ptr<InstanceDirectory>& directory,
                 std::vector<LowerTierOptions>* tiers) {
  for (size_t i = first; i < names.size(); ++i) {
    const bool last = i + 1 == names.size();
    const bool recover = last && spec.recover != nullptr;
    // Recovered files stay until the table exists; then the instance decides whether they are kept.
    const bool keep = last && (spec.keep || recover) && !spec.read_only;
    LowerTierOptions tier = spec.read_only ? LowerTierOptions() : budgets[i];
    MT_ASSIGN_OR_RETURN(tier.tier, MakeTier(names[i], keep, recover, spec.read_only, directory));
    tiers->push_back(std::move(tier));
  }
  return OkStatus();
}

}  // namespace

Status ComposeStorage(const StorageSpec& spec, TableOptions* options, std::shared_ptr<InstanceDirectory>* instance) {
  MT_RETURN_IF_ERROR(ValidateStorage(spec));
  const MemoryLease lease(kScratchBytes);
  if (!lease.ok()) return lease.Refusal(StrCat("table '", options->name, "': making its tiers"));
  std::vector<std::string> names = TiersOf(spec.type);
  std::vector<LowerTierOptions> budgets = BudgetsOf(spec, names.size());
  MT_RETURN_IF_ERROR(TakeHbm(spec, options, &names, &budgets));
  const bool in_place = names[0] == "PMEM";  // its rows are the slab, as those of DRAM are
  const bool dram_named = names[0] == "DRAM" || in_place;
  std::vector<LowerTierOptions> lower;
  std::shared_ptr<RowMemory> row_memory;
  std::shared_ptr<InstanceDirectory> directory = spec.recover;
  if (names.back() != "DRAM") {
    MT_RETURN_IF_ERROR(DemotionPool::ThreadsFromEnvironment().status());
    MT_RETURN_IF_ERROR(AsyncCompactionFromEnvironment().status());
    if (directory == nullptr) {
      MT_ASSIGN_OR_RETURN(directory, InstanceDirectory::Create(spec.path, options->name, /*keep=*/false));
    }
    if (in_place) {
      MT_ASSIGN_OR_RETURN(const std::string folder, PrepareFolder(*directory, names[0], /*recover=*/false));
      MT_ASSIGN_OR_RETURN(row_memory, Holding<RowMemory>(directory, PmemRowMemory::Open(folder)));
    }
    MT_RETURN_IF_ERROR(MakeTiers(spec, names, dram_named ? 1 : 0, budgets, directory, &lower));
    if (instance == nullptr && spec.keep) MT_RETURN_IF_ERROR(directory->SetKeep(true));
  }
  options->dram_named = dram_named;
  options->dram_budget_bytes = dram_named ? budgets[0].budget_bytes : 0;
  options->dram_budget_rows = dram_named ? budgets[0].budget_rows : 0;
  options->initial_rows = static_cast<uint64_t>(spec.initial_rows);
  options->on_full = spec.on_full;
  options->keep_dropped = spec.keep_dropped;
  options->dropped_bytes = static_cast<uint64_t>(spec.dropped_bytes);
  options->removed_bytes = static_cast<uint64_t>(spec.read_only ? 0 : spec.removed_bytes);
  if (directory != nullptr) options->removed_folder = directory->path();
  options->row_memory = std::move(row_memory);
  options->keep = spec.keep;
  options->adopt = spec.recover != nullptr;
  options->on_corruption = spec.on_corruption;
  options->lower_tiers = std::move(lower);
  options->drop_coldest = spec.drop_coldest && !spec.read_only;
  options->refuse_colder = spec.refuse_colder && !spec.read_only;
  options->cache_strategy = spec.cache_strategy;
  if (instance != nullptr) *instance = std::move(directory);
  return OkStatus();
}

}  // namespace multitier
