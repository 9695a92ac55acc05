// Pieces of the open segment that are written while the next ones are appended (segment_draft.h): they are read from memory
// until they are in the file, and a failed one is neither lost nor wrong.

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"
#include "cc/tier/ssdhash/io_worker.h"
#include "cc/tier/ssdhash/log_owner.h"
#include "cc/tier/ssdhash/ssdhash_tier.h"

namespace multitier::in_flight_write_test {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TierConformanceTest);  // linked for its records

namespace {

// Leaves two small buffers of 64 KiB to the hot head and one to the cold head, and none to grow to.
class FewBuffers {
 public:
  FewBuffers() : bytes_(IoWorker::kWriteBufferBytes - IoWorker::Get()->buffer_bytes() - (192 << 10)) {
    EXPECT_TRUE(IoWorker::Get()->TakeBuffer(bytes_));
  }
  ~FewBuffers() { IoWorker::Get()->GiveBuffer(bytes_); }

 private:
  const uint64_t bytes_;
};

// Writes of files wait while they are held, and count.
class HeldEnv : public FaultEnv {
 public:
  using FaultEnv::FaultEnv;

  Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) override {
    MT_ASSIGN_OR_RETURN(std::unique_ptr<PositionedFile> file, FaultEnv::OpenPositionedFile(path, mode, direct));
    return std::unique_ptr<PositionedFile>(new File(this, std::move(file)));
  }
  void Hold(bool hold) {
    std::lock_guard<std::mutex> lock(mutex_);
    held_ = hold;
    changed_.notify_all();
  }
  void AwaitWrite() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return waiting_ > 0; });
  }

 private:
  class File : public PositionedFile {
   public:
    File(HeldEnv* env, std::unique_ptr<PositionedFile> file) : env_(env), file_(std::move(file)) {}
    Status Write(uint64_t offset, const void* data, size_t bytes) override {
      env_->Pass();
      return file_->Write(offset, data, bytes);
    }
    Status Read(uint64_t offset, size_t bytes, void* out) const override { return file_->Read(offset, bytes, out); }
    Status Sync() override { return file_->Sync(); }
    Status Allocate(uint64_t bytes) override { return file_->Allocate(bytes); }
    Status Truncate(uint64_t bytes) override { return file_->Truncate(bytes); }
    Result<uint64_t> Size() const override { return file_->Size(); }
    bool direct() const override { return file_->direct(); }

   private:
    HeldEnv* const env_;
    const std::unique_ptr<PositionedFile> file_;
  };
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !held_; });
    --waiting_;
  }

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool held_ = false;
  int waiting_ = 0;
};

// Rows of `dim` floats, all equal to their key. Of 400 they straddle blocks.
class InFlightWriteTest : public testing::TestWithParam<int> {
 protected:
  InFlightWriteTest() : env_(&memory_) {
    EXPECT_TRUE(memory_.CreateDir("d").ok());
    SsdHashOptions options;
    options.env = &env_;
    options.directory = "d";
    auto tier = SsdHashTier::Open(options);
    EXPECT_TRUE(tier.ok()) << tier.status().ToString();
    tier_ = *std::move(tier);
    EXPECT_TRUE(tier_->SetLayout(std::make_shared<const RowLayout>(*RowLayout::Create(GetParam(), DType::kFloat32))).ok());
    row_.resize(static_cast<size_t>(GetParam() + 3) / 4 * 4);
  }

  // About `bytes` of rows that were not there.
  Status WriteSome(size_t bytes) {
    const size_t n = bytes / (row_.size() * sizeof(float) + 36);
    std::vector<float> values(n * row_.size());
    std::vector<WriteRecord> records(n);
    std::vector<uint32_t> locations(n);
    for (size_t i = 0; i < n; ++i) {
      records[i].header = RecordHeader{static_cast<int64_t>(locations_.size() + i), 1, 1, 1};
      std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(i * row_.size()), row_.size(),
                  static_cast<float>(records[i].header.key));
      records[i].row_data = reinterpret_cast<const uint8_t*>(values.data() + i * row_.size());
    }
    MT_RETURN_IF_ERROR(tier_->Write(records, locations.data()));
    locations_.insert(locations_.end(), locations.begin(), locations.end());
    return OkStatus();
  }

  void ExpectAll() {
    for (size_t key = 0; key < locations_.size(); ++key) {
      ReadRecord read;
      read.key = static_cast<int64_t>(key);
      read.location = locations_[key];
      read.row_data = reinterpret_cast<uint8_t*>(row_.data());
      ASSERT_TRUE(tier_->Read(Span<ReadRecord>(&read, 1)).ok());
      ASSERT_TRUE(read.status.ok()) << read.status.ToString();
      ASSERT_EQ(read.header.key, read.key);
      for (int i = 0; i < GetParam(); ++i) ASSERT_EQ(row_[static_cast<size_t>(i)], static_cast<float>(key)) << i;
    }
  }

  FewBuffers few_;
  InMemoryEnv memory_;
  HeldEnv env_;
  std::unique_ptr<SsdHashTier> tier_;
  std::vector<uint32_t> locations_;
  std::vector<float> row_;
};
INSTANTIATE_TEST_SUITE_P(Dims, InFlightWriteTest, testing::Values(15, 400), testing::PrintToStringParamName());

TEST_P(InFlightWriteTest, WriteGoesOnAndRowsAreReadWhileAPieceIsBeingWritten) {
  env_.Hold(true);
  ASSERT_TRUE(WriteSome(100 << 10).ok());  // waits for nothing
  env_.AwaitWrite();
  ExpectAll();
  env_.Hold(false);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(WriteSome(100 << 10).ok());
    ExpectAll();
  }
  ASSERT_TRUE(tier_->Sync().ok());
  ExpectAll();
}

TEST_P(InFlightWriteTest, FailedPieceIsServedFromMemoryAndWrittenElsewhere) {
  env_.Hold(true);
  ASSERT_TRUE(WriteSome(100 << 10).ok());
  env_.AwaitWrite();
  env_.FailFrom(FaultKind::kWrite, 1, UnavailableError("cable"));
  env_.Hold(false);
  (void)WriteSome(10 << 10);  // may, or may not yet, have seen it
  ExpectAll();
  const Status refused = WriteSome(200 << 10);
  EXPECT_EQ(refused.code(), StatusCode::kUnavailable) << refused.ToString();
  EXPECT_EQ(tier_->Sync().code(), StatusCode::kUnavailable);
  ExpectAll();
  EXPECT_TRUE(env_.Disarm());
  ASSERT_TRUE(WriteSome(200 << 10).ok());
  ExpectAll();
  ASSERT_TRUE(tier_->Sync().ok());
  ExpectAll();
}

TEST_P(InFlightWriteTest, TierIsDestroyedWhileAPieceIsBeingWritten) {
  env_.Hold(true);
  ASSERT_TRUE(WriteSome(100 << 10).ok());
  env_.AwaitWrite();
  std::thread closes([this] { tier_.reset(); });
  env_.Hold(false);
  closes.join();
}

// Every call that can fail fails once, of a log whose segments are written in four pieces.
class InFlightWriteFaultTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Modes, InFlightWriteFaultTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) { return info.param ? "Direct" : "Buffered"; });

std::vector<int64_t> Range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = begin; key < end; ++key) keys.push_back(key);
  return keys;
}

TEST_P(InFlightWriteFaultTest, FailingOnceLosesNothing) {
  const Status fault = UnavailableError("input/output error");
  int fired_total = 0;
  for (uint64_t n = 1;; ++n) {
    ASSERT_LT(n, 2000u);
    const FewBuffers few;
    InMemoryEnv memory;
    ASSERT_TRUE(memory.CreateDir("d").ok());
    FaultEnv env(&memory);
    SsdHashOptions options;
    options.env = &env;
    options.directory = "d";
    options.keep = true;
    options.direct_io = GetParam();
    options.min_segment_bytes = 256 << 10;
    auto tier = SsdHashTier::Open(options);
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    LogOwner owner;
    owner.Attach(tier->get());
    ASSERT_TRUE(owner.Put(Range(0, 500), 1).ok());
    env.FailNth(FaultKind::kAny, n, fault);
    int failed = 0;
    for (uint64_t generation = 2; generation < 5; ++generation) {
      failed += !owner.Put(Range(0, 3000), generation).ok();                         // 200 KB
      ASSERT_EQ(owner.Wrong(fault.code()), std::vector<int64_t>()) << "call " << n;  // a read may be what fails
      if (generation == 3) failed += !(*tier)->Sync().ok();
    }
    const bool fired = env.Disarm();
    EXPECT_LE(failed, 1) << n;
    ASSERT_TRUE((*tier)->Sync().ok()) << n;
    ASSERT_EQ(owner.Wrong(), std::vector<int64_t>()) << "call " << n;
    // The power goes.
    ASSERT_TRUE(env.DropUnsyncedData().ok());
    owner.Detach();
    tier->reset();
    options.recover = true;
    tier = SsdHashTier::Open(options);
    ASSERT_TRUE(tier.ok()) << tier.status().ToString();
    owner.Attach(tier->get());
    EXPECT_EQ(owner.Adopt(), std::vector<int64_t>()) << n;
    ASSERT_EQ(owner.Wrong(), std::vector<int64_t>()) << "call " << n;
    owner.Detach();
    fired_total += fired;
    if (!fired) break;
  }
  EXPECT_GT(fired_total, 20);
}

}  // namespace
}  // namespace multitier::in_flight_write_test
