#include "cc/checkpoint_files/table_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cc/partition/partition.h"

namespace multitier::table_part_test {
namespace {

Manifest ExampleManifest() {
  Manifest manifest;
  manifest.columns = {{"value", DType::kFloat32, 2, 0.0f}, {"ev/\"Adagrad\"", DType::kFloat32, 1, 0.1f}};
  manifest.num_rows = 3;
  manifest.partition_index = 1;
  manifest.num_partitions = 2;
  manifest.applies = 42;
  manifest.file = "data-abcde-of-fghij";
  manifest.initializer.kind = InitializerKind::kTruncatedNormal;
  manifest.initializer.a = 0.1f;
  manifest.initializer.b = 0.3f;
  manifest.initializer.seed = std::numeric_limits<uint64_t>::max();
  manifest.initializer.lower = -1.5f;
  return manifest;
}

Rows ExampleRows() {
  Rows rows;
  rows.columns = ExampleManifest().columns;
  rows.keys = {4, -9, 7};
  rows.frequencies = {1, 2, 3};
  rows.versions = {10, 20, 30};
  rows.data = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  rows.counted_keys = {100, 101};
  rows.counted_frequencies = {1, 1};
  rows.counted_versions = {5, 6};
  return rows;
}

TEST(TablePartTest, ManifestSurvivesTheRoundTrip) {
  const Manifest manifest = ExampleManifest();
  const Result<Manifest> parsed = Manifest::Parse(manifest.ToJson());
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_EQ(parsed->ToJson(), manifest.ToJson());
  EXPECT_EQ(parsed->dim(), 2);
  EXPECT_EQ(parsed->row_elements(), 3);
  EXPECT_EQ(parsed->initializer.seed, manifest.initializer.seed);
  EXPECT_EQ(parsed->initializer.b, manifest.initializer.b);
  EXPECT_EQ(parsed->initializer.lower, manifest.initializer.lower);
  EXPECT_EQ(parsed->initializer.upper, manifest.initializer.upper);
}

TEST(TablePartTest, ManifestWithoutAnInitializerIsRead) {
  Manifest manifest = ExampleManifest();
  manifest.has_initializer = false;
  const std::string json = manifest.ToJson();
  EXPECT_EQ(json.find("initializer"), std::string::npos);
  const Result<Manifest> parsed = Manifest::Parse(json);
  ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
  EXPECT_FALSE(parsed->has_initializer);
}

TEST(TablePartTest, OptionalMembersSayWhatThePartHas) {
  Manifest manifest = ExampleManifest();
  for (const char* member : {"key_dtype", "frozen", "linked"}) EXPECT_EQ(manifest.ToJson().find(member), std::string::npos);
  for (const KeyType key_dtype : {KeyType::kInt64, KeyType::kUint64, KeyType::kUint32}) {
    for (const bool frozen : {false, true}) {
      manifest.key_dtype = key_dtype;
      manifest.frozen = frozen;
      manifest.columns.resize(1);
      manifest.linked.assign(frozen ? 0 : 1, {"data-of-linked", 100, 1});
      const Result<Manifest> parsed = Manifest::Parse(manifest.ToJson());
      ASSERT_TRUE(parsed.ok()) << parsed.status().ToString();
      EXPECT_EQ(parsed->key_dtype, key_dtype);
      EXPECT_EQ(parsed->frozen, frozen);
      EXPECT_EQ(parsed->linked.size(), frozen ? 0u : 1u);
    }
  }
  std::string wrong = manifest.ToJson();
  wrong.replace(wrong.find("uint32"), 6, "uint23");
  EXPECT_EQ(Manifest::Parse(wrong).status().message(),
            "manifest: key_dtype: expected one of int64, uint64, uint32; found 'uint23': did you mean 'uint32'?");
}

TEST(TablePartTest, ManifestOfAnotherReleaseIsRefusedByVersion) {
  const std::string version = "\"format_version\": 1";
  for (const int other : {0, 2}) {
    std::string json = ExampleManifest().ToJson();
    json.replace(json.find(version), version.size(), StrCat("\"format_version\": ", other));
    const Status status = Manifest::Parse(json).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_EQ(status.message(),
              StrCat("manifest: expected format version 1, found ", other, ": use the release that wrote it"));
  }
}

TEST(TablePartTest, DamagedManifestsAreRefused) {
  for (const char* text : {"", "{}", "[]", R"({"format_version": 1, "columns": []})"}) {
    EXPECT_EQ(Manifest::Parse(text).status().code(), StatusCode::kInvalidArgument) << text;
  }
  Manifest manifest = ExampleManifest();
  manifest.partition_index = 2;
  EXPECT_FALSE(Manifest::Parse(manifest.ToJson()).ok());
  manifest = ExampleManifest();
  manifest.file = "../elsewhere";
  EXPECT_FALSE(Manifest::Parse(manifest.ToJson()).ok());
  manifest = ExampleManifest();
  manifest.num_rows = -1;
  EXPECT_FALSE(Manifest::Parse(manifest.ToJson()).ok());
}

// Texts that a checksum does not refuse: each has one wrong member.
TEST(TablePartTest, ImpossibleMembersAreRefusedWhereverTheyStand) {
  Manifest frozen = ExampleManifest();
  frozen.frozen = true;
  frozen.columns.resize(1);
  Manifest linked = ExampleManifest();
  linked.linked = {{"data-of-linked", 100, 1}};
  Manifest matrix = ExampleManifest();
  matrix.initializer = InitializerSpec();
  matrix.initializer.kind = InitializerKind::kMatrix;
  matrix.initializer.matrix_rows = 3;
  for (Manifest manifest : {ExampleManifest(), frozen, linked, matrix}) {
    for (const KeyType key_dtype : {KeyType::kInt64, KeyType::kUint64}) {
      manifest.key_dtype = key_dtype;
      ASSERT_TRUE(Manifest::Parse(manifest.ToJson()).ok()) << manifest.ToJson();
      const std::vector<std::function<void(Manifest*)>> changes = {
          [](Manifest* m) {
            m->columns.resize(m->frozen ? 2 : 1, {"value", DType::kFloat32, 2, 0.0f}), m->frozen = true,
                                                                                       m->linked.resize(1, {"l", 1, 1});
          },
          [](Manifest* m) { m->columns.push_back({"more", DType::kFloat16, 1, 0.0f}); },
          [](Manifest* m) {
            m->columns.resize(2, {"s", DType::kFloat32, 1, 0.0f}), m->columns.push_back(m->columns[1]), m->frozen = false;
          },
          [](Manifest* m) { m->columns.push_back({"", DType::kFloat32, 1, 0.0f}); },
          [](Manifest* m) {
            for (int i = 0; i < 300; ++i) m->columns.push_back({StrCat("s", i), DType::kFloat32, 1 << 20, 0.0f});
          },
          [](Manifest* m) { m->columns[0].dim = (1 << 20) + 1; },
          [](Manifest* m) { m->num_rows = int64_t{1} << 62; },
          [](Manifest* m) { m->applies = std::numeric_limits<int64_t>::max(); },
          [](Manifest* m) { m->since = 1, m->num_removed = int64_t{1} << 62; },
          [](Manifest* m) { m->num_partitions = int64_t{1} << 62; },
          [](Manifest* m) { m->initializer.matrix_rows = int64_t{1} << 62; },
          [](Manifest* m) { m->initializer.kind = InitializerKind::kMatrix, m->initializer.matrix_rows = 0; },
          [](Manifest* m) { m->initializer.kind = InitializerKind::kUniform, m->initializer.a = m->initializer.b = 1.0f; },
          [](Manifest* m) { m->file = std::string("data\0", 5); },
          [](Manifest* m) { m->frozen = false, m->linked.assign(1, {"", 1, 1}); },
          [](Manifest* m) { m->frozen = false, m->linked.assign(1, {"data", 1, -1}); },
      };
      for (size_t i = 0; i < changes.size(); ++i) {
        Manifest changed = manifest;
        changes[i](&changed);
        const Status status = Manifest::Parse(changed.ToJson()).status();
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << i << ": " << changed.ToJson().substr(0, 1000);
      }
    }
  }
}

TEST(TablePartTest, PartitionsSplitTheRowsWithoutLoss) {
  size_t rows_seen = 0, counted_seen = 0;
  for (int p = 0; p < 3; ++p) {
    Rows rows = ExampleRows();
    KeepPartition(p, 3, &rows);
    rows_seen += rows.keys.size();
    counted_seen += rows.counted_keys.size();
    ASSERT_EQ(rows.data.size(), rows.keys.size() * 3);
    for (size_t i = 0; i < rows.keys.size(); ++i) {
      EXPECT_EQ(PartitionOf(rows.keys[i], 3), p);
      const std::vector<int64_t> keys = ExampleRows().keys;
      const size_t old = std::find(keys.begin(), keys.end(), rows.keys[i]) - keys.begin();
      EXPECT_EQ(rows.versions[i], ExampleRows().versions[old]);
      EXPECT_EQ(rows.data[i * 3 + 2], ExampleRows().data[old * 3 + 2]);
    }
  }
  EXPECT_EQ(rows_seen, 3u);
  EXPECT_EQ(counted_seen, 2u);
}

TEST(TablePartTest, OrderIsByKey) { EXPECT_EQ(OrderByKey({4, -9, 7}), (std::vector<int64_t>{1, 0, 2})); }

}  // namespace
}  // namespace multitier::table_part_test
