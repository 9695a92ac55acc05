#include "cc/hbm/hbm_above.h"

#include <utility>

#include "cc/hbm/hbm_table.h"

namespace multitier::hbm {
namespace {

class Hbm : public TableAbove {
 public:
  Hbm(std::shared_ptr<device::Device> device, uint64_t grows_from_rows, std::shared_ptr<const MemorySource> memory)
      : device_(std::move(device)), grows_from_rows_(grows_from_rows), memory_(std::move(memory)) {}
  Result<std::unique_ptr<TableFront>> Over(std::unique_ptr<EmbeddingTable> below, Budget budget) const override {
    HbmOptions options;
    options.device = device_;
    options.budget = budget;
    options.grows_from_rows = grows_from_rows_;
    options.memory = memory_;
    MT_ASSIGN_OR_RETURN(std::unique_ptr<HbmTable> table, HbmTable::Create(options, std::move(below)));
    return std::unique_ptr<TableFront>(std::move(table));
  }

 private:
  const std::shared_ptr<device::Device> device_;
  const uint64_t grows_from_rows_;
  const std::shared_ptr<const MemorySource> memory_;
};

}  // namespace

std::shared_ptr<const TableAbove> HbmOver(std::shared_ptr<device::Device> device, uint64_t grows_from_rows,
                                          std::shared_ptr<const MemorySource> memory) {
  return std::make_shared<Hbm>(std::move(device), grows_from_rows, std::move(memory));
}

}  // namespace multitier::hbm
