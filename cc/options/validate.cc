// What options demand of one another, and of a storage type by its name. Whether this machine has the tiers: cc/storage_types.

#include <algorithm>

#include "cc/options/names.h"
#include "cc/options/options.h"
#include "cc/options/tier_kind.h"
#include "cc/row/initializer_set.h"

namespace multitier {
namespace {

// A parameter of another kind would be ignored.
Status ExpectOwnParameters(const AdmissionSpec& spec) {
  const AdmissionSpec unset;
  const bool counts = spec.kind == AdmissionKind::kCounter || spec.kind == AdmissionKind::kBloom;
  const auto check = [](const char* name, bool is_own, bool is_set, const char* kinds) {
    if (is_own || !is_set) return OkStatus();
    return InvalidArgumentError("filter.", name, ": expected it only with filter.kind ", kinds, ", found another kind");
  };
  const bool is_bloom = spec.kind == AdmissionKind::kBloom;
  MT_RETURN_IF_ERROR(check("filter_freq", counts, spec.filter_freq != unset.filter_freq, "counter or bloom"));
  MT_RETURN_IF_ERROR(check("max_keys", spec.kind == AdmissionKind::kCounter, spec.max_keys != unset.max_keys, "counter"));
  MT_RETURN_IF_ERROR(check("max_element_size", is_bloom, spec.max_element_size != unset.max_element_size, "bloom"));
  MT_RETURN_IF_ERROR(check("false_positive_probability", is_bloom,
                           spec.false_positive_probability != unset.false_positive_probability, "bloom"));
  MT_RETURN_IF_ERROR(check("counter_bits", is_bloom, spec.counter_bits != unset.counter_bits, "bloom"));
  return check("probability", spec.kind == AdmissionKind::kProbabilistic, spec.probability != unset.probability,
               "probabilistic");
}

Status ExpectOwnParameters(const std::string& name, const InitializerSpec& spec) {
  const InitializerSpec unset;
  const bool has_b = spec.kind == InitializerKind::kUniform || spec.kind == InitializerKind::kNormal ||
                     spec.kind == InitializerKind::kTruncatedNormal || spec.kind == InitializerKind::kNormalBetween;
  if (spec.b != unset.b && !has_b) {
    return InvalidArgumentError(name, ".b: expected it only with the kind uniform and the normal ones, found ",
                                NameOf(spec.kind));
  }
  if (spec.a != unset.a && !has_b && spec.kind != InitializerKind::kConstant) {
    return InvalidArgumentError(name, ".a: expected it only with the kind constant, uniform and the normal ones, found ",
                                NameOf(spec.kind));
  }
  if (spec.kind == InitializerKind::kNormalBetween || (spec.lower == unset.lower && spec.upper == unset.upper))
    return OkStatus();
  return InvalidArgumentError(name, ".", spec.lower != unset.lower ? "lower" : "upper",
                              ": expected it only with the kind normal_between, found ", NameOf(spec.kind));
}

Status ExpectOwnParameters(const std::vector<TableInitializer>& tables) {
  for (size_t t = 0; t < tables.size(); ++t) {
    for (size_t c = 0; c < tables[t].columns.size(); ++c) {
      const std::string name = StrCat("initializers[", t, "].columns[", c, "].initializer");
      MT_RETURN_IF_ERROR(ExpectOwnParameters(name, tables[t].columns[c].initializer));
    }
  }
  return OkStatus();
}

}  // namespace

Status ValidateTableOptions(const Options& o) {
  if (o.stochastic_rounding && o.value_dtype == DType::kFloat32) {
    return InvalidArgumentError("stochastic_rounding: expected values of bfloat16 or float16, found float32");
  }
  if (o.num_shards < 0 || o.num_shards > 64 || (o.num_shards & (o.num_shards - 1)) != 0) {
    return InvalidArgumentError("num_shards: expected 0 or a power of two up to 64, found ", o.num_shards);
  }
  if (o.expiry.steps_to_live < 0) {
    return InvalidArgumentError("steps_to_live: expected at least 0, found ", o.expiry.steps_to_live);
  }
  if (o.expiry.steps_to_live > 0 && o.score == Score::kCustom) {
    return InvalidArgumentError(
        "steps_to_live: expected a score of step, time or frequency, found custom: such a score does not count time");
  }
  if (!(o.expiry.l2_weight_threshold >= 0.0f || o.expiry.l2_weight_threshold == -1.0f)) {
    return InvalidArgumentError("l2_weight_threshold: expected at least 0, or -1 for none; found ",
                                o.expiry.l2_weight_threshold);
  }
  if (o.on_full != OnFull::kError && o.drop_coldest) {
    return InvalidArgumentError("on_full: expected drop or error with drop_coldest, found warn");
  }
  if (o.refuse_colder && (!o.drop_coldest || !MayComeColdest(o.cache_strategy))) {
    return InvalidArgumentError(
        "refuse_colder: expected drop_coldest=true and cache_strategy SCORE or LFU, found drop_coldest=", o.drop_coldest,
        " and cache_strategy ", NameOf(o.cache_strategy));
  }
  if (o.default_value_no_permission.kind == InitializerKind::kMatrix) {
    return InvalidArgumentError("default_value_no_permission: expected an initializer other than matrix, found matrix");
  }
  if (o.eval_initializer.has_value() && o.eval_initializer->kind == InitializerKind::kMatrix) {
    return InvalidArgumentError("eval_initializer: expected an initializer other than matrix, found matrix");
  }
  if (o.initializer.kind != InitializerKind::kMatrix && o.initializer.matrix_rows != 0) {
    return InvalidArgumentError("initializer.matrix_rows: expected 0 with initializer ", NameOf(o.initializer.kind), ", found ",
                                o.initializer.matrix_rows);
  }
  if (o.initializer.tables != nullptr) {
    if (o.initializer.kind != InitializerKind::kConstant || o.initializer.a != 0) {
      return InvalidArgumentError("initializers: expected no initializer with them, found ", NameOf(o.initializer.kind),
                                  ": give one of the two");
    }
    if (o.initializer.tables->size() > 1 && o.on_corruption == OnCorruption::kReinit) {
      return InvalidArgumentError(
          "on_corruption: expected error or drop with initializers of several tables, found reinit: a "
          "damaged row does not say which is its own");
    }
    // Columns are below the dim, which the record of a variable has not.
    MT_RETURN_IF_ERROR(InitializerSet::Create(o.initializer, o.dim != 0 ? o.dim : kMostDim, o.value_dtype).status());
  }
  for (size_t i = 0; i < o.slots.size(); ++i) {
    if (o.slots[i].dim < 1) return InvalidArgumentError("slots[", i, "].dim: expected at least 1, found ", o.slots[i].dim);
  }
  return ValidateAdmission(o.filter);
}

namespace {

Status ValidateSizes(const Options& o, size_t tiers) {
  const auto at_most = [&](const char* option, size_t sizes) {
    if (sizes <= tiers) return OkStatus();
    return InvalidArgumentError(option, ": expected at most ", tiers, ", one for each tier of ", o.storage_type, "; found ",
                                sizes);
  };
  MT_RETURN_IF_ERROR(at_most("storage_size", o.storage_size.size()));
  MT_RETURN_IF_ERROR(at_most("storage_rows", o.storage_rows.size()));
  if (!o.storage_rows.empty() && !o.storage_size.empty()) {
    return InvalidArgumentError("storage_rows: expected no storage_size with it, found ", o.storage_size.size(), " sizes");
  }
  const size_t sizes = std::max(o.storage_size.size(), o.storage_rows.size());
  if (o.drop_coldest && sizes < tiers) {
    return InvalidArgumentError("drop_coldest: expected the size of the last tier of ", o.storage_type,
                                " to be given too, found ", sizes, " of ", tiers, " sizes");
  }
  return OkStatus();
}

Status ValidateFiles(const Options& o, const std::vector<std::string>& tiers) {
  const bool without_files = !HasFiles(o.storage_type);
  if (o.storage_path.empty() && !without_files) {
    return InvalidArgumentError("storage_path: expected a directory for the files of storage_type ", o.storage_type,
                                ", found none");
  }
  if (o.keep && without_files) return InvalidArgumentError("keep: expected a storage_type with files, found ", o.storage_type);
  const TierKind* const kind = FindTierKind(tiers.back());
  if (o.keep && kind->not_kept != nullptr) {
    return UnimplementedError("keep: expected a storage_type whose last tier is ", KeptTiers(), ", found ", o.storage_type,
                              ": ", kind->not_kept, "; use ", KeptTiers(), ", or a checkpoint");
  }
  if (o.in_place && !o.read_only)
    return InvalidArgumentError("in_place: expected a variable with read_only, found one without");
  if (!o.in_place) return OkStatus();
  for (const std::string& tier : tiers) {
    const TierKind* const each = FindTierKind(tier);
    const bool last = &tier == &tiers.back();
    if (last ? each != nullptr && each->read_in_place : each == nullptr || !each->has_files) continue;
    const char* const why = each == nullptr ? nullptr : each->not_in_place;
    const std::string expected = TierNames([](const TierKind& k) { return k.read_in_place; });
    return UnimplementedError("in_place: expected a storage_type with ", expected, " as the only tier with files, found ",
                              o.storage_type, why == nullptr ? "" : ": ", why == nullptr ? "" : why);
  }
  return OkStatus();
}

}  // namespace

Status ValidateOptions(const Options& o) {
  MT_RETURN_IF_ERROR(ValidateTableOptions(o));
  MT_RETURN_IF_ERROR(ExpectOwnParameters(o.filter));
  MT_RETURN_IF_ERROR(ExpectOwnParameters("initializer", o.initializer));
  if (o.initializer.tables != nullptr) MT_RETURN_IF_ERROR(ExpectOwnParameters(*o.initializer.tables));
  MT_RETURN_IF_ERROR(ExpectOwnParameters("default_value_no_permission", o.default_value_no_permission));
  if (o.eval_initializer.has_value()) MT_RETURN_IF_ERROR(ExpectOwnParameters("eval_initializer", *o.eval_initializer));
  const std::vector<std::string> tiers = TiersOf(o.storage_type);
  MT_RETURN_IF_ERROR(ValidateSizes(o, tiers.size()));
  for (const TierKind& kind : TierKinds()) {
    if (kind.validate != nullptr) MT_RETURN_IF_ERROR(kind.validate(o, tiers.back() == kind.name));
  }
  return ValidateFiles(o, tiers);
}

}  // namespace multitier
