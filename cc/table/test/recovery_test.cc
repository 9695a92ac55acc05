// Tables that close and come back: Flush, keep, adopt, over SSDHASH; and damaged records.

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "cc/base/blocked_test_util.h"
#include "cc/env/fault_env.h"
#include "cc/env/memory_env.h"
#include "cc/table/test/storage_test_util.h"

namespace multitier::recovery_test {
namespace {

constexpr int kDim = 5;

Training Step(const char* rule, std::vector<int64_t> keys, int64_t step) {
  Training training;
  training.rule = *FindUpdateRule(rule);
  for (size_t i = 0; i < keys.size() * kDim; ++i) training.grads.push_back(0.25f + 0.5f * static_cast<float>((i + step) % 7));
  training.keys = std::move(keys);
  training.hyper = SomeHyper(*training.rule);
  training.step = step;
  return training;
}

// As a named vector: a span takes no list.
const std::vector<int64_t>& IdsOf(const std::vector<int64_t>& keys) { return keys; }

std::vector<int64_t> Keys(int64_t from, int64_t to) {
  std::vector<int64_t> keys(static_cast<size_t>(to - from));
  std::iota(keys.begin(), keys.end(), from);
  return keys;
}

Rows Everything(EmbeddingTable* table) {
  auto rows = table->Export(true);
  EXPECT_TRUE(rows.ok()) << rows.status().ToString();
  return rows.ok() ? *std::move(rows) : Rows();
}

class Recovery : public testing::Test {
 protected:
  TableOptions Options(bool recover) {
    TableOptions options = TieredOptions(kDim, 4, root_.Open("ssdhash", "t", recover));
    options.adopt = recover;
    return options;
  }

  StorageDirectory root_{"recovery"};
};

// Trains `table` and `plain`, which never closes, alike: keys demoted again and again (several records each), removed, removed
// and trained again, and widened on the way.
void TrainBoth(EmbeddingTable* table, EmbeddingTable* plain, int64_t step) {
  for (EmbeddingTable* t : {table, plain}) {
    MT_ASSERT_OK(Step("sgd", Keys(0, 60), step).Run(t));
    MT_ASSERT_OK(Step("sgd", {INT64_MIN, -1, 0, INT64_MAX}, step + 1).Run(t));
    MT_ASSERT_OK(t->Remove(IdsOf({3, 4, 5, 1000}), nullptr));
    MT_ASSERT_OK(Step(step < 10 ? "adagrad" : "adam", Keys(10, 40), step + 2).Run(t));
    MT_ASSERT_OK(Step("sgd", {4, 30, 30}, step + 3).Run(t));
    MT_ASSERT_OK(t->Remove(IdsOf({12}), nullptr));
  }
}

TEST_F(Recovery, WhatWasFlushedComesBackAndTrainsOnAsIfNothingHadHappened) {
  auto plain = MakeTable(BasicOptions(kDim));
  auto table = MakeTable(Options(false));
  for (int64_t life = 0; life < 3; ++life) {
    TrainBoth(table.get(), plain.get(), 10 * life);
    ExpectSameTables(table.get(), plain.get());
    MT_ASSERT_OK(table->Flush());
    ExpectSameTables(table.get(), plain.get());
    table.reset();
    table = MakeTable(Options(true));
    ASSERT_NE(table, nullptr);
    EXPECT_EQ(table->TotalCount(), plain->TotalCount());
    EXPECT_EQ(table->NewestStep(), plain->NewestStep());
    EXPECT_TRUE(SameBits(LookupAll(table.get(), Keys(-3, 70)), LookupAll(plain.get(), Keys(-3, 70))));
    ExpectSameTables(table.get(), plain.get());
  }
}

TEST_F(Recovery, TableThatKeepsLosesNothingWhenItIsDestroyed) {
  TableOptions options = Options(false);
  options.keep = true;
  auto table = MakeTable(std::move(options));
  MT_ASSERT_OK(Step("adagrad", Keys(0, 50), 7).Run(table.get()));
  MT_ASSERT_OK(table->Remove(IdsOf({7}), nullptr));
  const Rows before = Everything(table.get());
  table.reset();
  table = MakeTable(Options(true));
  ASSERT_NE(table, nullptr);
  ExpectSameRows(before, Everything(table.get()));
}

TEST_F(Recovery, OwnCountOfAppliesGoesOn) {
  auto table = MakeTable(Options(false));
  for (int i = 0; i < 9; ++i) MT_ASSERT_OK(Step("sgd", {1, 2, 3, 4, 5, 6}, -1).Run(table.get()));
  MT_ASSERT_OK(table->Flush());
  table.reset();
  table = MakeTable(Options(true));
  MT_ASSERT_OK(Step("sgd", {1}, -1).Run(table.get()));
  int64_t version = 0;
  MT_ASSERT_OK(table->Version(IdsOf({1}), &version));
  EXPECT_EQ(version, 10);
}

TEST_F(Recovery, FlushedRowsStayInMemoryCleanAndAreNotWrittenAgain) {
  auto table = MakeTable(Options(false));
  MT_ASSERT_OK(Step("sgd", Keys(0, 20), 1).Run(table.get()));
  MT_ASSERT_OK(table->Flush());
  const TableStats first = table->Stats();
  EXPECT_EQ(first.tiers[0].rows, 4);
  MT_ASSERT_OK(table->Flush());
  EXPECT_EQ(table->Stats().tiers[1].writes, first.tiers[1].writes);
  MT_ASSERT_OK(Step("sgd", {19}, 2).Run(table.get()));
  MT_ASSERT_OK(table->Flush());
  EXPECT_EQ(table->Stats().tiers[1].writes, first.tiers[1].writes + 1);
  LookupAll(table.get(), Keys(0, 4));  // the rows of memory go down without a write
  EXPECT_EQ(table->Stats().tiers[1].writes, first.tiers[1].writes + 1);
  ExpectTiersInOrder(table.get());
}

TEST_F(Recovery, ColumnsOfTheRecoveredRowsComeFirst) {
  auto table = MakeTable(Options(false));
  MT_ASSERT_OK(Step("adagrad", Keys(0, 9), 1).Run(table.get()));
  MT_ASSERT_OK(table->Flush());
  table.reset();
  TableOptions options = Options(true);
  options.dram_budget_bytes *= 4;
  options.slots = {{"new", DType::kFloat32, 2, 0.5f}, {"adagrad/accumulator", DType::kFloat32, kDim, 0.9f}};
  auto column = SlotColumns(**FindUpdateRule("adagrad"), kDim)[0];
  options.slots[1].name = column.name;
  table = MakeTable(options);
  ASSERT_NE(table, nullptr);
  ASSERT_EQ(table->layout()->columns().size(), 3u);
  EXPECT_EQ(table->layout()->columns()[1].name, column.name);
  EXPECT_EQ(table->layout()->columns()[1].initial_value, column.initial_value);
  EXPECT_EQ(table->layout()->columns()[2].name, "new");
  const Rows rows = Everything(table.get());
  EXPECT_EQ(rows.data[2 * kDim], 0.5f);
  table.reset();
  options.lower_tiers.clear();
  options = Options(true);
  options.slots = {{column.name, DType::kFloat32, kDim + 1, 0.0f}};
  const Status status = EmbeddingTable::Create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("float32 x 5"), std::string::npos) << status.message();
}

TEST_F(Recovery, OtherValueDimIsRefusedNamingBoth) {
  auto table = MakeTable(Options(false));
  MT_ASSERT_OK(Step("sgd", Keys(0, 9), 1).Run(table.get()));
  MT_ASSERT_OK(table->Flush());
  table.reset();
  TableOptions options = TieredOptions(8, 4, root_.Open("ssdhash", "t", true));
  options.adopt = true;
  const Status status = EmbeddingTable::Create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("float32 x 8"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("float32 x 5"), std::string::npos) << status.message();
}

TEST_F(Recovery, EmptyDirectoryGivesAnEmptyTable) {
  auto table = MakeTable(Options(false));
  MT_ASSERT_OK(table->Flush());
  table.reset();
  table = MakeTable(Options(true));
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->TotalCount(), 0);
  MT_ASSERT_OK(Step("sgd", Keys(0, 9), 1).Run(table.get()));
}

TEST_F(Recovery, RowsOfTheTierBetweenAreFlushedToo) {
  TableOptions options = Options(false);
  options.lower_tiers.insert(options.lower_tiers.begin(), {root_.Open("pmem", "middle", false), 10 * 32});
  auto table = MakeTable(options);
  MT_ASSERT_OK(Step("sgd", Keys(0, 40), 1).Run(table.get()));
  EXPECT_EQ(table->Stats().tiers[1].rows, 10);
  MT_ASSERT_OK(table->Flush());
  EXPECT_EQ(table->Stats().tiers[1].rows, 10);
  const int64_t writes = table->Stats().tiers[2].writes;
  LookupAll(table.get(), Keys(0, 40));  // everything moves, all of it clean
  MT_ASSERT_OK(table->Flush());
  EXPECT_EQ(table->Stats().tiers[2].writes, writes);
  MT_ASSERT_OK(table->Remove(IdsOf({38, 39}), nullptr));
  const Rows before = Everything(table.get());
  MT_ASSERT_OK(table->Flush());
  ExpectTiersInOrder(table.get());
  table.reset();
  options.lower_tiers.clear();
  table = MakeTable(Options(true));
  ASSERT_NE(table, nullptr);
  ExpectSameRows(before, Everything(table.get()));
}

TEST_F(Recovery, RowsOfTheTierBetweenThatOthersReadMeanwhileAreFlushedToo) {
  auto middle = std::make_shared<MemoryTier>();
  TableOptions options = Options(false);
  options.lower_tiers.insert(options.lower_tiers.begin(), {middle, 10 * 32});
  auto table = MakeTable(options);
  MT_ASSERT_OK(Step("sgd", Keys(0, 14), 1).Run(table.get()));
  ASSERT_EQ(table->Stats().tiers[1].rows, 10);
  // Once the flush has read the rows, another thread does, and is at it until the flush has written them.
  std::atomic<int> reads{0};
  std::atomic<bool> reading{false};
  const pid_t flushing = ThisThread();
  middle->SetHook([&](MemoryTier::Point point) {
    if (point != MemoryTier::Point::kAfterRead) return;
    if (ThisThread() != flushing) {
      reading = true;
      EXPECT_TRUE(AwaitBlocked(flushing)) << "it has written the rows and waits for this read";
      EXPECT_GT(table->Stats().tiers[2].writes, 0);
    } else if (++reads == 2) {
      while (!reading) std::this_thread::yield();
    }
  });
  std::vector<int64_t> versions(10);
  std::thread reader([&] {
    while (reads < 2) std::this_thread::yield();
    MT_EXPECT_OK(table->Version(Keys(0, 10), versions.data()));
  });
  MT_EXPECT_OK(table->Flush());
  reader.join();
  middle->SetHook(nullptr);
  EXPECT_EQ(versions, std::vector<int64_t>(10, 1));
  const int64_t writes = table->Stats().tiers[2].writes;
  EXPECT_EQ(writes, 14);
  MT_ASSERT_OK(table->Flush());  // nothing was left out
  EXPECT_EQ(table->Stats().tiers[2].writes, writes);
}

TEST_F(Recovery, LastTierOfGivenSizeTakesAllRowsOrRefusesAndLosesNone) {
  TableOptions options = Options(false);
  options.lower_tiers[0].budget_bytes = 20 * 32;
  auto table = MakeTable(options);
  MT_ASSERT_OK(Step("sgd", Keys(0, 20), 1).Run(table.get()));
  MT_ASSERT_OK(table->Flush());
  EXPECT_EQ(table->Stats().tiers[0].rows, 0);
  MT_ASSERT_OK(Step("sgd", Keys(20, 24), 2).Run(table.get()));
  EXPECT_EQ(table->Flush().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(table->TotalCount(), 24);
  MT_ASSERT_OK(table->Remove(IdsOf({0, 1, 2, 3}), nullptr));
  MT_ASSERT_OK(table->Flush());
  const Rows before = Everything(table.get());
  table.reset();
  options.lower_tiers.clear();
  // A smaller one drops what is oldest, where it may.
  options = Options(true);
  options.lower_tiers[0].budget_bytes = 20 * 32;
  table = MakeTable(options);
  ASSERT_NE(table, nullptr);
  ExpectSameRows(before, Everything(table.get()));
  table.reset();
  options.lower_tiers.clear();
  options = Options(true);
  options.lower_tiers[0].budget_bytes = 5 * 32;
  options.drop_coldest = true;
  table = MakeTable(options);
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(table->TotalCount(), 5);
  std::vector<int64_t> newest(4);
  MT_ASSERT_OK(table->Version(IdsOf({20, 21, 22, 23}), newest.data()));
  EXPECT_EQ(newest, std::vector<int64_t>(4, 2));
}

// The power goes at any moment, and the disk keeps nothing that was not synced: each key is as it was flushed, or as it was at
// some time since; its row is whole, and its own.
TEST(PowerLoss, LeavesWhatWasFlushedOrNewer) {
  constexpr int64_t kKeys = 60;
  const char* text = std::getenv("MT_CRASH_ROUNDS");
  const int rounds = text == nullptr ? 8 : std::atoi(text);
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < rounds; ++round) {
    InMemoryEnv memory;
    MT_ASSERT_OK(memory.CreateDir("d"));
    FaultEnv env(&memory);
    std::map<int64_t, int64_t> flushed;          // frequency; 0: no row
    std::map<int64_t, std::set<int64_t>> later;  // since
    for (int life = 0; life < 4; ++life) {
      SsdHashOptions ssdhash;
      ssdhash.env = &env;
      ssdhash.directory = "d";
      ssdhash.keep = true;
      ssdhash.recover = life > 0;
      ssdhash.min_segment_bytes = 16 << 10;
      TableOptions options = TieredOptions(kDim, 4, Must(SsdHashTier::Open(ssdhash)));
      options.initializer.kind = InitializerKind::kConstant;
      options.initializer.a = 0.0f;
      options.adopt = life > 0;
      if (round % 2 == 1) {
        options.lower_tiers.insert(options.lower_tiers.begin(),
                                   {std::make_shared<MemoryTier>(), 7 * options.dram_budget_bytes / 4});
      }
      auto table = MakeTable(options);
      std::vector<int64_t> frequency(kKeys);
      MT_ASSERT_OK(table->Frequency(Keys(0, kKeys), frequency.data()));
      const std::vector<float> values = LookupAll(table.get(), Keys(0, kKeys));
      for (int64_t key = 0; key < kKeys; ++key) {
        const int64_t found = frequency[static_cast<size_t>(key)];
        ASSERT_TRUE(found == flushed[key] || later[key].count(found) > 0)
            << "round " << round << " life " << life << " key " << key << ": found " << found << ", flushed " << flushed[key];
        for (size_t d = 0; d < kDim; ++d) {
          ASSERT_EQ(values[static_cast<size_t>(key) * kDim + d], -static_cast<float>(found)) << key;
        }
        flushed[key] = found;
      }
      later.clear();
      std::map<int64_t, int64_t> now = flushed;
      for (uint64_t n = 30 + random() % 100; n > 0; --n) {
        std::vector<int64_t> keys;
        for (uint64_t i = 1 + random() % 12; i > 0; --i) keys.push_back(static_cast<int64_t>(random() % kKeys));
        const bool removes = random() % 6 == 0;
        if (removes) {
          MT_ASSERT_OK(table->Remove(keys, nullptr));
        } else {
          MT_ASSERT_OK(Sgd(keys, 1.0f, kDim).Run(table.get()));
        }
        for (const int64_t key : keys) {
          now[key] = removes ? 0 : now[key] + 1;
          later[key].insert(now[key]);
        }
        if (random() % 20 != 0) continue;
        MT_ASSERT_OK(table->Flush());
        flushed = now;
        later.clear();
      }
      MT_ASSERT_OK(env.DropUnsyncedData());
    }
  }
}

TEST(RecoveryOptions, NeedADurableLastTier) {
  TableOptions options = TieredOptions(kDim, 4, std::make_shared<MemoryTier>());
  EXPECT_EQ(MakeTable(options)->Flush().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(MakeTable(BasicOptions(kDim))->Flush().code(), StatusCode::kFailedPrecondition);
  options.adopt = true;
  EXPECT_EQ(EmbeddingTable::Create(options).status().code(), StatusCode::kInvalidArgument);
  options.adopt = false;
  options.keep = true;
  const Status status = EmbeddingTable::Create(options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("memory"), std::string::npos) << status.message();
}

// --- Damaged records.

class Corruption : public testing::TestWithParam<const char*> {
 protected:
  // A table with rows of version 1 below, and some of their records flipped on the disk.
  void Make(OnCorruption on_corruption) {
    std::shared_ptr<Tier> tier = root_.Open(GetParam(), "t", false);
    TableOptions options = TieredOptions(kDim, 4, tier);
    options.on_corruption = on_corruption;
    table_ = MakeTable(options);
    MT_ASSERT_OK(Step("sgd", Keys(0, kKeys), 1).Run(table_.get()));
    trained_ = LookupAll(table_.get(), Keys(0, kKeys));
    MT_ASSERT_OK(tier->Sync());
    if (auto* leveldb = dynamic_cast<LevelDbTier*>(tier.get())) leveldb->database()->CompactRange(nullptr, nullptr);
    // 1,000 bytes into each large file: inside the records of every format.
    for (const auto& file : std::filesystem::recursive_directory_iterator(root_.path())) {
      if (!file.is_regular_file() || file.file_size() < 16384) continue;
      std::fstream bytes(file.path(), std::ios::in | std::ios::out | std::ios::binary);
      bytes.seekg(10000);
      const char byte = static_cast<char>(bytes.get() ^ 8);
      bytes.seekp(10000);
      bytes.put(byte);
    }
    for (int64_t key = 0; key < kKeys; ++key) {
      std::vector<int64_t> version(1);
      const Status status = MakeShallow(key, version.data());
      if (status.code() == StatusCode::kDataLoss) bad_.push_back(key);
    }
  }
  // Asks for a key in a way that shows damage whatever the option.
  Status MakeShallow(int64_t key, int64_t* version) {
    const int64_t before = table_->Stats().corrupt;
    const Status status = table_->Version(IdsOf({key}), version);
    return status.ok() && table_->Stats().corrupt > before ? DataLossError("") : status;
  }
  // Whether the message says "<what>, key <named_>: tier", and that is the key of a damaged record.
  bool NamesABadKey(const std::string& what, const Status& status) {
    const auto is_named = [&](int64_t key) {
      return status.message().find(StrCat(": ", what, ", key ", key, ": tier ")) != std::string::npos;
    };
    const auto found = std::find_if(bad_.begin(), bad_.end(), is_named);
    if (found != bad_.end()) named_ = *found;
    return found != bad_.end();
  }
  float Initial(int64_t key) { return LookupAll(MakeTable(BasicOptions(kDim)).get(), {key})[0]; }

  static constexpr int64_t kKeys = 2000;
  StorageDirectory root_{std::string("corruption_") + GetParam()};
  std::unique_ptr<EmbeddingTable> table_;
  std::vector<float> trained_;
  std::vector<int64_t> bad_;
  int64_t named_ = 0;
};

TEST_P(Corruption, ErrorNamesKeyAndFileAndRemoveAlwaysWorks) {
  Make(OnCorruption::kError);
  ASSERT_FALSE(bad_.empty());
  for (const int64_t key : bad_) {
    std::vector<float> out(kDim);
    const Status status = table_->Lookup(IdsOf({key}), out.data());
    EXPECT_EQ(status.code(), StatusCode::kDataLoss);
    EXPECT_NE(status.message().find(root_.path()), std::string::npos) << status.message();
    EXPECT_NE(status.message().find(StrCat("key ", key)), std::string::npos) << status.message();
    EXPECT_EQ(Step("sgd", {key, 1}, 2).Run(table_.get()).code(), StatusCode::kDataLoss);
  }
  EXPECT_EQ(table_->Export(true).status().code(), StatusCode::kDataLoss);
  EXPECT_GT(table_->Stats().corrupt, 0);
  uint64_t next = 0;
  const Status scanned = table_->Scan(ScanRequest{0, kKeys, {}}, &next).status();
  EXPECT_EQ(scanned.code(), StatusCode::kDataLoss);
  EXPECT_TRUE(NamesABadKey("scanning", scanned)) << scanned.message();
  int64_t removed = 0;
  MT_ASSERT_OK(table_->Remove(bad_, &removed));
  EXPECT_EQ(removed, static_cast<int64_t>(bad_.size()));
  EXPECT_EQ(table_->TotalCount(), kKeys - removed);
  EXPECT_EQ(Everything(table_.get()).keys.size(), static_cast<size_t>(kKeys - removed));
  for (const int64_t key : bad_) EXPECT_EQ(LookupAll(table_.get(), {key})[0], Initial(key));
  MT_ASSERT_OK(Step("sgd", bad_, 2).Run(table_.get()));
  EXPECT_EQ(table_->TotalCount(), kKeys);
}

TEST_P(Corruption, AnExportNamesTheKeyThatIsInItsWay) {
  Make(OnCorruption::kError);
  ASSERT_FALSE(bad_.empty());
  // What a user does who cannot save: removes the key that the error names, and tries again.
  while (!bad_.empty()) {
    const Status status = table_->Export(true).status();
    ASSERT_EQ(status.code(), StatusCode::kDataLoss);
    ASSERT_TRUE(NamesABadKey("reading all rows", status)) << status.message();
    int64_t removed = 0;
    MT_ASSERT_OK(table_->Remove(std::vector<int64_t>{named_}, &removed));
    EXPECT_EQ(removed, 1);
    bad_.erase(std::find(bad_.begin(), bad_.end(), named_));
  }
  MT_EXPECT_OK(table_->Export(true).status());
}

TEST_P(Corruption, ReinitStartsTheKeyAnewAndSparesTheOthers) {
  Make(OnCorruption::kReinit);
  ASSERT_FALSE(bad_.empty());
  EXPECT_EQ(Everything(table_.get()).keys.size(), static_cast<size_t>(kKeys) - bad_.size());
  const std::vector<float> now = LookupAll(table_.get(), Keys(0, kKeys));
  for (int64_t key = 0; key < kKeys; ++key) {
    const bool bad = std::find(bad_.begin(), bad_.end(), key) != bad_.end();
    EXPECT_EQ(now[static_cast<size_t>(key * kDim)], bad ? Initial(key) : trained_[static_cast<size_t>(key * kDim)]) << key;
  }
  MT_ASSERT_OK(Step("sgd", bad_, 2).Run(table_.get()));
  std::vector<int64_t> frequency(bad_.size());
  MT_ASSERT_OK(table_->Frequency(bad_, frequency.data()));
  EXPECT_EQ(frequency, std::vector<int64_t>(bad_.size(), 1));
  EXPECT_EQ(table_->TotalCount(), kKeys);
  EXPECT_EQ(Everything(table_.get()).keys.size(), static_cast<size_t>(kKeys));
  ExpectTiersInOrder(table_.get());
}

TEST_P(Corruption, DropForgetsTheKeyAndReportsIt) {
  Make(OnCorruption::kDrop);
  ASSERT_FALSE(bad_.empty());
  EXPECT_EQ(table_->TotalCount(), kKeys - static_cast<int64_t>(bad_.size()));
  std::vector<int64_t> dropped = table_->PopDropped();
  std::sort(dropped.begin(), dropped.end());
  EXPECT_EQ(dropped, bad_);
  for (const int64_t key : bad_) EXPECT_EQ(LookupAll(table_.get(), {key})[0], Initial(key));
  MT_ASSERT_OK(Step("sgd", bad_, 2).Run(table_.get()));
  EXPECT_EQ(Everything(table_.get()).keys.size(), static_cast<size_t>(kKeys));
  ExpectTiersInOrder(table_.get());
}

INSTANTIATE_TEST_SUITE_P(Tiers, Corruption, testing::Values("ssdhash", "leveldb", "pmem"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace multitier::recovery_test
