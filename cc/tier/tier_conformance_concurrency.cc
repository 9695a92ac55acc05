// Tests of the contract with several threads, and of records that the tier moves by itself.

#include <atomic>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>

#include "cc/tier/tier_conformance.h"

namespace multitier {
namespace {

// Whether header and row data are those of one TestRecord.
bool IsWhole(const RecordHeader& header, const std::vector<uint8_t>& row_data) {
  const TestRecord expected(header.key, static_cast<uint64_t>(header.version), 2);
  return header.frequency == expected.header.frequency &&
         std::memcmp(row_data.data(), expected.row_data.data(), expected.row_data.size()) == 0;
}

TEST_P(TierConformanceTest, RecordsWrittenDuringReadsAreWhole) {
  constexpr int64_t kKeys = 3000;
  std::vector<TestRecord> records;
  for (int64_t key = 0; key < kKeys; ++key) records.emplace_back(key, 5, 2);
  std::vector<uint32_t> locations;
  for (size_t from = 0; from < records.size(); from += 100) {
    const auto at = records.begin() + static_cast<std::ptrdiff_t>(from);
    for (const uint32_t location : Write(std::vector<TestRecord>(at, at + 100))) locations.push_back(location);
  }
  Free(7, locations[7]);
  std::vector<std::vector<uint8_t>> rows(records.size(), std::vector<uint8_t>(layout_->row_bytes()));
  std::vector<ReadRecord> reads(records.size());
  for (size_t i = 0; i < reads.size(); ++i) {
    reads[i].key = records[i].header.key;
    reads[i].location = locations[i];
    reads[i].row_data = rows[i].data();
  }
  const auto expect_whole = [&](size_t i) {
    if (i == 7) return;
    EXPECT_TRUE(reads[i].status.ok()) << reads[i].status.ToString();
    EXPECT_EQ(reads[i].header.key, records[i].header.key);
    EXPECT_TRUE(IsWhole(reads[i].header, rows[i])) << "key " << i;
  };
  std::vector<int> told(reads.size());
  const std::thread::id caller = std::this_thread::get_id();
  const Status status = tier_->ReadAndTell(reads, [&](size_t i) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    ++told[i];
    expect_whole(i);
    EXPECT_GE(tier_->stats().rows, kKeys - 1);  // no lock of the tier is held
  });
  ASSERT_TRUE(status.ok()) << status.ToString();
  for (size_t i = 0; i < reads.size(); ++i) {
    EXPECT_LE(told[i], 1);
    expect_whole(i);
  }
}

// An owner that lets the tier move what it does not use right now.
TEST_P(TierConformanceTest, RelocatedRecordsAreReadAtTheReportedPlace) {
  if (!tier_->capabilities().relocates) GTEST_SKIP() << "this tier moves no records";
  constexpr int64_t kKeys = 3000;
  std::mutex mutex;
  std::map<int64_t, uint32_t> location_of;
  std::map<int64_t, TestRecord> model;
  int64_t asked = 0;
  tier_->SetRelocator([&](Span<Relocation> batch) {
    std::lock_guard<std::mutex> lock(mutex);
    for (Relocation& record : batch) {
      if (++asked % 5 == 0) continue;  // in use
      const auto it = location_of.find(record.key);
      if (it == location_of.end() || it->second != record.from) continue;
      it->second = record.to;
      record.moved = true;
    }
  });
  std::mt19937_64 random(1);
  for (int round = 0; round < 400; ++round) {
    std::map<int64_t, TestRecord> batch;
    for (int i = 0; i < 100; ++i) {
      const int64_t key = static_cast<int64_t>(random() % kKeys);
      batch[key] = TestRecord(key, random(), 2);
    }
    std::vector<TestRecord> records;
    for (const auto& [key, record] : batch) records.push_back(record);
    const std::vector<uint32_t> locations = Write(records);
    std::vector<KeyLocation> old;
    std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < records.size(); ++i) {
      const int64_t key = records[i].header.key;
      const auto it = location_of.find(key);
      if (it != location_of.end()) old.push_back({key, it->second});
      location_of[key] = locations[i];
      model[key] = records[i];
    }
    tier_->Free(old);
  }
  tier_->SetRelocator(nullptr);  // nothing moves from here on
  std::map<uint32_t, TestRecord> held;
  for (const auto& [key, location] : location_of) {
    ExpectRead(model[key], location);
    held.emplace(location, model[key]);
  }
  ExpectHeld(held);
}

// Writers rewrite and free the records that readers read: a reader gets a whole record, or NotFound.
TEST_P(TierConformanceTest, ConcurrentReadsNeverGiveTornRecords) {
  constexpr int kWriters = 2, kReaders = 2, kKeys = 16, kRounds = 400;
  std::atomic<uint32_t> published[kWriters * kKeys];
  for (auto& location : published) location = kNoLocation - 1;
  std::atomic<int> running{kWriters};
  std::atomic<int64_t> torn{0}, failed{0}, whole{0};
  auto write = [&](int writer) {
    for (uint64_t round = 0; round < kRounds; ++round) {
      for (int i = writer * kKeys; i < (writer + 1) * kKeys; ++i) {
        const TestRecord record(i, round, 2);
        const WriteRecord batch = record.write();
        uint32_t location = kNoLocation;
        if (!tier_->Write(Span<const WriteRecord>(&batch, 1), &location).ok()) ++failed;
        const uint32_t old = published[i].exchange(location);
        if (round > 0) Free(i, old);
      }
    }
    --running;
  };
  auto read = [&] {
    do {
      std::vector<std::vector<uint8_t>> rows(kWriters * kKeys, std::vector<uint8_t>(layout_->row_bytes()));
      std::vector<ReadRecord> batch(kWriters * kKeys);
      for (size_t i = 0; i < batch.size(); ++i) {
        batch[i].key = static_cast<int64_t>(i);
        batch[i].location = published[i];
        batch[i].row_data = rows[i].data();
      }
      if (!tier_->Read(Span<ReadRecord>(batch)).ok()) ++failed;
      for (size_t i = 0; i < batch.size(); ++i) {
        if (!batch[i].status.ok()) {
          failed += batch[i].status.code() != StatusCode::kNotFound;
        } else {
          ++(IsWhole(batch[i].header, rows[i]) ? whole : torn);
        }
      }
      (void)tier_->stats();
    } while (running > 0);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i) threads.emplace_back(write, i);
  for (int i = 0; i < kReaders; ++i) threads.emplace_back(read);
  for (std::thread& thread : threads) thread.join();
  read();  // everything is at rest now
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(failed, 0);
  EXPECT_GE(whole, kWriters * kKeys);
  std::map<uint32_t, TestRecord> held;
  for (int i = 0; i < kWriters * kKeys; ++i) held.emplace(published[i].load(), TestRecord(i, kRounds - 1, 2));
  ExpectHeld(held);
}

}  // namespace
}  // namespace multitier
