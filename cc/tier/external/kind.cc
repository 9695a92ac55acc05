// The kind of tier EXTERNAL: what the rest of the engine knows of it.

#include "cc/options/tier_kind.h"
#include "cc/tier/external/external_store.h"
#include "cc/tier/external/external_tier.h"

namespace multitier {
namespace {

Status ValidateExternal(const Options& options, bool last) {
  if (last && options.external_storage.empty()) {
    return InvalidArgumentError("external_storage: expected the storage of storage_type ", options.storage_type,
                                ", found none: give a class derived from external_storage.Storage");
  }
  if (!last && !options.external_storage.empty()) {
    return InvalidArgumentError(
        "external_storage: expected it only with storage_type EXTERNAL, DRAM_EXTERNAL or "
        "DRAM_PMEM_EXTERNAL, found ",
        options.storage_type);
  }
  if (last && options.keep) {
    return InvalidArgumentError("keep: expected a storage_type whose last tier is ", KeptTiers(), ", found ",
                                options.storage_type,
                                ": an external storage keeps its rows itself, and lists them with keys()");
  }
  return OkStatus();
}

Result<std::unique_ptr<Tier>> OpenExternal(const TierOpening& opening) {
  MT_ASSIGN_OR_RETURN(std::unique_ptr<Tier> tier, ExternalTier::Open(opening.options.external_storage, opening.options.name));
  return tier;
}

// The headers of its rows. The rows are where the storage has them.
TierBytes ExternalBytes(int64_t rows, int64_t row_bytes) {
  (void)row_bytes;
  int64_t slots = 64;
  while (slots < rows) slots *= 2;  // both arrays double when they are full
  TierBytes bytes;
  bytes.memory = 36 * slots;
  return bytes;
}

const RegisterTierKind registered([](TierKind* kind) {
  kind->name = "EXTERNAL";
  kind->types = {{"EXTERNAL", 108}, {"DRAM_EXTERNAL", 109}, {"DRAM_PMEM_EXTERNAL", 110}};
  kind->not_kept = "an external storage keeps its rows itself";
  kind->validate = ValidateExternal;
  kind->check = [](const Options& options) { return CheckExternalStorage(options.external_storage); };
  kind->open = OpenExternal;
  kind->bytes = ExternalBytes;
});

}  // namespace
}  // namespace multitier
