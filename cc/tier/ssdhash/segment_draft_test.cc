// The system reports a failed write-back of a file to one sync only: that of the piece just written, or that of a round of
// SyncAndDelete. In either case nothing counts as synced, and nothing is lost. Without direct I/O, through the call that a
// round makes (SegmentSet::Sync).

#include "cc/tier/ssdhash/segment_draft.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"

namespace multitier::segment_draft_test {
namespace {

// Calls back once: after a write or a sync of a file and before it returns to its caller, or before the file is cut.
class CallbackEnv : public FaultEnv {
 public:
  using FaultEnv::FaultEnv;
  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override {
    MT_ASSIGN_OR_RETURN(std::unique_ptr<PositionedFile> file, FaultEnv::OpenPositionedFile(path, mode, direct));
    return std::unique_ptr<PositionedFile>(new File(this, std::move(file)));
  }
  std::function<void()> after_write, after_sync, before_truncate;

 private:
  class File : public PositionedFile {
   public:
    File(CallbackEnv* env, std::unique_ptr<PositionedFile> file) : env_(env), file_(std::move(file)) {}
    Status Write(uint64_t offset, const void* data, size_t bytes) override {
      const Status written = file_->Write(offset, data, bytes);
      if (env_->after_write != nullptr) std::exchange(env_->after_write, nullptr)();
      return written;
    }
    Status Sync() override {
      const Status synced = file_->Sync();
      if (env_->after_sync != nullptr) std::exchange(env_->after_sync, nullptr)();
      return synced;
    }
    Status Read(uint64_t offset, size_t bytes, void* out) const override { return file_->Read(offset, bytes, out); }
    Status Allocate(uint64_t bytes) override { return file_->Allocate(bytes); }
    Status Truncate(uint64_t bytes) override {
      if (env_->before_truncate != nullptr) std::exchange(env_->before_truncate, nullptr)();
      return file_->Truncate(bytes);
    }
    Result<uint64_t> Size() const override { return file_->Size(); }
    bool direct() const override { return file_->direct(); }

   private:
    CallbackEnv* const env_;
    const std::unique_ptr<PositionedFile> file_;
  };
};

class SegmentDraftTest : public testing::Test {
 protected:
  SegmentDraftTest() : env_(&memory_) {
    EXPECT_TRUE(memory_.CreateDir("d").ok());
    EXPECT_TRUE(memory_.SyncDir("d").ok());
    options_.env = &env_;
    options_.directory = "d";
    Begin(false);
  }
  ~SegmentDraftTest() override { draft_.reset(); }

  // A segment of its own.
  void Begin(bool direct_io) {
    draft_.reset();
    options_.direct_io = direct_io;
    const RowLayout layout = *RowLayout::Create(4, DType::kFloat32);
    const SegmentHeader header = SegmentHeader::Make({}, ++last_id_, false, 256 << 10, layout);
    auto file = CreateSegmentFile(options_, header, 0);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    segment_ = std::make_shared<Segment>(header, *std::move(file));
    EXPECT_TRUE(set_.Add(segment_).ok());
    draft_ = std::make_unique<SegmentDraft>(&options_, &set_, segment_);
    EXPECT_TRUE(draft_->Prepare(DraftMemory()).ok());
  }

  Status Append(int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
      const auto key = static_cast<int64_t>(draft_->next_slot());
      const std::vector<float> row(4, static_cast<float>(key));
      LogRecord record;
      record.header = RecordHeader{key, 1, 1, 1};
      record.seq = static_cast<uint64_t>(key) + 1;
      record.row_data = reinterpret_cast<const uint8_t*>(row.data());
      record.data_bytes = 16;
      MT_RETURN_IF_ERROR(draft_->Append(record));
      segment_->SetLive(segment_->used++);
    }
    return OkStatus();
  }

  // That every record is where readers look for it; `after_power_loss`: in the file, whatever memory has.
  void ExpectAll(bool after_power_loss = false) {
    const SegmentGeometry& geometry = segment_->geometry;
    const std::unique_ptr<RandomAccessFile> file = *memory_.NewRandomAccessFile(segment_->file->path());
    for (uint32_t slot = 0; slot < segment_->used; ++slot) {
      std::vector<uint8_t> bytes(geometry.record_bytes);
      const uint64_t offset = geometry.RecordOffset(slot);
      const uint8_t* record = after_power_loss ? nullptr : segment_->InMemory(offset);
      if (record == nullptr) {
        ASSERT_TRUE(file->Read(offset, bytes.size(), bytes.data()).ok()) << slot;
        record = bytes.data();
      }
      RecordFields fields;
      ASSERT_TRUE(DecodeRecord(geometry, slot, record, true, &fields)) << slot;
      ASSERT_EQ(fields.header.key, static_cast<int64_t>(slot));
    }
  }

  // What a round of SyncAndDelete makes of the file: on a thread of its own, as there.
  Status SyncAndDelete() {
    Status synced;
    std::thread round([&] { synced = set_.Sync(segment_.get()); });
    round.join();
    return synced;
  }

  InMemoryEnv memory_;
  CallbackEnv env_;
  SegmentWriterOptions options_;
  SegmentSet set_;
  uint64_t last_id_ = 0;
  std::shared_ptr<Segment> segment_;
  std::unique_ptr<SegmentDraft> draft_;
};

constexpr int64_t kPiece = 700;  // records: less than a buffer

TEST_F(SegmentDraftTest, ErrorThatSyncAndDeleteGotIsThatOfThePieceToo) {
  for (const bool last : {false, true}) {  // the end of the segment, too
    SCOPED_TRACE(last);
    ASSERT_TRUE(Append(kPiece).ok());
    const std::string path = segment_->file->path();
    Status status;
    env_.after_write = [&] {
      env_.FailNth(FaultKind::kSync, 1, UnavailableError("cable"));
      status = SyncAndDelete();
    };
    EXPECT_TRUE((last ? draft_->Finish() : draft_->Flush()).ok());
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    EXPECT_NE(segment_->file->path(), path) << "the file is not trusted";
    EXPECT_FALSE(segment_->dirty());
    ExpectAll();
  }
  EXPECT_TRUE(segment_->sealed);
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  ExpectAll(true);
}

// The same where a piece is written behind the writer's back.
TEST_F(SegmentDraftTest, ErrorThatSyncAndDeleteGotIsThatOfThePieceInFlight) {
  Status status;
  env_.after_write = [&] {
    env_.FailNth(FaultKind::kSync, 1, UnavailableError("cable"));
    status = SyncAndDelete();
  };
  const std::string path = segment_->file->path();
  ASSERT_TRUE(Append(2 * kPiece).ok());  // more than a buffer
  ASSERT_TRUE(draft_->Flush().ok());
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_NE(segment_->file->path(), path);
  ExpectAll();
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  ExpectAll(true);
}

TEST_F(SegmentDraftTest, ErrorThatThePieceGotIsThatOfSyncAndDeleteToo) {
  ASSERT_TRUE(Append(kPiece).ok());
  ASSERT_TRUE(draft_->Flush().ok());
  ASSERT_TRUE(Append(kPiece).ok());
  const uint64_t synced = segment_->synced_writes;
  env_.FailNth(FaultKind::kSync, 1, UnavailableError("cable"));
  // Nor can the file be rewritten.
  env_.after_sync = [this] { env_.FailFrom(FaultKind::kCreate, 1, UnavailableError("no new file")); };
  const Status flushed = draft_->Flush();
  EXPECT_NE(flushed.message().find("no new file"), std::string::npos) << flushed.ToString();
  for (int again = 0; again < 2; ++again) {
    const Status status = SyncAndDelete();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable);
    for (const std::string& part : {segment_->file->path(), std::string("not yet rewritten"), std::string("cable")}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.ToString();
    }
  }
  EXPECT_EQ(segment_->synced_writes, synced);
  EXPECT_TRUE(segment_->dirty());
  ExpectAll();
  env_.Disarm();
  EXPECT_TRUE(draft_->Flush().ok());
  EXPECT_TRUE(SyncAndDelete().ok());
  ExpectAll();
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  ExpectAll(true);
}

// A file that could not be opened says nothing of what is in it: neither that it is synced, nor that an error before is over.
TEST_F(SegmentDraftTest, FileThatCannotBeOpenedIsNeitherSyncedNorTrustedAgain) {
  ASSERT_TRUE(Append(kPiece).ok());
  env_.FailFrom(FaultKind::kSync, 1, UnavailableError("cable"));
  EXPECT_FALSE(draft_->Flush().ok());
  EXPECT_TRUE(segment_->sync_failed);
  env_.Disarm();
  const size_t capacity = CachedFile::capacity();
  CachedFile::SetCapacity(1);
  ASSERT_TRUE(CachedFile::Create(&env_, "d/other", false).ok());  // closes the segment's
  env_.FailFrom(FaultKind::kOpen, 1, UnavailableError("no descriptor"));
  EXPECT_FALSE(SyncAndDelete().ok());
  EXPECT_TRUE(segment_->sync_failed);
  env_.Disarm();
  EXPECT_TRUE(draft_->Flush().ok());
  EXPECT_TRUE(SyncAndDelete().ok());
  ExpectAll();
  CachedFile::SetCapacity(capacity);
}

// What a rewriting that failed leaves, and cannot delete, is deleted later, by its name: the next one takes another.
TEST_F(SegmentDraftTest, RewritingThatCannotBeDeletedIsNotInTheWayOfTheNext) {
  ASSERT_TRUE(Append(kPiece).ok());
  env_.FailFrom(FaultKind::kSync, 1, UnavailableError("cable"));
  env_.after_sync = [this] {
    env_.after_sync = [this] { env_.FailFrom(FaultKind::kDelete, 1, UnavailableError("cable")); };  // of the rewriting
  };
  EXPECT_FALSE(draft_->Flush().ok());
  ASSERT_EQ(set_.undeleted, std::vector<std::string>({SegmentPath("d", 1, 1)}));
  env_.Disarm();
  const Status flushed = draft_->Flush();
  ASSERT_TRUE(flushed.ok()) << flushed.ToString();
  EXPECT_EQ(segment_->file->path(), SegmentPath("d", 1, 2));
  ExpectAll();
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  ExpectAll(true);
}

// Recovery looks for the footer at the end of the file: where that is not synced, nor is the segment.
// The footer holds nothing that the records do not: where it is lost, the segment is rewritten without one.
TEST_F(SegmentDraftTest, SealedSegmentWhoseSyncLostItsFooterIsRewrittenWithoutOne) {
  ASSERT_TRUE(Append(200).ok());
  ASSERT_TRUE(draft_->Finish().ok());
  const std::string path = segment_->file->path();
  ASSERT_TRUE(memory_.FlipBit(path, segment_->footer_offset + 9, 1).ok());
  segment_->sync_failed = true;
  const Status rewritten = RewriteSealed(options_, &set_, segment_);
  ASSERT_TRUE(rewritten.ok()) << rewritten.ToString();
  EXPECT_NE(segment_->file->path(), path);
  EXPECT_EQ(segment_->footer_bytes, 0u);
  EXPECT_FALSE(segment_->dirty());
  ExpectAll(true);
}

TEST_F(SegmentDraftTest, SyncBeforeTheFileIsCutIsNotOneOfTheSealedSegment) {
  Begin(true);
  ASSERT_TRUE(Append(kPiece).ok());
  env_.before_truncate = [this] {
    EXPECT_TRUE(SyncAndDelete().ok());
    MutexLock lock(set_.mutex);
    segment_->entry_synced = true;
    EXPECT_FALSE(segment_->dirty());
  };
  ASSERT_TRUE(draft_->Finish().ok());
  EXPECT_TRUE(segment_->sealed);
  EXPECT_TRUE(segment_->dirty());
  EXPECT_TRUE(SyncAndDelete().ok());
  EXPECT_FALSE(segment_->dirty());
  ASSERT_TRUE(env_.SyncDir("d").ok());
  ASSERT_TRUE(env_.DropUnsyncedData().ok());
  EXPECT_EQ(*(*memory_.NewRandomAccessFile(segment_->file->path()))->Size(), segment_->file_bytes);
}

}  // namespace
}  // namespace multitier::segment_draft_test
