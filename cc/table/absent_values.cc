#include "cc/table/absent_values.h"

#include <utility>

#include "cc/table/embedding_table.h"

namespace multitier {
namespace {

// what: "" for the initial value, which has no name in messages.
Result<std::shared_ptr<const Initializer>> Make(const char* what, const InitializerSpec& spec, const TableOptions& options) {
  Result<Initializer> made = Initializer::Create(spec, options.dim, options.value_dtype);
  if (!made.ok()) return Status(made.status().code(), StrCat(what, made.status().message()));
  return std::make_shared<const Initializer>(*std::move(made));
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

}  // namespace multitier
