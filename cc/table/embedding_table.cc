#include "cc/table/embedding_table.h"

#include <unistd.h>

#include <algorithm>

#include "cc/table/table_impl.h"

namespace multitier {
namespace {

constexpr int kMaxShards = 64;
constexpr int kDefaultShards = 8;
constexpr uint64_t kOneShardRows = 64 * 1024;

Status ValidateOptions(const TableOptions& o) {
  const std::string table = StrCat("table '", o.name, "': ");
  if (o.value_dtype != DType::kFloat32) {
    return UnimplementedError(table, "expected value dtype float32, found ", DTypeName(o.value_dtype));
  }
  if (o.num_shards < 0 || o.num_shards > kMaxShards || (o.num_shards & (o.num_shards - 1)) != 0) {
    return InvalidArgumentError(table, "expected num_shards to be 0 or a power of two up to ", kMaxShards, ", found ",
                                o.num_shards);
  }
  if (o.lower_tier != nullptr && o.dram_budget_bytes == 0) {
    return InvalidArgumentError(table, "a tier below DRAM expects a DRAM budget > 0 bytes, found 0");
  }
  if (o.expiry.steps_to_live < 0) {
    return InvalidArgumentError(table, "expected steps_to_live >= 0, found ", o.expiry.steps_to_live);
  }
  if (!(o.expiry.l2_weight_threshold == o.expiry.l2_weight_threshold)) {
    return InvalidArgumentError(table, "expected a number as l2_weight_threshold, found nan");
  }
  const Status admission = ValidateAdmission(o.admission);
  if (!admission.ok()) return Status(admission.code(), table + admission.message());
  return OkStatus();
}

}  // namespace

EmbeddingTable::Impl::Impl(TableOptions options)
    : options_(std::move(options)),
      env_(options_.env != nullptr ? options_.env : Env::Posix()),
      lower_(options_.lower_tier.get()),
      pid_(getpid()) {}

EmbeddingTable::Impl::~Impl() = default;

Status EmbeddingTable::Impl::Init() {
  MT_RETURN_IF_ERROR(ValidateOptions(options_));
  MT_ASSIGN_OR_RETURN(RowLayout row, RowLayout::Create(options_.dim, options_.value_dtype));
  for (const ColumnSpec& slot : options_.slots) {
    MT_ASSIGN_OR_RETURN(row, row.WithColumn(slot));
  }
  layout_ = std::make_shared<const RowLayout>(std::move(row));
  MT_ASSIGN_OR_RETURN(Initializer initializer, Initializer::Create(options_.initializer, options_.dim));
  initializer_ = std::make_unique<Initializer>(std::move(initializer));
  if (options_.dram_budget_bytes != 0 && options_.dram_budget_bytes < layout_->row_bytes()) {
    return InvalidArgumentError("table '", options_.name, "': expected a DRAM budget of at least one row (",
                                layout_->row_bytes(), " bytes), found ", options_.dram_budget_bytes);
  }
  if (options_.admission.kind == AdmissionKind::kBloom && filters()) {
    const AdmissionSpec& a = options_.admission;
    MT_ASSIGN_OR_RETURN(bloom_, CountingBloomFilter::Create(env_, a.max_element_size, a.false_positive_probability,
                                                            a.counter_bits));
  }
  int shards = options_.num_shards;
  if (shards == 0) shards = budget_rows(*layout_) < kOneShardRows ? 1 : kDefaultShards;
  while ((1 << log2_shards_) < shards) ++log2_shards_;
  for (int s = 0; s < shards; ++s) {
    shards_.push_back(
        std::make_unique<Shard>(env_, layout_, lower_ != nullptr, (uint64_t{1} << 32) >> log2_shards_));
  }
  if (lower_ != nullptr) MT_RETURN_IF_ERROR(lower_->SetLayout(layout_));
  return OkStatus();
}

Status EmbeddingTable::Impl::CheckProcess() const {
  if (getpid() == pid_) return OkStatus();
  return FailedPreconditionError("table '", options_.name, "' belongs to process ", pid_,
                                 "; a forked child (here ", getpid(), ") cannot use it");
}

std::shared_ptr<const RowLayout> EmbeddingTable::Impl::layout() const {
  std::lock_guard<std::mutex> lock(layout_mutex_);
  return layout_;
}

Status EmbeddingTable::Impl::AddSlots(Span<const ColumnSpec> slots) {
  MT_RETURN_IF_ERROR(CheckProcess());
  auto widened = [&](const RowLayout& from) -> Result<RowLayout> {
    RowLayout to = from;
    for (const ColumnSpec& slot : slots) {
      const int column = to.Find(slot.name);
      if (column < 0) {
        MT_ASSIGN_OR_RETURN(to, to.WithColumn(slot));
      } else if (to.columns()[column].dim != slot.dim) {
        return AlreadyExistsError("table '", options_.name, "': slot '", slot.name, "' exists with dim ",
                                  to.columns()[column].dim, ", asked for with dim ", slot.dim);
      }
    }
    return to;
  };
  const std::shared_ptr<const RowLayout> before = layout();
  const bool all_there = std::all_of(slots.begin(), slots.end(), [&](const ColumnSpec& slot) {
    const int column = before->Find(slot.name);
    return column >= 0 && before->columns()[column].dim == slot.dim;
  });
  if (all_there) return OkStatus();  // the usual call of every step
  {
    ClosedGate closed(&gate_);
    const std::shared_ptr<const RowLayout> now = layout();
    MT_ASSIGN_OR_RETURN(RowLayout wide, widened(*now));
    if (wide.columns().size() == now->columns().size()) return OkStatus();
    if (options_.dram_budget_bytes != 0 && options_.dram_budget_bytes < wide.row_bytes()) {
      return InvalidArgumentError("table '", options_.name, "': with slot '", slots[slots.size() - 1].name,
                                  "' a row has ", wide.row_bytes(), " bytes, more than the DRAM budget of ",
                                  options_.dram_budget_bytes);
    }
    auto layout = std::make_shared<const RowLayout>(std::move(wide));
    std::vector<std::unique_ptr<DramTier>> rooms;
    for (auto& shard : shards_) {
      MT_ASSIGN_OR_RETURN(rooms.emplace_back(), shard->dram.RoomFor(layout));
    }
    if (lower_ != nullptr) MT_RETURN_IF_ERROR(lower_->SetLayout(layout));
    // From here on nothing fails: either every shard is widened or none.
    for (size_t s = 0; s < shards_.size(); ++s) {
      std::lock_guard<SharedMutex> lock(shards_[s]->mutex);
      shards_[s]->dram.MoveInto(std::move(rooms[s]));
    }
    std::lock_guard<std::mutex> lock(layout_mutex_);
    layout_ = std::move(layout);
  }
  InsideGate inside(&gate_);
  if (lower_ != nullptr) TrimAndRemember();  // wider rows: fewer of them fit
  return OkStatus();
}

TableStats EmbeddingTable::Impl::Stats() {
  TableStats stats;
  const std::shared_ptr<const RowLayout> layout = this->layout();
  TableStats::PerTier dram, below;
  dram.name = "dram";
  dram.budget_bytes = static_cast<int64_t>(options_.dram_budget_bytes);
  for (auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    const ShardCounters& c = shard->counters;
    stats.rows += shard->rows;
    stats.counted_keys += shard->counted_rows;
    stats.updates += c.updates;
    stats.created += c.created;
    stats.removed += c.removed;
    stats.expired += c.expired;
    stats.false_matches += c.false_matches;
    stats.index_bytes += static_cast<int64_t>(shard->index.bytes());
    stats.filter_bytes += static_cast<int64_t>(shard->counted.bytes());
    dram.rows += shard->rows - shard->rows_below;
    dram.resident_bytes += static_cast<int64_t>(shard->dram.resident_bytes());
    dram.hits += c.hits_dram;
    below.rows += shard->rows_below;
    below.hits += c.hits_below;
    below.promotions += c.promotions;
    below.demotions += c.demotions;
    below.reads += c.reads;
    below.writes += c.writes;
  }
  stats.row_bytes = static_cast<int64_t>(layout->row_bytes());
  stats.stride_bytes = static_cast<int64_t>(layout->stride());
  stats.num_shards = static_cast<int>(shards_.size());
  stats.applies = applies_.load();
  stats.lookups = lookups_.load();
  stats.absent = lookups_absent_.load();
  dram.hits += lookup_hits_.load();
  if (bloom_ != nullptr) stats.filter_bytes += static_cast<int64_t>(bloom_->bytes());
  dram.row_bytes = dram.rows * stats.row_bytes;
  stats.tiers.push_back(dram);
  if (lower_ != nullptr) {
    below.name = lower_->name();
    below.row_bytes = below.rows * stats.row_bytes;
    below.resident_bytes = lower_->stats().resident_bytes;
    stats.tiers.push_back(below);
  }
  std::lock_guard<std::mutex> lock(trim_mutex_);
  stats.sticky_error = trim_error_;
  return stats;
}

int64_t EmbeddingTable::Impl::TotalCount() {
  int64_t rows = 0;
  for (auto& shard : shards_) {
    std::lock_guard<SharedMutex> lock(shard->mutex);
    rows += shard->rows;
  }
  return rows;
}

Status EmbeddingTable::Impl::Drain() {
  MT_RETURN_IF_ERROR(CheckProcess());
  InsideGate inside(&gate_);
  if (lower_ == nullptr) return OkStatus();
  for (auto& shard : shards_) {
    std::unique_lock<SharedMutex> lock(shard->mutex);
    shard->resolved.wait(lock, [&] { return !shard->trimming; });
  }
  MT_RETURN_IF_ERROR(RetryTrim());
  return Trim();
}

// --- The public face.

EmbeddingTable::EmbeddingTable(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
EmbeddingTable::~EmbeddingTable() = default;

Result<std::unique_ptr<EmbeddingTable>> EmbeddingTable::Create(TableOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  MT_RETURN_IF_ERROR(impl->Init());
  return std::unique_ptr<EmbeddingTable>(new EmbeddingTable(std::move(impl)));
}

const TableOptions& EmbeddingTable::options() const { return impl_->options(); }
int EmbeddingTable::dim() const { return impl_->options().dim; }
std::shared_ptr<const RowLayout> EmbeddingTable::layout() const { return impl_->layout(); }

Status EmbeddingTable::Lookup(Span<const int64_t> keys, float* out, Executor* executor) {
  return impl_->Lookup(keys, out, executor);
}
Status EmbeddingTable::Apply(const ApplyRequest& request, Executor* executor) { return impl_->Apply(request, executor); }
Status EmbeddingTable::AddSlots(Span<const ColumnSpec> slots) { return impl_->AddSlots(slots); }
Status EmbeddingTable::Frequency(Span<const int64_t> keys, int64_t* out) { return impl_->Frequency(keys, out); }
Status EmbeddingTable::Version(Span<const int64_t> keys, int64_t* out) { return impl_->Version(keys, out); }
Status EmbeddingTable::LookupTier(Span<const int64_t> keys, int32_t* out) { return impl_->LookupTier(keys, out); }
Status EmbeddingTable::Remove(Span<const int64_t> keys, int64_t* removed) { return impl_->Remove(keys, removed); }
Status EmbeddingTable::Expire(int64_t step, int64_t* expired) { return impl_->Expire(step, expired); }
Status EmbeddingTable::Clear() { return impl_->Clear(); }
Result<Rows> EmbeddingTable::Export(bool all_columns) { return impl_->Export(all_columns); }
Result<Rows> EmbeddingTable::Scan(uint64_t cursor, int64_t max_rows, bool all_columns, uint64_t* next) {
  return impl_->Scan(cursor, max_rows, all_columns, next);
}
Status EmbeddingTable::Import(const Rows& rows) { return impl_->Import(rows); }
int64_t EmbeddingTable::TotalCount() const { return impl_->TotalCount(); }
int64_t EmbeddingTable::NewestStep() const { return impl_->NewestStep(); }
TableStats EmbeddingTable::Stats() const { return impl_->Stats(); }
Status EmbeddingTable::Drain() { return impl_->Drain(); }

}  // namespace multitier
