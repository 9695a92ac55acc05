#include "cc/hbm/hbm_above.h"

#include <utility>

#include "cc/hbm/hbm_table.h"

namespace multitier::hbm {

TableOptions::MakeAbove HbmOver(std::shared_ptr<device::Device> device, uint64_t grows_from_rows,
                                std::shared_ptr<const MemorySource> memory) {
  return [=](std::unique_ptr<TableBelow> below, Budget budget) -> Result<std::unique_ptr<EmbeddingTable>> {
    HbmOptions options;
    options.device = device;
    options.budget = budget;
    options.grows_from_rows = grows_from_rows;
    options.memory = memory;
    MT_ASSIGN_OR_RETURN(std::unique_ptr<HbmTable> table, HbmTable::Create(options, std::move(below)));
    return std::unique_ptr<EmbeddingTable>(std::move(table));
  };
}

}  // namespace multitier::hbm
