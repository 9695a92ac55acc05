// What a part file gives back, and that no damaged byte of it is ever taken for a row.

#include "cc/checkpoint_files/part_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace multitier::part_file_test {
namespace {

Manifest ExampleManifest() {
  Manifest manifest;
  manifest.columns = {{"value", DType::kFloat32, 2, 0.0f}, {"slot", DType::kFloat32, 1, 0.1f}};
  manifest.num_rows = 5;
  manifest.applies = 42;
  manifest.initializer.kind = InitializerKind::kMatrix;
  manifest.initializer.matrix_rows = 3;
  return manifest;
}

Rows ExampleRows() {
  Rows rows;
  rows.columns = ExampleManifest().columns;
  rows.keys = {4, -9, INT64_MIN, INT64_MAX, 0};
  rows.frequencies = {1, 2, 0xffffffffLL, 0, 7};
  rows.versions = {10, -1, INT64_MAX, 0, 5};
  for (int i = 0; i < 15; ++i) rows.data.push_back(static_cast<float>(i) - 0.25f);
  rows.counted_keys = {100, -101};
  rows.counted_frequencies = {1, 3};
  rows.counted_versions = {5, -1};
  rows.filter_counters = {1, 2, 3};
  return rows;
}

uint32_t written = 0;  // the checksum of the file that was written last, which Read expects

std::string Write(const Manifest& manifest, const Rows& rows) {
  std::string file;
  PartFileWriter writer([&](std::string_view bytes) {
    file += bytes;
    return OkStatus();
  });
  InitializerSpec initializer = manifest.initializer;
  initializer.matrix = std::make_shared<const std::vector<float>>(std::vector<float>{1, 2, 3, 4, 5, 6});
  EXPECT_TRUE(writer.Begin(initializer, manifest.dim()).ok());
  EXPECT_TRUE(writer.Add(rows).ok());
  EXPECT_TRUE(writer.End().ok());
  EXPECT_EQ(writer.bytes(), static_cast<int64_t>(file.size()));
  EXPECT_EQ(writer.rows(), static_cast<int64_t>(rows.keys.size()));
  written = writer.checksum();
  return file;
}

Status Read(Manifest manifest, const std::string& file, InitializerSpec* initializer, Rows* all,
            RowFields fields = RowFields::kAll) {
  manifest.checksum = written;
  PartFileReader reader("part", file.size(), manifest, [&](uint64_t offset, size_t n, char* out) -> Status {
    if (offset + n > file.size()) return DataLossError("short");
    std::memcpy(out, file.data() + offset, n);
    return OkStatus();
  });
  reader.SetFields(fields);
  MT_RETURN_IF_ERROR(reader.Begin(initializer));
  for (Rows rows; !reader.ended();) {
    MT_RETURN_IF_ERROR(reader.Next(&rows));
    const auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
    append(&all->keys, rows.keys);
    append(&all->frequencies, rows.frequencies);
    append(&all->versions, rows.versions);
    append(&all->data, rows.data);
    append(&all->counted_keys, rows.counted_keys);
    append(&all->counted_frequencies, rows.counted_frequencies);
    append(&all->counted_versions, rows.counted_versions);
    append(&all->filter_counters, rows.filter_counters);
    all->applies = rows.applies;
  }
  return OkStatus();
}

Manifest FrozenManifest(DType dtype) {
  Manifest manifest;
  manifest.columns = {{"value", dtype, 2, 0.0f}};
  manifest.num_rows = 5;
  manifest.file = "part";
  manifest.frozen = true;
  return manifest;
}

std::string WriteFrozen(DType dtype, const Rows& rows) {
  std::string file;
  PartFileWriter writer([&](std::string_view bytes) {
    file += bytes;
    return OkStatus();
  });
  writer.Freeze(dtype);
  EXPECT_TRUE(writer.Begin(InitializerSpec(), 2).ok());
  EXPECT_TRUE(writer.Add(rows).ok());
  EXPECT_TRUE(writer.End().ok());
  written = writer.checksum();
  return file;
}

TEST(PartFileTest, AFrozenPartHasKeysAndValuesAlone) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const std::string file = WriteFrozen(dtype, ExampleRows());
    const Manifest manifest = *Manifest::Parse(FrozenManifest(dtype).ToJson());
    ASSERT_TRUE(manifest.frozen);
    EXPECT_EQ(file.size(), 8 + 20 + 5 * (8 + 2 * DTypeSize(dtype)) + 20 + 16);
    InitializerSpec initializer;
    Rows read;
    ASSERT_TRUE(Read(manifest, file, &initializer, &read).ok());
    EXPECT_EQ(read.keys, ExampleRows().keys);
    EXPECT_EQ(read.data, (std::vector<float>{-0.25f, 0.75f, 2.75f, 3.75f, 5.75f, 6.75f, 8.75f, 9.75f, 11.75f, 12.75f}));
    EXPECT_EQ(read.versions, std::vector<int64_t>(5, -1));
    EXPECT_EQ(read.frequencies, std::vector<int64_t>(5, 0));
    EXPECT_TRUE(read.counted_keys.empty());
  }
}

// Values in their dtype, slots as float32.
TEST(PartFileTest, ValuesOfSixteenBitsTakeHalfTheRoomAndComeBack) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Manifest manifest;
    manifest.columns = {{"value", dtype, 2, 0.0f}, {"slot", DType::kFloat32, 1, 0.1f}};
    manifest.num_rows = 1;
    manifest.file = "part";
    Rows rows;
    rows.columns = manifest.columns;
    rows.keys = {-5};
    rows.versions = {7};
    rows.frequencies = {3};
    rows.data = {-0.25f, 1.5f, 0.123456789f};
    std::string file;
    PartFileWriter writer([&](std::string_view bytes) {
      file += bytes;
      return OkStatus();
    });
    EXPECT_TRUE(writer.Begin(InitializerSpec(), 2).ok());
    EXPECT_TRUE(writer.Add(rows).ok());
    EXPECT_TRUE(writer.End().ok());
    written = writer.checksum();
    EXPECT_EQ(file.size(), 8 + 20 + (20 + 2 * 2 + 4) + 20 + 16);
    InitializerSpec initializer;
    Rows read;
    const Manifest parsed = *Manifest::Parse(manifest.ToJson());
    EXPECT_EQ(parsed.columns[0].dtype, dtype);
    ASSERT_TRUE(Read(parsed, file, &initializer, &read).ok());
    EXPECT_EQ(read.keys, rows.keys);
    EXPECT_EQ(read.versions, rows.versions);
    EXPECT_EQ(read.frequencies, rows.frequencies);
    EXPECT_EQ(read.data, rows.data);
    manifest.columns[1].dtype = dtype;
    EXPECT_EQ(Manifest::Parse(manifest.ToJson()).status().code(), StatusCode::kInvalidArgument) << "a slot is float32";
    manifest = parsed;
    manifest.columns[0].dtype = DType::kFloat32;
    EXPECT_EQ(Read(manifest, file, &initializer, &read).code(), StatusCode::kDataLoss);
  }
}

TEST(PartFileTest, FrozenRowsWhereOthersAreExpectedAreDamage) {
  InitializerSpec initializer;
  Rows read;
  Manifest manifest = FrozenManifest(DType::kFloat32);
  manifest.frozen = false;
  EXPECT_EQ(Read(manifest, WriteFrozen(DType::kFloat32, ExampleRows()), &initializer, &read).code(), StatusCode::kDataLoss);
  manifest.frozen = true;
  manifest.columns = ExampleManifest().columns;
  EXPECT_FALSE(Manifest::Parse(manifest.ToJson()).ok());
}

// Before memory is taken for it.
TEST(PartFileTest, ABlockThatIsLargerThanTheFileIsDamage) {
  std::string file = Write(ExampleManifest(), ExampleRows());
  for (const uint64_t bytes : {uint64_t{file.size()}, uint64_t{1} << 29, ~uint64_t{0}, ~uint64_t{0} - 20}) {
    EncodeFixed64(reinterpret_cast<uint8_t*>(file.data()) + 16, bytes);
    InitializerSpec initializer;
    Rows read;
    const Status status = Read(ExampleManifest(), file, &initializer, &read);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_NE(status.message().find("damaged at offset 8: expected a block of at most"), std::string::npos)
        << status.ToString();
  }
}

// Its payload is written in pieces.
TEST(PartFileTest, ALargeBlockGivesBackItsRows) {
  Manifest manifest = ExampleManifest();
  Rows rows;
  rows.columns = manifest.columns;
  for (int64_t i = 0; i < 10'000; ++i) {
    rows.keys.push_back(i * 7);
    rows.frequencies.push_back(i);
    rows.versions.push_back(-i);
    for (int64_t j = 0; j < 3; ++j) rows.data.push_back(static_cast<float>(3 * i + j));
  }
  manifest.num_rows = static_cast<int64_t>(rows.keys.size());
  InitializerSpec initializer;
  Rows read;
  const Status status = Read(manifest, Write(manifest, rows), &initializer, &read);
  ASSERT_TRUE(status.ok()) << status.ToString();
  EXPECT_EQ(read.keys, rows.keys);
  EXPECT_EQ(read.frequencies, rows.frequencies);
  EXPECT_EQ(read.versions, rows.versions);
  EXPECT_EQ(read.data, rows.data);
}

TEST(PartFileTest, GivesBackWhatWasWritten) {
  const Rows rows = ExampleRows();
  const std::string file = Write(ExampleManifest(), rows);
  InitializerSpec initializer;
  Rows read;
  ASSERT_TRUE(Read(ExampleManifest(), file, &initializer, &read).ok());
  EXPECT_EQ(*initializer.matrix, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(read.keys, rows.keys);
  EXPECT_EQ(read.frequencies, rows.frequencies);
  EXPECT_EQ(read.versions, rows.versions);
  EXPECT_EQ(read.data, rows.data);
  EXPECT_EQ(read.counted_keys, rows.counted_keys);
  EXPECT_EQ(read.counted_frequencies, rows.counted_frequencies);
  EXPECT_EQ(read.counted_versions, rows.counted_versions);
  EXPECT_EQ(read.filter_counters, rows.filter_counters);
  EXPECT_EQ(read.applies, 42);
}

TEST(PartFileTest, GivesHeadsWithoutColumns) {
  const Rows rows = ExampleRows();
  std::string file = Write(ExampleManifest(), rows);
  InitializerSpec initializer;
  Rows read;
  ASSERT_TRUE(Read(ExampleManifest(), file, &initializer, &read, RowFields::kHeads).ok());
  EXPECT_EQ(read.keys, rows.keys);
  EXPECT_EQ(read.frequencies, rows.frequencies);
  EXPECT_EQ(read.versions, rows.versions);
  EXPECT_TRUE(read.data.empty());
  EXPECT_EQ(read.counted_keys, rows.counted_keys);
  const float damaged = rows.data[7];
  const size_t at = file.find(std::string_view(reinterpret_cast<const char*>(&damaged), sizeof(damaged)));
  ASSERT_NE(at, std::string::npos);
  file[at] = static_cast<char>(file[at] ^ 1);
  EXPECT_EQ(Read(ExampleManifest(), file, &initializer, &read, RowFields::kHeads).code(), StatusCode::kDataLoss);
}

TEST(PartFileTest, WithoutAnInitializerTheReadersOwnStays) {
  Manifest manifest = ExampleManifest();
  manifest.initializer = InitializerSpec();
  manifest.has_initializer = false;
  InitializerSpec initializer;
  initializer.kind = InitializerKind::kUniform;
  initializer.seed = 7;
  Rows read;
  ASSERT_TRUE(Read(manifest, Write(manifest, ExampleRows()), &initializer, &read).ok());
  EXPECT_EQ(initializer.kind, InitializerKind::kUniform);
  EXPECT_EQ(initializer.seed, 7u);
  EXPECT_EQ(read.keys, ExampleRows().keys);
}

TEST(PartFileTest, EveryFlippedBitAndEveryLengthIsDataLoss) {
  const std::string file = Write(ExampleManifest(), ExampleRows());
  InitializerSpec initializer;
  for (size_t bit = 0; bit < file.size() * 8; ++bit) {
    std::string damaged = file;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    Rows read;
    const Status status = Read(ExampleManifest(), damaged, &initializer, &read);
    ASSERT_EQ(status.code(), StatusCode::kDataLoss) << "bit " << bit << ": " << status.ToString();
  }
  for (size_t n = 0; n < file.size(); ++n) {
    Rows read;
    ASSERT_EQ(Read(ExampleManifest(), file.substr(0, n), &initializer, &read).code(), StatusCode::kDataLoss) << n;
  }
}

TEST(PartFileTest, AFileOfAnotherManifestIsDataLoss) {
  const std::string file = Write(ExampleManifest(), ExampleRows());
  InitializerSpec initializer;
  Rows read;
  Manifest more_rows = ExampleManifest();
  more_rows.num_rows = 6;
  EXPECT_EQ(Read(more_rows, file, &initializer, &read).code(), StatusCode::kDataLoss);
  Manifest wider = ExampleManifest();
  wider.columns[1].dim = 2;
  EXPECT_EQ(Read(wider, file, &initializer, &read).code(), StatusCode::kDataLoss);
  Manifest larger_matrix = ExampleManifest();
  larger_matrix.initializer.matrix_rows = 4;
  EXPECT_EQ(Read(larger_matrix, file, &initializer, &read).code(), StatusCode::kDataLoss);
}

// Another save's file may have as many rows of the same columns.
TEST(PartFileTest, AFileWithOtherRowsIsDataLoss) {
  const Manifest manifest = ExampleManifest();
  Rows others = ExampleRows();
  others.data[0] += 1.0f;
  const std::string swapped = Write(manifest, others), file = Write(manifest, ExampleRows());
  InitializerSpec initializer;
  Rows read;
  EXPECT_TRUE(Read(manifest, file, &initializer, &read).ok());
  const Status status = Read(manifest, swapped, &initializer, &read);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("expected the part file that was saved"), std::string::npos) << status.ToString();
}

TEST(PartFileTest, AKeyThatIsNotOneOfTheManifestsTypeIsDataLoss) {
  Manifest manifest = ExampleManifest();
  manifest.key_dtype = KeyType::kUint32;
  const auto status_with = [&](int64_t key, int64_t counted) {
    Rows rows = ExampleRows(), all;
    rows.keys = {4, 5, 6, UINT32_MAX, key};
    rows.counted_keys = {100, counted};
    InitializerSpec initializer;
    return Read(manifest, Write(manifest, rows), &initializer, &all);
  };
  EXPECT_TRUE(status_with(7, 101).ok());
  for (const Status& status : {status_with(-1, 101), status_with(int64_t{1} << 32, 101), status_with(7, -1)}) {
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_NE(status.message().find("expected uint32 keys in"), std::string::npos) << status.message();
  }
}

TEST(PartFileTest, TheWritersErrorIsGiven) {
  PartFileWriter writer([](std::string_view) { return ResourceExhaustedError("full"); });
  EXPECT_EQ(writer.Begin(ExampleManifest().initializer, 2).code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(writer.Add(ExampleRows()).code(), StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace multitier::part_file_test
