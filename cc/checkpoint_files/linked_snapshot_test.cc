// A snapshot that takes files in place of rows is the table of its moment, whatever the table and its tier do afterwards.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cc/checkpoint_files/linked_rows.h"
#include "cc/table/api/table_snapshot.h"
#include "cc/table/snapshot/snapshot_together.h"
#include "cc/table/test/storage_test_util.h"

namespace multitier::linked_snapshot_test {
namespace {

constexpr int kDim = 16;
constexpr int64_t kKeys = 8000;

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

void Append(Rows* all, const Rows& chunk) {
  const auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
  all->columns = chunk.columns;
  append(&all->keys, chunk.keys);
  append(&all->frequencies, chunk.frequencies);
  append(&all->versions, chunk.versions);
  append(&all->data, chunk.data);
}

// What a snapshot gave: rows, and files under names of their own.
struct Taken {
  Rows rows;
  struct File {
    std::string path, content;  // when it was linked
    LinkedRecords records;
  };
  std::vector<File> files;
  int64_t linked_rows = 0;

  // The rows of the files, too.
  Rows All() const {
    Rows all = rows;
    for (const File& file : files) {
      LinkedFile from{file.path, std::filesystem::file_size(file.path),
                      [&file](uint64_t offset, size_t n, char* out) -> Status {
                        MT_ASSIGN_OR_RETURN(const auto opened, Env::Posix()->NewRandomAccessFile(file.path));
                        return opened->Read(offset, n, out);
                      }};
      const auto linked = LinkedRows::Open(std::move(from), file.records, rows.columns);
      EXPECT_TRUE(linked.ok()) << linked.status().ToString();
      Rows some;
      some.columns = rows.columns;
      while (linked.ok() && !(*linked)->ended()) {
        const Status next = (*linked)->Next(&some);
        EXPECT_TRUE(next.ok()) << next.ToString();
        if (!next.ok()) break;
        Append(&all, some);
      }
    }
    return all;
  }
};

class LinkedSnapshotTest : public testing::Test {
 protected:
  LinkedSnapshotTest() { std::filesystem::create_directories(directory_.path() + "/saved"); }

  TableOptions Options(bool dram_named = true) {
    TableOptions options = BasicOptions(kDim);
    options.dram_named = dram_named;
    options.dram_budget_bytes = dram_named ? 400 * kDim * sizeof(float) : 0;
    return options;
  }
  void Make(bool recover = false, TableOptions options = {}, bool async_compaction = false) {
    if (options.dim != kDim) options = Options();
    options.adopt = recover;
    options.lower_tiers.push_back({directory_.Open("ssdhash", "t", recover, async_compaction), 0});
    table_ = MakeTable(std::move(options));
  }

  // Trains all keys, in batches.
  void Fill(float grad = 1.0f) {
    for (int64_t from = 0; from < kKeys; from += 500) MT_ASSERT_OK(Sgd(Range(from, from + 500), grad, kDim).Run(table_.get()));
    MT_ASSERT_OK(table_->Drain());
  }
  void Change(std::mt19937_64* random) {
    std::vector<int64_t> keys;
    for (uint64_t n = 50 + (*random)() % 200; n > 0; --n) keys.push_back(static_cast<int64_t>((*random)() % kKeys));
    std::vector<float> values(keys.size() * kDim);
    switch ((*random)() % 8) {
      case 0:
        MT_EXPECT_OK(table_->Remove(keys, nullptr));
        break;
      case 1:
        MT_EXPECT_OK(table_->Compact());
        break;
      case 2:
        MT_EXPECT_OK(table_->Flush());
        break;
      case 3:
      case 4:
        MT_EXPECT_OK(table_->Lookup(keys, values.data()));
        break;
      default:
        MT_EXPECT_OK(Sgd(keys, 0.5f, kDim).Run(table_.get()));
    }
  }

  // In the visitor's thread, `between` runs after each file and each chunk.
  Status Take(Taken* taken, const std::function<void()>& between = [] {}) {
    SnapshotRequest request;
    request.max_rows = 300;
    request.visit = [&, taken](Rows* rows) {
      Append(&taken->rows, *rows);
      between();
      return OkStatus();
    };
    request.link_name = directory_.path() + "/saved/trial";
    request.write_down = write_down_;
    request.take_file = [&, taken](const SealedFile& file, const SnapshotRequest::LinkTo& link) -> Status {
      if (!refusal_.ok()) return refusal_;
      const std::string path = directory_.path() + "/saved/" + std::to_string(++links_);
      MT_RETURN_IF_ERROR(link(path));
      LinkedRecords records{0, file.header, file.slots, file.held};
      EXPECT_EQ(records.count(), file.rows);
      taken->files.push_back({path, Content(path), std::move(records)});
      taken->linked_rows += file.rows;
      return OkStatus();
    };
    MT_ASSIGN_OR_RETURN(const std::unique_ptr<TableSnapshot> snapshot, table_->PrepareSnapshot(std::move(request)));
    return snapshot->TakeAlone();
  }

  StorageDirectory directory_{"linked_snapshot_test"};
  std::unique_ptr<EmbeddingTable> table_;
  Status refusal_;  // of the taker
  bool write_down_ = false;
  int links_ = 0;
};

TEST_F(LinkedSnapshotTest, FilesAndRowsAreTheTable) {
  for (const bool dram_named : {true, false}) {
    Make(false, Options(dram_named));
    Fill();
    (void)LookupAll(table_.get(), Range(1000, 1300));  // clean copies of some are in DRAM
    Taken taken;
    MT_ASSERT_OK(Take(&taken));
    EXPECT_GT(taken.linked_rows, kKeys / 2);
    EXPECT_FALSE(std::filesystem::exists(directory_.path() + "/saved/trial"));
    ExpectSameRows(taken.All(), *table_->Export(true));
    int64_t bytes = 0;
    for (const auto& file : taken.files) bytes += static_cast<int64_t>(file.content.size());
    EXPECT_EQ(table_->Stats().linked_bytes, bytes);
  }
}

// The second snapshot gives what changed since the first, and what is not in a full file yet.
TEST_F(LinkedSnapshotTest, RowsOfDramAreInTheFilesOnceTheyAreWrittenDown) {
  for (const bool write_down : {false, true}) {
    Make();
    Fill();
    write_down_ = write_down;
    Taken first, second;
    MT_ASSERT_OK(Take(&first));
    MT_ASSERT_OK(Sgd({3, 7}, 1.0f, kDim).Run(table_.get()));
    const Rows expected = *table_->Export(true);
    MT_ASSERT_OK(Take(&second));
    ExpectSameRows(second.All(), expected);
    EXPECT_EQ(second.rows.keys.size() < 100, write_down) << second.rows.keys.size() << " rows; 400 are in DRAM";
  }
}

TEST_F(LinkedSnapshotTest, ChangesAfterTheMomentAreNotInIt) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  Make();
  Fill();
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 10; ++i) Change(&random);
    const Rows expected = *table_->Export(true);
    Taken taken;
    write_down_ = round % 2 == 1;
    MT_ASSERT_OK(Take(&taken, [&] { Change(&random); }));
    EXPECT_GT(taken.linked_rows, 0);
    Fill(0.25f);
    MT_ASSERT_OK(table_->Compact());
    ExpectSameRows(taken.All(), expected);
  }
}

// Each update is of one group of keys: it is in the snapshot for all of them or for none.
TEST_F(LinkedSnapshotTest, ThreadsTrainWhileItIsTaken) {
  constexpr int64_t kGroup = 50;
  Make(/*recover=*/false, {}, /*async_compaction=*/true);
  Fill();
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    threads.emplace_back([&, seed] {
      std::mt19937_64 random(seed);
      while (!over) {
        const auto from = static_cast<int64_t>(random() % (kKeys / kGroup)) * kGroup;
        MT_EXPECT_OK(Sgd(Range(from, from + kGroup), 1.0f, kDim).Run(table_.get()));
      }
    });
  }
  for (int round = 0; round < 5; ++round) {
    Taken taken;
    MT_EXPECT_OK(Take(&taken));
    EXPECT_GT(taken.linked_rows, 0);
    const Rows all = taken.All();
    std::vector<int64_t> frequencies(kKeys, -1);
    for (size_t i = 0; i < all.keys.size(); ++i) frequencies[static_cast<size_t>(all.keys[i])] = all.frequencies[i];
    EXPECT_EQ(all.keys.size(), size_t{kKeys});
    for (size_t i = 0; i < kKeys; ++i) EXPECT_EQ(frequencies[i], frequencies[i / kGroup * kGroup]) << "key " << i;
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
}

// Links wait for the device. Meanwhile rows of all tables of the save change: what is copied first is given between two links,
// so that updates go on, and the copies are of the moment.
TEST_F(LinkedSnapshotTest, UpdatesGoOnWhileFilesOfAGroupAreLinked) {
  constexpr int kWide = 1024, kBatch = 256, kBatches = 48;  // 48 MiB, more than may wait
  Make();
  Fill();
  const Rows expected = *table_->Export(true);
  TableOptions options = BasicOptions(kWide);
  options.name = "wide";
  const std::unique_ptr<EmbeddingTable> wide = MakeTable(std::move(options));
  for (int b = 0; b < kBatches; ++b) MT_ASSERT_OK(Sgd(Range(b * kBatch, (b + 1) * kBatch), 1.0f, kWide).Run(wide.get()));
  const Rows expected_wide = *wide->Export(true);

  std::atomic<int> changed{0}, files{0};
  std::atomic<bool> gives_up{false};
  std::thread trainer;
  Taken taken;
  Rows rows_wide;
  std::vector<TableInGroup> group;
  group.push_back(TableInGroup{table_.get(), [&](Rows* some) { return Append(&taken.rows, *some), OkStatus(); },
                               [] { return OkStatus(); }});
  group.push_back(
      TableInGroup{wide.get(), [&](Rows* some) { return Append(&rows_wide, *some), OkStatus(); }, [] { return OkStatus(); }});
  group[0].link_name = directory_.path() + "/saved/trial";
  group[0].take_file = [&](const SealedFile& file, const SnapshotRequest::LinkTo& link) -> Status {
    const std::string path = directory_.path() + "/saved/" + std::to_string(++links_);
    MT_RETURN_IF_ERROR(link(path));
    taken.files.push_back({path, Content(path), LinkedRecords{0, file.header, file.slots, file.held}});
    if (files++ == 0) {
      trainer = std::thread([&] {
        for (int b = 0; b < kBatches && !gives_up; ++b) {
          MT_EXPECT_OK(Sgd(Range(b * kBatch, (b + 1) * kBatch), 1.0f, kWide).Run(wide.get()));
          changed = b + 1;
        }
      });
    }
    const int due = std::min(kBatches, 12 * files.load());
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (changed < due && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    EXPECT_GE(changed.load(), due) << "updates wait for links";
    gives_up = changed < due;
    return gives_up ? UnavailableError("no update for a while") : OkStatus();
  };
  MT_EXPECT_OK(SnapshotTogether(group));
  EXPECT_GE(files.load(), 5) << "more than the copies of four may wait";
  if (trainer.joinable()) trainer.join();
  ExpectSameRows(taken.All(), expected);
  ExpectSameRows(rows_wide, expected_wide);
}

TEST_F(LinkedSnapshotTest, NothingWritesToALinkedFile) {
  Make();
  Fill();
  Taken taken;
  MT_ASSERT_OK(Take(&taken));
  ASSERT_FALSE(taken.files.empty());
  const Rows expected = *table_->Export(true);
  MT_ASSERT_OK(table_->Flush());
  std::mt19937_64 random(1);
  for (int i = 0; i < 30; ++i) Change(&random);
  table_ = nullptr;
  Make(/*recover=*/true);
  MT_ASSERT_OK(table_->Flush());
  Fill();
  MT_ASSERT_OK(table_->Compact());
  MT_ASSERT_OK(table_->Clear());
  table_ = nullptr;
  std::filesystem::remove_all(directory_.path() + "/t");
  for (const auto& file : taken.files) EXPECT_TRUE(Content(file.path) == file.content) << file.path;
  ExpectSameRows(taken.All(), expected);
}

// A tier that is not kept syncs its files at the first flush, and then proves in each one that it was synced.
TEST_F(LinkedSnapshotTest, NoProofIsWrittenToALinkedFile) {
  SsdHashOptions tier;
  tier.directory = directory_.path() + "/unkept";
  std::filesystem::create_directories(tier.directory);
  tier.min_segment_bytes = 64 << 10;
  TableOptions options = Options();
  options.lower_tiers.push_back({Must(SsdHashTier::Open(tier)), 0});
  table_ = MakeTable(std::move(options));
  Fill();
  Taken taken;
  MT_ASSERT_OK(Take(&taken));
  ASSERT_FALSE(taken.files.empty());
  MT_ASSERT_OK(table_->Flush());
  for (const auto& file : taken.files) EXPECT_TRUE(Content(file.path) == file.content) << file.path;
}

TEST_F(LinkedSnapshotTest, AKeptTableOpensAsBeforeAndIsLinkedAgain) {
  Make();
  Fill();
  Taken first, second;
  MT_ASSERT_OK(Take(&first));
  MT_ASSERT_OK(table_->Flush());
  const Rows expected = *table_->Export(true);
  table_ = nullptr;
  Make(/*recover=*/true);
  ExpectSameRows(*table_->Export(true), expected);
  MT_ASSERT_OK(Take(&second));
  EXPECT_EQ(second.linked_rows + static_cast<int64_t>(second.rows.keys.size()), kKeys);
  EXPECT_GT(second.linked_rows, kKeys * 9 / 10);
  ExpectSameRows(second.All(), expected);
}

TEST_F(LinkedSnapshotTest, SegmentsThatAreMostlyDeadAreNotLinked) {
  Make();
  Fill();
  std::vector<int64_t> removed;
  for (int64_t key = 0; key < kKeys; ++key) {
    if (key % 3 != 0) removed.push_back(key);
  }
  MT_ASSERT_OK(table_->Remove(removed, nullptr));
  Taken taken;
  MT_ASSERT_OK(Take(&taken));
  for (const auto& file : taken.files) EXPECT_GE(2 * file.records.count(), file.records.slots);
  EXPECT_EQ(taken.linked_rows + static_cast<int64_t>(taken.rows.keys.size()), kKeys - static_cast<int64_t>(removed.size()));
  ExpectSameRows(taken.All(), *table_->Export(true));
}

TEST_F(LinkedSnapshotTest, AFailedTakerFailsTheSnapshotAndLetsGoOfTheFiles) {
  Make();
  Fill();
  const Rows expected = *table_->Export(true);
  refusal_ = UnavailableError("the disk is away");
  Taken taken;
  EXPECT_EQ(Take(&taken).code(), StatusCode::kUnavailable);
  EXPECT_TRUE(taken.files.empty());
  refusal_ = OkStatus();
  ExpectSameRows(*table_->Export(true), expected);
  std::vector<int64_t> removed = Range(0, kKeys / 2);
  MT_ASSERT_OK(table_->Remove(removed, nullptr));
  MT_ASSERT_OK(table_->Compact());
  const TierStats tier = table_->Stats().tiers[1].device;
  EXPECT_LT(tier.stored_bytes, 2 * tier.rows * (kDim * 4 + 60) + (1 << 20)) << "compaction runs as before";
  MT_ASSERT_OK(Take(&taken));
  ExpectSameRows(taken.All(), *table_->Export(true));
}

TEST_F(LinkedSnapshotTest, WithoutLinksAllRowsAreGiven) {
  Make();
  Fill();
  const Rows expected = *table_->Export(true);
  std::filesystem::remove_all(directory_.path() + "/saved");  // no trial succeeds
  Taken taken;
  MT_ASSERT_OK(Take(&taken));
  EXPECT_TRUE(taken.files.empty());
  EXPECT_EQ(table_->Stats().linked_bytes, 0);
  ExpectSameRows(taken.rows, expected);
}

}  // namespace
}  // namespace multitier::linked_snapshot_test
