// A snapshot whose visitor uses the HbmTable, while other threads change rows until they must wait for the visitor. A thread
// that waits and holds a lock that the visitor needs makes the test hang.

#include <atomic>
#include <thread>

#include "cc/base/blocked_test_util.h"
#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::snapshot_visitor_test {
namespace {

constexpr int kWide = 4096;  // rows of 16 KiB
constexpr int64_t kRows = 5200;
constexpr int64_t kMuch = 64 << 20;  // bytes of copies from which on operations wait

class SnapshotVisitor : public testing::Test {
 protected:
  void SetUp() override {
    auto below = MakeTableBelow(Options());
    MT_ASSERT_OK(Sgd(Range(0, kRows), 1.0f, kWide).Run(below.get()));
    HbmOptions options;
    options.device = NewEmulatedDevice();
    options.budget = Budget::Bytes(4 * kWide * sizeof(float));
    table_ = *HbmTable::Create(options, std::move(below));
  }
  // A row of key 1 with frequency and version 7.
  Rows OneRow() const {
    Rows rows;
    rows.columns.push_back(table_->layout()->value());
    rows.keys = {1};
    rows.frequencies = rows.versions = {7};
    rows.data.assign(kWide, 1.0f);
    return rows;
  }
  static TableOptions Options() {
    TableOptions options = BasicOptions(kWide);
    options.initializer.kind = InitializerKind::kConstant;
    options.initializer.a = 0;
    options.expiry.steps_to_live = 1;
    return options;
  }
  // A snapshot during whose first chunk `work` runs on a thread of its own until it waits; then `visitor` runs.
  void WhileItWaits(const std::function<void()>& work, const std::function<void()>& visitor, int64_t copies) {
    std::atomic<bool> done{false};
    std::atomic<pid_t> worker{0};
    std::thread thread;
    int64_t rows = 0;
    MT_EXPECT_OK(table_->TakeSnapshot(true, 16, [&](Rows* chunk) {
      if (rows == 0) {
        thread = std::thread([&] {
          worker = ThisThread();
          work();
          done = true;
        });
        while (!done && table_->Stats().snapshot_bytes < copies) std::this_thread::yield();
        while (worker == 0) std::this_thread::yield();
        EXPECT_TRUE(AwaitBlocked(worker)) << "waits for the visitor";
        EXPECT_FALSE(done);
        visitor();
        EXPECT_FALSE(done);
      }
      rows += static_cast<int64_t>(chunk->keys.size());
      for (const int64_t frequency : chunk->frequencies) EXPECT_EQ(frequency, 1);
      return OkStatus();
    }));
    thread.join();
    EXPECT_EQ(rows, kRows);
  }
  // What a visitor may do. The keys are not among those that wait.
  void UseTheTable() {
    const std::vector<int64_t> keys = {kRows - 1, kRows - 2, kRows + 5};
    std::vector<float> values(keys.size() * kWide);
    std::vector<int64_t> facts(keys.size());
    std::vector<int32_t> tiers(keys.size());
    MT_EXPECT_OK(table_->Lookup(keys, values.data()));
    EXPECT_EQ(values[0], -1.0f);
    MT_EXPECT_OK(table_->Peek(keys, values.data()));
    MT_EXPECT_OK(Train(Sgd(keys, 1.0f, kWide), table_.get()));
    MT_EXPECT_OK(table_->Frequency(keys, facts.data()));
    EXPECT_EQ(facts, (std::vector<int64_t>{2, 2, 1}));
    MT_EXPECT_OK(table_->Version(keys, facts.data()));
    MT_EXPECT_OK(table_->LookupTier(keys, tiers.data()));
    MT_EXPECT_OK(table_->Remove(Span<const int64_t>(keys).subspan(2, 1), nullptr));
    MT_EXPECT_OK(table_->Prefetch(keys, 1000000, nullptr));
    uint64_t next = 0;
    MT_EXPECT_OK(table_->Scan(ScanRequest{0, 10, {}}, &next).status());
    MT_EXPECT_OK(table_->Drain());
  }

  std::unique_ptr<HbmTable> table_;
};

TEST_F(SnapshotVisitor, UsesTheTableWhileTrainingWaitsForIt) {
  WhileItWaits(
      [&] {
        for (int64_t from = 0; from + 100 <= kRows - 100; from += 100)
          MT_EXPECT_OK(Train(Sgd(Range(from, from + 100), 1.0f, kWide), table_.get()));
      },
      [&] { UseTheTable(); }, kMuch);
}

TEST_F(SnapshotVisitor, UsesTheTableWhileAnExpiryWaitsForIt) {
  WhileItWaits([&] { MT_EXPECT_OK(table_->Expire(table_->NewestStep() + 100, nullptr)); }, [&] { UseTheTable(); }, 0);
}

TEST_F(SnapshotVisitor, UsesTheTableWhileAnImportWaitsForIt) {
  const Rows rows = OneRow();
  WhileItWaits([&] { MT_EXPECT_OK(table_->Import(rows, nullptr)); }, [&] { UseTheTable(); }, 0);
  int64_t frequency = 0;
  MT_ASSERT_OK(table_->Frequency(std::vector<int64_t>{1}, &frequency));
  EXPECT_EQ(frequency, 7);
}

TEST_F(SnapshotVisitor, ExpiresAndImportsItself) {
  const Rows rows = OneRow();
  int64_t given = 0, expired = 0;
  MT_ASSERT_OK(table_->TakeSnapshot(true, 16, [&](Rows* chunk) {
    if (given == 0) {
      MT_EXPECT_OK(table_->Expire(table_->NewestStep() + 100, &expired));
      MT_EXPECT_OK(table_->Import(rows, nullptr));
    }
    given += static_cast<int64_t>(chunk->keys.size());
    return OkStatus();
  }));
  EXPECT_EQ(given, kRows);
  EXPECT_EQ(expired, kRows);
  EXPECT_EQ(table_->TotalCount(), 1);
}

}  // namespace
}  // namespace multitier::hbm::snapshot_visitor_test
