// What recovery and a tier that is in use make of damaged files: an error that names the place, or every row right.

#include <cstdio>
#include <set>

#include "cc/tier/ssdhash/recovery_test_util.h"
#include "cc/tier/ssdhash/segment_format.h"

namespace multitier::damage_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

// One bit of every byte of every file: recovery fails with DataLoss naming the file, or every row it gives is right, or
// DataLoss naming key, file and offset.
TEST_F(RecoveryTest, FlippedBitIsReportedOrHarmlessNeverAWrongRow) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  ASSERT_TRUE(owner_.Put(Range(0, 30), 2).ok());
  ASSERT_TRUE(owner_.Remove(Range(50, 60)).ok());
  Close();
  std::vector<std::string> files = Segments();
  ASSERT_EQ(files.size(), 1u);
  files.push_back("d/ssd.id");
  int refused = 0, reported = 0, harmless = 0;
  for (const std::string& path : files) {
    const uint64_t size = *(*memory_.NewRandomAccessFile(path))->Size();
    for (uint64_t offset = 0; offset < size; ++offset) {
      InMemoryEnv copy;
      CopyFiles(&copy);
      ASSERT_TRUE(copy.FlipBit(path, offset, static_cast<int>(offset % 8)).ok());
      const Status opened = Open(&copy);
      if (!opened.ok()) {
        EXPECT_TRUE(opened.code() == StatusCode::kDataLoss || opened.code() == StatusCode::kUnimplemented) << opened.ToString();
        EXPECT_NE(opened.message().find(path), std::string::npos) << opened.ToString();
        ++refused;
        continue;
      }
      EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
      EXPECT_EQ(owner_.size(), 80u) << path << " offset " << offset;
      EXPECT_EQ(owner_.Wrong(StatusCode::kDataLoss), std::vector<int64_t>()) << path << " offset " << offset;
      const std::vector<int64_t> damaged = owner_.Wrong();
      ++(damaged.empty() ? harmless : reported);
      EXPECT_LE(damaged.size(), 1u);
      for (const int64_t key : damaged) ExpectDataLoss(key, path, offset);
      Close();
      if (HasFailure()) return;
    }
  }
  std::printf("%d refused, %d reported when read, %d harmless\n", refused, reported, harmless);
  EXPECT_GT(refused, 4000);   // the header, the id
  EXPECT_GT(reported, 5000);  // 80 records
}

// The same under a tier that is in use.
TEST_F(RecoveryTest, BitFlippedUnderALiveTierIsReportedOrHarmless) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  ASSERT_TRUE(Open().ok());  // sealed, all of it in the file
  EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
  const std::string path = Segments()[0];
  const uint64_t size = *(*memory_.NewRandomAccessFile(path))->Size();
  int reported = 0;
  for (uint64_t offset = 0; offset < size; ++offset) {
    ASSERT_TRUE(memory_.FlipBit(path, offset, static_cast<int>(offset % 8)).ok());
    EXPECT_EQ(owner_.Wrong(StatusCode::kDataLoss), std::vector<int64_t>()) << offset;
    const std::vector<int64_t> damaged = owner_.Wrong();
    EXPECT_LE(damaged.size(), 1u);
    for (const int64_t key : damaged) ExpectDataLoss(key, path, offset);
    reported += static_cast<int>(damaged.size());
    ASSERT_TRUE(memory_.FlipBit(path, offset, static_cast<int>(offset % 8)).ok());
    if (HasFailure()) return;
  }
  EXPECT_EQ(reported, 90 * 68);
}

TEST_F(RecoveryTest, ScanGoesPastDamagedRecordsAndNamesTheFirst) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 90), 1).ok());
  ASSERT_TRUE(Open().ok());  // sealed
  const std::string path = Segments()[0];
  const uint64_t size = *(*memory_.NewRandomAccessFile(path))->Size();
  ASSERT_TRUE(memory_.FlipBit(path, size - 4096 + 8, 3).ok());  // the footer
  for (const int slot : {20, 40}) ASSERT_TRUE(memory_.FlipBit(path, 4096 + static_cast<uint64_t>(slot) * 68 + 1, 3).ok());
  std::set<int64_t> seen;
  const Status status = tier_->Scan([&](const RecordHeader& header, uint32_t) {
    seen.insert(header.key);
    return OkStatus();
  });
  EXPECT_EQ(seen.size(), 88u);
  EXPECT_EQ(seen.count(20) + seen.count(40), 0u);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss);
  for (const std::string& part : {path, StrCat("offset ", 4096 + 20 * 68), std::string("2 records")}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
  }
}

TEST_F(RecoveryTest, DamagedRecordIsDataLossNamingKeyFileAndOffsetAndTheRestMovesOn) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 3000), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  ASSERT_TRUE(memory_.FlipBit(Segments()[2], 4096 + 50, 3).ok());  // its first record: key 0. [0] and [1] are in reserve
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>{0});
  ReadRecord read;
  read.key = 0;
  read.location = owner_.location(0);
  ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
  EXPECT_EQ(read.status.code(), StatusCode::kDataLoss);
  for (const std::string& part : {std::string("key 0"), Segments()[2], std::string("offset 4096")}) {
    EXPECT_NE(read.status.message().find(part), std::string::npos) << read.status.ToString();
  }
  // Compaction cannot move it, and moves everything else; in the end the owner gives it up.
  for (uint64_t generation = 2; generation < 12; ++generation) {
    for (int64_t from = 1; from < 3000; from += 500) ASSERT_TRUE(owner_.Put(Range(from, from + 250), generation).ok());
  }
  ASSERT_TRUE(tier_->Compact().ok());
  EXPECT_EQ(tier_->stats().compaction_debt_bytes, 0);
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>{0});
  ASSERT_TRUE(owner_.Remove({0}).ok());
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
}

TEST_F(RecoveryTest, ALocationWithoutARecordNamesNoKeyWhereNoneIsAskedFor) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(1, 91), 1).ok());
  for (const bool any_key : {false, true}) {
    ReadRecord record;
    record.key = 7;
    record.location = static_cast<uint32_t>(tier_->location_end()) - 1;
    record.any_key = any_key;
    EXPECT_TRUE(tier_->Read(Span<ReadRecord>(&record, 1)).ok());
    EXPECT_EQ(record.status.code(), StatusCode::kNotFound);
    EXPECT_EQ(record.status.message().find("key 7") == std::string::npos, any_key) << record.status.ToString();
  }
}

TEST_F(RecoveryTest, DamagedRecordReadByItsLocationAloneIsNamedByTheFooter) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(1, 91), 1).ok());
  ASSERT_TRUE(Open().ok());  // sealed
  ASSERT_EQ(owner_.Adopt(), std::vector<int64_t>());
  const std::string path = Segments()[0];
  const auto read = [&](int64_t key) {
    ReadRecord record;
    record.location = owner_.location(key);
    record.any_key = true;
    EXPECT_TRUE(tier_->Read(Span<ReadRecord>(&record, 1)).ok());
    return record;
  };
  EXPECT_TRUE(read(21).status.ok());
  EXPECT_TRUE(read(21).any_key);
  for (const int slot : {20, 40}) ASSERT_TRUE(memory_.FlipBit(path, 4096 + static_cast<uint64_t>(slot) * 68 + 1, 3).ok());
  for (const int64_t key : {21, 41}) {
    const ReadRecord record = read(key);
    EXPECT_EQ(record.status.code(), StatusCode::kDataLoss);
    EXPECT_EQ(record.status.message().find("key"), std::string::npos) << record.status.ToString();
    EXPECT_FALSE(record.any_key);
    EXPECT_EQ(record.key, key);
  }
  const uint64_t size = *(*memory_.NewRandomAccessFile(path))->Size();
  ASSERT_TRUE(memory_.FlipBit(path, size - 4096 + 8, 3).ok());  // the footer
  EXPECT_EQ(read(21).status.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(read(21).any_key);
}

// A record that does not read stays where it is, alone; tombstones do not wait for those that went before them from there.
TEST_F(RecoveryTest, TombstonesDoNotWaitForARecordThatDoesNotRead) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put({0}, 1).ok());
  ASSERT_TRUE(owner_.Remove(Range(1000, 1500)).ok());  // more than a segment
  ASSERT_TRUE(tier_->Sync().ok());
  ASSERT_TRUE(memory_.FlipBit(Segments()[2], kBlockBytes + 40, 0).ok());  // the first two are compaction's reserve
  ASSERT_TRUE(tier_->Compact().ok());
  ASSERT_TRUE(owner_.Remove(Range(2000, 2500)).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  const int64_t written = tier_->stats().device_written_bytes;
  ASSERT_TRUE(tier_->Compact().ok());
  EXPECT_EQ(tier_->stats().device_written_bytes, written) << "they were copied, and did not go";
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>({0}));
  EXPECT_EQ(owner_.Wrong(StatusCode::kDataLoss), std::vector<int64_t>());
}

// What a killed process leaves: an open segment without a footer.
TEST_F(RecoveryTest, UnsealedSegmentIsReadUpToItsLastGoodRecordAndBadOnesAreCounted) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put(Range(0, 100), 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  InMemoryEnv copy;
  CopyFiles(&copy);
  Close();
  ASSERT_NO_FATAL_FAILURE(EmptyTheList(&copy));             // as if nothing was acknowledged since it was opened
  const std::string path = "d/ssd-0000000000000003-0.seg";  // compaction has the first two in reserve
  ASSERT_TRUE(copy.FlipBit(path, 4096 + 20 * 68 + 1, 3).ok());
  ASSERT_TRUE(Open(&copy).ok());
  EXPECT_EQ(tier_->recovery().unsealed_files, 1);
  EXPECT_EQ(tier_->recovery().damaged_records, 1);
  EXPECT_EQ(tier_->recovery().first_damage, StrCat("'", path, "' at offset ", 4096 + 20 * 68));
  EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
  EXPECT_EQ(owner_.size(), 99u);
  EXPECT_EQ(owner_.generation(20), 0u);
  EXPECT_EQ(owner_.Wrong(), std::vector<int64_t>());
  Close();
}

// A footer without a proof that the rest was synced: as a loss of power leaves it that kept the footer alone.
void TakeProofAway(InMemoryEnv* env, const std::string& path) {
  std::unique_ptr<RandomAccessFile> file = *env->NewRandomAccessFile(path);
  std::string bytes(*file->Size(), '\0');
  ASSERT_TRUE(file->Read(0, bytes.size(), bytes.data()).ok());
  const auto* data = reinterpret_cast<const uint8_t*>(bytes.data());
  size_t needed = 0;
  const SegmentGeometry geometry(*SegmentHeader::Decode(data, kBlockBytes, path, &needed));
  SegmentTrailer trailer;
  ASSERT_TRUE(DecodeTrailer(geometry.seed, data + bytes.size() - kBlockBytes, &trailer));
  ASSERT_TRUE(trailer.proven);
  std::vector<FooterEntry> entries;
  ASSERT_TRUE(DecodeFooter(geometry.seed, data + trailer.offset, trailer.bytes, &entries));
  const std::string footer = EncodeFooter(geometry.seed, trailer.offset, entries);
  ASSERT_EQ(footer.size(), trailer.bytes);
  bytes.replace(trailer.offset, footer.size(), footer);
  ASSERT_TRUE((*env->NewWritableFile(path))->Append(bytes.data(), bytes.size()).ok());
}

TEST_F(RecoveryTest, FooterIsTakenAtItsWordOnlyWithAProof) {
  for (const bool proven : {true, false}) {
    SCOPED_TRACE(proven);
    ASSERT_TRUE(Open().ok());
    ASSERT_EQ(owner_.Adopt(), std::vector<int64_t>());
    ASSERT_TRUE(owner_.Put(Range(0, 100), 1).ok());
    ASSERT_TRUE(Open().ok());
    ASSERT_EQ(owner_.Adopt(), std::vector<int64_t>());
    ASSERT_TRUE(owner_.Put(Range(0, 50), 2).ok());
    Close();
    ASSERT_EQ(Segments().size(), 2u);
    const std::string path = Segments()[1];
    if (!proven) {
      ASSERT_NO_FATAL_FAILURE(TakeProofAway(&memory_, path));
      ASSERT_NO_FATAL_FAILURE(EmptyTheList(&memory_));
    }
    bool was_zero = false;
    ASSERT_NO_FATAL_FAILURE(ZeroSector(&memory_, path, kBlockBytes, &was_zero));  // of key 0
    ASSERT_TRUE(Open().ok());
    EXPECT_EQ(owner_.Adopt(), std::vector<int64_t>());
    EXPECT_EQ(owner_.size(), 100u);
    EXPECT_EQ(owner_.generation(0), proven ? 2u : 1u);
    EXPECT_EQ(owner_.generation(49), 2u);
    EXPECT_EQ(tier_->recovery().damaged_records > 0, !proven);
    EXPECT_EQ(tier_->recovery().first_damage, proven ? "" : StrCat("'", path, "' at offset ", kBlockBytes));
    EXPECT_EQ(owner_.Wrong().empty(), !proven);
    EXPECT_EQ(owner_.Wrong(StatusCode::kDataLoss), std::vector<int64_t>());
    ASSERT_NO_FATAL_FAILURE(StartAnew());
  }
}

// Nothing of a segment that was synced is whole but its header and the proof.
TEST_F(RecoveryTest, ProvenSegmentOfWhichNothingIsWholeIsDataLossAndStays) {
  ASSERT_TRUE(Open().ok());
  ASSERT_TRUE(owner_.Put({7}, 1).ok());
  Close();
  ASSERT_EQ(Segments().size(), 1u);
  const std::string path = Segments()[0];
  ASSERT_TRUE(memory_.FlipBit(path, kBlockBytes + 3, 1).ok());      // the record
  ASSERT_TRUE(memory_.FlipBit(path, 2 * kBlockBytes + 9, 1).ok());  // the footer
  const Status opened = Open();
  EXPECT_EQ(opened.code(), StatusCode::kDataLoss);
  EXPECT_NE(opened.message().find(StrCat("'", path, "' at offset ", kBlockBytes)), std::string::npos) << opened.ToString();
  EXPECT_EQ(Segments().size(), 1u);
}

// The id is made and synced before the tier is open: a directory without one has lost it.
TEST_F(RecoveryTest, DirectoryWithoutAWholeIdIsNoEmptyTier) {
  SsdHashOptions options = Options(&memory_, "d");
  options.recover = true;
  EXPECT_EQ(SsdHashTier::Open(options).status().code(), StatusCode::kDataLoss);
  for (const bool rows : {false, true}) {
    for (const size_t bytes : {size_t{0}, size_t{20}, size_t{32}}) {
      ASSERT_TRUE(Open().ok());
      if (rows) {
        ASSERT_TRUE(owner_.Put({7}, 1).ok());
      }
      Close();
      ASSERT_TRUE((*memory_.NewWritableFile("d/ssd.id"))->Append(std::string(bytes, '\0').data(), bytes).ok());
      const Status opened = Open();
      EXPECT_EQ(opened.code(), StatusCode::kDataLoss) << bytes;
      EXPECT_NE(opened.message().find("'d/ssd.id'"), std::string::npos) << opened.ToString();
      ASSERT_NO_FATAL_FAILURE(StartAnew());
    }
  }
}

// The header and the records were lost with the power, the footer was not.
TEST_F(RecoveryTest, SegmentWithoutHeaderAndRecordsIsDataLossOnlyWithAProof) {
  for (const bool proven : {true, false}) {
    SCOPED_TRACE(proven);
    ASSERT_TRUE(Open().ok());
    ASSERT_EQ(owner_.Adopt(), std::vector<int64_t>());
    ASSERT_TRUE(owner_.Put(Range(0, 50), 1).ok());
    Close();
    ASSERT_EQ(Segments().size(), 1u);
    const std::string path = Segments()[0];
    if (!proven) {
      ASSERT_NO_FATAL_FAILURE(TakeProofAway(&memory_, path));
      ASSERT_NO_FATAL_FAILURE(EmptyTheList(&memory_));
    }
    bool was_zero = false;
    for (uint64_t at = 0; at < 2 * kBlockBytes; at += 512) ASSERT_NO_FATAL_FAILURE(ZeroSector(&memory_, path, at, &was_zero));
    const Status opened = Open();
    if (proven) {
      EXPECT_EQ(opened.code(), StatusCode::kDataLoss);
      EXPECT_NE(opened.message().find(path), std::string::npos) << opened.ToString();
      EXPECT_EQ(Segments().size(), 1u);
      ASSERT_NO_FATAL_FAILURE(StartAnew());
      continue;
    }
    ASSERT_TRUE(opened.ok()) << opened.ToString();
    EXPECT_EQ(tier_->recovery().lost_headers, 1);
    EXPECT_EQ(tier_->recovery().first_damage, StrCat("'", path, "' at offset 0"));
    EXPECT_EQ(tier_->recovery().rows, 0);
    EXPECT_TRUE(Segments().empty());
  }
}

}  // namespace
}  // namespace multitier::damage_test
