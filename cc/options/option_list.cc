// The array of all options. A new one is a member of Options and an entry here.

#include <algorithm>
#include <utility>

#include "cc/options/binder.h"
#include "cc/options/options.h"
#include "cc/options/tier_kind.h"

namespace multitier {
namespace {

constexpr Range kDim{1, kMostDim};
constexpr Range kTierBytes{1, kMostTierBytes, " bytes"};
constexpr Range kBytes{0, kMostTierBytes, " bytes"};
constexpr unsigned kBoth = kInTable | kInVariable;

}  // namespace

template <>
struct Record<InitializerSpec> {
  static constexpr const char* kWhat = "a member of an initializer";
  static constexpr const char* kWhole = "a number, the name of an initializer, or an object with its kind";
  static Json Short(const Json& json) {
    Json object = Json::Object();
    object.Set(json.kind() == Json::Kind::kNumber ? "a" : "kind", json);
    return object;
  }
  static const std::vector<Field<InitializerSpec>>& Fields() {
    constexpr Range kCutOff{Range().least, Range().most, "", false, false, /*or_null=*/true};
    static const auto* const fields = new std::vector<Field<InitializerSpec>>{
        {"kind",
         MT_FIELD(InitializerSpec, kind),
         kBoth,
         {},
         "constant, uniform, normal, truncated_normal (cut off at two deviations), normal_between (between lower and upper), "
         "debug "
         "(the key modulo 100,000), or matrix (key k starts from row k modulo N of a matrix of N rows)."},
        {"a", MT_FIELD(InitializerSpec, a), kBoth, {}, "The constant, the minimum (uniform), or the mean (the normal ones)."},
        {"b",
         MT_FIELD(InitializerSpec, b),
         kBoth,
         {},
         "The maximum, exclusive (uniform), or the standard deviation (the normal ones)."},
        {"lower", MT_FIELD(InitializerSpec, lower), kBoth, kCutOff, "The least value of normal_between. None: no bound."},
        {"upper", MT_FIELD(InitializerSpec, upper), kBoth, kCutOff, "The largest value of normal_between. None: no bound."},
        {"seed", MT_FIELD(InitializerSpec, seed), kBoth, {}, "The seed of the random ones."},
        {"matrix_rows", MT_FIELD(InitializerSpec, matrix_rows), kBoth, {0, int64_t{1} << 40}, "Rows of the matrix."},
    };
    return *fields;
  }
};

template <>
struct Record<ColumnInitializer> {
  static constexpr const char* kWhat = "a member of a segment of columns";
  static constexpr const char* kWhole = "an object with first_column and initializer";
  static Json Short(const Json& json) {
    Json object = Json::Object();
    object.Set("first_column", json);
    return object;
  }
  static const std::vector<Field<ColumnInitializer>>& Fields() {
    static const auto* const fields = new std::vector<Field<ColumnInitializer>>{
        {"first_column",
         MT_FIELD(ColumnInitializer, first_column),
         kBoth,
         {0, kDim.most},
         "The segment is from this column to the next segment, or to the end of the row."},
        {"initializer", MT_FIELD(ColumnInitializer, initializer), kBoth, {}, "Any initializer other than matrix."},
    };
    return *fields;
  }
};

template <>
struct Record<TableInitializer> {
  static constexpr const char* kWhat = "a member of a table's initializer";
  static constexpr const char* kWhole = "an object with columns";
  static Json Short(const Json& json) { return json; }
  static const std::vector<Field<TableInitializer>>& Fields() {
    static const auto* const fields = new std::vector<Field<TableInitializer>>{
        {"columns", MT_FIELD(TableInitializer, columns), kBoth, {}, "Segments of columns. The first begins at column 0."},
    };
    return *fields;
  }
};

// Null is the empty list.
template <>
struct Value<std::shared_ptr<const std::vector<TableInitializer>>> {
  using List = std::vector<TableInitializer>;
  static std::string Type() { return Value<List>::Type(); }
  static Status Read(const Json& json, const Of& of, std::shared_ptr<const List>* out) {
    List list;
    MT_RETURN_IF_ERROR(Value<List>::Read(json, of, &list));
    *out = list.empty() ? nullptr : std::make_shared<const List>(std::move(list));
    return OkStatus();
  }
  static Json Write(const std::shared_ptr<const List>& list) {
    return list == nullptr ? Json::Array() : Value<List>::Write(*list);
  }
};
template <>
struct Details<std::shared_ptr<const std::vector<TableInitializer>>> : Details<TableInitializer> {};

template <>
struct Record<AdmissionSpec> {
  static constexpr const char* kWhat = "a member of a filter";
  static constexpr const char* kWhole = "the name of a filter, or an object with its kind";
  static Json Short(const Json& json) {
    Json object = Json::Object();
    object.Set("kind", json);
    return object;
  }
  static const std::vector<Field<AdmissionSpec>>& Fields() {
    static const auto* const fields = new std::vector<Field<AdmissionSpec>>{
        {"kind",
         MT_FIELD(AdmissionSpec, kind),
         kBoth,
         {},
         "none (every key that is trained gets a row), counter, bloom, or probabilistic."},
        {"filter_freq",
         MT_FIELD(AdmissionSpec, filter_freq),
         kBoth,
         {0, 0xffffffff},
         "counter, bloom: occurrences after which a key gets a row; 0 and 1 admit a key at its first training step."},
        {"max_keys",
         MT_FIELD(AdmissionSpec, max_keys),
         kBoth,
         {0},
         "counter: bound of the keys that are counted; 0: no bound. Above it the filter forgets keys until an eighth of the "
         "bound is "
         "free: the lowest counts first, and of equal counts those that were counted longest ago."},
        {"max_element_size", MT_FIELD(AdmissionSpec, max_element_size), kBoth, {0}, "bloom: expected number of keys, > 0."},
        {"false_positive_probability",
         MT_FIELD(AdmissionSpec, false_positive_probability),
         kBoth,
         {0, 1, "", true, true},
         "bloom: with that many keys, the probability that a key is admitted too early."},
        {"counter_bits", MT_FIELD(AdmissionSpec, counter_bits), kBoth, {8, 64}, "bloom: bits of a counter: 8, 16, 32 or 64."},
        {"probability",
         MT_FIELD(AdmissionSpec, probability),
         kBoth,
         {0, 1, "", true},
         "probabilistic: the probability that one occurrence admits a key."},
    };
    return *fields;
  }
};

template <>
struct Record<ColumnSpec> {
  static constexpr const char* kWhat = "a member of a column";
  static constexpr const char* kWhole = "an object with name, dim and initial_value";
  static Json Short(const Json& json) {
    Json object = Json::Object();
    object.Set("name", json);
    return object;
  }
  static const std::vector<Field<ColumnSpec>>& Fields() {
    static const auto* const fields = new std::vector<Field<ColumnSpec>>{
        {"name", MT_FIELD(ColumnSpec, name), kBoth, {}, "The name of the column."},
        {"dim", MT_FIELD(ColumnSpec, dim), kBoth, kDim, "Its elements."},
        {"initial_value", MT_FIELD(ColumnSpec, initial_value), kBoth, {}, "The initial value of each."},
    };
    return *fields;
  }
};

template <>
struct Record<Options> {
  static const std::vector<Field<Options>>& Fields() {
    static const auto* const fields = new std::vector<Field<Options>>{
        {"name", MT_FIELD(Options, name), kInTable, {}, "The table's name, in error messages and below the storage path."},
        {"dim", MT_FIELD(Options, dim), kInTable, kDim, "Elements of a value."},
        {"value_dtype",
         MT_FIELD(Options, value_dtype),
         kInTable,
         {},
         "The type of the values in every tier. What is written is rounded to the nearest, ties to even. Updates compute in "
         "float32."},
        {"key_dtype",
         MT_FIELD(Options, key_dtype),
         kInTable,
         {},
         "The type of the keys. In the engine, whose messages name keys, a uint64 key is the int64 of the same bits."},
        {"stochastic_rounding",
         MT_FIELD(Options, stochastic_rounding),
         kBoth,
         {},
         "True: updates round values of 16 bits up or down at random, more often to the nearer neighbour, so that small "
         "updates add "
         "up. The random numbers come from the key, the table's count of updates and the position of the element, so two runs "
         "give "
         "the same bits. False: to the nearest, ties to even."},
        {"initializer",
         MT_FIELD(Options, initializer),
         kBoth,
         {},
         "How the initial value of a key is computed from the key, the seed and the initializer."},
        {"initializers",
         MT_FIELD(Options, initializer.tables),
         kBoth,
         {},
         "The initializers of several tables that share the rows: lookups and updates give the number of its table with each "
         "key. The initial value of an element depends on the seed, the key, the column, and the initializer of table and "
         "column."},
        {"default_value_no_permission",
         MT_FIELD(Options, default_value_no_permission),
         kBoth,
         {},
         "What a key reads that a filter has not admitted yet: a number for every element, or an initializer other than "
         "matrix."},
        {"eval_initializer",
         MT_FIELD(Options, eval_initializer),
         kBoth,
         {},
         "What a key without a row reads in lookups with training=False: a number, or an initializer other than matrix. None: "
         "what "
         "it reads in training."},
        {"slots", MT_FIELD(Options, slots), kInTable, {}, "Columns in addition to the value: (name, dim, initial value) each."},
        {"filter", MT_FIELD(Options, filter), kBoth, {}, "Which keys get a row."},
        {"steps_to_live",
         MT_FIELD(Options, expiry.steps_to_live),
         kBoth,
         {0},
         "If > 0, `expire` removes rows whose last update is more than this number of steps ago; with score time, "
         "microseconds."},
        {"l2_weight_threshold",
         MT_FIELD(Options, expiry.l2_weight_threshold),
         kBoth,
         {},
         "If >= 0, `expire` removes rows with `0.5 * sum(w^2)` below it, where w are the elements of the value. -1: none."},
        {"score",
         MT_FIELD(Options, score),
         kBoth,
         {},
         "What an update sets as the version of its rows. `CacheStrategy.SCORE` moves the rows of the lowest version out "
         "first. "
         "\"step\": the global step. \"time\": microseconds of the wall clock, which never decrease in a table. \"custom\": "
         "the number "
         "of the last `set_score`; an update before the first one is an error. \"frequency\": the global step, but "
         "`CacheStrategy.SCORE` goes by the frequency."},
        {"storage_type",
         MT_FIELD(Options, storage_type),
         kBoth,
         {},
         "The tiers, fastest first: a `StorageType`, or its name. Types with HBM need a build with CUDA and a GPU, and are "
         "refused "
         "without; for tests, the environment variable TF_MULTITIER_DEVICE=emulated makes them work on any machine."},
        {"storage_path",
         MT_FIELD(Options, storage_path),
         kBoth,
         {},
         "Directory for the files of PMEM, LEVELDB and SSDHASH tiers, on the machine that holds the table. Required by every "
         "type "
         "with such a tier. It is created if its parent exists. Tables, partitions, sessions and processes may share it."},
        {"external_storage",
         MT_FIELD(Options, external_storage),
         kBoth,
         {},
         "What holds the rows of an EXTERNAL tier, and of no other type: a class derived from `external_storage.Storage`, or "
         "the "
         "name of a storage that the process has registered."},
        {"storage_size", MT_FIELD(Options, storage_size), kBoth, kTierBytes,
         "Bytes of row data in each tier, fastest first: one size, a list, or a dict {tier: size}. A size is an integer or "
         "text such "
         "as \"4GB\" (powers of 1000) or \"512 MiB\" (powers of 1024). A tier without a size gets 1 GiB; the last tier without "
         "a size "
         "has no bound. Each partition of a partitioned variable gets these sizes."},
        {"storage_rows",
         MT_FIELD(Options, storage_rows),
         kBoth,
         {1, kMostTierRows, " rows"},
         "Rows in each tier, in place of storage_size. The number stays when an optimizer adds slots; with storage_size, fewer "
         "of the "
         "wider rows fit."},
        {"initial_rows",
         MT_FIELD(Options, initial_rows),
         kBoth,
         {0, kMostTierRows, " rows"},
         "The table starts with an index for this number of rows, and with address space for those that DRAM may hold. The "
         "rows "
         "themselves take memory when they are first used. `reserve` does the same later."},
        {"cache_strategy",
         MT_FIELD(Options, cache_strategy),
         kBoth,
         {},
         "Which rows leave a full tier first: a `CacheStrategy`, or its name. None or \"DEFAULT\": with 65,536 rows of DRAM or "
         "more, by "
         "recency and frequency, so that many rows that are used once do not push out the others; with fewer, the least "
         "recently "
         "used. SCORE: the lowest score, of equal ones the least recently used (see score)."},
        {"drop_coldest",
         MT_FIELD(Options, drop_coldest),
         kBoth,
         {},
         "What an update with new keys does when the last tier is full. False: see on_full. True: the table drops its coldest "
         "rows "
         "for good, and `pop_dropped()` returns their keys. Every tier needs a size."},
        {"on_full",
         MT_FIELD(Options, on_full),
         kBoth,
         {},
         "What an update does with new keys when the last tier is full. \"error\": it fails with ResourceExhausted and changes "
         "nothing. \"warn\": they get no row and their gradients are not used; a warning is logged once, and `refused` in the "
         "statistics counts them. \"drop\": as drop_coldest=True."},
        {"dropped",
         MT_FIELD(Options, dropped),
         kBoth,
         {},
         "What is kept of dropped rows until `pop_dropped`: \"none\", \"keys\", or \"rows\": values, slots, frequency and "
         "version. "
         "With \"rows\", dropping a row of a file tier first reads it."},
        {"dropped_bytes", MT_FIELD(Options, dropped_bytes), kBoth, kBytes,
         "Bytes of memory for that, in each partition. The newest stay; `dropped_lost` in the statistics counts the others."},
        {"removed_bytes", MT_FIELD(Options, removed_bytes), kBoth, kBytes,
         "Bytes of memory, in each partition, for the notes of `removed_since`: 16 bytes for each key that leaves. Further "
         "notes go "
         "to a file in storage_path; a table without files forgets the oldest. 0: no notes."},
        {"refuse_colder",
         MT_FIELD(Options, refuse_colder),
         kBoth,
         {},
         "True: in a full table, a new key whose score (LFU: frequency) is less than that of every row of its shard gets no "
         "row. "
         "Its gradient is not used, it reads as its initial value, and `refused` in the statistics counts it. Needs "
         "drop_coldest=True and CacheStrategy.SCORE or LFU. With 65,536 rows of DRAM or more, the highest score that last left "
         "DRAM stands for the lowest in it. With LFU, fewer rows of DRAM and drop_coldest=True, it is always so."},
        {"on_corruption",
         MT_FIELD(Options, on_corruption),
         kBoth,
         {},
         "What happens to a row whose record in a file tier is damaged. \"error\": operations that need the row, including "
         "saving, "
         "fail with DataLoss that names key, file and offset, until `remove` removes the key. \"reinit\": the key starts again "
         "from "
         "its initial value. \"drop\": the key is removed, and `pop_dropped()` returns it. `corrupt` in the statistics counts "
         "each "
         "case."},
        {"keep",
         MT_FIELD(Options, keep),
         kBoth,
         {},
         "True: the rows stay in the files when the session is closed, or the variable or table is deleted. The next process "
         "of the "
         "same program goes on from them. The last tier must be SSDHASH."},
        {"read_only",
         MT_FIELD(Options, read_only),
         kInVariable,
         {},
         "For serving: training, removal and slots are refused. A restore takes the values alone. Variables of one process "
         "that are "
         "restored from the same checkpoint with the same options share one table."},
        {"in_place",
         MT_FIELD(Options, in_place),
         kInVariable,
         {},
         "Of a read_only variable: it reads the rows that another program keeps, where they are, and changes no file. A "
         "restore fails "
         "unless they are those of the checkpoint. Any number of processes may read them. They must have been closed, and the "
         "storage type must have SSDHASH as its only tier with files."},
        {"device",
         MT_FIELD(Options, device),
         kInTable,
         {},
         "Where HBM is. \"emulated\": on a GPU that the CPU emulates, for tests: far slower than a GPU. None: what the "
         "environment "
         "variable TF_MULTITIER_DEVICE names, and else a GPU."},
        {"num_shards",
         MT_FIELD(Options, num_shards),
         kInTable,
         {0, 64},
         "A power of two up to 64; 0: one if the budget is below 64 Ki rows, and in a small table of DRAM alone, else 8. Does "
         "not affect results."},
    };
    return *fields;
  }
};

namespace {

// {"DRAM": "4GB"} as the list that a record has. `type`: of the storage.
Result<Json> ListOfTiers(const std::string& option, const Json& json, const std::string& type) {
  const std::vector<std::string> tiers = TiersOf(type);
  for (const std::string& name : json.names()) {
    if (std::find(tiers.begin(), tiers.end(), name) == tiers.end()) return WrongName(option, tiers, name);
  }
  Json list = Json::Array();
  for (const std::string& tier : tiers) {
    const Json* const size = json.Find(tier);
    if (size == nullptr && list.items().size() < json.items().size()) {
      return InvalidArgumentError(option, ": expected a size of ", tier, ", which is before a tier with a size, found none");
    }
    if (size != nullptr) list.Append(*size);
  }
  return list;
}

Result<Json> WithLists(const Json& json) {
  const Json* const given = json.Find("storage_type");
  const std::string type =
      CanonicalStorageType(given == nullptr || given->kind() != Json::Kind::kString ? "DRAM" : given->text());
  const std::vector<std::string>& types = StorageTypes();
  if (std::find(types.begin(), types.end(), type) == types.end()) return WrongName("storage_type", types, type);
  Json out = Json::Object();
  for (size_t i = 0; i < json.names().size(); ++i) {
    const std::string& name = json.names()[i];
    if (name == "version") continue;
    const bool by_tier = (name == "storage_size" || name == "storage_rows") && json.items()[i].is_object();
    Json value = json.items()[i];
    if (by_tier) {
      MT_ASSIGN_OR_RETURN(value, ListOfTiers(name, json.items()[i], type));
    }
    if (name != "initializers") out.Set(name, std::move(value));
  }
  // Behind `initializer`, of which it is a part.
  if (json.Find("initializers") != nullptr) out.Set("initializers", *json.Find("initializers"));
  return out;
}

}  // namespace

Result<Options> OptionsFromJson(const Json& json, OptionPlace place, DType value_dtype) {
  if (!json.is_object()) return InvalidArgumentError("options: expected a JSON object, found ", json.ToString());
  const Json* const version = json.Find("version");
  if (version == nullptr || version->ToString() != std::to_string(kOptionsVersion)) {
    return UnimplementedError("options: expected version ", kOptionsVersion, ", found ",
                              version == nullptr ? "none" : version->ToString(), ": use the release that wrote them");
  }
  MT_ASSIGN_OR_RETURN(const Json lists, WithLists(json));
  const char* const what = place == kInTable ? "an option of a table" : "an option of an embedding variable";
  Options options;
  options.value_dtype = value_dtype;
  MT_RETURN_IF_ERROR(ReadFields(Record<Options>::Fields(), lists, place, "", what, &options));
  options.storage_type = CanonicalStorageType(options.storage_type);
  if (options.on_full == OnFull::kDrop) {
    options.drop_coldest = true;
    options.on_full = OnFull::kError;
  }
  options.filter.seed = options.initializer.seed;
  if (place == kInTable && options.dim == 0) return InvalidArgumentError("dim: expected 1 to ", kDim.most, ", found none");
  MT_RETURN_IF_ERROR(ValidateOptions(options));
  return options;
}

Result<Options> ParseOptions(std::string_view json, OptionPlace place, DType value_dtype) {
  const Result<Json> parsed = Json::Parse(json);
  if (!parsed.ok()) return InvalidArgumentError("options: expected a JSON object, found '", json, "'");
  return OptionsFromJson(*parsed, place, value_dtype);
}

Json OptionsToJson(const Options& options, OptionPlace place, bool all) {
  const Json members = WriteFields(Record<Options>::Fields(), options, place, all);
  Json out = Json::Object();
  out.Set("version", Json::Int(kOptionsVersion));
  for (size_t i = 0; i < members.names().size(); ++i) out.Set(members.names()[i], members.items()[i]);
  return out;
}

Json DescribeOptions() { return DescribeFields(Record<Options>::Fields()); }

Json InitializerToJson(const InitializerSpec& spec) {
  const Json all = WriteFields(Record<InitializerSpec>::Fields(), spec, kEverywhere, /*all=*/true);
  Json out = Json::Object();
  for (size_t i = 0; i < all.names().size(); ++i) {
    if (all.items()[i].kind() != Json::Kind::kNull) out.Set(all.names()[i], all.items()[i]);
  }
  return out;
}

Json InitializersToJson(const InitializerSpec& spec) { return Value<decltype(spec.tables)>::Write(spec.tables); }

Status InitializersFromJson(const Json& json, InitializerSpec* spec) {
  const Range any;
  return Value<decltype(spec->tables)>::Read(json, Of{"initializers", any}, &spec->tables);
}

Result<InitializerSpec> InitializerFromJson(const Json& json) {
  for (const Field<InitializerSpec>& field : Record<InitializerSpec>::Fields()) {
    if (field.range.or_null || json.Find(field.name) != nullptr) continue;
    return InvalidArgumentError("initializer.", field.name, ": expected it to be given, found none");
  }
  InitializerSpec spec;
  const Range any;
  MT_RETURN_IF_ERROR(Value<InitializerSpec>::Read(json, Of{"initializer", any}, &spec));
  return spec;
}

}  // namespace multitier
