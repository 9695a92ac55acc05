// What arrays of rows give back, and that no damaged byte of them is taken for a row.

#include "cc/checkpoint_files/column_files.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "cc/checkpoint_files/column_rows.h"
#include "cc/checkpoint_files/part_file.h"

namespace multitier::column_files_test {
namespace {

constexpr int kRows = 40'000;  // more than one read of the reader
const char* const kColumns[] = {"keys", "frequencies", "versions", "values", "slots"};

Rows ExampleRows() {
  Rows rows;
  rows.columns = {{"value", DType::kFloat32, 30, 0.0f}, {"slot", DType::kFloat32, 2, 0.1f}};
  rows.Resize(kRows);
  for (int i = 0; i < kRows; ++i) {
    rows.keys[i] = 7 * i - 100;
    rows.frequencies[i] = i % 5;
    rows.versions[i] = i - 1;
    for (int j = 0; j < 32; ++j) rows.data[32 * i + j] = static_cast<float>(i) - static_cast<float>(j) / 4;
  }
  return rows;
}

class ColumnFilesTest : public testing::Test {
 protected:
  ColumnFilesTest() {
    for (const char* const column : kColumns) (void)Env::Posix()->DeleteFile(FileOf(column));
    for (const char* const column : {"counted_keys", "counted_frequencies"}) (void)Env::Posix()->DeleteFile(FileOf(column));
    ColumnFiles files(path_, /*slots=*/true);
    EXPECT_TRUE(files.Open().ok());
    EXPECT_TRUE(files.Add(ExampleRows()).ok());
    EXPECT_TRUE(files.Finish().ok());
    const Json described = files.Describe();
    const Json entries = **described.GetObject("files");
    list_.rows = kRows;
    for (const char* const column : kColumns) {
      const Json* const entry = *entries.GetObject(column);
      list_.items.push_back({column, FileOf(column), static_cast<uint32_t>(*entry->GetUint("crc32"))});
      manifest_.linked.push_back({column, *entry->GetInt("size"), kRows});
    }
  }

  std::string FileOf(const std::string& column) const { return path_ + "." + column; }

  // The rows of a part file that has the arrays.
  Status Read(Rows* all) {
    std::string file;
    PartFileWriter writer([&](std::string_view bytes) {
      file += bytes;
      return OkStatus();
    });
    EXPECT_TRUE(writer.Begin({}, 30).ok());
    EXPECT_TRUE(writer.AddColumns(list_).ok());
    EXPECT_TRUE(writer.End().ok());
    manifest_.columns = ExampleRows().columns;
    manifest_.num_rows = writer.rows();
    manifest_.checksum = writer.checksum();
    const auto read_at = [&](uint64_t offset, size_t n, char* out) {
      file.copy(out, n, offset);
      return OkStatus();
    };
    PartFileReader reader("part", file.size(), manifest_, read_at, [&](const std::string& name) -> Result<LinkedFile> {
      MT_ASSIGN_OR_RETURN(std::shared_ptr<RandomAccessFile> opened, Env::Posix()->NewRandomAccessFile(FileOf(name)));
      MT_ASSIGN_OR_RETURN(const uint64_t bytes, opened->Size());
      return LinkedFile{name, bytes, [opened](uint64_t offset, size_t n, char* out) { return opened->Read(offset, n, out); }};
    });
    InitializerSpec initializer;
    MT_RETURN_IF_ERROR(reader.Begin(&initializer));
    for (Rows block; !reader.ended();) {
      MT_RETURN_IF_ERROR(reader.Next(&block));
      for (auto of : {&Rows::keys, &Rows::frequencies, &Rows::versions}) {
        (all->*of).insert((all->*of).end(), (block.*of).begin(), (block.*of).end());
      }
      all->data.insert(all->data.end(), block.data.begin(), block.data.end());
    }
    return OkStatus();
  }

  const std::string path_ = testing::TempDir() + "/column_files_" + std::to_string(getpid());
  ColumnList list_;
  Manifest manifest_;
};

TEST_F(ColumnFilesTest, APartOfArraysGivesTheRowsBack) {
  Rows found;
  const Status status = Read(&found);
  ASSERT_TRUE(status.ok()) << status.ToString();
  const Rows expected = ExampleRows();
  EXPECT_EQ(found.keys, expected.keys);
  EXPECT_EQ(found.frequencies, expected.frequencies);
  EXPECT_EQ(found.versions, expected.versions);
  EXPECT_EQ(found.data, expected.data);
}

TEST_F(ColumnFilesTest, AByteThatChangedAndAFileThatWasCutAreDataLossWithThePath) {
  for (const char* const column : kColumns) {
    std::fstream file(FileOf(column), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(1000);
    const auto byte = static_cast<char>(file.get());
    for (const char written : {static_cast<char>(byte ^ 1), byte}) {
      file.seekp(1000);
      file.put(written).flush();
      Rows found;
      const Status status = Read(&found);
      if (written == byte) {
        EXPECT_TRUE(status.ok()) << status.ToString();
      } else {
        EXPECT_EQ(status.code(), StatusCode::kDataLoss) << column;
        EXPECT_NE(status.message().find(FileOf(column)), std::string::npos) << status.ToString();
      }
    }
  }
  ASSERT_EQ(::truncate(FileOf("values").c_str(), 1000), 0);
  Rows found;
  EXPECT_EQ(Read(&found).code(), StatusCode::kDataLoss);
}

}  // namespace
}  // namespace multitier::column_files_test
