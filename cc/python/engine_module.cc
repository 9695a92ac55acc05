// tf_multitier._engine: the embedding table for NumPy, without TensorFlow. The package tf_multitier/engine is its public API
// and converts the arguments (arrays.h). The module releases the GIL while the engine works.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cc/base/crc32.h"
#include "cc/env/instance_dir.h"
#include "cc/env/unfinished_save.h"
#include "cc/optimizer/update_rule.h"
#include "cc/options/names.h"
#include "cc/options/options.h"
#include "cc/options/tier_kind.h"
#include "cc/partition/partition.h"
#include "cc/python/arrays.h"
#include "cc/python/exceptions.h"
#include "cc/python/py_group.h"
#include "cc/python/py_part_file.h"
#include "cc/python/py_table.h"
#include "cc/python/salvage.h"
#include "cc/tier/external/external_store.h"

namespace multitier {
namespace {

// Name -> {"slots": [(name, per_row, default initial value)], "hyperparameters": [name]}
py::dict UpdateRules() {
  py::dict out;
  for (const UpdateRule* rule : AllUpdateRules()) {
    std::vector<std::tuple<std::string, bool, float>> slots;
    for (const SlotSpec& slot : rule->slots()) slots.emplace_back(slot.name, slot.per_row, slot.default_initial_value);
    std::vector<std::string> hyper;
    for (const char* name : rule->hyperparameters()) hyper.emplace_back(name);
    py::dict entry;
    entry["slots"] = slots;
    entry["hyperparameters"] = hyper;
    out[rule->name()] = entry;
  }
  return out;
}

// (name, number, tiers) of each storage type.
std::vector<std::tuple<std::string, int, std::vector<std::string>>> StorageTypesOfEngine() {
  std::vector<std::tuple<std::string, int, std::vector<std::string>>> out;
  for (const StorageTypeName& type : StorageTypeNames()) {
    out.emplace_back(type.name, type.number, TiersOf(CanonicalStorageType(type.name)));
  }
  return out;
}

// Name -> {"has_files", "bytes": function (rows, bytes of a row) -> bytes of (memory, disk)}, and of a tier that a table can
// have as the memory of its rows: "row_memory_bytes": function (slots, bytes of a row, shards) -> the same.
py::dict TierKindsOfEngine() {
  py::dict out;
  for (const TierKind& kind : TierKinds()) {
    py::dict entry;
    entry["has_files"] = kind.has_files;
    entry["bytes"] = py::cpp_function([bytes = kind.bytes](int64_t rows, int64_t row_bytes) {
      const TierBytes found = bytes(rows, row_bytes);
      return std::make_pair(found.memory, found.disk);
    });
    if (kind.row_memory_bytes != nullptr) {
      entry["row_memory_bytes"] =
          py::cpp_function([bytes = kind.row_memory_bytes](int64_t slots, int64_t row_bytes, int64_t shards) {
            const TierBytes found = bytes(slots, row_bytes, shards);
            return std::make_pair(found.memory, found.disk);
          });
    }
    out[kind.name] = entry;
  }
  return out;
}

void CheckHyper(const std::string& rule, const std::vector<float>& hyper) {
  const UpdateRule* const found = ValueOrThrow(FindUpdateRule(rule));
  if (hyper.size() == found->hyperparameters().size()) return ThrowIfError(found->Validate(hyper.data()));
  ThrowIfError(InvalidArgumentError("rule ", rule, ": expected ", found->hyperparameters().size(), " hyperparameters, found ",
                                    hyper.size()));
}

// The record of options in its one form; with every option if `all`.
py::bytes CheckOptions(const std::string& record, bool in_table, const std::string& value_dtype, bool all) {
  const OptionPlace place = in_table ? kInTable : kInVariable;
  const DType values = ValueOrThrow(ParseDType(value_dtype));
  return py::bytes(OptionsToJson(ValueOrThrow(ParseOptions(record, place, values)), place, all).ToString());
}

// The partition of `partitions` that owns each key: int64 [n].
py::array PartitionsOf(const Array<int64_t>& keys, int partitions) {
  std::vector<int64_t> owners;
  for (const int64_t key : View(keys)) owners.push_back(PartitionOf(key, partitions));
  return Own(std::move(owners));
}

// The CRC-32 of bytes with checksum `crc`, followed by those of a C-contiguous buffer.
uint32_t Crc32(const py::buffer& buffer, uint32_t crc) {
  const py::buffer_info bytes = buffer.request();
  py::gil_scoped_release release;
  return ExtendCrc32(crc, bytes.ptr, static_cast<size_t>(bytes.size * bytes.itemsize));
}

// Calls work() where it may wait for functions of a storage: see RunUnlocked. An exception is printed.
void RunUnlockedWork(const std::string& storage, py::object work) {
  const auto owned = std::make_shared<py::object>(std::move(work));
  py::gil_scoped_release release;
  RunUnlocked(storage, [owned] {
    py::gil_scoped_acquire acquire;
    const py::object called = std::move(*owned);
    try {
      called();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable(called);
    }
  });
}

}  // namespace

PYBIND11_MODULE(_engine, module) {
  module.doc() = "The embedding table engine for NumPy; use tf_multitier.engine.";
  RegisterExceptions(&module);
  module.def("update_rules", &UpdateRules);
  module.def("check_hyper", &CheckHyper);
  module.def("salvage", &SalvageDirectory);
  module.def("did_you_mean",
             [](const std::vector<std::string>& names, const std::string& found) { return DidYouMean(names, found); });
  module.def("describe_options", [] { return py::bytes(DescribeOptions().ToString()); });
  module.def("check_options", &CheckOptions);
  module.def("storage_types", &StorageTypesOfEngine);
  module.def("tier_kinds", &TierKindsOfEngine);
  module.def("path_of_name", [](const std::string& path, const std::string& name) {
    return py::bytes(InstanceDirectory::PathOfName(path, name));
  });
  py::class_<PyInstance>(module, "Instance").def(py::init<const std::string&>()).def("release", &PyInstance::Release);
  module.def("partitions_of", &PartitionsOf);
  module.def("run_unlocked", &RunUnlockedWork);
  module.def("crc32", &Crc32);
  module.def("check_manifest", &CheckManifest);
  module.def("remove_abandoned_files", &UnfinishedSave::RemoveAbandoned);
  py::class_<PyPartReader>(module, "PartReader")
      .def(py::init<const std::string&, const std::string&>())
      .def("next", &PyPartReader::Next)
      .def("filter_counters", &PyPartReader::FilterCounters)
      .def("matrix", &PyPartReader::Matrix);
  py::class_<PyPartWriter>(module, "PartWriter")
      .def(py::init<const std::string&, const std::string&, const Array<float>&>())
      .def("add", &PyPartWriter::Add)
      .def("add_columns", &PyPartWriter::AddColumns)
      .def("add_filter_counters", &PyPartWriter::AddFilterCounters)
      .def("finish", &PyPartWriter::Finish)
      .def("discard", &PyPartWriter::Discard);
  py::class_<PyGroup>(module, "Group")
      .def(py::init<std::vector<std::shared_ptr<PyTable>>, std::vector<Array<int64_t>>, std::vector<Array<int64_t>>,
                    const std::vector<std::string>&, std::vector<std::optional<Array<float>>>, const std::vector<float>&,
                    const std::vector<bool>&, bool, bool>())
      .def("values", &PyGroup::Values)
      .def("keys", &PyGroup::Keys)
      .def("counts", &PyGroup::Counts)
      .def("weights_gradients", &PyGroup::WeightsGradients)
      .def("apply", &PyGroup::Apply);
  DefineTable(&module);
}

}  // namespace multitier
