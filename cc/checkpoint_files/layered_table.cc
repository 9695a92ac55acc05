// The layer is a table in DRAM. It also has a row for each removed key: what an absent key reads, with frequency 0 and version
// -1. So a read needs one question only, whether the layer has the key. `removed_` says which of its rows are none.

#include "cc/checkpoint_files/layered_table.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "cc/base/ieee.h"
#include "cc/checkpoint_files/table_part.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {
namespace {

constexpr uint64_t kInLayer = uint64_t{1} << 39;  // of a scan's cursor, whose other bits are those of a table's

class LayeredTable final : public EmbeddingTable {
 public:
  LayeredTable(std::shared_ptr<EmbeddingTable> below, std::unique_ptr<EmbeddingTable> layer)
      : below_(std::move(below)), layer_(std::move(layer)) {}

  const TableOptions& options() const override { return layer_->options(); }
  std::shared_ptr<const RowLayout> layout() const override { return layer_->layout(); }
  const AbsentValues& absent_values() const override { return layer_->absent_values(); }

  Status Lookup(Span<const int64_t> keys, float* out, Executor* executor, uint32_t* places, int64_t stride, ReadFor reason,
                Span<const uint16_t> tables) override {
    MT_RETURN_IF_ERROR(CheckTables(tables, keys.size()));
    if (places != nullptr) std::fill_n(places, keys.size(), kNoPlace);
    if (stride == 0) stride = dim();
    MT_RETURN_IF_ERROR(Read(
        keys, dim(), stride, out,
        [&](EmbeddingTable* table, Span<const int64_t> some, float* rows, int64_t row_stride, Span<const uint16_t> its) {
          return table->Lookup(some, rows, executor, nullptr, row_stride, reason, its);
        },
        tables));
    FillRemoved(keys, tables, reason, stride, out);
    return OkStatus();
  }
  Status Peek(Span<const int64_t> keys, float* out, Span<const uint16_t> tables) override {
    MT_RETURN_IF_ERROR(CheckTables(tables, keys.size()));
    MT_RETURN_IF_ERROR(Read(
        keys, dim(), dim(), out,
        [](EmbeddingTable* table, Span<const int64_t> some, float* rows, int64_t, Span<const uint16_t> its) {
          return table->Peek(some, rows, its);
        },
        tables));
    FillRemoved(keys, tables, ReadFor::kTraining, dim(), out);
    return OkStatus();
  }
  Status Frequency(Span<const int64_t> keys, int64_t* out) override {
    return Read(keys, 1, 1, out,
                [](EmbeddingTable* table, Span<const int64_t> some, int64_t* found, int64_t, Span<const uint16_t>) {
                  return table->Frequency(some, found);
                });
  }
  Status Version(Span<const int64_t> keys, int64_t* out) override {
    return Read(keys, 1, 1, out,
                [](EmbeddingTable* table, Span<const int64_t> some, int64_t* found, int64_t, Span<const uint16_t>) {
                  return table->Version(some, found);
                });
  }
  Status LookupTier(Span<const int64_t> keys, int32_t* out) override {
    MT_RETURN_IF_ERROR(Read(keys, 1, 1, out,
                            [](EmbeddingTable* table, Span<const int64_t> some, int32_t* found, int64_t, Span<const uint16_t>) {
                              return table->LookupTier(some, found);
                            }));
    for (size_t i = 0; i < keys.size() && !removed_.empty(); ++i) {
      if (removed_.count(keys[i]) != 0) out[i] = -1;
    }
    return OkStatus();
  }

  Status Prefetch(Span<const int64_t> keys, uint64_t timeout_us, int64_t* pinned) override {
    return below_->Prefetch(keys, timeout_us, pinned);
  }
  void ReleasePrefetched() override { below_->ReleasePrefetched(); }

  Status Import(const Rows& rows, Executor* executor) override {
    MT_RETURN_IF_ERROR(Hide(rows.keys));
    MT_RETURN_IF_ERROR(layer_->Import(rows, executor));
    for (const int64_t key : rows.keys) removed_.erase(key);
    return OkStatus();
  }
  Status Remove(Span<const int64_t> keys, int64_t* removed) override {
    const int64_t before = TotalCount();
    MT_RETURN_IF_ERROR(Hide(keys));
    MT_RETURN_IF_ERROR(layer_->Remove(keys, nullptr));
    Rows absent;
    absent.columns.push_back(layout()->columns()[0]);
    absent.keys.assign(keys.begin(), keys.end());
    absent.frequencies.assign(keys.size(), 0);
    absent.versions.assign(keys.size(), -1);
    absent.data.resize(keys.size() * static_cast<size_t>(dim()));
    const std::vector<uint16_t> tables(keys.size(), 0);  // with several, FillRemoved reads them anew
    MT_RETURN_IF_ERROR(layer_->Peek(keys, absent.data.data(), tables));
    MT_RETURN_IF_ERROR(layer_->Import(absent));
    removed_.insert(keys.begin(), keys.end());
    if (removed != nullptr) *removed = before - TotalCount();
    return OkStatus();
  }

  Status Apply(const ApplyRequest&, Executor*) override { return Refuse("an update"); }
  Status AddSlots(Span<const ColumnSpec>) override { return Refuse("another column"); }
  Status SetScore(int64_t, bool*) override { return Refuse("another score"); }
  Status Expire(int64_t, int64_t*) override { return Refuse("an expiry"); }
  Status Clear() override { return Refuse("removing all rows"); }
  Result<int64_t> Upsert(const UpsertRequest&) override { return Refuse("an upsert"); }

  Result<std::unique_ptr<TableSnapshot>> PrepareSnapshot(SnapshotRequest request) override {
    if (request.since != 0 || request.track_as != 0) return Refuse("tracking of changes");
    request.visit = [this, all = request.all_columns, max_rows = request.max_rows, visit = std::move(request.visit),
                     begun = false](Rows* rows) mutable -> Status {
      MT_RETURN_IF_ERROR(DropHidden(rows));
      if (!std::exchange(begun, true)) MT_RETURN_IF_ERROR(GiveLayer(all, max_rows, rows, visit));
      return visit(rows);
    };
    request.take_file = nullptr;  // a file has rows that the layer hides
    return below_->PrepareSnapshot(std::move(request));
  }
  Result<Rows> Scan(const ScanRequest& request, uint64_t* next) override {
    ScanRequest own = request;
    own.cursor &= ~kInLayer;
    if ((request.cursor & kInLayer) != 0) {
      MT_ASSIGN_OR_RETURN(Rows rows, layer_->Scan(own, next));
      DropRemoved(&rows);
      if (*next != 0) *next |= kInLayer;
      return rows;
    }
    MT_ASSIGN_OR_RETURN(Rows rows, below_->Scan(own, next));
    MT_RETURN_IF_ERROR(DropHidden(&rows));
    if (*next == 0) *next = kInLayer;
    return rows;
  }

  std::vector<int64_t> PopDropped() override { return below_->PopDropped(); }
  Result<Rows> PopDroppedRows() override { return below_->PopDroppedRows(); }
  Result<std::vector<int64_t>> RemovedSince(int64_t) override { return Refuse("a question about removed keys"); }
  UpdateCounts LastUpdate() const override { return below_->LastUpdate(); }
  int64_t TotalCount() const override {
    return below_->TotalCount() - hidden_ + layer_->TotalCount() - static_cast<int64_t>(removed_.size());
  }
  int64_t ChangesSince() const override { return 0; }
  int64_t NewestStep() const override { return std::max(below_->NewestStep(), layer_->NewestStep()); }
  // Those of the table below; its first tier has the rows of the layer, too.
  TableStats Stats() const override {
    TableStats stats = below_->Stats();
    const TableStats layer = layer_->Stats();
    TableStats::PerTier& first = stats.tiers[0];
    first.rows += layer.tiers[0].rows;
    first.row_bytes += layer.tiers[0].row_bytes;
    first.resident_bytes += layer.tiers[0].resident_bytes;
    stats.index_bytes += layer.index_bytes;
    stats.rows = TotalCount();
    return stats;
  }
  Status Drain() override { return below_->Drain(); }
  Status Flush() override { return Refuse("a flush"); }
  Status SetDramBudget(Budget budget) override { return below_->SetDramBudget(budget); }
  Status Reserve(uint64_t) override { return Refuse("a reservation"); }
  Status Compact() override { return below_->Compact(); }

 private:
  Status Refuse(const char* what) const {
    return FailedPreconditionError("table '", options().name, "': expected reads only of a table with deltas, found ", what);
  }

  // Whether the layer has each key, as LookupTier says: -1 where it does not.
  Status InLayer(Span<const int64_t> keys, std::vector<int32_t>* tiers) const {
    MT_RETURN_IF_ERROR(CheckMemory(keys.size()));
    tiers->resize(keys.size());
    return layer_->LookupTier(keys, tiers->data());
  }

  // What keys that the layer has removed read, where their rows in the layer do not say so: in evaluation, and with several
  // tables, those of their first occurrences.
  void FillRemoved(Span<const int64_t> keys, Span<const uint16_t> tables, ReadFor reason, int64_t stride, float* out) const {
    const bool has_tables = absent_values().have_tables();
    if (removed_.empty() || (reason == ReadFor::kTraining && !has_tables)) return;
    const ScopedIeeeArithmetic ieee;
    std::unordered_map<int64_t, uint16_t> first;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (removed_.count(keys[i]) == 0) continue;
      const uint16_t table = has_tables ? first.emplace(keys[i], tables[i]).first->second : uint16_t{0};
      float* const value = out + static_cast<int64_t>(i) * stride;
      absent_values().Fill(reason, &keys[i], &table, 1, &value);
    }
  }

  // Calls read(table, keys, out, stride, tables) for the keys of the layer and for those of the table below.
  template <typename T, typename ReadSome>
  Status Read(Span<const int64_t> keys, int64_t width, int64_t stride, T* out, const ReadSome& read,
              Span<const uint16_t> tables = {}) const {
    std::vector<int32_t> tiers;
    MT_RETURN_IF_ERROR(InLayer(keys, &tiers));
    const auto in_layer = [](int32_t tier) { return tier >= 0; };
    if (std::none_of(tiers.begin(), tiers.end(), in_layer)) return read(below_.get(), keys, out, stride, tables);
    for (const bool of_layer : {false, true}) {
      std::vector<int64_t> some;
      std::vector<uint16_t> its;
      std::vector<size_t> places;
      for (size_t i = 0; i < keys.size(); ++i) {
        if (in_layer(tiers[i]) != of_layer) continue;
        some.push_back(keys[i]);
        if (!tables.empty()) its.push_back(tables[i]);
        places.push_back(i);
      }
      if (some.empty()) continue;
      std::vector<T> found(some.size() * static_cast<size_t>(width));
      MT_RETURN_IF_ERROR(read(of_layer ? layer_.get() : below_.get(), Span<const int64_t>(some), found.data(), width,
                              Span<const uint16_t>(its)));
      for (size_t i = 0; i < places.size(); ++i) {
        std::copy_n(found.begin() + static_cast<int64_t>(i) * width, width, out + static_cast<int64_t>(places[i]) * stride);
      }
    }
    return OkStatus();
  }

  // Counts the rows below that keys hide which the layer has not yet.
  Status Hide(Span<const int64_t> keys) {
    std::vector<int32_t> tiers;
    MT_RETURN_IF_ERROR(InLayer(keys, &tiers));
    std::vector<int64_t> added;
    for (size_t i = 0; i < keys.size(); ++i) {
      if (tiers[i] < 0) added.push_back(keys[i]);
    }
    tiers.resize(added.size());
    MT_RETURN_IF_ERROR(below_->LookupTier(added, tiers.data()));
    hidden_ += std::count_if(tiers.begin(), tiers.end(), [](int32_t tier) { return tier >= 0; });
    return OkStatus();
  }

  Status DropHidden(Rows* rows) const {
    std::vector<int32_t> tiers;
    MT_RETURN_IF_ERROR(InLayer(rows->keys, &tiers));
    std::vector<size_t> kept;
    for (size_t i = 0; i < tiers.size(); ++i) {
      if (tiers[i] < 0) kept.push_back(i);
    }
    KeepRows(kept, rows);
    return OkStatus();
  }
  void DropRemoved(Rows* rows) const {
    std::vector<size_t> kept;
    for (size_t i = 0; i < rows->keys.size(); ++i) {
      if (removed_.count(rows->keys[i]) == 0) kept.push_back(i);
    }
    KeepRows(kept, rows);
  }
  // Gives the rows of the layer: in the chunk that is about to be given if they fit, else in chunks of their own.
  Status GiveLayer(bool all_columns, int64_t max_rows, Rows* chunk, const std::function<Status(Rows*)>& visit) const {
    const bool fits = layer_->TotalCount() <= max_rows - static_cast<int64_t>(chunk->keys.size());
    return layer_->TakeSnapshot(all_columns, max_rows, [&](Rows* rows) {
      DropRemoved(rows);
      rows->filter_counters.clear();
      if (!fits) return rows->keys.empty() ? OkStatus() : visit(rows);
      chunk->keys.insert(chunk->keys.end(), rows->keys.begin(), rows->keys.end());
      chunk->frequencies.insert(chunk->frequencies.end(), rows->frequencies.begin(), rows->frequencies.end());
      chunk->versions.insert(chunk->versions.end(), rows->versions.begin(), rows->versions.end());
      chunk->data.insert(chunk->data.end(), rows->data.begin(), rows->data.end());
      return OkStatus();
    });
  }

  const std::shared_ptr<EmbeddingTable> below_;
  const std::unique_ptr<EmbeddingTable> layer_;
  std::unordered_set<int64_t> removed_;
  int64_t hidden_ = 0;  // rows below whose keys the layer has
};

}  // namespace

Result<std::unique_ptr<EmbeddingTable>> LayerOver(std::shared_ptr<EmbeddingTable> below) {
  TableOptions options = below->options();
  options.slots.clear();
  options.dram_budget_bytes = options.dram_budget_rows = options.initial_rows = 0;
  options.row_memory = nullptr;
  options.lower_tiers.clear();
  options.external_storage.clear();
  options.dram_named = true;
  options.drop_coldest = options.adopt = options.keep = options.refuse_colder = false;
  options.on_full = OnFull::kError;
  MT_ASSIGN_OR_RETURN(std::unique_ptr<EmbeddingTable> layer, EmbeddingTable::Create(std::move(options)));
  return std::unique_ptr<EmbeddingTable>(std::make_unique<LayeredTable>(std::move(below), std::move(layer)));
}

}  // namespace multitier
