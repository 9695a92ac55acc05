// What recovery makes of headers that lack sectors, as a loss of power leaves them, and of those with a flipped bit. The first
// are known for what they are, and nothing that was acknowledged is lost; the second are DataLoss, whatever they seem to say.

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cc/tier/ssdhash/recovery_test_util.h"
#include "cc/tier/ssdhash/salvage.h"
#include "cc/tier/ssdhash/segment_format.h"

namespace multitier::header_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

constexpr char kTorn[] = "d/ssd-00000000000000ff-0.seg";

class HeaderTest : public RecoveryTest {
 protected:
  // Rows of 1,600 bytes and more, so that a sector holds none whole, with a header of `sectors` sectors.
  static RowLayout LayoutWithHeaderOf(uint32_t sectors) {
    RowLayout layout = *RowLayout::Create(400, DType::kFloat32);
    for (uint32_t i = 0; sectors > 1 && i < sectors; ++i) {
      ColumnSpec column;
      column.name = StrCat(std::string(466, 'n'), 1000 + i);
      column.dim = 1;
      layout = *layout.WithColumn(column);
    }
    const std::string header = SegmentHeader::Make({}, 1, false, 1 << 20, layout).Encode();
    uint32_t found = 0;
    EXPECT_TRUE(DecodeHeaderSector({}, 1, 0, reinterpret_cast<const uint8_t*>(header.data()), &found));
    EXPECT_EQ(found, sectors);
    return layout;
  }

  // A directory with a few segments of `rows` rows of the layout.
  void Fill(const RowLayout& layout, int64_t rows) {
    SsdHashOptions options = Options(&memory_, "d");
    options.min_segment_bytes = 256 << 10;
    std::unique_ptr<SsdHashTier> tier = *SsdHashTier::Open(options);
    ASSERT_TRUE(tier->SetLayout(std::make_shared<const RowLayout>(layout)).ok());
    const std::vector<uint8_t> row(layout.row_bytes(), 7);
    for (int64_t key = 0; key < rows; ++key) {
      WriteRecord record;
      record.header.key = key;
      record.header.num_columns = static_cast<uint32_t>(layout.columns().size());
      record.row_data = row.data();
      uint32_t location = 0;
      ASSERT_TRUE(tier->Write(Span<const WriteRecord>(&record, 1), &location).ok());
    }
  }

  std::string Bytes(const std::string& path) {
    std::unique_ptr<RandomAccessFile> file = *memory_.NewRandomAccessFile(path);
    std::string bytes(*file->Size(), '\0');
    EXPECT_TRUE(file->Read(0, bytes.size(), bytes.data()).ok());
    return bytes;
  }
  void SetBytes(const std::string& path, const std::string& bytes) {
    ASSERT_TRUE((*memory_.NewWritableFile(path))->Append(bytes.data(), bytes.size()).ok());
  }
  // The header of the torn segment, of the instance of `path`.
  std::string TornHeader(const std::string& path) {
    const std::string bytes = Bytes(path);
    size_t needed = 0;
    Result<SegmentHeader> header =
        SegmentHeader::Decode(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), path, &needed);
    EXPECT_TRUE(header.ok()) << header.status().ToString();
    header->id = 0xff;
    return header->Encode();
  }
  // Subsets of n sectors, as bits: all, or some of them and each single one.
  static void ForSubsets(uint32_t n, const std::function<void(uint64_t)>& call) {
    const uint64_t end = uint64_t{1} << n;
    if (n <= 8) {
      for (uint64_t subset = 0; subset < end; ++subset) call(subset);
      return;
    }
    for (uint32_t i = 0; i < n; ++i) call(uint64_t{1} << i);
    for (uint32_t i = 0; i < n; ++i) call(end - 1 - (uint64_t{1} << i));
    std::mt19937_64 random(n);
    for (int i = 0; i < 300; ++i) call(random() % end);
    call(0);
    call(end - 1);
  }
  static std::string WithoutSectors(std::string bytes, uint64_t lost) {
    for (size_t i = 0; lost >> i != 0; ++i) {
      if ((lost >> i & 1) != 0) bytes.replace(i * kSectorBytes, kSectorBytes, kSectorBytes, '\0');
    }
    return bytes;
  }
};

// Headers of one block, of one filled to its last sector, and of three blocks.
constexpr uint32_t kSectors[] = {1, 8, 24};

TEST_F(HeaderTest, EveryFlippedBitOfAHeaderIsDataLossThoughAnotherSegmentHasItsLayout) {
  for (const uint32_t sectors : {8, 9}) {  // one block, two blocks
    SCOPED_TRACE(sectors);
    ASSERT_NO_FATAL_FAILURE(Fill(LayoutWithHeaderOf(sectors), 200));
    const std::vector<std::string> segments = Segments();
    ASSERT_GT(segments.size(), 1u);
    const std::string path = segments[0], whole = Bytes(path);
    const uint64_t header_bytes = RoundUpToBlock(sectors * kSectorBytes);
    constexpr uint64_t kStride = 5;  // segment_format_test has every bit
    for (uint64_t bit = 0; bit < header_bytes * 8; bit += kStride) {
      ASSERT_TRUE(memory_.FlipBit(path, bit / 8, static_cast<int>(bit % 8)).ok());
      const Status opened = SsdHashTier::Open(Options(&memory_, "d")).status();
      ASSERT_EQ(opened.code(), StatusCode::kDataLoss) << "bit " << bit << ": " << opened.ToString();
      ASSERT_NE(opened.message().find(path), std::string::npos) << opened.ToString();
      ASSERT_TRUE(memory_.FlipBit(path, bit / 8, static_cast<int>(bit % 8)).ok());
    }
    EXPECT_EQ(Bytes(path), whole);
    Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(&memory_, "d"));
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    EXPECT_EQ((*tier)->recovery().rows, 200);
    tier->reset();
    ASSERT_NO_FATAL_FAILURE(StartAnew());
  }
}

TEST_F(HeaderTest, SectorsThatAreLostBeforeRecordsCostNothingWhereAnotherSegmentHasTheLayout) {
  for (const uint32_t sectors : kSectors) {
    SCOPED_TRACE(sectors);
    ASSERT_NO_FATAL_FAILURE(Fill(LayoutWithHeaderOf(sectors), 200));
    const std::vector<std::string> segments = Segments();
    ASSERT_GT(segments.size(), 1u);
    const std::string whole = Bytes(segments[0]);
    ForSubsets(sectors, [&](uint64_t lost) {
      SetBytes(segments[0], WithoutSectors(whole, lost));
      const Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(&memory_, "d"));
      ASSERT_TRUE(tier.ok()) << lost << ": " << tier.status().ToString();
      EXPECT_EQ((*tier)->recovery().lost_headers, lost == 0 ? 0 : 1) << lost;
      EXPECT_EQ((*tier)->recovery().rows, 200) << lost;
    });
    ASSERT_NO_FATAL_FAILURE(StartAnew());
  }
}

// What the first write of a segment may leave of it. There may be no other, or others of any layout.
TEST_F(HeaderTest, SectorsOfAHeaderAloneOrBeforePiecesOfRecordsWereNeverAcknowledged) {
  for (const bool others : {false, true}) {
    for (const uint32_t sectors : kSectors) {
      SCOPED_TRACE(StrCat(sectors, others ? " sectors, others" : " sectors"));
      ASSERT_NO_FATAL_FAILURE(Fill(LayoutWithHeaderOf(sectors), 200));
      const std::vector<std::string> segments = Segments();
      const std::string header = TornHeader(segments[0]);
      const std::string piece = Bytes(segments[0]).substr(header.size() + kSectorBytes, kSectorBytes);
      ASSERT_NE(piece.find_first_not_of('\0'), std::string::npos);
      if (!others) {
        ASSERT_NO_FATAL_FAILURE(EmptyTheList(&memory_));
      }
      for (size_t i = 0; i < segments.size() && !others; ++i) ASSERT_TRUE(memory_.DeleteFile(segments[i]).ok());
      ForSubsets(sectors, [&](uint64_t lost) {
        for (const bool records : {false, true}) {
          std::string bytes = WithoutSectors(header, lost) + std::string(16 * kBlockBytes, '\0');
          if (records) bytes.replace(header.size() + kSectorBytes, kSectorBytes, piece);
          SetBytes(kTorn, bytes);
          const Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(&memory_, "d"));
          ASSERT_TRUE(tier.ok()) << lost << " " << records << ": " << tier.status().ToString();
          ASSERT_FALSE(*memory_.FileExists(kTorn)) << lost;
          ASSERT_EQ((*tier)->recovery().lost_headers, records && lost != 0 ? 1 : 0) << lost;
          ASSERT_EQ((*tier)->recovery().rows, others ? 200 : 0);
        }
      });
      ASSERT_NO_FATAL_FAILURE(StartAnew());
    }
  }
}

// A record of it would not fit into a row of the table.
TEST_F(HeaderTest, SegmentOfOtherColumnsIsDataLossThoughItsChecksumsAreRight) {
  ASSERT_NO_FATAL_FAILURE(Fill(LayoutWithHeaderOf(1), 20));
  ASSERT_EQ(Segments().size(), 1u);
  const std::string first = Bytes(Segments()[0]);
  size_t needed = 0;
  SegmentHeader header = *SegmentHeader::Decode(reinterpret_cast<const uint8_t*>(first.data()), first.size(), "f", &needed);
  header.id = 0xff;
  header.columns[0].dim = 4000;
  header.row_bytes = 16000;
  header.slots = 2;
  std::string bytes = header.Encode();
  bytes.resize(header.MaxFileBytes());
  const std::vector<uint8_t> row(header.row_bytes, 9);
  EncodeRecord(SegmentGeometry(header), 0, RecordHeader{7, 1, 1, 1}, 1 << 20, 0, row.data(), row.size(),
               reinterpret_cast<uint8_t*>(bytes.data()) + header.RecordOffset(0));
  SetBytes(kTorn, bytes);
  const Status refused = SsdHashTier::Open(Options(&memory_, "d")).status();
  EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
  EXPECT_NE(refused.message().find(kTorn), std::string::npos) << refused.ToString();
  const Result<Salvage> salvaged = SalvageSegments(&memory_, "d");
  ASSERT_TRUE(salvaged.ok()) << salvaged.status().ToString();
  EXPECT_EQ(salvaged->headers.size(), 20u);
  EXPECT_EQ(salvaged->row_data, std::vector<uint8_t>(20 * 1600, 7));
  ASSERT_EQ(salvaged->damage.size(), 1u);
  EXPECT_NE(salvaged->damage[0].find(kTorn), std::string::npos);
}

// The proof that a file was synced says that something was acknowledged; the power cannot have taken its header.
TEST_F(HeaderTest, UnreadableSectorsOfAProvenSegmentAreDataLossAndTheFileStays) {
  ASSERT_NO_FATAL_FAILURE(Fill(LayoutWithHeaderOf(8), 20));
  ASSERT_EQ(Segments().size(), 1u);
  const std::string path = Segments()[0], whole = Bytes(path);
  const size_t records_end = whole.size() - 2 * kBlockBytes;
  for (uint64_t lost = 1; lost < 256; ++lost) {
    for (const bool footer_alone : {false, true}) {
      std::string bytes = WithoutSectors(whole, lost);
      if (footer_alone) bytes.replace(kBlockBytes, records_end - kBlockBytes, records_end - kBlockBytes, '\0');
      SetBytes(path, bytes);
      const Status refused = SsdHashTier::Open(Options(&memory_, "d")).status();
      ASSERT_EQ(refused.code(), StatusCode::kDataLoss) << lost << footer_alone;
      ASSERT_NE(refused.message().find(StrCat("'", path, "' at offset 0")), std::string::npos) << refused.ToString();
      ASSERT_EQ(Bytes(path), bytes);
    }
  }
}

TEST_F(HeaderTest, LongHeaderThatIsCutIsDataLossAndTheFileStays) {
  ASSERT_NO_FATAL_FAILURE(Fill(LayoutWithHeaderOf(24), 20));
  ASSERT_EQ(Segments().size(), 1u);
  for (const uint64_t size : {3 * kBlockBytes - 1, 2 * kBlockBytes, kBlockBytes, size_t{1000}}) {
    ASSERT_TRUE(memory_.Truncate(Segments()[0], size).ok());
    const Status refused = SsdHashTier::Open(Options(&memory_, "d")).status();
    EXPECT_EQ(refused.code(), StatusCode::kDataLoss) << size;
    EXPECT_NE(refused.message().find("is cut at offset"), std::string::npos) << refused.ToString();
    EXPECT_EQ(Segments().size(), 1u);
  }
}

// A segment whose acknowledged header is lost is not taken for one that was never written.
TEST_F(HeaderTest, HeaderOfZerosIsReadWithTheLayoutOfAnotherSegment) {
  for (const bool sealed : {true, false}) {
    SCOPED_TRACE(sealed);
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    ASSERT_TRUE(owner_.Put(Range(0, 3000), 1).ok());
    ASSERT_TRUE(owner_.Remove(Range(5, 10)).ok());
    ASSERT_TRUE(tier_->Sync().ok());
    if (sealed) Close();
    for (const std::string& path : Segments()) {
      for (const uint64_t sector : {0, 7}) {
        InMemoryEnv copy;
        CopyFiles(&copy);
        bool reserve = false, unused = false;
        ASSERT_NO_FATAL_FAILURE(ZeroSector(&copy, path, sector * 512, &reserve, &unused));
        const bool lost = !reserve && !unused;
        EXPECT_EQ(lost, !reserve && sector == 0);
        LogOwner owner;
        Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(&copy, "d"));
        ASSERT_TRUE(tier.ok()) << tier.status().ToString();
        owner.Attach(tier->get());
        EXPECT_EQ((*tier)->recovery().lost_headers, lost ? 1 : 0) << path;
        EXPECT_EQ((*tier)->recovery().first_damage, lost ? StrCat("'", path, "' at offset 0") : "");
        EXPECT_EQ(owner.Adopt(), std::vector<int64_t>());
        EXPECT_EQ(owner.size(), 2995u) << path;
        EXPECT_EQ(owner.Wrong(), std::vector<int64_t>()) << path;
        EXPECT_TRUE(owner.Put(Range(0, 3000), 2).ok());  // compaction goes over it
        EXPECT_TRUE((*tier)->Compact().ok());
        EXPECT_EQ(owner.Wrong(), std::vector<int64_t>()) << path;
        owner.Detach();
      }
    }
    ASSERT_NO_FATAL_FAILURE(StartAnew());
  }
}

TEST_F(HeaderTest, HeaderOfZerosIsReadWithTheFirstColumnsOfAWiderSegment) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  ASSERT_TRUE(tier_->SetLayout(TierTestLayout(3)).ok());
  ASSERT_TRUE(owner_.Put(Range(90, 180), 1).ok());
  Close();
  ASSERT_EQ(Segments().size(), 2u);
  bool reserve = false;
  ASSERT_NO_FATAL_FAILURE(ZeroSector(&memory_, Segments()[0], 0, &reserve));
  Result<std::unique_ptr<SsdHashTier>> tier = SsdHashTier::Open(Options(&memory_, "d"));
  ASSERT_TRUE(tier.ok()) << tier.status().ToString();
  EXPECT_EQ((*tier)->recovery().lost_headers, 1);
  EXPECT_EQ((*tier)->recovery().rows, 180);
  ASSERT_TRUE((*tier)->SetLayout(TierTestLayout(3)).ok());
  const auto check = [&](const RecordHeader& header, uint32_t location) {
    const TestRecord wanted(header.key, 1, 2);
    std::vector<uint8_t> data(TierTestLayout(3)->row_bytes());
    ReadRecord read;
    read.key = header.key;
    read.location = location;
    read.row_data = data.data();
    MT_RETURN_IF_ERROR((*tier)->Read(Span<ReadRecord>(&read, 1)));
    EXPECT_TRUE(read.status.ok()) << read.status.ToString();
    EXPECT_TRUE(std::equal(wanted.row_data.begin(), wanted.row_data.end(), data.begin())) << header.key;
    return OkStatus();
  };
  EXPECT_TRUE((*tier)->Scan(check).ok());
}

TEST_F(HeaderTest, HeaderOfZerosWithoutAnotherSegmentIsDataLossNamingTheFileWhichStays) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  Close();
  ASSERT_EQ(Segments().size(), 1u);
  const std::string path = Segments()[0];
  bool reserve = false;
  ASSERT_NO_FATAL_FAILURE(ZeroSector(&memory_, path, 0, &reserve));
  for (int again = 0; again < 2; ++again) {
    const Status refused = Open();
    EXPECT_EQ(refused.code(), StatusCode::kDataLoss);
    EXPECT_NE(refused.message().find(StrCat("'", path, "' at offset 0")), std::string::npos) << refused.ToString();
  }
  ASSERT_TRUE(memory_.Truncate(path, 1000).ok());
  EXPECT_EQ(Open().code(), StatusCode::kDataLoss);
  EXPECT_EQ(Segments().size(), 1u);
  ASSERT_TRUE(memory_.Truncate(path, 0).ok());
  EXPECT_EQ(Open().code(), StatusCode::kDataLoss);
  ASSERT_NO_FATAL_FAILURE(EmptyTheList(&memory_));
  EXPECT_TRUE(Open().ok());  // made, and never written, for all that is known
}

}  // namespace
}  // namespace multitier::header_test
