// The creation of a table, and its end.

#include <algorithm>
#include <chrono>
#include <utility>

#include "cc/table/host/host_table.h"

namespace multitier {
namespace {

constexpr uint64_t kOneShardRows = 64 * 1024;

Status ValidateTiers(const TableOptions& o, const std::string& table) {
  const size_t n = o.lower_tiers.size();
  if (n > kMaxLowerTiers) {
    return InvalidArgumentError(table, "expected at most ", kMaxLowerTiers, " tiers below DRAM, found ", n);
  }
  if (!o.dram_named && (n == 0 || o.dram_budget().bounded())) {
    return InvalidArgumentError(table, "dram_named=false: expected a lower tier and no budget of DRAM, found ", n,
                                " lower tiers and a budget of ", o.dram_budget().text());
  }
  if (o.dram_named && n > 0 && !o.dram_budget().bounded()) {
    return InvalidArgumentError(table, "tiers below DRAM: expected a budget of DRAM, found none");
  }
  for (size_t i = 0; i < n; ++i) {
    const LowerTierOptions& lower = o.lower_tiers[i];
    if (lower.tier == nullptr) return InvalidArgumentError(table, "lower tier ", i, " is missing");
    if (i + 1 == n) break;
    const TierCapabilities can = lower.tier->capabilities();
    if (!lower.budget().bounded()) {
      return InvalidArgumentError(table, "tier ", lower.tier->name(), " has a tier below it: expected a budget, found none");
    }
    if (!can.middle || can.relocates) {
      return InvalidArgumentError(table, "tier ", lower.tier->name(), " cannot have a tier below it");
    }
  }
  const bool durable = n > 0 && o.lower_tiers.back().tier->capabilities().durable;
  if ((o.adopt || o.keep) && !durable) {
    return InvalidArgumentError(table, o.adopt ? "adopt" : "keep", ": expected a durable last tier, found ",
                                n == 0 ? "dram" : o.lower_tiers.back().tier->name());
  }
  return OkStatus();
}

Status Validate(const TableOptions& o) {
  const std::string table = StrCat("table '", o.name, "': ");
  const Status status = ValidateTableOptions(o);
  if (!status.ok()) return Status(status.code(), table + status.message());
  return ValidateTiers(o, table);
}

}  // namespace

Result<std::unique_ptr<EmbeddingTable>> EmbeddingTable::Create(TableOptions options) {
  if ((options.above == nullptr) == options.hbm_budget().bounded()) {
    return InvalidArgumentError("table '", options.name,
                                "': expected both a device and a budget for tier hbm, or neither, found ",
                                options.above == nullptr ? "no device" : "a device", " and ", options.hbm_budget().text());
  }
  const auto above = std::exchange(options.above, nullptr);
  const Budget budget = options.hbm_budget();
  options.is_below = above != nullptr;
  options.hbm_budget_bytes = options.hbm_budget_rows = 0;
  MT_ASSIGN_OR_RETURN(std::unique_ptr<TableBelow> table, TableBelow::Create(std::move(options)));
  if (above == nullptr) return std::unique_ptr<EmbeddingTable>(std::move(table));
  return above(std::move(table), budget);
}

Result<std::unique_ptr<TableBelow>> TableBelow::Create(TableOptions options) {
  auto table = std::make_unique<HostTable>(std::move(options));
  MT_RETURN_IF_ERROR(table->Init());
  return std::unique_ptr<TableBelow>(std::move(table));
}

HostTable::HostTable(TableOptions options) : base_(std::move(options)), demoter_(&base_) {}

uint64_t HostTable::NewCursorTag() {
  // Other processes begin elsewhere. The clock cannot fail; std::random_device throws if the system has no entropy source.
  static std::atomic<uint64_t> next{static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count())};
  return 1 + next++ % kMostCursorTag;
}

HostTable::~HostTable() {
  if (!base_.CheckProcess().ok()) return;
  demoter_.Stop();
  if (ready_ && options_.keep) (void)FlushRows();
  tiers_.TakeRelocatorsBack();
}

bool HostTable::MaySplit() const {
  return options_.lower_tiers.empty() && !common_.evicts && !common_.by_score && !filters() && options_.row_memory == nullptr &&
         !options_.is_below;
}

Status HostTable::Init() {
  MT_RETURN_IF_ERROR(Validate(options_));
  MT_RETURN_IF_ERROR(CheckSlotTypes(options_.slots));
  MT_ASSIGN_OR_RETURN(RowLayout row, FirstLayout());
  const auto layout = std::make_shared<const RowLayout>(std::move(row));
  base_.SetLayout(layout);
  MT_ASSIGN_OR_RETURN(base_.absent, AbsentValues::Of(options_));
  MT_RETURN_IF_ERROR(CheckBudgets(*layout));
  if (options_.filter.kind == AdmissionKind::kBloom && filters()) {
    const AdmissionSpec& a = options_.filter;
    MT_ASSIGN_OR_RETURN(
        bloom_, CountingBloomFilter::Create(base_.env, a.max_element_size, a.false_positive_probability, a.counter_bits));
  }
  const bool exact = base_.budgets.dram_rows(*layout) < kOneShardRows;
  common_.evicts = !options_.lower_tiers.empty() || (options_.drop_coldest && options_.dram_budget().bounded());
  if (!base_.absent.have_tables()) common_.initializer = &base_.absent.initial();
  common_.exact = exact;
  // A middle tier keeps the recency of its rows.
  notes_lazily_ = !exact && options_.cache_strategy == Replacement::kDefault && options_.lower_tiers.size() <= 1;
  int log2_shards = exact ? 0 : kDefaultLog2Shards;
  if (options_.num_shards != 0) {
    log2_shards = __builtin_ctz(static_cast<unsigned>(options_.num_shards));
  } else if (!exact && MaySplit()) {
    log2_shards = 0;
    split_at_ = options_.one_shard_bytes / layout->stride();
  }
  for (const LowerTierOptions& lower : options_.lower_tiers) tiers_.Add(lower.tier.get(), lower.budget().bounded());
  base_.shards.Make(log2_shards, &common_, layout, options_.row_memory);
  MT_RETURN_IF_ERROR(tiers_.SetLayout(layout));
  if (options_.adopt) MT_RETURN_IF_ERROR(Adopt());
  if (options_.initial_rows > 0) MT_RETURN_IF_ERROR(Reserve(options_.initial_rows));
  tiers_.LendRelocators();
  MT_RETURN_IF_ERROR(demoter_.Start(/*in_background=*/!exact));
  ready_ = true;
  // There may be more rows than the last tier's budget has room for.
  if (options_.adopt) demoter_.Remember(demoter_.TrimLower());
  return OkStatus();
}

}  // namespace multitier
