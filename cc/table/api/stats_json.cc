#include "cc/table/api/stats_json.h"

#include "cc/base/json.h"

namespace multitier {
namespace {

// Counts by power of two, without the empty ones at the end.
Json HistogramToJson(const LatencyHistogram& counts) {
  Json out = Json::Array();
  size_t used = counts.size();
  while (used > 0 && counts[used - 1] == 0) --used;
  for (size_t i = 0; i < used; ++i) out.Append(Json::Int(counts[i]));
  return out;
}

Json TierToJson(const TableStats::PerTier& tier) {
  Json out = Json::Object();
  out.Set("name", Json::String(tier.name));
  out.Set("rows", Json::Int(tier.rows));
  out.Set("row_bytes", Json::Int(tier.row_bytes));
  out.Set("budget_bytes", Json::Int(tier.budget_bytes));
  out.Set("resident_bytes", Json::Int(tier.resident_bytes));
  out.Set("hits", Json::Int(tier.hits));
  out.Set("misses", Json::Int(tier.misses));
  out.Set("promotions", Json::Int(tier.promotions));
  out.Set("demotions", Json::Int(tier.demotions));
  out.Set("reads", Json::Int(tier.reads));
  out.Set("writes", Json::Int(tier.writes));
  out.Set("stored_bytes", Json::Int(tier.device.stored_bytes));
  out.Set("device_reads", Json::Int(tier.device.device_reads));
  out.Set("device_read_bytes", Json::Int(tier.device.device_read_bytes));
  out.Set("device_written_bytes", Json::Int(tier.device.device_written_bytes));
  out.Set("appended_bytes", Json::Int(tier.device.appended_bytes));
  out.Set("segments", Json::Int(tier.device.segments));
  out.Set("relocated_rows", Json::Int(tier.device.relocated_rows));
  out.Set("dead_bytes", Json::Int(tier.device.dead_bytes));
  out.Set("compaction_debt_bytes", Json::Int(tier.device.compaction_debt_bytes));
  out.Set("read_backend", Json::String(tier.device.read_backend));
  out.Set("read_latency_us_log2", HistogramToJson(tier.device.read_latency));
  out.Set("write_latency_us_log2", HistogramToJson(tier.device.write_latency));
  return out;
}

}  // namespace

std::string StatsToJson(EmbeddingTable* table) {
  const TableStats stats = table->Stats();
  Json tiers = Json::Array();
  for (const TableStats::PerTier& tier : stats.tiers) tiers.Append(TierToJson(tier));
  Json out = Json::Object();
  out.Set("tiers", tiers);
  out.Set("rows", Json::Int(stats.rows));
  out.Set("counted_keys", Json::Int(stats.counted_keys));
  out.Set("lookups", Json::Int(stats.lookups));
  out.Set("absent", Json::Int(stats.absent));
  out.Set("updates", Json::Int(stats.updates));
  out.Set("created", Json::Int(stats.created));
  out.Set("removed", Json::Int(stats.removed));
  out.Set("expired", Json::Int(stats.expired));
  out.Set("prefetched", Json::Int(stats.prefetched));
  out.Set("dropped", Json::Int(stats.dropped));
  out.Set("dropped_lost", Json::Int(stats.dropped_lost));
  out.Set("refused", Json::Int(stats.refused));
  out.Set("last_refused", Json::Int(stats.last_update.refused));
  out.Set("last_dropped", Json::Int(stats.last_update.dropped));
  out.Set("corrupt", Json::Int(stats.corrupt));
  out.Set("applies", Json::Int(stats.applies));
  out.Set("false_matches", Json::Int(stats.false_matches));
  out.Set("index_bytes", Json::Int(stats.index_bytes));
  out.Set("filter_bytes", Json::Int(stats.filter_bytes));
  out.Set("snapshot_bytes", Json::Int(stats.snapshot_bytes));
  out.Set("snapshot_held_us", Json::Int(stats.snapshot_held_us));
  out.Set("linked_bytes", Json::Int(stats.linked_bytes));
  out.Set("row_bytes", Json::Int(stats.row_bytes));
  out.Set("stride_bytes", Json::Int(stats.stride_bytes));
  out.Set("num_shards", Json::Int(stats.num_shards));
  out.Set("sticky_error", Json::String(stats.sticky_error.ok() ? "" : stats.sticky_error.ToString()));
  return out.ToString();
}

}  // namespace multitier
