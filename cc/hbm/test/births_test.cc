// Rows of new keys that the device makes itself: the bits are the CPU's, nothing is copied up but keys and gradients, and the
// host is asked as soon as a row may be below.

#include "cc/hbm/test/device_caller.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::hbm::births_test {
namespace {

InitializerSpec Spec(InitializerKind kind, float a, float b, uint64_t seed = 7) {
  InitializerSpec spec;
  spec.kind = kind;
  spec.a = a;
  spec.b = b;
  spec.seed = seed;
  return spec;
}

InitializerSpec ByColumn(std::vector<ColumnInitializer> columns) {
  InitializerSpec spec;
  spec.tables = std::make_shared<std::vector<TableInitializer>>(1, TableInitializer{std::move(columns)});
  return spec;
}

// A table of HBM alone, or with room for `rows` rows over DRAM, and a plain one.
struct Newborn {
  Newborn(const InitializerSpec& initializer, int the_dim, int rows = 0, uint64_t values = 0) : dim(the_dim) {
    TableOptions options = WithValues(BasicOptions(dim), values);
    options.initializer = initializer;
    plain = MakeTable(options);
    table = rows == 0 ? GrowingTable(options, device) : MakeHbmTable(options, rows, device);
    MT_EXPECT_OK(table->AddSlots(SlotColumns(**FindUpdateRule("adagrad"), dim)));
    MT_EXPECT_OK(plain->AddSlots(SlotColumns(**FindUpdateRule("adagrad"), dim)));
    if (rows != 0) return;
    Step(Sgd(Range(1000, 1200), 1.0f, dim));
    Step(Sgd({1200}, 1.0f, dim));  // takes memory for 400 rows
  }
  // A lookup with a plan, and its update.
  void Step(const Training& training) {
    MT_ASSERT_OK(table->AddSlots(SlotColumns(*training.rule, dim)));
    DevicePlan plan;
    const DeviceMember member = caller.Plain(table.get(), training.keys);
    MT_ASSERT_OK(caller.Lookup({member}, &plan));
    EXPECT_TRUE(SameBits(caller.Values(member), LookupAll(plain.get(), training.keys)));
    MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));
    MT_ASSERT_OK(training.Run(plain.get()));
  }
  // Bytes that came up for a step, without what the caller copies itself.
  size_t UpOf(const Training& training) {
    MT_EXPECT_OK(training.Run(plain.get()));
    const DeviceUpdate update = caller.UpdateOf(training, 0);
    const DeviceMember member = caller.Plain(table.get(), training.keys);
    MT_EXPECT_OK(device->Synchronize(caller.stream()));
    (void)table->TotalCount();  // waits for the update before
    const size_t up = device->up();
    const int64_t waits = device->synchronizations();
    DevicePlan plan;
    MT_EXPECT_OK(caller.Lookup({member}, &plan));
    MT_EXPECT_OK(caller.Update(plan, {update}));
    (void)table->TotalCount();
    last_waits = device->synchronizations() - waits;
    return device->up() - up;
  }
  // Whether the rows of new keys are born on the device.
  bool Bears(const std::vector<int64_t>& keys) {
    Step(Sgd({--never_used}, 1.0f, dim));  // a new key announces more
    return UpOf(Sgd(keys, 1.0f, dim)) < keys.size() * static_cast<size_t>(dim) * sizeof(float);
  }
  void ExpectSame() { ExpectSameTables(plain.get(), table.get()); }

  const int dim;
  std::shared_ptr<CopyCountingDevice> device = std::make_shared<CopyCountingDevice>();
  std::unique_ptr<HbmTable> table;
  std::unique_ptr<EmbeddingTable> plain;
  int64_t last_waits = 0, never_used = -1000000;
  DeviceCaller caller{device};
};

TEST(Births, EveryDistributionGivesTheBitsOfThePlainTable) {
  const std::vector<InitializerSpec> specs = {
      Spec(InitializerKind::kConstant, 0.0f, 0.0f),
      Spec(InitializerKind::kConstant, -1.5f, 0.0f),
      Spec(InitializerKind::kUniform, -0.3f, 0.7f, 0x123456789abcdefull),
      Spec(InitializerKind::kNormal, 0.1f, 2.0f),
      Spec(InitializerKind::kTruncatedNormal, -1.0f, 0.5f),
      ByColumn({{0, Spec(InitializerKind::kNormal, 0.0f, 1.0f)}}),
      ByColumn({{0, Spec(InitializerKind::kUniform, 0.0f, 1.0f, 3)},
                {5, Spec(InitializerKind::kConstant, 4.0f, 0.0f)},
                {6, Spec(InitializerKind::kNormal, 0.0f, 1.0f, 3)},
                {7, Spec(InitializerKind::kNormal, 0.0f, 1.0f, 4)}}),
  };
  uint64_t values = 0;
  for (const InitializerSpec& spec : specs) {
    for (const int dim : {8, 9, 12, 130}) {
      Newborn newborn(spec, dim, /*rows=*/0, values++);
      std::vector<int64_t> keys = Range(-30, 30);
      keys.insert(keys.end(), {5, INT64_MIN, INT64_MAX, 5});
      Training training = Sgd(keys, 0.5f, dim);
      training.rule = *FindUpdateRule("adagrad");  // its slots do not begin with 0
      training.hyper = SomeHyper(*training.rule);
      newborn.Step(training);
      EXPECT_TRUE(newborn.Bears(Range(2000, 2030)));
      newborn.ExpectSame();
      if (testing::Test::HasFailure()) FAIL() << "kind " << static_cast<int>(spec.kind) << ", dim " << dim;
      if (kSanitized) break;
    }
  }
}

TEST(Births, WhatNeedsMoreThanTheKeyComesFromTheHost) {
  InitializerSpec matrix = Spec(InitializerKind::kMatrix, 0.0f, 0.0f);
  matrix.matrix_rows = 2;
  matrix.matrix = std::make_shared<std::vector<float>>(2 * 40, 0.5f);
  InitializerSpec between = Spec(InitializerKind::kNormalBetween, 0.0f, 1.0f);
  between.lower = -0.5f;
  std::vector<ColumnInitializer> five;
  for (int c = 0; c < 5; ++c) five.push_back({c, Spec(InitializerKind::kConstant, static_cast<float>(c), 0.0f)});
  for (const InitializerSpec& spec : {matrix, between, Spec(InitializerKind::kDebug, 0.0f, 0.0f), ByColumn(five)}) {
    Newborn newborn(spec, 40);
    EXPECT_FALSE(newborn.Bears(Range(0, 20)));
    newborn.ExpectSame();
  }
}

// One wait is of the lookup, one of the worker that counts the rows that the update created.
TEST(Births, AStepWithNewKeysWaitsOnceAndCopiesNoRowUp) {
  Newborn newborn(Spec(InitializerKind::kNormal, 0.0f, 1.0f), 64);
  const size_t none = newborn.UpOf(Sgd(Range(1000, 1020), 1.0f, 64));  // no key is new
  EXPECT_LE(newborn.last_waits, 2);
  newborn.Step(Sgd({1}, 1.0f, 64));
  EXPECT_LE(newborn.UpOf(Sgd(Range(10, 30), 1.0f, 64)), none);
  EXPECT_LE(newborn.last_waits, 2);
  const TableStats stats = newborn.table->Stats();
  EXPECT_EQ(stats.absent, 201 + 1 + 20);
  EXPECT_EQ(stats.tiers[0].misses, stats.absent);
  EXPECT_EQ(stats.tiers[0].rows, 222);
  newborn.ExpectSame();
}

TEST(Births, ABatchWithoutNewKeysHasTheLaunchesOfFind) {
  Newborn newborn(Spec(InitializerKind::kNormal, 0.0f, 1.0f), 4);
  std::vector<int64_t> launches;
  for (int i = 0; i < 2; ++i) {
    const DeviceMember member = newborn.caller.Plain(newborn.table.get(), Range(1000, 1020));
    DevicePlan plan;
    const int64_t before = newborn.device->launches();
    MT_ASSERT_OK(newborn.caller.Lookup({member}, &plan));
    launches.push_back(newborn.device->launches() - before);
  }
  EXPECT_EQ(launches[0] - launches[1], 5);  // the lookup before the first one had new keys
}

TEST(Births, AnUpdateWithoutAPlanBearsRows) {
  Newborn newborn(Spec(InitializerKind::kNormal, 0.0f, 1.0f), 64);
  const Training training = Sgd(Range(0, 20), 1.0f, 64);
  const size_t up = newborn.device->up();
  MT_ASSERT_OK(Train(training, newborn.table.get()));
  EXPECT_LT(newborn.device->up() - up, 20u * (64 * sizeof(float) + sizeof(int64_t)) + 200);  // gradients and keys
  MT_ASSERT_OK(training.Run(newborn.plain.get()));
  newborn.ExpectSame();
}

TEST(Births, KeysOfTableThatHasRowsElsewhereAreLookedForBelow) {
  Newborn newborn(Spec(InitializerKind::kUniform, 0.0f, 1.0f), 40);
  EXPECT_TRUE(newborn.Bears(Range(0, 20)));
  Rows rows;
  rows.keys = {4, 500, 501};
  rows.frequencies = {3, 4, 5};
  rows.versions = {1, 2, 3};
  rows.columns = {ColumnSpec{"value", DType::kFloat32, 40, 0}};
  rows.data.resize(3 * 40, 2.0f);
  DevicePlan plan;
  newborn.caller.LookupAll(newborn.table.get(), {500, 501}, &plan);  // provisional rows, which no update follows
  MT_ASSERT_OK(newborn.table->Import(rows, nullptr));
  MT_ASSERT_OK(newborn.plain->Import(rows, nullptr));
  EXPECT_FALSE(newborn.Bears(Range(20, 40)));
  newborn.Step(Sgd({4, 500}, 1.0f, 40));
  EXPECT_FALSE(newborn.Bears(Range(40, 60)));
  newborn.Step(Sgd({501}, 1.0f, 40));  // now all rows are in HBM
  EXPECT_TRUE(newborn.Bears(Range(60, 80)));
  newborn.caller.LookupAll(newborn.table.get(), {29, 3000, 3001}, &plan);
  MT_ASSERT_OK(newborn.table->Remove(std::vector<int64_t>{3000, 3001, 3002}, nullptr));
  MT_ASSERT_OK(newborn.table->Remove(Range(0, 30), nullptr));
  MT_ASSERT_OK(newborn.plain->Remove(Range(0, 30), nullptr));
  EXPECT_TRUE(newborn.Bears(Range(0, 20)));  // they are as new
  newborn.ExpectSame();
  MT_ASSERT_OK(newborn.table->Clear());
  MT_ASSERT_OK(newborn.plain->Clear());
  EXPECT_TRUE(newborn.Bears(Range(0, 20)));
  newborn.ExpectSame();
}

// As soon as there is room again: what left were provisional rows, which no update had followed.
TEST(Births, RowsAreBornAfterProvisionalOnesLeft) {
  Newborn newborn(Spec(InitializerKind::kUniform, 0.0f, 1.0f), 40, /*rows=*/120);  // of which slots take half
  newborn.Step(Sgd(Range(0, 20), 1.0f, 40));
  {
    DevicePlan plan;
    newborn.caller.LookupAll(newborn.table.get(), Range(1000, 1035), &plan);
  }
  newborn.Step(Sgd(Range(0, 20), 1.0f, 40));
  newborn.Step(Sgd(Range(20, 40), 1.0f, 40));  // 5 of them find room
  EXPECT_EQ(TierOf(newborn.table.get(), Range(0, 40)), std::vector<int32_t>(40, 0));
  MT_ASSERT_OK(newborn.table->Remove(Range(0, 15), nullptr));
  MT_ASSERT_OK(newborn.plain->Remove(Range(0, 15), nullptr));
  EXPECT_TRUE(newborn.Bears(Range(100, 110)));
  newborn.ExpectSame();
}

// An update creates rows in HBM and trains others that find no place there: they were below before.
TEST(Births, RowsThatFindNoPlaceDoNotCountAsCreated) {
  Newborn newborn(Spec(InitializerKind::kUniform, 0.0f, 1.0f), 40, /*rows=*/120);  // of which slots take half
  const auto both = [&](const auto& call) {
    call(newborn.table.get());
    call(newborn.plain.get());
  };
  const auto train = [&](std::vector<int64_t> keys, const std::vector<int64_t>& more, const std::vector<int64_t>& most) {
    keys.insert(keys.end(), more.begin(), more.end());
    keys.insert(keys.end(), most.begin(), most.end());
    both([&](EmbeddingTable* table) { MT_ASSERT_OK(Sgd(keys, 1.0f, 40).Run(table)); });
  };
  const auto remove = [&](const std::vector<int64_t>& keys) {
    both([&](EmbeddingTable* table) { MT_ASSERT_OK(table->Remove(keys, nullptr)); });
  };
  train(Range(0, 70), {}, {});  // the last ten find no place
  remove(Range(0, 20));
  train(Range(100, 120), Range(60, 70), Range(20, 60));  // now the first twenty do
  EXPECT_EQ(TierOf(newborn.table.get(), {119, 60}), (std::vector<int32_t>{0, 1}));
  remove(Range(20, 60));
  train(Range(60, 70), {}, {});  // now all rows are in HBM
  EXPECT_TRUE(newborn.Bears(Range(200, 210)));
  newborn.ExpectSame();
}

TEST(Births, OverTiersRowsAreBornUntilOneLeaves) {
  Newborn newborn(Spec(InitializerKind::kUniform, 0.0f, 1.0f), 40, /*rows=*/120);  // of which slots take half

  EXPECT_TRUE(newborn.Bears(Range(0, 20)));
  newborn.ExpectSame();  // a save leaves the rows in HBM
  EXPECT_TRUE(newborn.Bears(Range(20, 40)));
  newborn.Step(Sgd(Range(40, 80), 1.0f, 40));  // more than there is room for
  EXPECT_FALSE(newborn.Bears(Range(100, 110)));
  for (int64_t from = 0; from < 80; from += 10) newborn.Step(Sgd(Range(from, from + 10), 1.0f, 40));
  newborn.ExpectSame();
}

// Tables of HBM alone in one group, or with room for `rows` rows over DRAM.
struct NewbornGroup {
  static constexpr int kTables = 26, kDim = 64, kNew = 5;

  explicit NewbornGroup(int rows = 0) {
    for (int t = 0; t < kTables; ++t) {
      TableOptions options = BasicOptions(kDim);
      options.initializer = Spec(InitializerKind::kNormal, 0.0f, 1.0f, static_cast<uint64_t>(t));
      if (t % 2 == 1) options.cache_strategy = Replacement::kLfu;
      plain.push_back(MakeTable(options));
      tables.push_back(rows == 0 ? GrowingTable(options, device) : MakeHbmTable(options, rows, device));
      MT_EXPECT_OK(Train(Sgd(Range(1000, 1040), 1.0f, kDim), tables.back().get()));
      MT_EXPECT_OK(Sgd(Range(1000, 1040), 1.0f, kDim).Run(plain.back().get()));
    }
    Step(kNew);  // takes memory
    Step(kNew);
  }
  // A lookup with a plan, and its update, of five keys of each table and `fresh` new ones.
  void Step(int fresh) {
    std::vector<Training> trainings;
    std::vector<DeviceMember> members;
    std::vector<DeviceUpdate> updates;
    for (int t = 0; t < kTables; ++t) {
      std::vector<int64_t> keys = Range(1000, 1005);
      for (int i = 0; i < fresh; ++i) keys.push_back(next + i);
      keys.push_back(keys.back());
      trainings.push_back(Sgd(keys, 0.5f, kDim));
      members.push_back(caller.Plain(tables[static_cast<size_t>(t)].get(), keys));
      updates.push_back(caller.UpdateOf(trainings.back(), t));
      (void)tables[static_cast<size_t>(t)]->TotalCount();  // waits for the update before
    }
    next += fresh;
    MT_EXPECT_OK(device->Synchronize(caller.stream()));
    const size_t up_before = device->up();
    const int64_t waits_before = device->synchronizations(), launches_before = device->launches();
    DevicePlan plan;
    MT_EXPECT_OK(caller.Lookup(members, &plan));
    lookup_waits = device->synchronizations() - waits_before;
    MT_EXPECT_OK(caller.Update(plan, updates));
    for (const auto& table : tables) (void)table->TotalCount();
    waits = device->synchronizations() - waits_before;
    launches = device->launches() - launches_before;
    up = device->up() - up_before;
    for (size_t t = 0; t < kTables; ++t) {
      EXPECT_TRUE(SameBits(caller.Values(members[t]), LookupAll(plain[t].get(), trainings[t].keys))) << t;
      MT_EXPECT_OK(trainings[t].Run(plain[t].get()));
    }
  }
  void ExpectSame() {
    for (size_t t = 0; t < kTables; ++t) ExpectSameTables(plain[t].get(), tables[t].get());
  }

  std::shared_ptr<CopyCountingDevice> device = std::make_shared<CopyCountingDevice>();
  std::vector<std::unique_ptr<HbmTable>> tables;
  std::vector<std::unique_ptr<EmbeddingTable>> plain;
  DeviceCaller caller{device};
  int64_t next = 0, waits = 0, lookup_waits = 0, launches = 0;
  size_t up = 0;
};

// Half of the tables leave by rank, which new rows have, too.
TEST(Births, AGroupWithNewKeysWaitsOnceAndCopiesNoRowUp) {
  NewbornGroup group;
  group.Step(0);
  group.Step(0);
  EXPECT_EQ(group.launches, 9);
  const size_t none = group.up;
  group.Step(NewbornGroup::kNew);  // announces more
  group.Step(NewbornGroup::kNew);
  EXPECT_EQ(group.lookup_waits, 1);
  EXPECT_LE(group.waits, 2);  // one is of the worker that counts the created rows
  EXPECT_LE(group.launches, 13);
  constexpr size_t kRows = NewbornGroup::kTables * NewbornGroup::kNew * NewbornGroup::kDim * sizeof(float);
  EXPECT_LT(group.up - none, kRows / 4);  // what a row begins with, of each table
  for (const auto& table : group.tables) {
    const TableStats stats = table->Stats();
    EXPECT_EQ(stats.tiers[0].rows, 40 + 4 * NewbornGroup::kNew);
    EXPECT_EQ(stats.absent, 4 * (NewbornGroup::kNew + 1));  // the last key of a batch is there twice
  }
  group.ExpectSame();
}

TEST(Births, AGroupAsksTheHostOnceARowHasLeft) {
  NewbornGroup group(/*rows=*/70);
  group.Step(NewbornGroup::kNew);
  EXPECT_EQ(group.lookup_waits, 1);
  for (int i = 0; i < (kSanitized ? 4 : 8); ++i) group.Step(NewbornGroup::kNew);  // more than there is room for
  EXPECT_GT(group.lookup_waits, 1);
  group.ExpectSame();
}

// More keys than a bucket has slots: those without one go on as misses.
TEST(Births, KeysWithoutASlotGoOverTheHost) {
  Newborn newborn(Spec(InitializerKind::kUniform, 0.0f, 1.0f), 4);
  newborn.Step(Sgd(Range(2000, 2500), 1.0f, 4));  // 701 rows or more
  const uint32_t buckets = (800 + 63) / 64;
  std::vector<int64_t> keys;
  for (int64_t key = 10000; keys.size() < 200; ++key) {
    if (device::PlaceOf(key, 4 * buckets).bucket / 4 == 1) keys.push_back(key);
  }
  for (int i = 0; i < 3; ++i) newborn.Step(Sgd(keys, 0.5f, 4));
  newborn.ExpectSame();
}

// The rows that a group bears for a member that goes on alone are no hits.
TEST(Births, KeysOfAGroupWithoutASlotAreMisses) {
  const auto device = NewEmulatedDevice();
  DeviceCaller caller(device);
  std::vector<std::unique_ptr<HbmTable>> tables;
  std::vector<DeviceMember> members;
  std::vector<int64_t> keys;
  const uint32_t buckets = (400 + 63) / 64;
  for (int64_t key = 10000; keys.size() < 190; ++key) {
    if (device::PlaceOf(key, buckets).bucket == 1) keys.push_back(key);
  }
  for (int t = 0; t < 2; ++t) {
    tables.push_back(GrowingTable(BasicOptions(4), device));
    for (const auto& before : {Range(1000, 1200), Range(1200, 1201)}) {  // takes memory for 400 rows
      caller.LookupAll(tables.back().get(), before);
      MT_ASSERT_OK(Train(Sgd(before, 1.0f, 4), tables.back().get()));
    }
    members.push_back(caller.Plain(tables.back().get(), t == 0 ? keys : Range(0, 10)));
  }
  const TableStats before = tables[0]->Stats();
  DevicePlan plan;
  MT_ASSERT_OK(caller.Lookup(members, &plan));
  const TableStats after = tables[0]->Stats();
  EXPECT_EQ(after.tiers[0].misses - before.tiers[0].misses, 190);
  EXPECT_EQ(after.tiers[0].hits, before.tiers[0].hits);
  EXPECT_EQ(after.absent - before.absent, 190);
  auto plain = MakeTable(BasicOptions(4));
  EXPECT_TRUE(SameBits(caller.Values(members[0]), LookupAll(plain.get(), keys)));
}

// The arrays of births are the last ones that a lookup takes before it looks for its keys.
TEST(Births, WithoutMemoryForThemTheHostIsAsked) {
  for (const size_t tables : {1u, 2u}) {
    int without = 0;
    bool all = false;
    for (int64_t fails_at = 0; !all; fails_at += kSanitized ? 4 : 1) {
      const auto device = NewEmulatedDevice();
      std::atomic<int64_t> until{-1};  // the next failures
      auto source = std::make_shared<MemorySource>();
      source->allocate = [&](size_t bytes) -> Result<void*> {
        const int64_t left = until--;
        if (left == 0 || left == 1) return ResourceExhaustedError("no memory for ", bytes);
        return device->Allocate(bytes);
      };
      source->free = [&](void* memory) { device->Free(memory); };
      DeviceCaller caller(device);
      auto plain = MakeTable(BasicOptions(4));
      std::vector<std::unique_ptr<HbmTable>> made;
      std::vector<DeviceMember> members;
      const std::vector<int64_t> keys = Range(0, 600);  // more than before: the pool has no memory
      for (size_t t = 0; t < tables; ++t) {
        made.push_back(MakeHbmTable(BasicOptions(4), 2000, device, 0, source));
        members.push_back(caller.Plain(made.back().get(), keys));
      }
      until = fails_at + 1;
      DevicePlan plan;
      const Status status = caller.Lookup(members, &plan);
      all = until >= 0;
      until = -1;
      if (!status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
        continue;
      }
      without += !all;
      EXPECT_TRUE(SameBits(caller.Values(members.back()), LookupAll(plain.get(), keys)));
      ASSERT_LT(fails_at, 200);
    }
    EXPECT_GE(without, kSanitized ? 1 : 8);
  }
}

TEST(Births, SeveralThreadsGetTheBitsOfThePlainTable) {
  Newborn newborn(Spec(InitializerKind::kNormal, 0.0f, 1.0f), 4);
  constexpr int kThreads = 4;
  const int steps = kSanitized ? 4 : 15;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      DeviceCaller caller(newborn.device);
      for (int step = 0; step < steps; ++step) {
        const int64_t from = 100000 * t + 10 * step;
        const Training training = Sgd(Range(from, from + 15), 0.5f, 4);
        DevicePlan plan;
        caller.LookupAll(newborn.table.get(), training.keys, &plan);
        MT_EXPECT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));
        if (step % 5 == 2) MT_EXPECT_OK(newborn.table->Export(true).status());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int t = 0; t < kThreads; ++t) {
    for (int step = 0; step < steps; ++step) {
      const int64_t from = 100000 * t + 10 * step;
      MT_ASSERT_OK(Sgd(Range(from, from + 15), 0.5f, 4).Run(newborn.plain.get()));
    }
  }
  EXPECT_EQ(newborn.table->TotalCount(), newborn.plain->TotalCount());
  for (int t = 0; t < kThreads; ++t) {
    const std::vector<int64_t> keys = Range(100000 * t, 100000 * t + 10 * steps + 5);
    EXPECT_TRUE(SameBits(LookupAll(newborn.table.get(), keys), LookupAll(newborn.plain.get(), keys)));
  }
}

}  // namespace
}  // namespace multitier::hbm::births_test
