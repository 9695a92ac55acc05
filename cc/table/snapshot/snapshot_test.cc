// A snapshot in chunks is the table, over every order of tiers, and leaves it as it was.

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "cc/table/test/storage_test_util.h"

namespace multitier::snapshot_test {
namespace {

constexpr int kDim = 4;

void Append(Rows* all, const Rows& chunk) {
  const auto append = [](auto* to, const auto& from) { to->insert(to->end(), from.begin(), from.end()); };
  all->columns = chunk.columns;
  append(&all->keys, chunk.keys);
  append(&all->frequencies, chunk.frequencies);
  append(&all->versions, chunk.versions);
  append(&all->data, chunk.data);
  append(&all->counted_keys, chunk.counted_keys);
  append(&all->counted_frequencies, chunk.counted_frequencies);
  append(&all->counted_versions, chunk.counted_versions);
  all->applies = chunk.applies;
  all->filter_counters = chunk.filter_counters;
}

// 500 keys of which half come twice, by the rule with the most slots.
void Train(EmbeddingTable* table, int64_t first) {
  for (int64_t batch = 0; batch < 10; ++batch) {
    Training training;
    training.rule = *FindUpdateRule("adam");
    for (int64_t i = 0; i < 75; ++i) training.keys.push_back(first + (batch * 50 + i) % 500 * (i % 2 == 0 ? 1 : -1));
    for (size_t i = 0; i < training.keys.size() * kDim; ++i) training.grads.push_back(static_cast<float>(i % 7) - 3.0f);
    training.hyper = SomeHyper(*training.rule);
    MT_ASSERT_OK(training.Run(table));
  }
}

class SnapshotTest : public testing::TestWithParam<ChainCase> {
 protected:
  TableOptions Options(AdmissionKind admission) const {
    TableOptions options = BasicOptions(kDim);
    options.filter.kind = admission;
    options.filter.filter_freq = admission == AdmissionKind::kNone ? 0 : 2;
    options.filter.max_element_size = 1000;
    return options;
  }
  uint64_t keys_seen_ = 0;
};

TEST_P(SnapshotTest, ChunksAreTheTable) {
  for (const AdmissionKind admission : {AdmissionKind::kNone, AdmissionKind::kCounter, AdmissionKind::kBloom}) {
    auto dram = MakeTable(Options(admission));
    TableOptions options = Options(admission);
    options.dram_budget_bytes = 4 * 1024;
    PutChain(GetParam(), 128, 3, &options);
    auto tiered = MakeTable(std::move(options));
    Train(dram.get(), 0);
    Train(tiered.get(), 0);
    for (const int64_t chunk_rows : {1, 7, 100000}) {
      Rows all;
      size_t chunks = 0;
      MT_ASSERT_OK(tiered->TakeSnapshot(true, chunk_rows, [&](Rows* chunk) {
        EXPECT_LE(chunk->keys.size() + chunk->counted_keys.size(), static_cast<size_t>(chunk_rows));
        Append(&all, *chunk);
        ++chunks;
        return OkStatus();
      }));
      ExpectSameRows(all, *dram->Export(true));
      EXPECT_EQ(chunks, (all.keys.size() + all.counted_keys.size()) / static_cast<size_t>(chunk_rows) + 1);
      EXPECT_EQ(all.applies, 10);
      EXPECT_EQ(all.filter_counters, dram->Export(true)->filter_counters);
      EXPECT_EQ(all.filter_counters.empty(), admission != AdmissionKind::kBloom);
    }
    // Records move again afterwards.
    Train(dram.get(), 100);
    Train(tiered.get(), 100);
    ExpectSameTables(dram.get(), tiered.get());
    MT_ASSERT_OK(tiered->Drain());
    ExpectTiersInOrder(tiered.get());
  }
}

// Whatever happens to the table between two chunks, a snapshot is what it was when the snapshot began.
TEST_P(SnapshotTest, OperationsGoOnAndTheSnapshotIsOfItsMoment) {
  constexpr int64_t kKeys = 400;
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  const char* text = std::getenv("MT_ORACLE_ROUNDS");
  const int rounds = text == nullptr ? Rounds(12) : std::atoi(text);
  for (int round = 0; round < rounds; ++round) {
    const AdmissionKind kinds[] = {AdmissionKind::kNone, AdmissionKind::kCounter, AdmissionKind::kBloom};
    TableOptions options = Options(kinds[round % 3]);
    options.dram_budget_bytes = (round % 2 == 0 ? 4 : 200) * 48;
    options.expiry.steps_to_live = 40;
    options.num_shards = round % 4 == 3 ? 2 : 0;
    const Replacement strategies[] = {Replacement::kLru, Replacement::kLfu, Replacement::kDefault};
    options.cache_strategy = strategies[random() % 3];
    PutChain(GetParam(), round % 3 == 0 ? 48 : 48 * 9, random(), &options);
    const bool bounded = options.lower_tiers.back().budget_bytes != 0;
    auto table = MakeTable(std::move(options));
    Training all;
    all.rule = *FindUpdateRule("adam");
    all.hyper = SomeHyper(*all.rule);
    const auto change = [&] {
      std::vector<int64_t> keys;
      for (uint64_t n = 1 + random() % 30; n > 0; --n) keys.push_back(static_cast<int64_t>(random() % kKeys));
      switch (random() % 12) {
        case 0:
          MT_ASSERT_OK(table->Remove(keys, nullptr));
          break;
        case 1:
          MT_ASSERT_OK(table->Expire(table->NewestStep(), nullptr));
          break;
        case 2: {
          Rows rows = *table->Scan(ScanRequest{0, 20, {}}, &keys_seen_);
          std::sort(rows.data.begin(), rows.data.end());  // other values
          rows.applies = 0;
          rows.filter_counters.clear();
          rows.counted_keys.clear();
          rows.counted_frequencies.clear();
          rows.counted_versions.clear();
          MT_ASSERT_OK(table->Import(rows));
          break;
        }
        case 3:
          MT_ASSERT_OK(table->Drain());
          break;
        case 4:
          if (!bounded && table->options().lower_tiers.back().tier->capabilities().durable) MT_ASSERT_OK(table->Flush());
          break;
        case 5:
          MT_ASSERT_OK(table->Prefetch(keys, random() % 2 == 0 ? 0 : 1000, nullptr));
          break;
        case 6:
        case 7:
          LookupAll(table.get(), keys);
          break;
        default:
          all.keys = keys;
          all.grads.assign(keys.size() * kDim, static_cast<float>(random() % 9) - 4.0f);
          MT_ASSERT_OK(all.Run(table.get()));
      }
    };
    MT_ASSERT_OK(table->AddSlots(SlotColumns(*all.rule, kDim)));  // in a visitor, it would wait for its own snapshot
    for (int i = 0; i < Rounds(150); ++i) change();
    for (int again = 0; again < 3; ++again) {
      const Rows before = *table->Export(true);
      Rows found;
      const uint64_t changes = random() % static_cast<uint64_t>(1 + Rounds(7));
      const int64_t chunk_rows = 1 + static_cast<int64_t>(random() % 20);
      MT_ASSERT_OK(table->TakeSnapshot(true, chunk_rows, [&](Rows* chunk) {
        Append(&found, *chunk);
        for (uint64_t i = 0; i < changes; ++i) change();
        return OkStatus();
      }));
      ExpectSameRows(found, before);
      EXPECT_EQ(found.applies, before.applies);
      EXPECT_EQ(found.filter_counters, before.filter_counters);
      if (HasFailure()) FAIL() << "round " << round << " snapshot " << again;
    }
    MT_ASSERT_OK(table->Drain());
    ExpectTiersInOrder(table.get());
  }
}

// Every training step updates a pair of keys alike, so that a snapshot between the two updates would show it. Other threads
// look rows up, make and remove them.
TEST_P(SnapshotTest, PairsAgreeWhileThreadsTrain) {
  constexpr int64_t kPairs = 300;
  TableOptions options = BasicOptions(kDim);
  options.initializer.kind = InitializerKind::kConstant;
  options.initializer.a = 0.0f;
  options.dram_budget_bytes = 60 * 16;
  options.num_shards = 2;
  PutChain(GetParam(), 16, 5, &options);
  auto table = MakeTable(std::move(options));
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t);
      while (!stop) {
        std::vector<int64_t> keys;
        for (int i = 0; i < 5; ++i) {
          const int64_t key = static_cast<int64_t>(random() % (kPairs / 2)) * 2 + static_cast<int64_t>(t);  // its own
          keys.push_back(key);
          keys.push_back(key + kPairs);
        }
        if (random() % 10 == 0) {
          MT_EXPECT_OK(table->Prefetch(keys, 1000, nullptr));
        } else {
          MT_EXPECT_OK(Sgd(keys, 1.0f, kDim).Run(table.get()));
        }
      }
    });
  }
  threads.emplace_back([&] {
    std::mt19937_64 random(7);
    while (!stop) {
      std::vector<int64_t> passing(8);
      for (int64_t& key : passing) key = 10000 + static_cast<int64_t>(random() % 500);
      MT_EXPECT_OK(Sgd(passing, 1.0f, kDim).Run(table.get()));
      LookupAll(table.get(), passing);
      if (random() % 4 == 0) MT_EXPECT_OK(table->Remove(passing, nullptr));
    }
  });
  std::map<int64_t, int64_t> last;
  for (int snapshot = 0; snapshot < Rounds(20); ++snapshot) {
    Rows found;
    MT_ASSERT_OK(table->TakeSnapshot(true, 16, [&](Rows* chunk) {
      Append(&found, *chunk);
      return OkStatus();
    }));
    std::map<int64_t, int64_t> frequency;
    for (size_t i = 0; i < found.keys.size(); ++i) {
      ASSERT_TRUE(frequency.emplace(found.keys[i], found.frequencies[i]).second) << "key " << found.keys[i] << " twice";
      ASSERT_EQ(found.data[i * kDim], -static_cast<float>(found.frequencies[i])) << "key " << found.keys[i];
    }
    for (int64_t key = 0; key < kPairs; ++key) {
      ASSERT_EQ(frequency[key], frequency[key + kPairs]) << "snapshot " << snapshot << " key " << key;
      ASSERT_GE(frequency[key], last[key]) << "snapshot " << snapshot << " key " << key;
    }
    last = frequency;
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  MT_ASSERT_OK(table->Drain());
  ExpectTiersInOrder(table.get());
}

// A tier whose moves a test makes, one step after the other (tier.h, Relocation).
class MovingTier : public MemoryTier {
 public:
  TierCapabilities capabilities() const override {
    TierCapabilities can = MemoryTier::capabilities();
    can.relocates = true;
    return can;
  }
  void SetRelocator(Relocator relocator) override { relocator_ = std::move(relocator); }

  // Of the key's record that was written last.
  uint32_t LocationOf(int64_t key) {
    uint32_t found = kNoLocation;
    int64_t newest = -2;
    MT_EXPECT_OK(Scan([&](const RecordHeader& header, uint32_t location) {
      if (header.key == key && header.version > newest) {
        found = location;
        newest = header.version;
      }
      return OkStatus();
    }));
    return found;
  }
  uint32_t Copy(uint32_t from) {
    std::vector<uint8_t> data(kDim * sizeof(float));
    ReadRecord read;
    read.location = from;
    read.row_data = data.data();
    MT_EXPECT_OK(Read(Span<ReadRecord>(&read, 1)));
    MT_EXPECT_OK(read.status);
    const WriteRecord record{read.header, data.data()};
    uint32_t to = kNoLocation;
    MT_EXPECT_OK(Write(Span<const WriteRecord>(&record, 1), &to));
    return to;
  }
  bool Switch(int64_t key, uint32_t from, uint32_t to) {
    Relocation move{key, from, to};
    relocator_(Span<Relocation>(&move, 1));
    return move.moved;
  }
  void Settle(int64_t key, uint32_t from) {
    const KeyLocation record{key, from};
    Free(Span<const KeyLocation>(&record, 1));
  }

 private:
  Relocator relocator_;
};

// A place holds an old record of a key until its move is settled. It is read, settled, and used for the key's row, which is
// still to be given: what was read is of that key and that place, and is not the row.
TEST(SnapshotMoves, AnOlderRecordOfTheKeyAtTheSamePlaceIsNotTaken) {
  auto tier = std::make_shared<MovingTier>();
  auto table = MakeTable(TieredOptions(kDim, 1, tier));
  const auto train = [&](int64_t key) { MT_ASSERT_OK(Sgd({key}, 1.0f, kDim).Run(table.get())); };
  train(1);
  train(2);
  const uint32_t old = tier->LocationOf(1);
  EXPECT_TRUE(tier->Switch(1, old, tier->Copy(old)));  // and not settled
  train(1);
  train(3);
  ASSERT_EQ(TierOf(table.get(), {1, 2, 3}), (std::vector<int32_t>{1, 1, 0}));
  const uint32_t now = tier->LocationOf(1);
  ASSERT_NE(now, old);
  const Rows before = *table->Export(true);
  std::atomic<bool> moved{false};
  tier->SetHook([&](MemoryTier::Point point) {
    if (point != MemoryTier::Point::kAfterRead || moved.exchange(true)) return;
    tier->Settle(1, old);
    EXPECT_EQ(tier->Copy(now), old);
    EXPECT_TRUE(tier->Switch(1, now, old));
    tier->Settle(1, now);
  });
  const Rows found = *table->Export(true);
  EXPECT_TRUE(moved);
  tier->SetHook(nullptr);
  ExpectSameRows(found, before);
  ExpectSameRows(*table->Export(true), before);
}

// Keeps of a record what a last tier must, and no more.
class PlainTier : public MemoryTier {
 public:
  TierCapabilities capabilities() const override {
    TierCapabilities can = MemoryTier::capabilities();
    can.middle = false;
    return can;
  }
  Status Write(Span<const WriteRecord> records, uint32_t* locations) override {
    std::vector<WriteRecord> plain(records.begin(), records.end());
    for (WriteRecord& record : plain) record.header.recency = 0;
    return MemoryTier::Write(plain, locations);
  }
};

class SnapshotDrops : public testing::Test {
 protected:
  SnapshotDrops() { Make(OnCorruption::kError); }
  void Make(OnCorruption on_corruption) {
    tier_ = std::make_shared<PlainTier>();
    TableOptions options = TieredOptions(kDim, 2, tier_);
    options.on_corruption = on_corruption;
    options.lower_tiers[0].budget_bytes = 4 * kDim * sizeof(float);
    options.drop_coldest = true;
    options.cache_strategy = Replacement::kLru;
    table_ = MakeTable(std::move(options));
    MT_EXPECT_OK(Sgd(Range(0, 6), 1.0f, kDim).Run(table_.get()));
    EXPECT_EQ(TierOf(table_.get(), Range(0, 6)), (std::vector<int32_t>{1, 1, 1, 1, 0, 0}));
  }
  // A snapshot during which `visitor` runs once.
  Rows Snapshot(const std::function<void()>& visitor, StatusCode code = StatusCode::kOk) {
    Rows found;
    bool first = true;
    const Status status = table_->TakeSnapshot(true, 1, [&](Rows* chunk) {
      if (first) visitor();
      first = false;
      Append(&found, *chunk);
      return OkStatus();
    });
    EXPECT_EQ(status.code(), code) << status.ToString();
    return found;
  }

  std::shared_ptr<PlainTier> tier_;
  std::unique_ptr<EmbeddingTable> table_;
};

TEST_F(SnapshotDrops, RowsThatCannotBeReadForItStayUntilTheyCan) {
  const Rows before = *table_->Export(true);
  const Rows found = Snapshot([&] {
    tier_->FailRead(2, UnavailableError("cable"));  // the first is of headers, to choose
    MT_EXPECT_OK(Sgd(Range(10, 13), 1.0f, kDim).Run(table_.get()));
    EXPECT_EQ(table_->Stats().sticky_error.code(), StatusCode::kUnavailable) << table_->Stats().sticky_error.ToString();
    EXPECT_TRUE(table_->PopDropped().empty());
    EXPECT_EQ(table_->TotalCount(), 9);
    MT_EXPECT_OK(table_->Remove(Range(11, 13), nullptr));
    MT_EXPECT_OK(table_->Drain());
    EXPECT_EQ(table_->PopDropped(), Range(0, 1)) << "they are as cold as they were";
  });
  ExpectSameRows(found, before);
  EXPECT_EQ(table_->TotalCount(), 6);
  ExpectTiersInOrder(table_.get());
}

TEST_F(SnapshotDrops, RowThatIsLostForGoodGoesAndTheSnapshotLacksIt) {
  for (const OnCorruption option : {OnCorruption::kError, OnCorruption::kDrop}) {
    Make(option);
    uint32_t lost = kNoLocation;
    MT_ASSERT_OK(tier_->Scan([&](const RecordHeader& header, uint32_t location) {
      if (header.key == 0) lost = location;
      return OkStatus();
    }));
    const Rows found = Snapshot(
        [&] {
          std::atomic<bool> damaged{false};
          tier_->SetHook([&](MemoryTier::Point point) {
            if (point == MemoryTier::Point::kAfterRead && !damaged.exchange(true)) MT_EXPECT_OK(tier_->Corrupt(lost));
          });
          MT_EXPECT_OK(Sgd({10}, 1.0f, kDim).Run(table_.get()));
          tier_->SetHook(nullptr);
          MT_EXPECT_OK(table_->Stats().sticky_error);
          EXPECT_EQ(table_->PopDropped(), Range(0, 1));
        },
        option == OnCorruption::kError ? StatusCode::kDataLoss : StatusCode::kOk);
    EXPECT_EQ(Sorted(found).keys, Range(1, 6));
    EXPECT_EQ(table_->Stats().corrupt, 1);
  }
}

// Segments whose records are still to be given are compacted as ever: records move, and are given where they stand.
class SnapshotSpaceTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Compaction, SnapshotSpaceTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "InBackground" : "Inline"; });

TEST_P(SnapshotSpaceTest, CompactionRunsDuringASnapshot) {
  constexpr int64_t kKeys = 30000, kBatch = 1000;
  constexpr int kWide = 16;
  constexpr int64_t kSegmentBytes = 128 << 10;  // a 64th of what is live, and some
  StorageDirectory directory("snapshot_space");
  TableOptions options = BasicOptions(kWide);
  options.dram_budget_bytes = 64 * kWide * sizeof(float);
  options.num_shards = 2;
  options.lower_tiers.push_back({directory.Open("ssdhash", "rows", false, GetParam()), 0});
  auto table = MakeTable(std::move(options));
  std::mt19937_64 random(9);
  const auto train = [&](int64_t batches) {
    for (int64_t batch = 0; batch < batches; ++batch) {
      std::set<int64_t> keys;
      while (keys.size() < kBatch) keys.insert(static_cast<int64_t>(random() % kKeys));
      MT_ASSERT_OK(Sgd(std::vector<int64_t>(keys.begin(), keys.end()), 1.0f, kWide).Run(table.get()));
    }
  };
  for (int64_t key = 0; key < kKeys; key += kBatch) {
    std::vector<int64_t> keys(kBatch);
    std::iota(keys.begin(), keys.end(), key);
    MT_ASSERT_OK(Sgd(keys, 1.0f, kWide).Run(table.get()));
  }
  train(30);  // segments of every age
  const auto stats = [&] { return table->Stats().tiers.back().device; };
  // Of a while of training, in bytes.
  struct Work {
    int64_t appended = 0, written = 0, most_debt = 0;
  };
  const auto work = [&] {
    const TierStats first = stats();
    Work done;
    for (int i = 0; i < 40; ++i) {
      train(1);
      done.most_debt = std::max(done.most_debt, stats().compaction_debt_bytes);
    }
    done.appended = stats().appended_bytes - first.appended_bytes;
    done.written = stats().device_written_bytes - first.device_written_bytes;
    std::printf("%.1f MB appended, %.1f written, beyond the bound %.2f at most\n", static_cast<double>(done.appended) * 1e-6,
                static_cast<double>(done.written) * 1e-6, static_cast<double>(done.most_debt) * 1e-6);
    return done;
  };
  const Work plain = work();
  const Rows before = *table->Export(true);
  const int64_t relocated = stats().relocated_rows;
  Rows found;
  Work beside;
  MT_ASSERT_OK(table->TakeSnapshot(true, kBatch, [&](Rows* chunk) {
    if (found.keys.empty()) beside = work();
    Append(&found, *chunk);
    return OkStatus();
  }));
  ExpectSameRows(found, before);
  EXPECT_GT(beside.appended, kKeys * 100);
  EXPECT_GT(stats().relocated_rows, relocated + kKeys / 2);
  EXPECT_LE(beside.written, plain.written * 5 / 4);
  EXPECT_LE(beside.most_debt, 2 * kSegmentBytes);
  train(1);
  EXPECT_LE(stats().compaction_debt_bytes, kSegmentBytes);
}

TEST_P(SnapshotTest, TheVisitorsErrorEndsIt) {
  TableOptions options = Options(AdmissionKind::kNone);
  options.dram_budget_bytes = 4 * 1024;
  PutChain(GetParam(), 128, 3, &options);
  auto table = MakeTable(std::move(options));
  Train(table.get(), 0);
  int left = 5;
  const Status status =
      table->TakeSnapshot(false, 10, [&](Rows*) { return --left == 0 ? ResourceExhaustedError("full") : OkStatus(); });
  EXPECT_EQ(status, ResourceExhaustedError("full"));
  EXPECT_EQ(left, 0);
  Train(table.get(), 0);
  EXPECT_EQ(table->TakeSnapshot(true, 0, [](Rows*) { return OkStatus(); }).code(), StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Chains, SnapshotTest, testing::ValuesIn(AllChains()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace multitier::snapshot_test
