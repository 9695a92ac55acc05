// Options: the record of what a table and its storage are. Each option is one member here and one entry of the array in
// option_list.cc, which gives its name, range, text and where it applies. Everything else about it follows from these two:
//
//   StorageOption, EmbeddingVariableOption, engine.Table(...)        the same names; option_record.py asks the array
//        |
//        v   JSON: {"version": 1, "storage_type": "DRAM_SSDHASH", "storage_size": ["4GB"], ...}
//   ParseOptions     types, ranges, names, and what options demand of one another (validate.cc). Nothing is checked again
//        |
//        v
//   Options          which TableOptions (cc/table/api/embedding_table.h) extends by what is made from it: tiers and budgets
//        |
//        v
//   OptionsToJson    the attr `options` of ops, SavedModels, kept files: what differs from the defaults, sizes as numbers
//
// An option that a record lacks has its default, and defaults never change, so a new option with the default "as before" needs
// no version. A member may be a struct with an array of its own (initializer, filter), a list, or sizes by the names of tiers.
//
// Thread-safe as values.

#ifndef CC_OPTIONS_OPTIONS_H_
#define CC_OPTIONS_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cc/base/json.h"
#include "cc/base/status.h"
#include "cc/policy/admission.h"
#include "cc/policy/expiry.h"
#include "cc/policy/replacement_kind.h"
#include "cc/policy/score.h"
#include "cc/row/initializer_set.h"
#include "cc/row/row_layout.h"

namespace multitier {

inline constexpr int64_t kOptionsVersion = 1;

inline constexpr int kMostDim = 1 << 20;
inline constexpr int64_t kMostTierRows = int64_t{1} << 32;   // a table has no more
inline constexpr int64_t kMostTierBytes = int64_t{1} << 60;  // also hbm::kUnboundedBytes

// What becomes of new keys that have no room.
enum class OnFull {
  kError,   // the operation is ResourceExhausted, and nothing changes
  kRefuse,  // they get no row, count as refused, and their gradients are not used
  kDrop,    // in a record alone: drop_coldest
};

// What becomes of a row whose record in a lower tier is damaged (its checksum is wrong, or the file under it).
enum class OnCorruption {
  kError,   // operations that need the row answer DataLoss; Remove removes it
  kReinit,  // the key starts anew: initial value and slots, frequency 0, version -1
  kDrop,    // the key is removed as if it had never been there; PopDropped lists it
};

// What a table keeps of the rows that it dropped.
enum class KeepDropped {
  kNothing,
  kKeys,
  kRows,  // with values, slots, frequency and version. A row that leaves a tier of files is read first
};

inline constexpr uint64_t kDroppedBytes = uint64_t{8} << 20;
inline constexpr uint64_t kRemovedBytes = uint64_t{1} << 20;

enum class KeyType { kInt64, kUint64, kUint32 };

// Comments say what the text in option_list.cc does not.
struct Options {
  std::string name = "table";
  int dim = 0;
  DType value_dtype = DType::kFloat32;  // in every tier. Slots are float32
  KeyType key_dtype = KeyType::kInt64;  // of the user's keys. In the table all are int64
  // The random bits come from Philox of the key, the table's count of applies and the number of the element. Only updates
  // round at random: every other write rounds to the nearest
  bool stochastic_rounding = false;
  InitializerSpec initializer;  // its `tables` are the option `initializers`
  InitializerSpec default_value_no_permission;
  std::optional<InitializerSpec> eval_initializer;
  std::vector<ColumnSpec> slots;  // known from the start; AddSlots adds more
  AdmissionSpec filter;
  ExpirySpec expiry;
  // With Score::kFrequency, the order Replacement::kScore is the order kLfu.
  Score score = Score::kStep;

  std::string storage_type = "DRAM";  // one of StorageTypes()
  std::string storage_path;
  std::string external_storage;  // see cc/tier/external/external_storage.h
  // A missing size means 1 GiB; for the last tier, no bound; for HBM on the emulated device, 1 MiB.
  std::vector<int64_t> storage_size;
  std::vector<int64_t> storage_rows;
  uint64_t initial_rows = 0;
  // With fewer than 64 Ki rows of DRAM the order is exact:
  //   kLru, kDefault   by the last operation that used the row. Rows of one operation: by the key's last occurrence in the
  //                    batch; in a group, which gives distinct keys, by its first one
  //   kLfu, kScore     by frequency, by version. Equal ones: as kLru
  // In larger tables kLru, kLfu and kScore compare samples, and kDefault is scan-resistant (cc/policy/probation_clock.h).
  Replacement cache_strategy = Replacement::kDefault;
  bool drop_coldest = false;
  OnFull on_full = OnFull::kError;
  KeepDropped dropped = KeepDropped::kKeys;
  uint64_t dropped_bytes = kDroppedBytes;
  uint64_t removed_bytes = kRemovedBytes;
  // To find the coldest row, an update reads the header of one record of each lower tier.
  bool refuse_colder = false;
  OnCorruption on_corruption = OnCorruption::kError;
  // Flush when the table is destroyed. An error of this Flush is lost: call Flush before if you need it.
  bool keep = false;
  bool read_only = false;
  bool in_place = false;
  std::string device;
  int num_shards = 0;
};

// Where an option applies. Bits of a set.
enum OptionPlace : unsigned {
  kInTable = 1,     // engine.Table
  kInVariable = 2,  // an embedding variable
};

// Parses a record. InvalidArgument, "option: expected X, found Y: cure", for the first option that is wrong. Unimplemented for
// another version. A variable gives its value_dtype, because its ops have that as an attr.
Result<Options> ParseOptions(std::string_view json, OptionPlace place, DType value_dtype = DType::kFloat32);
Result<Options> OptionsFromJson(const Json& json, OptionPlace place, DType value_dtype = DType::kFloat32);
// Prints the options that differ from their defaults. With `all`, it prints every option.
Json OptionsToJson(const Options& options, OptionPlace place, bool all = false);
// Describes every option for Python and documents: name, type, default, range or names, text, places. A struct also has fields.
Json DescribeOptions();

// Checks what options demand of one another. ParseOptions calls it. REQUIRES: storage_type is one of StorageTypes()
Status ValidateOptions(const Options& options);
// The part of ValidateOptions that does not concern the storage. Tables that are made without a record need it, too.
Status ValidateTableOptions(const Options& options);

// An initializer with every member that is not null, for manifests of checkpoints.
Json InitializerToJson(const InitializerSpec& spec);
Result<InitializerSpec> InitializerFromJson(const Json& json);
// Its list of tables, as the option `initializers` has it.
Json InitializersToJson(const InitializerSpec& spec);
Status InitializersFromJson(const Json& json, InitializerSpec* spec);

// The names of all storage types, including those that need a GPU.
const std::vector<std::string>& StorageTypes();
// "DRAM_SSDHASH": {"DRAM", "SSDHASH"}
std::vector<std::string> TiersOf(const std::string& storage_type);
// Whether one of its tiers has files, in `storage_path`.
bool HasFiles(const std::string& storage_type);

}  // namespace multitier

#endif  // CC_OPTIONS_OPTIONS_H_
