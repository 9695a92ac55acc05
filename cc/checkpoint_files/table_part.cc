#include "cc/checkpoint_files/table_part.h"

#include <algorithm>
#include <numeric>

#include "cc/base/json.h"
#include "cc/options/names.h"
#include "cc/partition/partition.h"
#include "cc/row/schema.h"

namespace multitier {
namespace {

constexpr size_t kMostLetters = 64;  // of the name of a file
constexpr int64_t kMostCount = int64_t{1} << 40;
constexpr int64_t kMostApplies = int64_t{1} << 62;  // they may be microseconds

// A name without a folder: every file of a part is next to its index.
Status CheckFileName(const std::string& file) {
  const bool is_name = file.find('/') == std::string::npos && file.find('\0') == std::string::npos;
  if (is_name && !file.empty() && file.size() <= kMostLetters) return OkStatus();
  return InvalidArgumentError("manifest: expected the name of a file, found '", file, "'");
}

// A number of rows: sums and products with a row's bytes fit 64 bits.
Status CheckCount(const char* name, int64_t count) {
  if (count >= 0 && count <= kMostCount) return OkStatus();
  return InvalidArgumentError("manifest: ", name, ": expected 0 to ", kMostCount, ", found ", count);
}

Result<std::vector<Manifest::Linked>> ParseLinked(const Json& json) {
  std::vector<Manifest::Linked> out;
  MT_ASSIGN_OR_RETURN(const Json* list, json.GetArray("linked"));
  for (const Json& item : list->items()) {
    Manifest::Linked linked;
    MT_ASSIGN_OR_RETURN(linked.file, item.GetString("file"));
    MT_ASSIGN_OR_RETURN(linked.bytes, item.GetInt("bytes"));
    MT_ASSIGN_OR_RETURN(linked.rows, item.GetInt("rows"));
    MT_RETURN_IF_ERROR(CheckFileName(linked.file));
    if (linked.bytes < 0 || linked.rows < 0) {
      return InvalidArgumentError("manifest: linked file '", linked.file, "' of ", linked.bytes, " bytes and ", linked.rows,
                                  " rows");
    }
    out.push_back(std::move(linked));
  }
  return out;
}

}  // namespace

Status CheckInitializer(const InitializerSpec& spec, int dim, DType dtype) {
  const bool is_matrix = spec.kind == InitializerKind::kMatrix;
  if (is_matrix != (spec.matrix_rows > 0) || spec.matrix_rows > kMostCount) {
    return InvalidArgumentError("initializer: matrix_rows: expected ", is_matrix ? StrCat("1 to ", kMostCount) : "0",
                                ", found ", spec.matrix_rows);
  }
  return is_matrix ? OkStatus() : InitializerSet::Create(spec, dim, dtype).status();
}

int64_t Manifest::row_elements() const {
  int64_t n = 0;
  for (const ColumnSpec& column : columns) n += column.dim;
  return n;
}

std::string Manifest::ToJson() const {
  Json column_list = Json::Array();
  for (const ColumnSpec& column : columns) {
    Json json = Json::Object();
    json.Set("name", Json::String(column.name));
    json.Set("dtype", Json::String(DTypeName(column.dtype)));
    json.Set("dim", Json::Int(column.dim));
    json.Set("initial_value", Json::Float(column.initial_value));
    column_list.Append(std::move(json));
  }
  Json out = Json::Object();
  out.Set("format_version", Json::Int(kFormatVersion));
  out.Set("dim", Json::Int(dim()));
  out.Set("columns", std::move(column_list));
  if (key_dtype != KeyType::kInt64) out.Set("key_dtype", Json::String(NameOf(key_dtype)));
  if (frozen) out.Set("frozen", Json::Int(1));
  out.Set("num_rows", Json::Int(num_rows));
  out.Set("partition_index", Json::Int(partition_index));
  out.Set("num_partitions", Json::Int(num_partitions));
  out.Set("applies", Json::Int(applies));
  out.Set("file", Json::String(file));
  out.Set("checksum", Json::Int(checksum));
  if (save_id != 0) out.Set("save_id", Json::Int(save_id));
  if (since != 0) {
    out.Set("since", Json::Int(since));
    out.Set("num_removed", Json::Int(num_removed));
  }
  if (has_initializer) out.Set("initializer", InitializerToJson(initializer));
  if (initializer.tables != nullptr) out.Set("initializers", InitializersToJson(initializer));
  if (linked.empty()) return out.ToString();
  Json linked_list = Json::Array();
  for (const Linked& one : linked) {
    Json json = Json::Object();
    json.Set("file", Json::String(one.file));
    json.Set("bytes", Json::Int(one.bytes));
    json.Set("rows", Json::Int(one.rows));
    linked_list.Append(std::move(json));
  }
  out.Set("linked", std::move(linked_list));
  return out.ToString();
}

Result<Manifest> Manifest::Parse(std::string_view text) {
  MT_ASSIGN_OR_RETURN(const Json json, Json::Parse(text));
  MT_ASSIGN_OR_RETURN(const int64_t version, json.GetInt("format_version"));
  if (version != kFormatVersion) {
    return UnimplementedError("manifest: expected format version ", kFormatVersion, ", found ", version,
                              ": use the release that wrote it");
  }
  Manifest out;
  if (json.Find("key_dtype") != nullptr) {
    MT_ASSIGN_OR_RETURN(const std::string key_dtype, json.GetString("key_dtype"));
    MT_RETURN_IF_ERROR(FromName("manifest: key_dtype", key_dtype, &out.key_dtype));
  }
  if (json.Find("frozen") != nullptr) {
    MT_ASSIGN_OR_RETURN(const int64_t frozen, json.GetInt("frozen"));
    if (frozen != 1) return InvalidArgumentError("manifest: frozen: expected 1, found ", frozen);
    out.frozen = true;
  }
  if (json.Find("linked") != nullptr) {
    MT_ASSIGN_OR_RETURN(out.linked, ParseLinked(json));
  }
  MT_ASSIGN_OR_RETURN(const Json* column_list, json.GetArray("columns"));
  for (const Json& item : column_list->items()) {
    MT_ASSIGN_OR_RETURN(ColumnSpec column, ColumnFromJson(item));
    out.columns.push_back(std::move(column));
  }
  MT_RETURN_IF_ERROR(CheckColumns(out.columns));
  MT_ASSIGN_OR_RETURN(const int64_t dim, json.GetInt("dim"));
  if (dim != out.dim()) return InvalidArgumentError("manifest: dim: expected ", out.dim(), ", as its column has, found ", dim);
  if (out.frozen && (out.columns.size() != 1 || !out.linked.empty())) {
    return InvalidArgumentError("manifest: expected one column and no linked files in a frozen part, found ",
                                out.columns.size(), " columns and ", out.linked.size(), " files");
  }
  for (size_t i = 1; i < out.columns.size(); ++i) {
    const ColumnSpec& column = out.columns[i];
    if (column.dtype == DType::kFloat32) continue;
    return InvalidArgumentError("manifest: column '", column.name, "': expected float32, found ", DTypeName(column.dtype));
  }
  MT_ASSIGN_OR_RETURN(out.num_rows, json.GetInt("num_rows"));
  MT_ASSIGN_OR_RETURN(out.partition_index, json.GetInt("partition_index"));
  MT_ASSIGN_OR_RETURN(out.num_partitions, json.GetInt("num_partitions"));
  MT_ASSIGN_OR_RETURN(out.applies, json.GetInt("applies"));
  MT_ASSIGN_OR_RETURN(out.file, json.GetString("file"));
  MT_RETURN_IF_ERROR(CheckFileName(out.file));
  MT_ASSIGN_OR_RETURN(const int64_t checksum, json.GetInt("checksum"));
  if (checksum < 0 || checksum > UINT32_MAX) {
    return InvalidArgumentError("manifest: checksum: expected 0 to ", UINT32_MAX, ", found ", checksum);
  }
  out.checksum = static_cast<uint32_t>(checksum);
  out.has_initializer = json.Find("initializer") != nullptr;
  if (out.has_initializer) {
    MT_ASSIGN_OR_RETURN(const Json* init, json.GetObject("initializer"));
    MT_ASSIGN_OR_RETURN(out.initializer, InitializerFromJson(*init));
    if (const Json* list = json.Find("initializers"); list != nullptr) {
      MT_RETURN_IF_ERROR(InitializersFromJson(*list, &out.initializer));
    }
    // Frozen rows are read as float32.
    const DType dtype = out.frozen ? DType::kFloat32 : out.columns[0].dtype;
    MT_RETURN_IF_ERROR(CheckInitializer(out.initializer, out.dim(), dtype));
  }
  if (json.Find("save_id") != nullptr) {
    MT_ASSIGN_OR_RETURN(out.save_id, json.GetInt("save_id"));
  }
  if (json.Find("since") != nullptr) {
    MT_ASSIGN_OR_RETURN(out.since, json.GetInt("since"));
    MT_ASSIGN_OR_RETURN(out.num_removed, json.GetInt("num_removed"));
  }
  MT_RETURN_IF_ERROR(CheckCount("num_removed", out.num_removed));
  MT_RETURN_IF_ERROR(CheckCount("num_rows", out.num_rows));
  if (out.applies < 0 || out.applies > kMostApplies) return InvalidArgumentError("manifest: applies ", out.applies);
  if (out.num_partitions < 1 || out.num_partitions > kPartitionBuckets || out.partition_index < 0 ||
      out.partition_index >= out.num_partitions) {
    return InvalidArgumentError("manifest: partition ", out.partition_index, " of ", out.num_partitions);
  }
  return out;
}

void KeepRows(const std::vector<size_t>& kept, Rows* rows) {
  const int64_t elements = rows->row_elements();
  if (kept.size() == rows->keys.size()) return;
  for (size_t to = 0; to < kept.size(); ++to) {
    const size_t from = kept[to];
    rows->keys[to] = rows->keys[from];
    rows->frequencies[to] = rows->frequencies[from];
    rows->versions[to] = rows->versions[from];
    if (to != from) std::copy_n(rows->data.begin() + from * elements, elements, rows->data.begin() + to * elements);
  }
  rows->keys.resize(kept.size());
  rows->frequencies.resize(kept.size());
  rows->versions.resize(kept.size());
  rows->data.resize(kept.size() * elements);
}

void KeepPartition(int64_t partition_index, int64_t num_partitions, Rows* rows) {
  if (num_partitions == 1) return;
  const auto owned = [&](int64_t key) { return PartitionOf(key, static_cast<int>(num_partitions)) == partition_index; };
  std::vector<size_t> own;
  for (size_t i = 0; i < rows->keys.size(); ++i) {
    if (owned(rows->keys[i])) own.push_back(i);
  }
  KeepRows(own, rows);

  auto& removed = rows->removed_keys;
  removed.erase(std::remove_if(removed.begin(), removed.end(), [&](int64_t key) { return !owned(key); }), removed.end());

  size_t kept = 0;
  for (size_t i = 0; i < rows->counted_keys.size(); ++i) {
    if (!owned(rows->counted_keys[i])) continue;
    rows->counted_keys[kept] = rows->counted_keys[i];
    rows->counted_frequencies[kept] = rows->counted_frequencies[i];
    rows->counted_versions[kept++] = rows->counted_versions[i];
  }
  rows->counted_keys.resize(kept);
  rows->counted_frequencies.resize(kept);
  rows->counted_versions.resize(kept);
}

std::vector<int64_t> OrderByKey(const std::vector<int64_t>& keys) {
  std::vector<int64_t> order(keys.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return keys[a] < keys[b]; });
  return order;
}

}  // namespace multitier
