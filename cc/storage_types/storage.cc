// Makes the tiers of a storage type from the kinds that cc/tier registers: see the header.

#include "cc/storage_types/storage.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/base/thread.h"
#include "cc/device/default_device.h"
#include "cc/device/emulated_device.h"
#include "cc/device/kernels/kernels.h"
#include "cc/env/env.h"
#include "cc/hbm/hbm_above.h"
#include "cc/options/tier_kind.h"
#include "cc/table/api/demotion_pool.h"
#include "cc/tier/tier.h"

namespace multitier {
namespace {

constexpr int64_t kDefaultBytes = int64_t{1} << 30;
constexpr int64_t kDefaultEmulatedBytes = int64_t{1} << 20;  // of HBM: each row costs the emulator time
constexpr uint64_t kFirstRows = 1024;                        // of HBM alone, which grows

Result<std::string> DeviceOf(const Options& options) {
  const char* value = std::getenv(kDeviceVariable);
  const bool given = !options.device.empty();
  const std::string device = given ? options.device : value == nullptr ? "" : value;
  if (device.empty() || device == "emulated") return device;
  if (given) return InvalidArgumentError("device: expected emulated, or none for a GPU; found '", device, "'");
  return InvalidArgumentError("environment variable ", kDeviceVariable, ": expected emulated, or unset for a GPU; found '",
                              device, "'");
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

Status ComposeHbm(const Opening& opening, bool alone, TableOptions* options) {
  MT_ASSIGN_OR_RETURN(const std::string name, DeviceOf(*options));
  const bool emulated = name == "emulated";
  std::shared_ptr<device::Device> device;
  if (emulated) {
    device = EmulatedDeviceOfThisProcess();
  } else {
    MT_ASSIGN_OR_RETURN(device, device::DefaultDevice());
  }
  const int64_t without_size = alone ? kMostTierBytes : emulated ? kDefaultEmulatedBytes : kDefaultBytes;
  const uint64_t first_rows = std::max(kFirstRows, options->initial_rows);
  options->above = hbm::HbmOver(std::move(device), alone ? first_rows : 0, opening.hbm_memory);
  options->hbm_budget_bytes = static_cast<uint64_t>(options->storage_size.empty() ? without_size : options->storage_size[0]);
  if (!options->storage_rows.empty()) {
    options->hbm_budget_bytes = 0;
    options->hbm_budget_rows = static_cast<uint64_t>(options->storage_rows[0]);
  }
  return OkStatus();
}

// An object with files in the instance's directory keeps the instance open for its own lifetime.
template <typename T>
Result<std::shared_ptr<T>> Holding(std::shared_ptr<InstanceDirectory> instance, Result<std::unique_ptr<T>> made) {
  MT_RETURN_IF_ERROR(made.status());
  return std::shared_ptr<T>(made->release(), [instance = std::move(instance)](T* gone) mutable {
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

}  // namespace

Status CheckTiersExist(const Options& options) {
  MT_ASSIGN_OR_RETURN(const std::string device, DeviceOf(options));
  const std::string& type = options.storage_type;
  for (const std::string& tier : TiersOf(type)) {
    const TierKind* const kind = FindTierKind(tier);
    if (kind != nullptr && kind->check != nullptr) MT_RETURN_IF_ERROR(kind->check(options));
  }
  if (type.rfind("HBM", 0) != 0 || !device.empty()) return OkStatus();
  const Status gpu = device::DefaultDevice().status();
  if (gpu.ok()) return OkStatus();
  return Status(gpu.code(), StrCat("storage_type ", type, ": its HBM tier needs a build with CUDA and a GPU: ", gpu.message(),
                                   "; use ", type == "HBM" ? "DRAM" : type.substr(4)));
}

namespace {

// The size of each tier. Their tiers are made later.
std::vector<LowerTierOptions> BudgetsOf(const Options& options, size_t tiers) {
  std::vector<LowerTierOptions> budgets(tiers);
  for (size_t i = 0; i < tiers; ++i) {
    const bool last = i + 1 == tiers;
    if (i < options.storage_rows.size()) {
      budgets[i].budget_rows = static_cast<uint64_t>(options.storage_rows[i]);
    } else {
      const std::vector<int64_t>& sizes = options.storage_size;
      budgets[i].budget_bytes = static_cast<uint64_t>(i < sizes.size() ? sizes[i] : last ? 0 : kDefaultBytes);
    }
  }
  return budgets;
}

// Sets the options of HBM, and takes it out of the tiers. HBM alone: every row stays in HBM, and the host has copies, in DRAM
// without a bound; in a table that drops rows or refuses new ones, DRAM has the size of HBM.
Status TakeHbm(const Opening& opening, TableOptions* options, std::vector<std::string>* names,
               std::vector<LowerTierOptions>* budgets) {
  options->above = nullptr;
  options->hbm_budget_bytes = options->hbm_budget_rows = 0;
  if (names->front() != "HBM") return OkStatus();
  const bool alone = names->size() == 1;
  MT_RETURN_IF_ERROR(ComposeHbm(opening, alone, options));
  const LowerTierOptions size = budgets->front();
  names->erase(names->begin());
  budgets->erase(budgets->begin());
  if (alone) {
    *names = {"DRAM"};
    const bool has_size = options->drop_coldest || options->on_full == OnFull::kRefuse;
    *budgets = {has_size ? size : LowerTierOptions()};
  }
  return OkStatus();
}

// Makes the tiers of the table from number `first` on; those with files in `directory`.
Status MakeTiers(const Opening& opening, const Options& options, const std::vector<std::string>& names, size_t first,
                 const std::vector<LowerTierOptions>& budgets, const std::shared_ptr<InstanceDirectory>& directory,
                 std::vector<LowerTierOptions>* tiers) {
  for (size_t i = first; i < names.size(); ++i) {
    const bool last = i + 1 == names.size();
    const bool recover = last && opening.recover != nullptr;
    // Recovered files stay until the table exists; then the instance decides whether they are kept.
    const bool stays = last && (options.keep || recover) && !opening.read_only;
    LowerTierOptions tier = opening.read_only ? LowerTierOptions() : budgets[i];
    const TierKind* const kind = FindTierKind(names[i]);
    TierOpening how{options, "", stays, recover, opening.read_only};
    if (kind->has_files) {
      MT_ASSIGN_OR_RETURN(how.folder, PrepareFolder(*directory, names[i], recover));
    }
    MT_ASSIGN_OR_RETURN(tier.tier, Holding(kind->has_files ? directory : nullptr, kind->open(how)));
    tiers->push_back(std::move(tier));
  }
  return OkStatus();
}

}  // namespace

Status ComposeStorage(const Opening& opening, TableOptions* options, std::shared_ptr<InstanceDirectory>* instance) {
  MT_RETURN_IF_ERROR(CheckTiersExist(*options));
  std::vector<std::string> names = TiersOf(options->storage_type);
  std::vector<LowerTierOptions> budgets = BudgetsOf(*options, names.size());
  MT_RETURN_IF_ERROR(TakeHbm(opening, options, &names, &budgets));
  const TierKind* const first = FindTierKind(names[0]);
  const bool in_place = first != nullptr && first->open_row_memory != nullptr;  // its rows are the slab, as those of DRAM are
  const bool dram_named = names[0] == "DRAM" || in_place;
  std::vector<LowerTierOptions> lower;
  std::shared_ptr<RowMemory> row_memory;
  std::shared_ptr<InstanceDirectory> directory = opening.recover;
  if (names.back() != "DRAM") {
    MT_RETURN_IF_ERROR(DemotionPool::ThreadsFromEnvironment().status());
    for (const TierKind& kind : TierKinds()) {
      if (kind.check_environment != nullptr) MT_RETURN_IF_ERROR(kind.check_environment());
    }
    if (directory == nullptr && HasFiles(options->storage_type)) {
      MT_ASSIGN_OR_RETURN(directory, InstanceDirectory::Create(options->storage_path, options->name, /*keep=*/false));
    }
    if (in_place) {
      MT_ASSIGN_OR_RETURN(const std::string folder, PrepareFolder(*directory, names[0], /*recover=*/false));
      MT_ASSIGN_OR_RETURN(row_memory, Holding(directory, first->open_row_memory(folder)));
    }
    MT_RETURN_IF_ERROR(MakeTiers(opening, *options, names, dram_named ? 1 : 0, budgets, directory, &lower));
    if (instance == nullptr && options->keep) MT_RETURN_IF_ERROR(directory->SetKeep(true));
  }
  options->dram_named = dram_named;
  options->dram_budget_bytes = dram_named ? budgets[0].budget_bytes : 0;
  options->dram_budget_rows = dram_named ? budgets[0].budget_rows : 0;
  if (directory != nullptr) options->removed_folder = directory->path();
  options->row_memory = std::move(row_memory);
  const bool listed = !lower.empty() && lower.back().tier->stats().rows > 0;
  options->adopt = opening.recover != nullptr || listed;
  options->lower_tiers = std::move(lower);
  if (opening.read_only) {
    options->removed_bytes = 0;
    options->drop_coldest = options->refuse_colder = false;
  }
  if (instance != nullptr) *instance = std::move(directory);
  return OkStatus();
}

}  // namespace multitier
