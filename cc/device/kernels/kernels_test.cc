// Every kernel on the emulated device against a plain model: lookups with misses, places, victims and rows of several tables.

#include "cc/device/kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "cc/base/hash.h"
#include "cc/device/emulated_device.h"
#include "cc/device/kernels/test_memory.h"

namespace multitier::device {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr int kRounds = 2;
#else
constexpr int kRounds = 12;
#endif

struct Shape {
  uint32_t buckets, capacity;
  RankBy rank_by;
};

constexpr uint32_t kDim = 10;
constexpr RankBy kNothing = RankBy::kNothing, kFrequency = RankBy::kFrequency, kVersion = RankBy::kVersion;

// What a table must hold after each operation, by the rules of insert.cu.cc.
struct Model {
  struct Entry {
    uint32_t last;
    uint64_t rank;
    std::vector<float> value;
    bool dirty;
    uint32_t slot;
  };
  Shape shape;
  std::map<int64_t, Entry> entries;
  std::vector<std::set<uint32_t>> taken;  // slots of each bucket

  explicit Model(Shape s) : shape(s), taken(s.buckets) {}

  // The key that leaves the bucket, if any may.
  const int64_t* Coldest(uint32_t bucket, uint32_t floor) const {
    const std::pair<const int64_t, Entry>* coldest = nullptr;
    const auto rank = [this](const Entry& e) {
      return std::make_tuple(shape.rank_by == RankBy::kNothing ? 0 : e.rank, e.last, e.slot);
    };
    for (const auto& entry : entries) {
      if (PlaceOf(entry.first, shape.buckets).bucket != bucket || entry.second.last >= floor) continue;
      if (coldest == nullptr || rank(entry.second) < rank(coldest->second)) coldest = &entry;
    }
    return coldest == nullptr ? nullptr : &coldest->first;
  }
};

// Runs training lookups of several tables, and marks the rows of each as changed.
class Tables {
 public:
  Tables(std::vector<Shape> shapes, uint64_t seed, uint32_t dim = kDim)
      : dim_(dim),
        row_bytes_(static_cast<uint32_t>(sizeof(DeviceRowHeader) + (dim * sizeof(float) + 15) / 16 * 16)),
        random_(seed) {
    EmulatedDevice::Options options;
    options.simt.seed = seed;
    device_ = std::make_shared<EmulatedDevice>(options, &EmulatedKernels());
    stream_ = *device_->NewStream();
    memory_ = std::make_unique<TestMemory>(device_, stream_);
    for (const Shape& shape : shapes) {
      models_.emplace_back(shape);
      views_.push_back(NewTable(shape));
    }
    tables_ = memory_->Up(views_);
  }

  void Lookup(const std::vector<std::vector<int64_t>>& keys_of_tables, uint32_t floor_lag);
  void CheckAccounts();

 private:
  struct Key {
    uint32_t table;
    int64_t key;
    bool operator<(const Key& o) const { return std::tie(table, key) < std::tie(o.table, o.key); }
    bool operator==(const Key& o) const { return table == o.table && key == o.key; }
  };

  Table NewTable(const Shape& shape) {
    const size_t slots = size_t{shape.buckets} * kBucketSlots;
    Table table;
    table.digests = memory_->Filled<uint8_t>(slots, 0);
    table.slots = memory_->Filled<Slot>(slots, 0x5c);
    table.last_used = memory_->Filled<uint32_t>(slots, 0x5c);
    table.rank_by = shape.rank_by;
    table.ranks = shape.rank_by != RankBy::kNothing ? memory_->Filled<uint64_t>(slots, 0x5c) : nullptr;
    table.buckets = shape.buckets;
    table.capacity = shape.capacity;
    table.rows = memory_->Filled<uint8_t>(size_t{shape.capacity} * row_bytes_, 0x5c);
    table.row_stride = row_bytes_;
    table.slot_of_row = memory_->Filled<uint32_t>(shape.capacity, 0xff);
    std::vector<uint32_t> free(shape.capacity);
    for (uint32_t i = 0; i < shape.capacity; ++i) free[i] = i;
    table.free_rows = memory_->Up(free);
    table.num_free = memory_->Up(std::vector<uint32_t>{shape.capacity});
    table.heads = memory_->Filled<uint32_t>(shape.buckets, 0xff);
    return table;
  }

  std::vector<Key> Dedup(TestMemory* memory, const std::vector<Key>& batch, DedupArgs* args);
  std::vector<float> ValueBelow(const Key& key) const {
    std::vector<float> value(dim_);
    for (uint32_t d = 0; d < dim_; ++d) value[d] = static_cast<float>(key.key % 4096) + static_cast<float>(key.table) / 8 + d;
    const auto changed = below_.find(key);
    return changed == below_.end() ? value : changed->second;
  }
  static DeviceRowHeader HeaderBelow(const Key& key) {
    return DeviceRowHeader{key.key % 5 - 2, static_cast<uint32_t>(key.key & 3), 0, 0};
  }
  uint8_t* Stage(TestMemory* memory, const std::vector<Key>& missed) const;
  void PlaceInModel(const std::vector<Key>& missed, uint32_t floor, std::vector<Key>* dirty, std::set<Key>* unplaced);
  void ChangeRows(TestMemory* memory, const std::vector<Key>& distinct, uint8_t* const* rows);

  const uint32_t dim_, row_bytes_;
  std::mt19937_64 random_;
  std::shared_ptr<EmulatedDevice> device_;
  Stream stream_;
  std::unique_ptr<TestMemory> memory_;
  std::vector<Table> views_;
  const Table* tables_;
  std::vector<Model> models_;
  std::map<Key, std::vector<float>> below_;  // rows that were handed down
  uint32_t operation_ = 0;
};

std::vector<Tables::Key> Tables::Dedup(TestMemory* memory, const std::vector<Key>& batch, DedupArgs* args) {
  const auto n = static_cast<uint32_t>(batch.size());
  std::vector<int64_t> keys(n);
  std::vector<uint32_t> ends(models_.size(), 0);
  for (uint32_t i = 0; i < n; ++i) keys[i] = batch[i].key;
  for (const Key& key : batch) {
    for (size_t t = key.table; t < ends.size(); ++t) ++ends[t];
  }
  args->keys = memory->Up(keys);
  args->n = n;
  args->ends = memory->Up(ends);
  args->num_tables = static_cast<uint32_t>(ends.size());
  for (args->set_size = 2; args->set_size < 2 * n;) args->set_size *= 2;
  args->set = memory->Filled<uint32_t>(args->set_size, 0xff);
  args->places = memory->Filled<uint32_t>(n, 0x5c);
  args->numbers = memory->Filled<uint32_t>(n, 0x5c);
  args->scan.words = memory->Filled<uint64_t>(ScanScratch::Words(n), 0);
  args->distinct = memory->Filled<int64_t>(n, 0x5c);
  args->distinct_tables = memory->Filled<uint32_t>(n, 0x5c);
  args->counts = memory->Filled<uint32_t>(n, 0);
  args->inverse = memory->Filled<uint32_t>(n, 0x5c);
  args->num_distinct = memory->Filled<uint32_t>(1, 0x5c);
  MT_CHECK(device_->kernels().dedup(stream_, *args).ok());

  std::vector<Key> distinct;
  std::map<Key, uint32_t> numbers;
  std::vector<uint32_t> counts, inverse;
  for (const Key& key : batch) {
    const auto [at, first] = numbers.emplace(key, static_cast<uint32_t>(distinct.size()));
    if (first) {
      distinct.push_back(key);
      counts.push_back(0);
    }
    ++counts[at->second];
    inverse.push_back(at->second);
  }
  EXPECT_EQ(memory->Down(args->num_distinct, 1)[0], distinct.size());
  EXPECT_EQ(memory->Down(args->counts, distinct.size()), counts);
  EXPECT_EQ(memory->Down(args->inverse, n), inverse);
  const std::vector<int64_t> found_keys = memory->Down(args->distinct, distinct.size());
  const std::vector<uint32_t> found_tables = memory->Down(args->distinct_tables, distinct.size());
  for (size_t i = 0; i < distinct.size(); ++i) EXPECT_TRUE((distinct[i] == Key{found_tables[i], found_keys[i]})) << i;
  return distinct;
}

uint8_t* Tables::Stage(TestMemory* memory, const std::vector<Key>& missed) const {
  std::vector<uint8_t> staged(missed.size() * row_bytes_, 0);
  for (size_t i = 0; i < missed.size(); ++i) {
    const std::vector<float> value = ValueBelow(missed[i]);
    const DeviceRowHeader header = HeaderBelow(missed[i]);
    std::memcpy(staged.data() + i * row_bytes_, &header, sizeof(header));
    std::memcpy(staged.data() + i * row_bytes_ + sizeof(header), value.data(), dim_ * sizeof(float));
  }
  return memory->Up(staged);
}

// What insert.cu.cc says, one miss after the other.
void Tables::PlaceInModel(const std::vector<Key>& missed, uint32_t floor, std::vector<Key>* dirty, std::set<Key>* unplaced) {
  std::vector<uint32_t> rank(models_.size(), 0), num_free;
  std::map<std::pair<uint32_t, uint32_t>, int> in_bucket;
  std::vector<std::pair<size_t, Key>> leaving;  // by miss
  for (const Model& model : models_) num_free.push_back(model.shape.capacity - static_cast<uint32_t>(model.entries.size()));
  for (size_t i = 0; i < missed.size(); ++i) {
    const Key key = missed[i];
    Model& model = models_[key.table];
    const uint32_t bucket = PlaceOf(key.key, model.shape.buckets).bucket;
    const bool offered = rank[key.table]++ < num_free[key.table];
    std::set<uint32_t>& taken = model.taken[bucket];
    Model::Entry entry{operation_, RankOf(model.shape.rank_by, HeaderBelow(key)), ValueBelow(key), false, 0};
    const bool too_many = ++in_bucket[{key.table, bucket}] > kBucketSlots;
    const int64_t* coldest = too_many ? nullptr : model.Coldest(bucket, floor);
    if (!too_many && offered && taken.size() < static_cast<size_t>(kBucketSlots)) {
      while (taken.count(entry.slot) != 0) ++entry.slot;
      taken.insert(entry.slot);
    } else if (coldest != nullptr) {
      const Key victim{key.table, *coldest};
      const Model::Entry& old = model.entries.at(victim.key);
      entry.slot = old.slot;
      if (old.dirty) {
        dirty->push_back(victim);
        below_[victim] = old.value;
      }
      model.entries.erase(victim.key);
    } else {
      unplaced->insert(key);
      continue;
    }
    model.entries.emplace(key.key, entry);
  }
}

// As an update does: every row that is found gets another value, and is dirty from then on.
void Tables::ChangeRows(TestMemory* memory, const std::vector<Key>& distinct, uint8_t* const* rows) {
  const std::vector<uint8_t*> found = memory->Down(rows, distinct.size());
  std::vector<uint8_t> images;
  for (size_t i = 0; i < distinct.size(); ++i) {
    Model& model = models_[distinct[i].table];
    const auto entry = model.entries.find(distinct[i].key);
    if (entry == model.entries.end() || random_() % 3 == 0) continue;
    for (float& element : entry->second.value) element += 0.5f;
    entry->second.dirty = true;
    std::vector<uint8_t> row(row_bytes_, 0);
    reinterpret_cast<DeviceRowHeader*>(row.data())->flags = kRowDirty;
    std::memcpy(row.data() + sizeof(DeviceRowHeader), entry->second.value.data(), dim_ * sizeof(float));
    MT_CHECK(device_->Copy(stream_, found[i], memory->Up(row), row_bytes_).ok());
  }
}

void Tables::Lookup(const std::vector<std::vector<int64_t>>& keys_of_tables, uint32_t floor_lag) {
  TestMemory memory(device_, stream_);
  ++operation_;
  const uint32_t floor = operation_ > floor_lag ? operation_ - floor_lag : 0;
  std::vector<Key> batch;
  for (uint32_t t = 0; t < keys_of_tables.size(); ++t) {
    for (int64_t key : keys_of_tables[t]) batch.push_back({t, key});
  }
  DedupArgs dedup;
  const std::vector<Key> distinct = Dedup(&memory, batch, &dedup);
  const auto n = static_cast<uint32_t>(batch.size());

  std::vector<Key> missed;
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < distinct.size(); ++i) {
    const auto entry = models_[distinct[i].table].entries.find(distinct[i].key);
    if (entry == models_[distinct[i].table].entries.end()) {
      missed.push_back(distinct[i]);
      positions.push_back(i);
    } else {
      entry->second.last = operation_;
    }
  }
  FindArgs find{tables_,
                dedup.distinct,
                dedup.distinct_tables,
                dedup.num_distinct,
                n,
                operation_,
                true,
                memory.Filled<uint8_t*>(n, 0x5c),
                memory.Filled<uint32_t>(n, 0x5c)};
  ASSERT_TRUE(device_->kernels().find(stream_, find).ok());
  CompactArgs compact{find.missed,
                      dedup.num_distinct,
                      n,
                      {memory.Filled<uint64_t>(ScanScratch::Words(n), 0)},
                      memory.Filled<uint32_t>(n, 0x5c),
                      memory.Filled<uint32_t>(1, 0x5c)};
  ASSERT_TRUE(device_->kernels().compact(stream_, compact).ok());
  ASSERT_EQ(memory.Down(compact.length, 1)[0], missed.size());
  ASSERT_EQ(memory.Down(compact.list, missed.size()), positions);

  InsertArgs insert{};
  insert.tables = tables_;
  insert.num_tables = static_cast<uint32_t>(models_.size());
  insert.keys = dedup.distinct;
  insert.key_tables = dedup.distinct_tables;
  insert.missed = compact.list;
  insert.num_missed = compact.length;
  insert.max_missed = n;
  insert.operation = operation_;
  insert.floor = floor;
  insert.staged_rows = Stage(&memory, missed);
  insert.staged_stride = row_bytes_;
  for (uint32_t** scratch : {&insert.begins, &insert.ends, &insert.bases})
    *scratch = memory.Filled<uint32_t>(models_.size(), 0x5c);
  for (uint32_t** scratch : {&insert.next, &insert.offered, &insert.consumed, &insert.returned, &insert.outbox}) {
    *scratch = memory.Filled<uint32_t>(n, 0x5c);
  }
  insert.scan.words = memory.Filled<uint64_t>(ScanScratch::Words(n), 0);
  insert.rows = find.rows;
  insert.victims = memory.Filled<Victim>(n, 0x5c);
  insert.num_dirty = memory.Filled<uint32_t>(1, 0x5c);
  for (const auto step : {device_->kernels().chain, device_->kernels().place, device_->kernels().reclaim}) {
    ASSERT_TRUE(step(stream_, insert).ok());
  }
  std::vector<Key> dirty;
  std::set<Key> unplaced;
  PlaceInModel(missed, floor, &dirty, &unplaced);
  ASSERT_EQ(memory.Down(insert.num_dirty, 1)[0], dirty.size());

  ExchangeArgs exchange{insert, memory.Filled<uint8_t>(size_t{n} * row_bytes_, 0x5c), row_bytes_,
                        memory.Filled<int64_t>(n, 0x5c), memory.Filled<uint32_t>(n, 0x5c)};
  ASSERT_TRUE(device_->kernels().exchange(stream_, exchange).ok());
  const std::vector<int64_t> out_keys = memory.Down(exchange.outbox_keys, dirty.size());
  const std::vector<uint32_t> out_tables = memory.Down(exchange.outbox_tables, dirty.size());
  const std::vector<uint8_t> out_rows = memory.Down(exchange.outbox_rows, dirty.size() * row_bytes_);
  for (size_t i = 0; i < dirty.size(); ++i) {
    ASSERT_TRUE((dirty[i] == Key{out_tables[i], out_keys[i]})) << i;
    const auto* value = reinterpret_cast<const float*>(out_rows.data() + i * row_bytes_ + sizeof(DeviceRowHeader));
    ASSERT_EQ(std::vector<float>(value, value + dim_), below_.at(dirty[i])) << i;
  }

  GatherArgs gather{find.rows, dedup.inverse, n, dim_, memory.Filled<float>(size_t{n} * dim_, 0x5c)};
  ASSERT_TRUE(device_->kernels().gather(stream_, gather).ok());
  const std::vector<float> values = memory.Down(gather.out, size_t{n} * dim_);
  for (uint32_t i = 0; i < n; ++i) {
    const Model& model = models_[batch[i].table];
    const auto entry = model.entries.find(batch[i].key);
    ASSERT_EQ(entry == model.entries.end(), unplaced.count(batch[i]) != 0);
    const std::vector<float> expected = entry != model.entries.end() ? entry->second.value : ValueBelow(batch[i]);
    ASSERT_EQ(std::vector<float>(values.begin() + i * dim_, values.begin() + (i + 1) * dim_), expected)
        << "key " << batch[i].key;
  }
  ChangeRows(&memory, distinct, find.rows);
  ASSERT_TRUE(device_->Synchronize(stream_).ok());
}

// Each row of a table is free once, or in one slot; each slot names its row; the model's keys are there and no others.
void Tables::CheckAccounts() {
  for (size_t t = 0; t < models_.size(); ++t) {
    const Model& model = models_[t];
    const size_t slots = size_t{model.shape.buckets} * kBucketSlots;
    const std::vector<uint8_t> digests = memory_->Down(views_[t].digests, slots);
    const std::vector<Slot> entries = memory_->Down(views_[t].slots, slots);
    const std::vector<uint32_t> last_used = memory_->Down(views_[t].last_used, slots);
    const std::vector<uint32_t> slot_of_row = memory_->Down(views_[t].slot_of_row, model.shape.capacity);
    const uint32_t num_free = memory_->Down(views_[t].num_free, 1)[0];
    std::multiset<uint32_t> rows;
    std::set<int64_t> keys;
    for (size_t s = 0; s < slots; ++s) {
      if (digests[s] == 0) continue;
      rows.insert(entries[s].row);
      keys.insert(entries[s].key);
      ASSERT_EQ(slot_of_row[entries[s].row], s);
      ASSERT_EQ(model.entries.at(entries[s].key).last, last_used[s]);
    }
    ASSERT_EQ(keys.size(), model.entries.size());
    for (uint32_t row : memory_->Down(views_[t].free_rows, num_free)) rows.insert(row);
    ASSERT_EQ(rows.size(), model.shape.capacity);
    for (uint32_t row = 0; row < model.shape.capacity; ++row)
      ASSERT_EQ(rows.count(row), 1u) << "row " << row << " of table " << t;
    for (uint32_t head : memory_->Down(views_[t].heads, model.shape.buckets)) ASSERT_EQ(head, kNone);
  }
}

TEST(KernelsTest, TheHashIsTheIndexesOwn) {
  for (int64_t key : {int64_t{0}, int64_t{-1}, int64_t{7}, INT64_MIN, INT64_MAX}) {
    const uint64_t hash = HashKey(key);
    EXPECT_EQ(PlaceOf(key, 1000).bucket, (hash >> 32) * 1000 >> 32);
    EXPECT_EQ(PlaceOf(key, 1000).digest, 1 + ((hash & 0xff) * 255 >> 8));
  }
}

TEST(KernelsTest, RandomLookupsOfSeveralTablesEqualTheModel) {
  for (uint64_t seed = 1; seed <= kRounds; ++seed) {
    Tables tables({{3, 300, kNothing}, {1, 4, kNothing}, {2, 100, kFrequency}, {1, 128, kVersion}, {2, 1, kNothing}}, seed);
    std::mt19937_64 random(seed * 977);
    for (int step = 0; step < 6; ++step) {
      std::vector<std::vector<int64_t>> keys(5);
      for (auto& of_table : keys) {
        const uint64_t count = random() % 5 == 0 ? 0 : random() % 160, range = 1 + random() % 400;
        for (uint64_t i = 0; i < count; ++i) of_table.push_back(static_cast<int64_t>(random() % range) - 50);
      }
      if (keys[0].empty()) keys[0] = {INT64_MIN, -1, 0, INT64_MAX, INT64_MIN};
      tables.Lookup(keys, static_cast<uint32_t>(random() % 3));
      if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed << " step " << step;
    }
    tables.CheckAccounts();
    if (testing::Test::HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST(KernelsTest, RowsOfEveryWidthEqualTheModel) {
  for (const uint32_t dim : {1u, 3u, 5u, 31u, 33u, 127u, 130u, 257u, 299u}) {
    Tables tables({{1, 4, kNothing}, {2, 60, kFrequency}}, dim, dim);
    std::mt19937_64 random(dim);
    for (int step = 0; step < 4; ++step) {
      std::vector<std::vector<int64_t>> keys(2);
      for (auto& of_table : keys) {
        for (int i = 0; i < 50; ++i) of_table.push_back(static_cast<int64_t>(random() % 90) - 20);
      }
      tables.Lookup(keys, static_cast<uint32_t>(random() % 3));
      if (testing::Test::HasFatalFailure()) FAIL() << "dim " << dim << " step " << step;
    }
    tables.CheckAccounts();
    if (testing::Test::HasFatalFailure()) FAIL() << "dim " << dim;
  }
}

TEST(KernelsTest, ABatchLargerThanTheTableIsReadFromTheStagedRows) {
  Tables tables({{1, 4, kNothing}}, 3);
  std::vector<int64_t> keys(700);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i * 31 % 650);
  for (int step = 0; step < 3; ++step) tables.Lookup({keys}, 0);
  tables.CheckAccounts();
}

TEST(KernelsTest, APrefixSumCrossesManyTiles) {
  Tables tables({{64, 6000, kNothing}}, 5);
  std::vector<int64_t> keys(9000);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i * 7 % 8191);
  tables.Lookup({keys}, 0);
  tables.CheckAccounts();
}

}  // namespace
}  // namespace multitier::device
