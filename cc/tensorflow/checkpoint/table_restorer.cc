#include "cc/tensorflow/checkpoint/table_restorer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "cc/base/new_array.h"
#include "cc/base/status.h"
#include "cc/checkpoint_files/layered_table.h"
#include "cc/partition/partition.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/kept_reader.h"
#include "cc/tensorflow/variable/kept_table.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {
namespace {

constexpr size_t kFrequencies = 1 << 16;  // those above count as the highest

void DropCounted(Rows* rows) {
  rows->counted_keys.clear();
  rows->counted_frequencies.clear();
  rows->counted_versions.clear();
}

}  // namespace

int64_t TableRestorer::Save::rows() const {
  int64_t n = 0;
  for (const Manifest& manifest : manifests) n += manifest.num_rows;
  return n;
}

TableRestorer::TableRestorer(SavedChain* chain, const VariableOptions& options, std::string name, std::string variable_name,
                             bool resize, bool convert, bool rename_slots, std::shared_ptr<VariableState> live,
                             Executor* executor)
    : chain_(chain),
      options_(options),
      name_(std::move(name)),
      variable_name_(std::move(variable_name)),
      resize_(resize),
      convert_(convert),
      rename_slots_(rename_slots),
      live_(std::move(live)),
      executor_(executor) {}

absl::Status TableRestorer::ReadManifests() {
  TF_RETURN_IF_ERROR(chain_->Open());
  for (const SavedChain::Save& saved : chain_->saves()) {
    Save& save = saves_.emplace_back(Save{saved.reader.get(), {}, ""});
    for (const Manifest& manifest : saved.manifests) {
      absl::StrAppend(&save.texts, manifest.ToJson(), "\n");
      TF_RETURN_IF_ERROR(CheckFits(manifest, *save.reader));
      if (PartitionsOverlap(static_cast<int>(manifest.partition_index), static_cast<int>(manifest.num_partitions),
                            static_cast<int>(options_.partition_index), static_cast<int>(options_.num_partitions))) {
        save.manifests.push_back(manifest);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status TableRestorer::CheckFits(const Manifest& manifest, const PartReader& reader) const {
  TF_RETURN_IF_ERROR(CheckKeyType(variable_name_, options_.table.key_dtype, manifest.key_dtype, reader.prefix()));
  if (manifest.dim() != options_.table.dim && !resize_) {
    return absl::InvalidArgumentError(
        absl::StrCat("embedding variable '", variable_name_, "': expected dim ", options_.table.dim, ", found dim ",
                     manifest.dim(), " in checkpoint ", reader.prefix(),
                     "; restore_from(prefix, resize=True) accepts it, and a Saver that is built in "
                     "tf_multitier.train.resize_on_restore()"));
  }
  const DType saved = manifest.columns[0].dtype, own = options_.table.value_dtype;
  if (saved != own && !manifest.frozen && !convert_) {
    return absl::InvalidArgumentError(
        absl::StrCat("embedding variable '", variable_name_, "': expected values of ", DTypeName(own), ", found ",
                     DTypeName(saved), " in checkpoint ", reader.prefix(),
                     "; restore_from(prefix, convert=True) accepts it, and a Saver that is built in "
                     "tf_multitier.train.convert_on_restore()"));
  }
  if (manifest.frozen && !options_.table.read_only && options_.table.expiry.steps_to_live > 0) {
    return absl::InvalidArgumentError(absl::StrCat("embedding variable '", variable_name_, "': checkpoint ", reader.prefix(),
                                                   " is frozen: its rows have no versions, which steps_to_live needs"));
  }
  return absl::OkStatus();
}

std::string TableRestorer::DeltaManifests() const {
  std::string texts;
  for (size_t i = 1; i < saves_.size(); ++i) absl::StrAppend(&texts, saves_[i].texts);
  return texts;
}

TableRestorer::ColumnPlan TableRestorer::PlanSlot(const Manifest& manifest, const ColumnSpec& saved) const {
  ColumnPlan plan{saved.dim, !options_.table.read_only, saved};
  const int saved_dim = manifest.dim();
  std::string own_name = name_;
  if (options_.num_partitions > 1) {
    own_name = std::string(absl::StripSuffix(own_name, absl::StrCat("/part_", options_.partition_index)));
  }
  const std::string& first = manifest.columns[1].name;
  const std::string owner = rename_slots_ ? first.substr(0, first.rfind('/')) : variable_name_;
  absl::string_view rest = saved.name;
  if (absl::ConsumePrefix(&rest, absl::StrCat(owner, "/"))) plan.column.name = absl::StrCat(own_name, "/", rest);
  if (saved_dim == options_.table.dim || saved.dim != saved_dim) return plan;
  // A slot as long as the value is resized with it, unless the variable has it with this dim (one number for each row).
  int live_dim = options_.table.dim;
  if (live_ != nullptr) {
    const std::shared_ptr<const RowLayout> layout = live_->table->layout();
    const int column = layout->Find(plan.column.name);
    if (column >= 0) live_dim = layout->columns()[static_cast<size_t>(column)].dim;
  }
  plan.column.dim = live_dim;
  return plan;
}

std::vector<TableRestorer::ColumnPlan> TableRestorer::Plan(const Manifest& manifest) const {
  std::vector<ColumnPlan> plans;
  ColumnPlan value{manifest.dim(), true, manifest.columns[0]};
  value.column.dim = options_.table.dim;
  value.column.dtype = options_.table.value_dtype;
  plans.push_back(std::move(value));
  for (size_t i = 1; i < manifest.columns.size(); ++i) plans.push_back(PlanSlot(manifest, manifest.columns[i]));
  return plans;
}

absl::Status TableRestorer::ReadInitializer(InitializerSpec* initializer) {
  *initializer = options_.table.initializer;
  const Manifest& manifest = saves_[0].manifests[0];
  InitializerSpec saved = *initializer;
  TF_RETURN_IF_ERROR(saves_[0].reader->ReadInitializer(manifest, &saved));
  const auto tables = [](const InitializerSpec& spec) { return spec.tables == nullptr ? size_t{1} : spec.tables->size(); };
  if (manifest.has_initializer && tables(saved) != tables(*initializer)) {
    return absl::InvalidArgumentError(absl::StrCat("embedding variable '", name_, "': initializers: expected ",
                                                   tables(*initializer), " tables, as the variable has, found ", tables(saved),
                                                   " in checkpoint ", chain_->prefix(),
                                                   ": make the variable with an initializer for each of them"));
  }
  if (tables(saved) > 1 && manifest.dim() != options_.table.dim) {
    return absl::UnimplementedError(absl::StrCat("embedding variable '", name_, "': resize: expected dim ", manifest.dim(),
                                                 ", as rows do not record which of the ", tables(saved),
                                                 " initializers is theirs, found ", options_.table.dim));
  }
  const bool fits = saved.kind != InitializerKind::kMatrix || manifest.dim() == options_.table.dim;
  if (fits && !(saved.kind == InitializerKind::kMatrix && saved.matrix == nullptr)) {
    *initializer = std::move(saved);
    return absl::OkStatus();
  }
  if (live_ != nullptr) *initializer = live_->table->options().initializer;
  if (initializer->kind != InitializerKind::kMatrix || initializer->matrix != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("embedding variable '", name_, "': checkpoint ", chain_->prefix(),
                                                    " has no matrix of initial values of dim ", options_.table.dim,
                                                    ": run the variable's initializer first"));
}

absl::Status TableRestorer::FindSlots(std::vector<ColumnSpec>* slots, std::vector<ColumnSpec>* missing) const {
  const auto find = [slots](const ColumnSpec& slot) {
    return std::find_if(slots->begin(), slots->end(), [&](const ColumnSpec& other) { return other.name == slot.name; });
  };
  for (const Save& save : saves_) {
    for (const Manifest& manifest : save.manifests) {
      const std::vector<ColumnPlan> plans = Plan(manifest);
      for (size_t i = 1; i < plans.size(); ++i) {
        if (plans[i].kept && find(plans[i].column) == slots->end()) slots->push_back(plans[i].column);
      }
    }
  }
  if (live_ != nullptr && !options_.table.read_only) {
    const std::shared_ptr<const RowLayout> layout = live_->table->layout();
    for (size_t i = 1; i < layout->columns().size(); ++i) {
      const ColumnSpec& slot = layout->columns()[i];
      const auto saved = find(slot);
      if (saved == slots->end()) {
        slots->push_back(slot);
        missing->push_back(slot);
      } else if (saved->dim != slot.dim) {
        return absl::InvalidArgumentError(absl::StrCat("embedding variable '", name_, "', slot '", slot.name,
                                                       "': expected dim ", slot.dim, ", found dim ", saved->dim,
                                                       " in checkpoint ", chain_->prefix()));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status TableRestorer::Read(const Save& save, int64_t low, int64_t high, RestoreProgress* progress,
                                 const std::function<Status(const Manifest&, Rows*)>& visit, RowFields fields) {
  const auto own = static_cast<int>(options_.partition_index), parts = static_cast<int>(options_.num_partitions);
  for (const Manifest& manifest : save.manifests) {
    const auto saved_part = static_cast<int>(manifest.partition_index), saved_parts = static_cast<int>(manifest.num_partitions);
    const auto foreign = [&](int64_t key) { return saved_parts > 1 && PartitionOf(key, saved_parts) != saved_part; };
    const auto refuse = [&](int64_t key) {
      return DataLossError("checkpoint part ", save.reader->FileOf(manifest), ": expected keys of part ", saved_part, " of ",
                           saved_parts, ", found key ", key, " of part ", PartitionOf(key, saved_parts));
    };
    std::vector<size_t> kept;
    const auto take = [&](Rows* rows) -> Status {
      kept.clear();
      for (size_t i = 0; i < rows->keys.size(); ++i) {
        if (foreign(rows->keys[i])) return refuse(rows->keys[i]);
        if (rows->frequencies[i] < low || rows->frequencies[i] > high) continue;
        if (parts == 1 || PartitionOf(rows->keys[i], parts) == own) kept.push_back(i);
      }
      for (const std::vector<int64_t>* keys : {&rows->counted_keys, &rows->removed_keys}) {
        for (const int64_t key : *keys) {
          if (foreign(key)) return refuse(key);
        }
      }
      progress->Add(static_cast<int64_t>(rows->keys.size()));
      KeepRows(kept, rows);
      return visit(manifest, rows);
    };
    TF_RETURN_IF_ERROR(save.reader->ReadRows(manifest, take, fields));
  }
  return absl::OkStatus();
}

absl::Status TableRestorer::FindHotFrequency(const EmbeddingTable& table, RestoreProgress* progress, int64_t* hot) {
  *hot = 0;
  const TableStats stats = table.Stats();
  const int64_t room = stats.tiers[0].budget_bytes / stats.row_bytes;
  Frequencies frequencies(kFrequencies);
  const auto count = [&](const Manifest&, Rows* rows) {
    for (const int64_t f : rows->frequencies) ++frequencies[std::min<size_t>(static_cast<size_t>(f), kFrequencies - 1)];
    return OkStatus();
  };
  TF_RETURN_IF_ERROR(Read(saves_[0], 0, INT64_MAX, progress, count, RowFields::kHeads));
  int64_t above = 0, below = std::accumulate(frequencies.begin(), frequencies.end(), int64_t{0});
  for (size_t f = kFrequencies; f-- > 0;) {
    below -= frequencies[f];
    if (above + frequencies[f] > room) {
      const auto frequency = static_cast<int64_t>(f);
      if (above > 0) {
        *hot = frequency + 1;
      } else if (below > 0) {
        *hot = frequency;  // as many of them as fit
      }
      return absl::OkStatus();
    }
    above += frequencies[f];
  }
  return absl::OkStatus();
}

void TableRestorer::Convert(const std::vector<ColumnPlan>& plan, const InitializerSet& initializer, Rows* rows) const {
  bool same = true;
  std::vector<ColumnSpec> columns;
  for (const ColumnPlan& one : plan) {
    same = same && one.kept && one.saved_dim == one.column.dim;
    if (one.kept) columns.push_back(one.column);
  }
  const auto from_elements = static_cast<size_t>(rows->row_elements());
  rows->columns = std::move(columns);
  if (same) return;
  std::vector<float> data;
  data.reserve(rows->keys.size() * static_cast<size_t>(rows->row_elements()));
  std::vector<float> initial(static_cast<size_t>(options_.table.dim));
  float* const to_initial = initial.data();
  for (size_t r = 0; r < rows->keys.size(); ++r) {
    const float* from = rows->data.data() + r * from_elements;
    for (size_t c = 0; c < plan.size(); from += plan[c++].saved_dim) {
      if (!plan[c].kept) continue;
      const int copied = std::min(plan[c].saved_dim, plan[c].column.dim);
      data.insert(data.end(), from, from + copied);
      if (copied == plan[c].column.dim) continue;
      if (c > 0) {
        data.resize(data.size() + static_cast<size_t>(plan[c].column.dim - copied), plan[c].column.initial_value);
      } else {
        initializer.FillBatch(&rows->keys[r], nullptr, 1, &to_initial);
        data.insert(data.end(), initial.begin() + copied, initial.end());
      }
    }
  }
  rows->data = std::move(data);
}

absl::Status TableRestorer::Import(int64_t low, int64_t high, EmbeddingTable* table, RestoreProgress* progress,
                                   int64_t* imported) {
  const Result<InitializerSet> initializer =
      InitializerSet::Create(table->options().initializer, table->dim(), options_.table.value_dtype);
  TF_RETURN_IF_ERROR(ToAbsl(initializer.status()));
  const bool last = high == INT64_MAX;
  return Read(saves_[0], low, high, progress, [&](const Manifest& manifest, Rows* rows) -> Status {
    if (!last || options_.table.read_only) {
      DropCounted(rows);
      rows->filter_counters.clear();
    }
    KeepPartition(options_.partition_index, options_.num_partitions, rows);
    // A Bloom filter counts the keys of its partition together, so its counters fit no other partition.
    if (manifest.num_partitions != options_.num_partitions) rows->filter_counters.clear();
    Convert(Plan(manifest), *initializer, rows);
    *imported += static_cast<int64_t>(rows->keys.size());
    return table->Import(*rows, executor_);
  });
}

absl::Status TableRestorer::AddDeltas(EmbeddingTable* table, RestoreProgress* progress) {
  const Result<InitializerSet> initializer =
      InitializerSet::Create(table->options().initializer, table->dim(), options_.table.value_dtype);
  TF_RETURN_IF_ERROR(ToAbsl(initializer.status()));
  for (size_t i = 1; i < saves_.size(); ++i) {
    const auto take = [&](const Manifest& manifest, Rows* rows) -> Status {
      KeepPartition(options_.partition_index, options_.num_partitions, rows);
      // A key that is counted now may have had a row.
      std::vector<int64_t> removed = rows->removed_keys;
      removed.insert(removed.end(), rows->counted_keys.begin(), rows->counted_keys.end());
      MT_RETURN_IF_ERROR(table->Remove(removed, nullptr));
      if (options_.table.read_only) DropCounted(rows);
      if (options_.table.read_only || manifest.num_partitions != options_.num_partitions) rows->filter_counters.clear();
      Convert(Plan(manifest), *initializer, rows);
      return table->Import(*rows, executor_);
    };
    TF_RETURN_IF_ERROR(Read(saves_[i], 0, INT64_MAX, progress, take));
  }
  return absl::OkStatus();
}

absl::Status TableRestorer::Build(std::shared_ptr<VariableState>* state) {
  std::shared_ptr<VariableState> made;
  TF_RETURN_IF_ERROR(BuildBase(&made));
  if (has_deltas()) {
    int64_t rows = 0;
    for (size_t i = 1; i < saves_.size(); ++i) rows += saves_[i].rows();
    RestoreProgress progress(name_, chain_->prefix(), rows);
    TF_RETURN_IF_ERROR(AddDeltas(made->table.get(), &progress));
  }
  TF_RETURN_IF_ERROR(FlushKept(name_, *made));
  *state = std::move(made);
  return absl::OkStatus();
}

absl::Status TableRestorer::BuildOver(const std::shared_ptr<VariableState>& base, std::shared_ptr<VariableState>* state) {
  // The pointer to the table holds the state, which others may share.
  Result<std::unique_ptr<EmbeddingTable>> table = LayerOver(std::shared_ptr<EmbeddingTable>(base, base->table.get()));
  TF_RETURN_IF_ERROR(ToAbsl(table.status()));
  auto made = std::make_shared<VariableState>();
  made->table = *std::move(table);
  made->partition_index = base->partition_index;
  made->num_partitions = base->num_partitions;
  made->read_only = true;
  int64_t rows = 0;
  for (size_t i = 1; i < saves_.size(); ++i) rows += saves_[i].rows();
  RestoreProgress progress(name_, chain_->prefix(), rows);
  TF_RETURN_IF_ERROR(AddDeltas(made->table.get(), &progress));
  *state = std::move(made);
  return absl::OkStatus();
}

void TableRestorer::Reserve(EmbeddingTable* table) const {
  const Manifest* const own = OwnPart();
  if (own == nullptr) return;
  int64_t rows = 0;  // where a file is missing, or memory short, the import says so
  if (saves_[0].reader->MostRows(*own, &rows).ok()) (void)table->Reserve(static_cast<uint64_t>(rows));
}

absl::Status TableRestorer::BuildBase(std::shared_ptr<VariableState>* state) {
  InitializerSpec initializer;
  TF_RETURN_IF_ERROR(ReadInitializer(&initializer));
  std::shared_ptr<VariableState> made;
  TF_RETURN_IF_ERROR(options_.MakeState(name_, std::move(initializer), live_.get(), &made));
  EmbeddingTable* const table = made->table.get();
  // An external storage may list the rows of an earlier table.
  if (table->TotalCount() > 0) TF_RETURN_IF_ERROR(ToAbsl(table->Clear()));
  std::vector<ColumnSpec> slots, missing;
  TF_RETURN_IF_ERROR(FindSlots(&slots, &missing));
  if (!slots.empty()) TF_RETURN_IF_ERROR(ToAbsl(table->AddSlots(slots)));
  Reserve(table);

  int64_t rows = saves_[0].rows(), imported = 0, hot = 0;
  const TableStats stats = table->Stats();
  const bool spills =
      stats.tiers.size() > 1 && stats.tiers[0].budget_bytes > 0 && rows > stats.tiers[0].budget_bytes / stats.row_bytes;
  if (spills || OwnPart() == nullptr) saves_[0].reader->ReadThroughCache();
  RestoreProgress progress(name_, base_prefix(), spills ? 3 * rows : rows);
  if (spills) TF_RETURN_IF_ERROR(FindHotFrequency(*table, &progress, &hot));
  if (hot > 0) TF_RETURN_IF_ERROR(Import(0, hot - 1, table, &progress, &imported));
  TF_RETURN_IF_ERROR(Import(hot, INT64_MAX, table, &progress, &imported));
  TF_RETURN_IF_ERROR(CheckDistinct(imported, table->TotalCount()));
  LogFreshSlots(*table, missing);
  if (const Manifest* own = OwnPart(); own != nullptr && made->kept != nullptr) {
    made->kept->SetCheckpoint(own->ToJson(), made->kept->Changes(*table));
  }
  *state = std::move(made);
  return absl::OkStatus();
}

absl::Status TableRestorer::Check() {
  const Manifest* const own = OwnPart();
  if (own != nullptr && live_ != nullptr && live_->kept != nullptr && live_->kept->IsAt(own->ToJson(), *live_->table)) {
    return absl::OkStatus();  // no row is read
  }
  InitializerSpec initializer;
  TF_RETURN_IF_ERROR(ReadInitializer(&initializer));
  std::vector<ColumnSpec> slots, missing;
  TF_RETURN_IF_ERROR(FindSlots(&slots, &missing));
  int64_t rows = 0;
  for (const Save& save : saves_) rows += save.rows();
  RestoreProgress progress(name_, chain_->prefix(), rows);
  size_t most = 0, n = 0;
  for (const Manifest& manifest : saves_[0].manifests) {
    int64_t rows_of_part = 0;
    TF_RETURN_IF_ERROR(saves_[0].reader->MostRows(manifest, &rows_of_part));
    most += static_cast<size_t>(rows_of_part);
  }
  ArrayPtr<int64_t> keys = NewArray<int64_t>(most);
  if (keys == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("embedding variable '", name_, "': no memory for ", most, " keys of checkpoint ", chain_->prefix()));
  }
  for (const Save& save : saves_) {
    const auto take = [&](const Manifest&, Rows* found) -> Status {
      if (&save != &saves_[0]) return OkStatus();  // a delta may have a key of its base
      if (found->keys.size() > most - n)
        return DataLossError("checkpoint ", base_prefix(), ": expected at most ", most, " rows");
      std::copy(found->keys.begin(), found->keys.end(), keys.get() + n);
      n += found->keys.size();
      return OkStatus();
    };
    save.reader->ReadThroughCache();
    TF_RETURN_IF_ERROR(Read(save, 0, INT64_MAX, &progress, take));
  }
  std::sort(keys.get(), keys.get() + n);
  return CheckDistinct(static_cast<int64_t>(n), std::unique(keys.get(), keys.get() + n) - keys.get());
}

absl::Status TableRestorer::CheckDistinct(int64_t rows, int64_t keys) const {
  if (options_.table.drop_coldest || keys == rows) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("checkpoint ", base_prefix(), ", variable '", variable_name_, "': expected ", rows,
                                          " distinct keys, found ", keys));
}

absl::Status TableRestorer::OpenKept(std::shared_ptr<VariableState>* state) {
  const Manifest* const own = OwnPart();
  if (own == nullptr) return absl::OkStatus();
  if (live_ != nullptr && live_->kept != nullptr) {
    if (live_->kept->IsAt(own->ToJson(), *live_->table)) *state = live_;
  } else {
    TF_RETURN_IF_ERROR(OpenKeptAt(options_, name_, own->ToJson(), state));
  }
  if (*state == nullptr) return absl::OkStatus();
  TF_RETURN_IF_ERROR(FlushKept(name_, **state));
  LOG(INFO) << StrCat("embedding variable '", name_, "': its kept ", own->num_rows, " rows are those of checkpoint ",
                      chain_->prefix(), ": they are not read again");
  return options_.table.filter.kind == AdmissionKind::kNone ? absl::OkStatus() : ReadCounted(*own, (*state)->table.get());
}

absl::Status TableRestorer::ReadInPlace(std::shared_ptr<VariableState>* state) {
  const Manifest* const own = OwnPart();
  if (own == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat("embedding variable '", name_,
                                                      "': reading kept rows in place: expected part ", options_.partition_index,
                                                      " of ", options_.num_partitions, " of dim ", options_.table.dim,
                                                      " in checkpoint ", chain_->prefix(), ", found other parts or deltas"));
  }
  return OpenInPlace(options_, name_, own->ToJson(), state);
}

absl::Status TableRestorer::ReadCounted(const Manifest& manifest, EmbeddingTable* table) {
  return saves_[0].reader->ReadRows(manifest, [&](Rows* rows) {
    KeepRows({}, rows);
    rows->columns.resize(1);
    return table->Import(*rows, executor_);
  });
}

const Manifest* TableRestorer::OwnPart() const {
  const std::vector<Manifest>& parts = saves_[0].manifests;
  const bool same = !has_deltas() && parts.size() == 1 && parts[0].num_partitions == options_.num_partitions &&
                    parts[0].partition_index == options_.partition_index && parts[0].dim() == options_.table.dim &&
                    (parts[0].frozen || parts[0].columns[0].dtype == options_.table.value_dtype);
  return same ? &parts[0] : nullptr;
}

}  // namespace multitier
