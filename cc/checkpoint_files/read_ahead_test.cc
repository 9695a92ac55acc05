// Whether blocks that are read ahead arrive as those that are read in turn: all, in order, until the first error.

#include "cc/checkpoint_files/read_ahead.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>

namespace multitier::read_ahead_test {
namespace {

constexpr int64_t kRows = 1500, kDim = 8192;  // 49 MB: several blocks

Rows SomeRows(int64_t from, int64_t to) {
  Rows rows;
  rows.columns = {{"value", DType::kFloat32, static_cast<int>(kDim), 0.0f}};
  for (int64_t key = from; key < to; ++key) {
    rows.keys.push_back(key);
    rows.frequencies.push_back(key % 7);
    rows.versions.push_back(-key);
  }
  rows.data.assign(rows.keys.size() * kDim, static_cast<float>(from));
  return rows;
}

class ReadAheadTest : public testing::Test {
 protected:
  ReadAheadTest() {
    PartFileWriter writer([this](std::string_view bytes) {
      file_ += bytes;
      return OkStatus();
    });
    EXPECT_TRUE(writer.Begin(InitializerSpec(), kDim).ok());
    for (int64_t from = 0; from < kRows; from += 100) EXPECT_TRUE(writer.Add(SomeRows(from, from + 100)).ok());
    EXPECT_TRUE(writer.End().ok());
    manifest_.columns = SomeRows(0, 0).columns;
    manifest_.num_rows = kRows;
    manifest_.checksum = writer.checksum();
    manifest_.has_initializer = false;
  }

  // The keys that visit got before it or the file had an error.
  Status Read(int64_t refused_key, std::vector<int64_t>* keys) {
    PartFileReader reader("part", file_.size(), manifest_, [this](uint64_t offset, size_t n, char* out) -> Status {
      if (offset + n > file_.size()) return DataLossError("short");
      std::memcpy(out, file_.data() + offset, n);
      return OkStatus();
    });
    InitializerSpec initializer;
    MT_RETURN_IF_ERROR(reader.Begin(&initializer));
    EXPECT_TRUE(reader.has_many_blocks());
    return ReadAhead(&reader, [&, caller = std::this_thread::get_id()](Rows* rows) -> Status {
      EXPECT_EQ(std::this_thread::get_id(), caller);
      for (size_t i = 0; i < rows->keys.size(); ++i) {
        const int64_t key = rows->keys[i];
        if (key == refused_key) return InvalidArgumentError("refused");
        EXPECT_EQ(rows->versions[i], -key);
        EXPECT_EQ(rows->frequencies[i], key % 7);
        EXPECT_EQ(rows->data[i * kDim + kDim - 1], static_cast<float>(key / 100 * 100));
        keys->push_back(key);
      }
      return OkStatus();
    });
  }

  std::string file_;
  Manifest manifest_;
};

TEST_F(ReadAheadTest, AllRowsArriveInOrderOnTheCallersThread) {
  std::vector<int64_t> keys;
  ASSERT_TRUE(Read(-1, &keys).ok());
  ASSERT_EQ(keys.size(), static_cast<size_t>(kRows));
  for (int64_t key = 0; key < kRows; ++key) EXPECT_EQ(keys[static_cast<size_t>(key)], key);
}

TEST_F(ReadAheadTest, TheVisitorGetsWhatIsBeforeADamagedBlock) {
  file_[file_.size() / 2] ^= 1;
  std::vector<int64_t> keys;
  const Status status = Read(-1, &keys);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  EXPECT_EQ(keys.size(), 700u);
}

TEST_F(ReadAheadTest, AnErrorOfTheVisitorEndsIt) {
  for (const int64_t refused : {0, 650, 1499}) {
    std::vector<int64_t> keys;
    EXPECT_EQ(Read(refused, &keys).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(keys.size(), static_cast<size_t>(refused));
  }
}

}  // namespace
}  // namespace multitier::read_ahead_test
