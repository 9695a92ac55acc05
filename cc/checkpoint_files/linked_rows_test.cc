// What a part with a linked file gives back, and that no damaged byte of a row in that file is ever taken for a row.

#include "cc/checkpoint_files/linked_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "cc/checkpoint_files/part_file.h"

namespace multitier::linked_rows_test {
namespace {

constexpr uint32_t kSlots = 300;
constexpr int kDim = 3;

std::vector<ColumnSpec> Columns() { return {{"value", DType::kFloat32, kDim, 0.0f}, {"slot", DType::kFloat32, 2, 0.5f}}; }

// A segment of kSlots records. Record i has key 1000 + i and value i, i, i; every third one has no slot. Record 7 is a
// tombstone.
class LinkedRowsTest : public testing::Test {
 protected:
  LinkedRowsTest() {
    header_.instance.fill(9);
    header_.id = 5;
    header_.slots = kSlots + 10;
    header_.columns = Columns();
    header_.row_bytes = static_cast<uint32_t>(header_.BytesOfColumns(2));
    const SegmentGeometry geometry(header_);
    segment_ = header_.Encode();
    segment_.resize(header_.EndOfRecords(header_.slots));
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      RecordHeader record{1000 + slot, /*version=*/slot, /*frequency=*/2 * slot, slot % 3 == 0 ? 1u : 2u};
      std::vector<float> row(8, 0.0f);  // columns are rounded up to 16 bytes
      std::fill_n(row.begin(), kDim, static_cast<float>(slot));
      if (slot % 3 != 0) std::fill_n(row.begin() + 4, 2, -static_cast<float>(slot));
      EncodeRecord(geometry, slot, record, slot + 1, slot == 7 ? kTombstoneFlag : 0,
                   reinterpret_cast<const uint8_t*>(row.data()), row.size() * sizeof(float),
                   reinterpret_cast<uint8_t*>(segment_.data()) + geometry.RecordOffset(slot));
    }
    records_.header = header_.Encode();
    records_.slots = kSlots;
    records_.rows.resize((kSlots + 63) / 64);
    for (uint32_t slot = 0; slot < kSlots; slot += slot > 100 ? 1 : 2) Mark(slot);
  }

  void Mark(uint32_t slot) { records_.rows[slot / 64] |= uint64_t{1} << slot % 64; }
  bool Marked(uint32_t slot) const { return (records_.rows[slot / 64] >> slot % 64 & 1) != 0; }

  // A part with the linked file and two rows of its own.
  void WritePart() {
    manifest_ = Manifest();
    manifest_.columns = Columns();
    manifest_.has_initializer = false;
    manifest_.linked = {{"data-linke-of-dfile", static_cast<int64_t>(segment_.size()), records_.count()}};
    PartFileWriter writer([this](std::string_view bytes) {
      part_ += bytes;
      return OkStatus();
    });
    part_.clear();
    EXPECT_TRUE(writer.Begin(InitializerSpec(), kDim).ok());
    EXPECT_TRUE(writer.AddLinked(records_).ok());
    Rows rows;
    rows.columns = Columns();
    rows.keys = {1, 2};
    rows.frequencies = rows.versions = {3, 4};
    rows.data.assign(10, 1.5f);
    EXPECT_TRUE(writer.Add(rows).ok());
    EXPECT_TRUE(writer.End().ok());
    manifest_.num_rows = writer.rows();
    manifest_.file = "part";
    manifest_.checksum = writer.checksum();
  }

  static ReadAt Reads(const std::string& bytes) {
    return [&bytes](uint64_t offset, size_t n, char* out) -> Status {
      if (offset + n > bytes.size()) return DataLossError("read of 'linked' at offset ", offset, ": short");
      std::memcpy(out, bytes.data() + offset, n);
      return OkStatus();
    };
  }

  Status Read(Rows* all) {
    const Result<Manifest> manifest = Manifest::Parse(manifest_.ToJson());
    if (!manifest.ok()) return manifest.status();
    PartFileReader reader("part", part_.size(), *manifest, Reads(part_), [this](const std::string& file) -> Result<LinkedFile> {
      EXPECT_EQ(file, "data-linke-of-dfile");
      return LinkedFile{"linked", segment_.size(), Reads(segment_)};
    });
    InitializerSpec initializer;
    MT_RETURN_IF_ERROR(reader.Begin(&initializer));
    for (Rows rows; !reader.ended();) {
      MT_RETURN_IF_ERROR(reader.Next(&rows));
      all->keys.insert(all->keys.end(), rows.keys.begin(), rows.keys.end());
      all->versions.insert(all->versions.end(), rows.versions.begin(), rows.versions.end());
      all->frequencies.insert(all->frequencies.end(), rows.frequencies.begin(), rows.frequencies.end());
      all->data.insert(all->data.end(), rows.data.begin(), rows.data.end());
    }
    return OkStatus();
  }
  Status Read() {
    Rows rows;
    return Read(&rows);
  }
  void ExpectLoss(const std::string& message) {
    const Status status = Read();
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
    EXPECT_NE(status.message().find(message), std::string::npos) << status.ToString();
  }

  SegmentHeader header_;
  std::string segment_, part_;
  LinkedRecords records_;
  Manifest manifest_;
};

TEST_F(LinkedRowsTest, MarkedRecordsAreRowsOfThePart) {
  WritePart();
  Rows rows;
  const Status status = Read(&rows);
  ASSERT_TRUE(status.ok()) << status.ToString();
  size_t i = 0;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    if (!Marked(slot)) continue;
    ASSERT_EQ(rows.keys[i], 1000 + slot);
    EXPECT_EQ(rows.versions[i], slot);
    EXPECT_EQ(rows.frequencies[i], 2 * slot);
    EXPECT_EQ(rows.data[i * 5 + 2], static_cast<float>(slot));
    EXPECT_EQ(rows.data[i * 5 + 4], slot % 3 == 0 ? 0.5f : -static_cast<float>(slot)) << "a column that it lacks";
    ++i;
  }
  EXPECT_EQ(i + 2, rows.keys.size());
  EXPECT_EQ(rows.keys[i], 1);
  EXPECT_EQ(manifest_.num_rows, static_cast<int64_t>(rows.keys.size()));
}

TEST_F(LinkedRowsTest, EveryFlippedByteOfARowIsFound) {
  WritePart();
  const std::string good = segment_;
  for (size_t at = 0; at < segment_.size(); at += 5) {
    segment_[at] = static_cast<char>(segment_[at] ^ 1 << at % 8);
    const bool in_header = at < header_.header_bytes();
    bool in_row = false;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
      const uint64_t begin = header_.RecordOffset(slot);
      in_row = in_row || (Marked(slot) && at >= begin && at < begin + header_.record_bytes());
    }
    if (in_header || in_row) {
      ExpectLoss("linked file 'linked': damaged at offset");
    } else {
      EXPECT_TRUE(Read().ok()) << "a record that is no row, at " << at;
    }
    segment_ = good;
  }
}

TEST_F(LinkedRowsTest, AnotherSegmentOrACutOneIsFound) {
  WritePart();
  const std::string good = segment_;
  SegmentHeader other = header_;
  other.id = 6;
  segment_.replace(0, other.header_bytes(), other.Encode());
  ExpectLoss("expected the header of segment 5, found another one");
  segment_ = good;
  segment_.resize(segment_.size() - 1);
  ExpectLoss("expected " + std::to_string(good.size()) + " bytes, found " + std::to_string(good.size() - 1));
  manifest_.linked[0].bytes = 8192;
  segment_.resize(8192);
  ExpectLoss("expected at least");
}

TEST_F(LinkedRowsTest, ATombstoneIsNoRow) {
  Mark(7);
  WritePart();
  ExpectLoss("expected the record of a row");
}

TEST_F(LinkedRowsTest, PartAndManifestMustAgree) {
  WritePart();
  manifest_.linked[0].rows -= 1;
  ExpectLoss("checkpoint part part: damaged at offset 8: expected the rows of linked file 0 of 1");
  manifest_.linked[0].rows += 1;
  manifest_.linked.push_back(manifest_.linked[0]);
  ExpectLoss("expected 2 linked files, found 1");
  manifest_.linked.clear();
  ExpectLoss("expected the rows of linked file 0 of 0");
}

TEST_F(LinkedRowsTest, ColumnsOfThePartMustFit) {
  WritePart();
  manifest_.columns[1].dim = 3;
  ExpectLoss("expected the columns of its part");
}

// Rows that are made of small records may be large: memory is bounded by them, too.
TEST_F(LinkedRowsTest, RowsOfManyMoreColumnsComeAFewAtATime) {
  WritePart();
  std::vector<ColumnSpec> wide = Columns();
  wide.push_back({"more", DType::kFloat32, 1 << 20, 0.25f});
  const auto rows_of = [&](const std::vector<ColumnSpec>& columns) {
    Result<std::unique_ptr<LinkedRows>> linked =
        LinkedRows::Open({"linked", segment_.size(), Reads(segment_)}, records_, columns);
    Rows rows;
    rows.columns = columns;
    EXPECT_TRUE(linked.ok() && (*linked)->Next(&rows).ok());
    return rows;
  };
  EXPECT_EQ(rows_of(Columns()).keys.size(), static_cast<size_t>(records_.count()));
  const Rows rows = rows_of(wide);
  EXPECT_LE(rows.data.size() * sizeof(float), size_t{16} << 20);
  EXPECT_EQ(rows.keys[0], 1000);
  EXPECT_EQ(rows.data[5 + 7], 0.25f);
}

}  // namespace
}  // namespace multitier::linked_rows_test
