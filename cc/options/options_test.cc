// The record: what is read is written, defaults are left out, and each wrong value is one message that names option, expected,
// found and, for a name, the one that is like it.

#include "cc/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "cc/options/names.h"

namespace multitier {
namespace {

using testing::HasSubstr;

std::string Canonical(const std::string& json, OptionPlace place = kInVariable) {
  const Result<Options> options = ParseOptions(json, place);
  return options.ok() ? OptionsToJson(*options, place).ToString() : options.status().ToString();
}

TEST(OptionsTest, DefaultsAreLeftOut) {
  EXPECT_EQ(Canonical(R"({"version": 1})"), R"({"version": 1})");
  EXPECT_EQ(Canonical(R"({"version": 1, "keep": false, "filter": {"kind": "none"}, "storage_size": [], "initializer": 0})"),
            R"({"version": 1})");
  EXPECT_EQ(Canonical(R"({"version": 1, "dim": 4})", kInTable), R"({"version": 1, "dim": 4})");
}

TEST(OptionsTest, StructuresListsAndShortFormsAreWrittenAsOneForm) {
  EXPECT_EQ(Canonical(R"({"version": 1, "initializer": "uniform"})"),
            Canonical(R"({"version":1,"initializer":{"kind":"uniform"}})"));
  EXPECT_EQ(Canonical(R"({"version": 1, "default_value_no_permission": 0.5, "eval_initializer": {"kind": "normal", "b": 2}})"),
            R"({"version": 1, "default_value_no_permission": {"a": 0.5}, "eval_initializer": {"kind": "normal", "b": 2}})");
  EXPECT_EQ(Canonical(R"({"version": 1, "dim": 2, "slots": [{"name": "m", "dim": 2, "initial_value": 0.1}]})", kInTable),
            R"({"version": 1, "dim": 2, "slots": [{"name": "m", "dim": 2, "initial_value": 0.100000001}]})");
  EXPECT_EQ(Canonical(R"({"version": 1, "storage_type": "PMEM_LIBPMEM", "storage_path": "/x"})"),
            R"({"version": 1, "storage_type": "PMEM", "storage_path": "/x"})");
  EXPECT_EQ(Canonical(R"({"version": 1, "storage_size": 64, "on_full": "drop"})"),
            R"({"version": 1, "storage_size": [64], "drop_coldest": true})");
}

TEST(OptionsTest, SizesAreNumbersTextOrByTier) {
  const auto sizes = [](const std::string& json) {
    const Result<Options> options = ParseOptions(
        StrCat(R"({"version": 1, "storage_type": "DRAM_SSDHASH", "storage_path": "/x", "storage_size": )", json, "}"),
        kInVariable);
    EXPECT_TRUE(options.ok()) << options.status().ToString();
    return options.ok() ? options->storage_size : std::vector<int64_t>();
  };
  EXPECT_EQ(sizes(R"(["4GB", "512 MiB"])"), (std::vector<int64_t>{4000000000, 512 << 20}));
  EXPECT_EQ(sizes(R"(["4gb", "512 mib"])"), (std::vector<int64_t>{4000000000, 512 << 20}));
  EXPECT_EQ(sizes(R"("1KiB")"), std::vector<int64_t>{1024});
  EXPECT_EQ(sizes(R"({"SSDHASH": "1TB", "DRAM": 7})"), (std::vector<int64_t>{7, 1000000000000}));
  EXPECT_EQ(sizes(R"({"DRAM": 7})"), std::vector<int64_t>{7});
  for (const char* wrong : {"", "GB", "4G", "-1", "4.5GB", "4GB x", "99999999999999999999", "20000000TiB"}) {
    EXPECT_FALSE(ParseBytes(wrong).has_value()) << wrong;
  }
  EXPECT_EQ(ParseBytes(" 18446744073709551615 B "), std::numeric_limits<uint64_t>::max());
}

TEST(OptionsTest, NumbersSurviveExactly) {
  const Result<Options> options = ParseOptions(
      R"({"version": 1, "initializer": {"kind": "uniform", "a": -0.1, "b": 1.00000005960464478, "seed": 18446744073709551615},
                       "filter": {"kind": "bloom", "max_element_size": 10, "false_positive_probability": 0.1}})",
      kInVariable);
  ASSERT_TRUE(options.ok()) << options.status().ToString();
  EXPECT_EQ(options->initializer.a, static_cast<float>(-0.1));
  EXPECT_EQ(options->initializer.b, static_cast<float>(1.00000005960464478));
  EXPECT_EQ(options->initializer.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(options->filter.seed, options->initializer.seed);
  EXPECT_EQ(options->filter.false_positive_probability, 0.1);
  const Result<Options> again = OptionsFromJson(OptionsToJson(*options, kInVariable), kInVariable);
  EXPECT_EQ(again->initializer.a, options->initializer.a);
  EXPECT_EQ(again->filter.false_positive_probability, 0.1);
}

// Every option survives, whatever its type: one that is not its default is read as what was written.
TEST(OptionsTest, EveryOptionOfADescriptionSurvivesTheRoundTrip) {
  std::set<std::string> names;
  for (const OptionPlace place : {kInTable, kInVariable}) {
    Options options;
    options.dim = place == kInTable ? 3 : 0;
    const Json all = OptionsToJson(options, place, /*all=*/true);
    EXPECT_EQ(Canonical(all.ToString(), place), OptionsToJson(options, place).ToString());
    for (const std::string& name : all.names()) names.insert(name);
  }
  names.erase("version");
  const Json description = DescribeOptions();
  EXPECT_EQ(names.size(), description.items().size());
  for (const Json& option : description.items()) {
    EXPECT_EQ(names.count(*option.GetString("name")), 1u);
    EXPECT_THAT(*option.GetString("text"), testing::EndsWith(".")) << option.ToString();
  }
}

TEST(OptionsTest, EachWrongValueIsNamed) {
  const auto expect = [](const std::string& members, const std::string& message, OptionPlace place = kInVariable) {
    const Result<Options> options = ParseOptions(StrCat(R"({"version": 1, )", members, "}"), place);
    ASSERT_FALSE(options.ok()) << members;
    EXPECT_THAT(options.status().message(), HasSubstr(message)) << members;
  };
  expect(R"("storage_sizes": 1)",
         "storage_sizes: expected an option of an embedding variable, found none of that name: did you mean "
         "'storage_size'?");
  expect(R"("num_shards": 1)", "num_shards: expected an option of an embedding variable, found none of that name");
  expect(R"("read_only": true)", "read_only: expected an option of a table, found none of that name", kInTable);
  expect(R"("keep": true, "keep": false)", "keep: expected it once, found it twice");
  expect(R"("keep": 1)", "keep: expected true or false, found 1");
  expect(R"("initial_rows": -1)", "initial_rows: expected 0 to 4294967296 rows, found -1");
  expect(R"("initial_rows": "9")", "initial_rows: expected 0 to 4294967296 rows, found '9'");
  expect(R"("initial_rows": 1.5)", "found 1.5");
  expect(R"("storage_size": [0])",
         "storage_size[0]: expected 1 to 1152921504606846976 bytes, or text such as 4GB or 512 MiB, found 0");
  expect(R"("storage_size": "4G")",
         "storage_size[0]: expected 1 to 1152921504606846976 bytes, or text such as 4GB or 512 MiB, found '4G'");
  expect(R"("storage_size": {"SSD": 1})", "storage_size: expected one of DRAM; found 'SSD'");
  expect(R"("storage_type": "DRAM_SSDHASH", "storage_path": "/x", "storage_size": {"SSDHASH": 1})",
         "storage_size: expected a size of DRAM, which is before a tier with a size, found none");
  expect(R"("storage_type": "DRAM_SSDHASHH")", "found 'DRAM_SSDHASHH': did you mean 'DRAM_SSDHASH'?");
  expect(R"("storage_type": "dram_ssdhash")", "did you mean 'DRAM_SSDHASH'?");
  expect(R"("storage_type": 7)", "storage_type: expected text, found 7");
  expect(R"("storage_path": "a\u0000b")", "storage_path: expected text without null characters");
  expect(R"("score": "steps")", "score: expected one of step, time, custom, frequency; found 'steps': did you mean 'step'?");
  expect(R"("initializer": "xavier")", "initializer.kind: expected one of constant, ");
  expect(R"("initializer": {"mean": 1})", "initializer.mean: expected a member of an initializer, found none of that name");
  expect(R"("initializer": {"a": 1e300})", "initializer.a: expected a number of float32, found 1e300");
  expect(R"("initializer": {"seed": -1})", "initializer.seed: expected 0 to 18446744073709551615, found -1");
  expect(R"("initializer": [])",
         "initializer: expected a number, the name of an initializer, or an object with its kind, found []");
  expect(R"("eval_initializer": "matrix")", "eval_initializer: expected an initializer other than matrix");
  expect(R"("filter": {"kind": "bloom"})", "filter.max_element_size: expected at least 1, found 0");
  expect(R"("filter": {"false_positive_probability": 1.0})",
         "filter.false_positive_probability: expected more than 0 and less than 1, found 1.0");
  expect(R"("filter": {"probability": 0})", "filter.probability: expected more than 0 and at most 1, found 0");
  expect(R"("filter": {"kind": "bloom", "max_element_size": 9, "counter_bits": 8, "filter_freq": 300})",
         "filter.filter_freq: expected one that fits in counter_bits (8), found 300");
  expect(R"("l2_weight_threshold": -2)", "l2_weight_threshold: expected at least 0, or -1 for none; found -2");
  expect(R"("steps_to_live": 5, "score": "custom")",
         "steps_to_live: expected a score of step, time or frequency, found custom");
  expect(R"("slots": [{"name": "m"}], "dim": 1)", "slots[0].dim: expected at least 1, found 0", kInTable);
  expect(R"("name": "x")", "dim: expected 1 to 1048576, found none", kInTable);
  expect(R"("dim": 1, "num_shards": 3)", "num_shards: expected 0 or a power of two up to 64, found 3", kInTable);
  EXPECT_THAT(ParseOptions("[1]", kInTable).status().message(), HasSubstr("expected a JSON object, found [1]"));
  EXPECT_THAT(ParseOptions("{", kInTable).status().message(), HasSubstr("expected a JSON object, found '{'"));
  for (const char* json : {"{}", R"({"version": 2})"}) {
    EXPECT_EQ(ParseOptions(json, kInTable).status().code(), StatusCode::kUnimplemented) << json;
  }
}

TEST(OptionsTest, ImpossibleCombinationsAreRefusedByName) {
  const auto expect = [](const std::string& type, const std::string& members, StatusCode code, const std::string& message) {
    const Result<Options> options = ParseOptions(
        StrCat(R"({"version": 1, "storage_type": ")", type, R"(", "storage_path": "/x", )", members, "}"), kInVariable);
    EXPECT_EQ(options.status().code(), code) << options.status().ToString();
    EXPECT_THAT(options.status().message(), HasSubstr(message));
  };
  const StatusCode invalid = StatusCode::kInvalidArgument, unimplemented = StatusCode::kUnimplemented;
  expect("DRAM_SSDHASH", R"("storage_size": [1024, 1024, 1024])", invalid,
         "storage_size: expected at most 2, one for each tier of DRAM_SSDHASH; found 3");
  expect("DRAM_SSDHASH", R"("storage_size": 1, "storage_rows": 1)", invalid, "storage_rows: expected no storage_size with it");
  expect("DRAM_SSDHASH", R"("storage_size": 64, "drop_coldest": true)", invalid, "found 1 of 2 sizes");
  expect("DRAM", R"("storage_size": 64, "drop_coldest": true, "on_full": "warn")", invalid, "on_full: expected drop or error");
  expect("DRAM", R"("refuse_colder": true)", invalid, "refuse_colder: expected drop_coldest=true and cache_strategy SCORE");
  expect("DRAM", R"("keep": true)", invalid, "keep: expected a storage_type with files, found DRAM");
  for (const char* type : {"PMEM", "LEVELDB", "DRAM_PMEM_LEVELDB", "HBM_DRAM_LEVELDB"}) {
    expect(type, R"("keep": true)", unimplemented,
           StrCat("keep: expected a storage_type whose last tier is SSDHASH, found ", type));
  }
  expect("DRAM_SSDHASH", R"("storage_path": "")", invalid, "storage_path: expected it once");
  expect("DRAM_SSDHASH", R"("in_place": true)", invalid, "in_place: expected a variable with read_only");
  expect("DRAM_LEVELDB", R"("in_place": true, "read_only": true)", unimplemented, "one process at a time");
  EXPECT_THAT(ParseOptions(R"({"version": 1, "storage_type": "SSDHASH"})", kInVariable).status().message(),
              HasSubstr("storage_path: expected a directory for the files of storage_type SSDHASH, found none"));
}

}  // namespace
}  // namespace multitier
