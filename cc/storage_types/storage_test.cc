// From storage types by name to working tables, and every way to ask for the impossible.

#include "cc/storage_types/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "cc/base/blocked_test_util.h"
#include "cc/table/api/demotion_pool.h"
#include "cc/tier/external/map_storage.h"

namespace multitier {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

constexpr char kAsyncCompactionVariable[] = "TF_SSDHASH_ASYNC_COMPACTION";

class StorageTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/storage_test_" + std::to_string(getpid());
    fs::remove_all(root_);
    fs::create_directories(root_);
  }
  void TearDown() override {
    fs::remove_all(root_);
    unsetenv(kAsyncCompactionVariable);
    unsetenv(DemotionPool::kThreadsVariable);
    unsetenv(kDeviceVariable);
  }

  Options Spec(const std::string& type, std::vector<int64_t> sizes = {}) const {
    Options spec;
    spec.storage_type = type;
    spec.storage_path = root_ + "/store";
    spec.storage_size = std::move(sizes);
    if (TiersOf(type).back() == "EXTERNAL") spec.external_storage = "storage_test";
    spec.name = "user/id";
    spec.dim = 4;
    return spec;
  }
  static Status Compose(const Options& spec, TableOptions* options, std::shared_ptr<InstanceDirectory>* instance = nullptr,
                        const Opening& opening = {}) {
    static_cast<Options&>(*options) = spec;
    return ComposeStorage(opening, options, instance);
  }
  static Status Compose(const Options& spec) {
    TableOptions options;
    return Compose(spec, &options);
  }
  // Directories below that of the name.
  int64_t Instances() const {
    const std::string name = root_ + "/store/user%2Fid";
    if (!fs::exists(name)) return 0;
    return std::distance(fs::directory_iterator(name), fs::directory_iterator());
  }

  std::string root_;
  MapStorage external_{"storage_test"};
};

TEST_F(StorageTest, EveryTypeHoldsRowsBeyondItsFirstTier) {
  for (const std::string& type : StorageTypes()) {
    if (type == "HBM" || type == "DRAM") continue;
    SCOPED_TRACE(type);
    TableOptions options;
    const bool hbm = type.rfind("HBM", 0) == 0, dram = hbm || type.rfind("DRAM", 0) == 0;
    Options spec = Spec(type);
    if (dram) spec.storage_size = {64};
    if (hbm && type != "HBM_DRAM") spec.storage_size.push_back(64);
    spec.device = "emulated";
    ASSERT_TRUE(Compose(spec, &options).ok());
    EXPECT_EQ(options.hbm_budget_bytes, hbm ? 64u : 0u);
    EXPECT_EQ(options.dram_named, dram || type == "PMEM");
    EXPECT_EQ(options.lower_tiers.empty(), type == "PMEM" || type == "HBM_DRAM");
    if (!options.lower_tiers.empty()) {
      EXPECT_EQ(options.lower_tiers.back().budget_bytes, 0u);
    }
    Result<std::unique_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(options));
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    std::vector<int64_t> keys(100);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i);
    const std::vector<float> grads(400, 1.0f);
    ApplyRequest request;
    request.keys = keys;
    request.grads = grads.data();
    request.rule = *FindUpdateRule("sgd");
    request.hyper = {0.5f};
    ASSERT_TRUE((*table)->Apply(request).ok());
    ASSERT_TRUE((*table)->Drain().ok());
    EXPECT_EQ((*table)->TotalCount(), 100);
    std::vector<float> out(400);
    ASSERT_TRUE((*table)->Lookup(keys, out.data()).ok());
    for (const float value : out) ASSERT_EQ(value, -0.5f);
    std::vector<int32_t> tiers(keys.size());
    ASSERT_TRUE((*table)->LookupTier(keys, tiers.data()).ok());
    if (dram) {
      EXPECT_EQ(std::count(tiers.begin(), tiers.end(), 0), 4);
    }
    if (hbm) {
      EXPECT_EQ((*table)->Stats().tiers[0].name, "hbm");
    }
    EXPECT_EQ(Instances(), HasFiles(type) ? 1 : 0);
    table = Status(StatusCode::kUnknown, "gone");
    EXPECT_EQ(Instances(), 0);
  }
}

TEST_F(StorageTest, HbmIsOnTheDeviceOfTheSpecOrOfTheEnvironment) {
  Options spec = Spec("HBM_DRAM_SSDHASH");
  EXPECT_EQ(Compose(spec).code(), StatusCode::kUnimplemented);
  setenv(kDeviceVariable, "emulated", 1);
  TableOptions options;
  ASSERT_TRUE(Compose(spec, &options).ok());
  EXPECT_EQ(options.hbm_budget_bytes, uint64_t{1} << 20);
  EXPECT_EQ(options.dram_budget_bytes, uint64_t{1} << 30);
  spec = Spec("HBM", {1 << 20});
  ASSERT_TRUE(Compose(spec, &options).ok());
  EXPECT_EQ(options.hbm_budget_bytes, uint64_t{1} << 20);
  EXPECT_EQ(options.dram_budget_bytes, 0u);
  setenv(kDeviceVariable, "tpu", 1);
  EXPECT_THAT(Compose(Spec("DRAM")).message(), HasSubstr("TF_MULTITIER_DEVICE: expected emulated, or unset"));
  spec = Spec("HBM_DRAM");
  spec.device = "gpu";
  EXPECT_THAT(Compose(spec).message(), HasSubstr("device: expected emulated, or none for a GPU; found 'gpu'"));
}

// The rows of PMEM alone are in its files, and nowhere else.
TEST_F(StorageTest, PmemAloneIsOneTierOfThatNameWithItsRowsInPlace) {
  for (const bool drop : {false, true}) {
    Options spec = Spec("PMEM", {100 * 16});
    spec.drop_coldest = drop;
    TableOptions options;
    std::shared_ptr<InstanceDirectory> instance;
    ASSERT_TRUE(Compose(spec, &options, &instance).ok());
    EXPECT_EQ(options.dram_budget_bytes, 100u * 16);
    Result<std::unique_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(options));
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    std::vector<int64_t> keys(60);
    const std::vector<float> grads(240, 1.0f);
    ApplyRequest request;
    request.grads = grads.data();
    request.rule = *FindUpdateRule("sgd");
    request.hyper = {0.5f};
    Status status;
    for (int64_t from : {0, 60}) {
      std::iota(keys.begin(), keys.end(), from);
      request.keys = keys;
      status = (*table)->Apply(request);
    }
    EXPECT_EQ(status.code(), drop ? StatusCode::kOk : StatusCode::kResourceExhausted);
    std::vector<int32_t> tiers(keys.size());
    ASSERT_TRUE((*table)->LookupTier(keys, tiers.data()).ok());
    EXPECT_EQ(tiers, std::vector<int32_t>(keys.size(), drop ? 0 : -1));
    const TableStats stats = (*table)->Stats();
    ASSERT_EQ(stats.tiers.size(), 1u);
    EXPECT_EQ(stats.tiers[0].name, "pmem");
    EXPECT_EQ(stats.tiers[0].rows, drop ? 100 : 60);
    int64_t bytes = 0;
    for (const auto& file : fs::directory_iterator(instance->path() + "/pmem")) bytes += static_cast<int64_t>(file.file_size());
    EXPECT_EQ(stats.tiers[0].device.stored_bytes + stats.tiers[0].resident_bytes, bytes);
    EXPECT_GE(bytes, stats.tiers[0].rows * stats.stride_bytes);
    EXPECT_EQ((*table)->Flush().code(), StatusCode::kFailedPrecondition);
    table = Status(StatusCode::kUnknown, "gone");
    instance.reset();
    EXPECT_EQ(Instances(), 0);
  }
}

int64_t ResidentBytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

TEST_F(StorageTest, EmptyTableWithADiskTierCostsAtMostOneMebibyteOfMemoryAndOfDisk) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's memory is measured along";
#endif
  constexpr int kTables = 50, kAllowed = 1 << 20;
  for (const std::string& type : StorageTypes()) {
    if (type.rfind("HBM", 0) == 0 || type == "DRAM") continue;
    SCOPED_TRACE(type);
    std::vector<std::unique_ptr<EmbeddingTable>> tables;
    int64_t before = 0;
    for (int i = -1; i < kTables; ++i) {
      TableOptions options;
      ASSERT_TRUE(Compose(Spec(type), &options).ok());
      Result<std::unique_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(options));
      ASSERT_TRUE(table.ok()) << table.status().ToString();
      std::vector<float> out(4);
      const std::vector<int64_t> keys{7};
      ASSERT_TRUE((*table)->Lookup(keys, out.data()).ok());
      tables.push_back(*std::move(table));
      if (i < 0) before = ResidentBytes();  // the first one makes what all share
    }
    const int64_t each = (ResidentBytes() - before) / kTables;
    int64_t disk = 0;
    for (const auto& file : fs::recursive_directory_iterator(root_ + "/store")) {
      struct stat info;
      if (::stat(file.path().c_str(), &info) == 0) disk += info.st_blocks * 512;
    }
    std::printf("%s: %lld KiB of memory, %lld KiB of disk\n", type.c_str(), static_cast<long long>(each >> 10),
                static_cast<long long>(disk / (kTables + 1) >> 10));
    EXPECT_LE(each, kAllowed);
    EXPECT_LE(disk / (kTables + 1), kAllowed);
  }
}

TEST_F(StorageTest, IdleProcessWithATableOfEachTypeUsesNoCpu) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer has a thread of its own";
#endif
  setenv(kAsyncCompactionVariable, "1", 1);
  std::vector<std::unique_ptr<EmbeddingTable>> tables;
  std::vector<int64_t> keys(50000);
  std::iota(keys.begin(), keys.end(), 0);
  const std::vector<float> grads(keys.size() * 4, 1.0f);
  for (const std::string& type : StorageTypes()) {
    if (type.rfind("HBM", 0) == 0 || type == "DRAM") continue;
    TableOptions options;
    // With room for many rows the pool demotes, with room for few the operations.
    const int64_t rows = tables.size() % 2 == 0 ? 1000 : 70000;
    ASSERT_TRUE(
        Compose(Spec(type, type.rfind("DRAM_", 0) == 0 ? std::vector<int64_t>{16 * rows} : std::vector<int64_t>()), &options)
            .ok());
    Result<std::unique_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(options));
    ASSERT_TRUE(table.ok()) << table.status().ToString();
    ApplyRequest request;
    request.grads = grads.data();
    request.rule = *FindUpdateRule("sgd");
    request.hyper = {0.5f};
    for (int64_t round = 0; round < 3; ++round) {
      for (int64_t& key : keys) key += round * 20000;
      request.keys = keys;
      ASSERT_TRUE((*table)->Apply(request).ok());
    }
    int64_t pinned = 0;
    ASSERT_TRUE((*table)->Prefetch(keys, 100000, &pinned).ok());  // its time is over while nothing happens
    ASSERT_TRUE((*table)->Drain().ok());
    tables.push_back(*std::move(table));
  }
  EXPECT_TRUE(AwaitAllOthersBlocked());  // no thread wakes up by itself
}

TEST_F(StorageTest, SizesAreGivenOrOneGibibyteOrUnbounded) {
  TableOptions options;
  ASSERT_TRUE(Compose(Spec("DRAM_PMEM_SSDHASH"), &options).ok());
  EXPECT_EQ(options.dram_budget_bytes, uint64_t{1} << 30);
  EXPECT_EQ(options.lower_tiers[0].budget_bytes, uint64_t{1} << 30);
  EXPECT_EQ(options.lower_tiers[1].budget_bytes, 0u);
  TableOptions given;
  ASSERT_TRUE(Compose(Spec("DRAM_PMEM_LEVELDB", {4096, 8192, 1 << 20}), &given).ok());
  EXPECT_EQ(given.dram_budget_bytes, 4096u);
  EXPECT_EQ(given.lower_tiers[0].budget_bytes, 8192u);
  EXPECT_EQ(given.lower_tiers[1].budget_bytes, uint64_t{1} << 20);
  EXPECT_EQ(Instances(), 2);
  TableOptions dram;
  ASSERT_TRUE(Compose(Spec("DRAM"), &dram).ok());
  EXPECT_EQ(dram.dram_budget_bytes, 0u);
}

TEST_F(StorageTest, FilesStayWhereTheyAreKept) {
  Options spec = Spec("SSDHASH");
  spec.keep = true;
  ASSERT_TRUE(Compose(spec).ok());
  EXPECT_EQ(Instances(), 1);
}

TEST_F(StorageTest, KeptInstanceIsTakenOverWithItsRows) {
  for (const char* type : {"DRAM_SSDHASH", "DRAM_PMEM_SSDHASH"}) {
    SCOPED_TRACE(type);
    Options spec = Spec(type, {64});
    spec.keep = true;
    Opening opening;
    std::string path;
    for (int life = 0; life < 3; ++life) {
      TableOptions options;
      std::shared_ptr<InstanceDirectory> instance;
      ASSERT_TRUE(Compose(spec, &options, &instance, opening).ok());
      Result<std::unique_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(options));
      ASSERT_TRUE(table.ok()) << table.status().ToString();
      path = instance->path();
      ASSERT_TRUE(instance->SetKeep(life < 2).ok());
      EXPECT_EQ((*table)->TotalCount(), life * 10);
      std::vector<int64_t> keys(10);
      for (int i = 0; i < 10; ++i) keys[static_cast<size_t>(i)] = life * 10 + i;
      const std::vector<float> grads(40, 1.0f);
      ApplyRequest request;
      request.keys = keys;
      request.grads = grads.data();
      request.rule = *FindUpdateRule("sgd");
      request.hyper = {0.5f};
      ASSERT_TRUE((*table)->Apply(request).ok());
      opening.recover.reset();
      instance.reset();
      table = Status(StatusCode::kUnknown, "gone");
      if (life == 2) break;
      Result<std::unique_ptr<InstanceDirectory>> taken = InstanceDirectory::Open(path, /*keep=*/true);
      ASSERT_TRUE(taken.ok()) << taken.status().ToString();
      opening.recover = *std::move(taken);
    }
    EXPECT_EQ(Instances(), 0);
  }
}

TEST_F(StorageTest, MissingDevicesAndDirectoriesAreRefusedByName) {
  const auto expect = [&](const Options& spec, StatusCode code, const std::string& message) {
    const Status status = Compose(spec);
    EXPECT_EQ(status.code(), code) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(message));
    EXPECT_EQ(Instances(), 0);
  };
  expect(Spec("HBM_DRAM_SSDHASH"), StatusCode::kUnimplemented, "use DRAM_SSDHASH");
  expect(Spec("HBM"), StatusCode::kUnimplemented, "use DRAM");
  Options spec = Spec("DRAM_SSDHASH", {64});
  spec.storage_path = root_ + "/missing/store";
  expect(spec, StatusCode::kNotFound, "missing");
}

TEST_F(StorageTest, BadEnvironmentIsRefusedByName) {
  setenv(kAsyncCompactionVariable, "yes", 1);
  EXPECT_THAT(Compose(Spec("DRAM_SSDHASH", {64})).message(),
              HasSubstr("TF_SSDHASH_ASYNC_COMPACTION: expected 0 or 1, found 'yes'"));
  for (const char* good : {"0", "1", ""}) {
    setenv(kAsyncCompactionVariable, good, 1);
    EXPECT_TRUE(Compose(Spec("DRAM_SSDHASH", {64})).ok()) << good;
  }
  setenv(DemotionPool::kThreadsVariable, "many", 1);
  EXPECT_THAT(Compose(Spec("DRAM_SSDHASH", {64})).message(), HasSubstr("TF_MULTI_TIER_EV_EVICTION_THREADS"));
  EXPECT_EQ(Instances(), 0);
}

}  // namespace
}  // namespace multitier
