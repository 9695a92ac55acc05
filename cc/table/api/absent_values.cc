#include "cc/table/api/absent_values.h"

#include <utility>

#include "cc/table/api/table_options.h"

namespace multitier {
namespace {

// what: "" for the initial value, which has no name in messages.
Result<std::shared_ptr<const InitializerSet>> Make(const char* what, const InitializerSpec& spec, const TableOptions& options) {
  Result<InitializerSet> made = InitializerSet::Create(spec, options.dim, options.value_dtype);
  if (!made.ok()) return Status(made.status().code(), StrCat(what, made.status().message()));
  return std::make_shared<const InitializerSet>(*std::move(made));
}

}  // namespace

Result<AbsentValues> AbsentValues::Of(const TableOptions& options) {
  AbsentValues values;
  MT_ASSIGN_OR_RETURN(values.initial_, Make("", options.initializer, options));
  values.training_ = values.initial_;
  MT_ASSIGN_OR_RETURN(auto not_admitted,
                      Make("value of keys that are not admitted: ", options.default_value_no_permission, options));
  if (!options.filter.admits_all()) values.training_ = std::move(not_admitted);
  values.evaluation_ = values.training_;
  if (options.eval_initializer.has_value()) {
    MT_ASSIGN_OR_RETURN(values.evaluation_, Make("value in evaluation: ", *options.eval_initializer, options));
  }
  return values;
}

Status UnknownTable(const std::string& table, size_t tables, int64_t key) {
  return InvalidArgumentError(
      "table '", table, "': update: expected the table number of key ", key,
      ", which has no row, because the initializers are a list of ", tables,
      "; found none: train the gradient of a lookup with tables in the function of the lookup, its indices unchanged");
}

}  // namespace multitier
