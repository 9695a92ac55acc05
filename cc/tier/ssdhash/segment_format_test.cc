// The bytes of docs/formats/ssdhash.md, and that nothing else is accepted.

#include "cc/tier/ssdhash/segment_format.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cc/base/crc32c.h"

namespace multitier::segment_format_test {
namespace {

std::string Hex(const uint8_t* data, size_t bytes) {
  std::string out;
  for (size_t i = 0; i < bytes; ++i) {
    char text[3];
    std::snprintf(text, sizeof(text), "%02x", data[i]);
    out += text;
  }
  return out;
}
std::string Hex(const std::string& s, size_t begin, size_t bytes) {
  return Hex(reinterpret_cast<const uint8_t*>(s.data()) + begin, bytes);
}

SegmentHeader Example() {
  InstanceId instance;
  for (size_t i = 0; i < instance.size(); ++i) instance[i] = static_cast<uint8_t>(i);
  return SegmentHeader::Make(instance, 1, false, 1 << 20, *RowLayout::Create(2, DType::kFloat32));
}

TEST(SegmentFormatTest, WorkedExampleOfTheFormatPage) {
  const SegmentHeader header = Example();
  const std::string bytes = header.Encode();
  ASSERT_EQ(bytes.size(), 4096u);
  EXPECT_EQ(Hex(bytes, 0, 77),
            "4d54535344534547"
            "01000000"
            "01000000"
            "000102030405060708090a0b0c0d0e0f"
            "0100000000000000"
            "00000000"
            "c0300000"
            "10000000"
            "4e000000"
            "00000000"
            "02000000"
            "00000000"
            "05000000"
            "76616c7565");
  EXPECT_EQ(Hex(bytes, 504, 8),
            "01000000"
            "e69077ea");
  EXPECT_EQ(bytes.find_first_not_of('\0', 512), std::string::npos);

  const SegmentGeometry geometry(header);
  const float value[4] = {1.0f, 0.5f, 0, 0};
  uint8_t record[52];
  EncodeRecord(geometry, 1, RecordHeader{7, 3, 2, 1}, 12, 0, reinterpret_cast<const uint8_t*>(value), 16, record);
  EXPECT_EQ(geometry.RecordOffset(1), 4096u + 52);
  EXPECT_EQ(Hex(record, sizeof(record)),
            "0700000000000000"
            "0c00000000000000"
            "0300000000000000"
            "02000000"
            "01000000"
            "c16c3601"
            "0000803f"
            "0000003f"
            "0000000000000000");
}

TEST(SegmentFormatTest, HeaderComesBackAndEveryFlippedBitIsRefused) {
  for (const size_t name_bytes : {5, 3400, 5000}) {  // a sector, a block with no room left, two blocks
    SCOPED_TRACE(name_bytes);
    SegmentHeader header = Example();
    header.columns[0].name = std::string(name_bytes, 'n');
    std::string bytes = header.Encode();
    ASSERT_EQ(bytes.size(), name_bytes == 5000 ? 8192u : 4096u);
    auto* data = reinterpret_cast<uint8_t*>(bytes.data());
    size_t needed = 0;
    if (bytes.size() > 4096) {
      EXPECT_EQ(SegmentHeader::Decode(data, 4096, "f", &needed).status().code(), StatusCode::kOutOfRange);
      EXPECT_EQ(needed, 8192u);
    }
    const Result<SegmentHeader> decoded = SegmentHeader::Decode(data, bytes.size(), "f", &needed);
    ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
    EXPECT_EQ((*decoded).Encode(), bytes);
    uint32_t sectors = 0;
    for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      const size_t index = bit / 8 / kSectorBytes;
      data[bit / 8] = static_cast<uint8_t>(data[bit / 8] ^ 1 << bit % 8);
      ASSERT_EQ(SegmentHeader::Decode(data, bytes.size(), "f", &needed).status().code(), StatusCode::kDataLoss) << bit;
      // A sector whose bit was flipped is neither whole nor lost.
      ASSERT_FALSE(DecodeHeaderSector(header.instance, header.id, index, data + index * kSectorBytes, &sectors)) << bit;
      ASSERT_FALSE(AllZero(data + index * kSectorBytes, kSectorBytes)) << bit;
      data[bit / 8] = static_cast<uint8_t>(data[bit / 8] ^ 1 << bit % 8);
    }
  }
}

TEST(SegmentFormatTest, SectorOfAHeaderIsGoodOnlyInItsPlaceSegmentAndInstance) {
  SegmentHeader header = Example();
  header.columns[0].name = std::string(1200, 'n');  // the second and the third sector differ in their places only
  const std::string bytes = header.Encode();
  const auto* second = reinterpret_cast<const uint8_t*>(bytes.data()) + kSectorBytes;
  uint32_t sectors = 0;
  ASSERT_TRUE(DecodeHeaderSector(header.instance, header.id, 1, second, &sectors));
  EXPECT_EQ(sectors, 3u);
  EXPECT_FALSE(DecodeHeaderSector(header.instance, header.id, 2, second, &sectors));
  EXPECT_FALSE(DecodeHeaderSector(header.instance, header.id + 1, 1, second, &sectors));
  InstanceId other = header.instance;
  other[3] ^= 1;
  EXPECT_FALSE(DecodeHeaderSector(other, header.id, 1, second, &sectors));
}

TEST(SegmentFormatTest, OtherFormatIsRefusedByItsNumber) {
  for (const uint32_t version : {0, 2}) {
    const SegmentHeader header = Example();
    std::string bytes = header.Encode();
    auto* data = reinterpret_cast<uint8_t*>(bytes.data());
    EncodeFixed32(data + 8, version);
    const uint8_t index[4] = {0, 0, 0, 0};
    EncodeFixed32(data + 508, ExtendCrc32c(ExtendCrc32c(header.Seed(), index, 4), data, 508));
    size_t needed = 0;
    const Status status = SegmentHeader::Decode(data, bytes.size(), "f", &needed).status();
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_NE(status.message().find(StrCat("found ", version)), std::string::npos) << status.message();
  }
}

// Encode writes right checksums around whatever the header says.
TEST(SegmentFormatTest, ImpossibleHeadersAreRefusedThoughTheirChecksumsAreRight) {
  const auto with = [](int n, int dim, const char* name) {
    SegmentHeader header = Example();
    for (int i = 0; i < n; ++i) header.columns.push_back({name[0] == '#' ? StrCat("s", i) : name, DType::kFloat32, dim, 0.0f});
    header.row_bytes = static_cast<uint32_t>(header.BytesOfColumns(static_cast<uint32_t>(header.columns.size())));
    return header;
  };
  SegmentHeader no_slots = Example(), many_slots = Example(), other_bytes = Example();
  no_slots.slots = 0;
  many_slots.slots = (1u << 30) + 1;
  other_bytes.row_bytes += 16;
  size_t needed = 0;
  const auto decode = [&needed](const SegmentHeader& header) {
    const std::string bytes = header.Encode();
    return SegmentHeader::Decode(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), "f", &needed).status();
  };
  EXPECT_TRUE(decode(with(3, 4, "#")).ok());
  EXPECT_TRUE(decode(with(255, 1 << 20, "#")).ok());
  EXPECT_EQ(with(1024, 1 << 20, "#").row_bytes, 16u) << "the bytes of its columns do not fit 32 bits";
  for (const SegmentHeader& header :
       {with(1024, 1 << 20, "#"), with(256, 1 << 20, "#"), with(1, 0, "#"), with(1, -1, "#"), with(1, 1 << 21, "#"),
        with(2, 1, "twice"), with(1, 1, "value"), with(1, 1, ""), no_slots, many_slots, other_bytes}) {
    EXPECT_EQ(decode(header).code(), StatusCode::kDataLoss);
  }
}

TEST(SegmentFormatTest, GeometryOfAFileHasNoMoreSlotsThanTheFileHasRoomFor) {
  SegmentHeader header = Example();
  header.slots = 1u << 30;
  EXPECT_EQ(SegmentGeometry(header, header.EndOfRecords(7)).slots, 7u);
  EXPECT_EQ(SegmentGeometry(header, header.EndOfRecords(7) - 1).slots, 6u);
  EXPECT_EQ(SegmentGeometry(header, header.header_bytes() - 1).slots, 0u);
  EXPECT_EQ(SegmentGeometry(header, ~uint64_t{0} >> 1).slots, 1u << 30);
}

// Sizes that wrap around, and widths for which no bytes are stored.
TEST(SegmentFormatTest, ImpossibleFootersAreRefusedThoughTheirChecksumsAreRight) {
  std::vector<FooterEntry> entries(400);
  for (size_t i = 0; i < entries.size(); ++i) entries[i].version = static_cast<int64_t>(i);
  const std::string good = EncodeFooter(77, 8192, entries);
  SegmentTrailer trailer;
  std::vector<FooterEntry> found;
  // `change` gets the footer's fixed part and its trailer; the checksums are made right again.
  const auto decode = [&](const auto& change) {
    std::string footer = good;
    auto* data = reinterpret_cast<uint8_t*>(footer.data());
    uint8_t* at = data + footer.size() - 32;
    change(data, at);
    const uint64_t bytes = DecodeFixed64(at + 16);
    if (bytes <= footer.size()) EncodeFixed32(at + 24, ExtendCrc32c(77, data, bytes));
    EncodeFixed32(at + 28, ExtendCrc32c(77, at, 28));
    const bool is_trailer = DecodeTrailer(77, data + footer.size() - kBlockBytes, &trailer);
    return is_trailer && trailer.EndsAt(8192 + footer.size()) && DecodeFooter(77, data, footer.size(), &found);
  };
  ASSERT_TRUE(decode([](uint8_t*, uint8_t*) {}));
  for (const uint64_t bytes : {~uint64_t{0}, ~uint64_t{0} - 40, ~uint64_t{0} - kBlockBytes, uint64_t{1} << 63}) {
    EXPECT_FALSE(decode([bytes](uint8_t*, uint8_t* at) { EncodeFixed64(at + 16, bytes); })) << bytes;
    EXPECT_FALSE(decode([bytes](uint8_t*, uint8_t* at) {
      EncodeFixed64(at + 16, bytes);
      EncodeFixed64(at + 8, 8192 + RoundUpToBlock(1) - RoundUpToBlock(bytes + 32));
    })) << bytes;
  }
  for (const uint32_t seq_width : {1, 2, 3, 5, 7}) {  // as many bytes as before, in other widths
    EXPECT_FALSE(decode([seq_width](uint8_t* data, uint8_t*) {
      EncodeFixed32(data + 12, seq_width);
      EncodeFixed32(data + 16, 4 - std::min(4u, seq_width));
      EncodeFixed32(data + 20, seq_width > 4 ? ~0u - (seq_width - 5) : 0);
    })) << seq_width;
  }
}

TEST(SegmentFormatTest, RecordIsGoodOnlyInItsSlotAndSegment) {
  const SegmentHeader header = Example();
  const SegmentGeometry geometry(header);
  SegmentHeader other = header;
  other.id = 2;
  uint8_t record[52];
  RecordFields fields;
  EncodeRecord(geometry, 5, RecordHeader{-1, -1, 9, 1}, 3, kTombstoneFlag, nullptr, 0, record);
  ASSERT_TRUE(DecodeRecord(geometry, 5, record, true, &fields));
  EXPECT_EQ(fields.header.key, -1);
  EXPECT_EQ(fields.flags, kTombstoneFlag);
  EXPECT_FALSE(DecodeRecord(geometry, 6, record, true, &fields));
  EXPECT_FALSE(DecodeRecord(SegmentGeometry(other), 5, record, true, &fields));
  for (size_t bit = 0; bit < sizeof(record) * 8; ++bit) {
    record[bit / 8] = static_cast<uint8_t>(record[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(DecodeRecord(geometry, 5, record, true, &fields)) << bit;
    record[bit / 8] = static_cast<uint8_t>(record[bit / 8] ^ 1 << bit % 8);
  }
}

TEST(SegmentFormatTest, FooterOfAnyEntriesComesBack) {
  std::mt19937_64 random(3);
  for (const size_t n : {0, 1, 2, 7, 8, 9, 1000}) {
    for (int shape = 0; shape < 16; ++shape) {
      std::vector<FooterEntry> entries(n);
      for (size_t i = 0; i < n; ++i) {
        entries[i].key = static_cast<int64_t>(random());
        entries[i].seq = (shape & 1) != 0 ? 100 + i : random() >> (shape & 2 ? 40 : 1);
        entries[i].version = (shape & 4) != 0 ? 5 : static_cast<int64_t>(random());
        entries[i].frequency = static_cast<uint32_t>(random());
        entries[i].num_columns = (shape & 8) != 0 ? 3 : static_cast<uint16_t>(random());
        entries[i].tombstone = random() % 3 == 0;
      }
      std::string footer = EncodeFooter(77, 8192, entries);
      ASSERT_EQ(footer.size() % kBlockBytes, 0u);
      const auto* data = reinterpret_cast<const uint8_t*>(footer.data());
      SegmentTrailer trailer;
      for (const bool proven : {false, true}) {
        auto* last_block = reinterpret_cast<uint8_t*>(footer.data()) + footer.size() - kBlockBytes;
        if (proven) ProveTrailer(77, last_block);
        ASSERT_TRUE(DecodeTrailer(77, last_block, &trailer));
        EXPECT_EQ(trailer.offset, 8192u);
        ASSERT_EQ(trailer.bytes, footer.size());
        EXPECT_EQ(trailer.proven, proven);
        EXPECT_FALSE(DecodeTrailer(78, last_block, &trailer));
      }
      std::vector<FooterEntry> found;
      ASSERT_TRUE(DecodeFooter(77, data, footer.size(), &found));
      ASSERT_EQ(found.size(), n);
      for (size_t i = 0; i < n; ++i) {
        const bool same = found[i].key == entries[i].key && found[i].seq == entries[i].seq &&
                          found[i].version == entries[i].version && found[i].frequency == entries[i].frequency &&
                          found[i].num_columns == entries[i].num_columns && found[i].tombstone == entries[i].tombstone;
        ASSERT_TRUE(same) << n << " " << shape << " " << i;
      }
      footer[random() % 40] ^= 4;
      EXPECT_FALSE(DecodeFooter(77, data, footer.size(), &found));
    }
  }
}

TEST(SegmentFormatTest, SegmentsAreNoLargerThanAskedAndNoRecordStraddlesCheaply) {
  for (const int dim : {1, 3, 32, 100, 250, 900, 1000, 5000}) {
    const RowLayout layout = *RowLayout::Create(dim, DType::kFloat32);
    const SegmentHeader header = SegmentHeader::Make({}, 1, false, 1 << 20, layout);
    EXPECT_LE(header.MaxFileBytes(), uint64_t{1} << 20) << dim;
    EXPECT_GE(header.EndOfRecords(header.slots), (uint64_t{1} << 20) * 1 / 3) << dim;
    const SegmentGeometry geometry(header);
    for (uint32_t slot = 0; slot < header.slots; ++slot) ASSERT_EQ(geometry.RecordOffset(slot), header.RecordOffset(slot));
    if (header.records_per_block() == 0) continue;
    for (uint32_t slot = 0; slot < header.slots; ++slot) {
      ASSERT_LE(header.RecordOffset(slot) % kBlockBytes + header.record_bytes(), kBlockBytes) << dim;
    }
  }
}

}  // namespace
}  // namespace multitier::segment_format_test
