#include "cc/tier/pmem/pmem_tier.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cc/base/coding.h"
#include "cc/base/crc32c.h"
#include "cc/env/instance_dir.h"
#include "cc/tier/tier_conformance.h"

namespace multitier {
namespace {

namespace fs = std::filesystem;

// Directories of all tests of this process, removed at its end.
class Directories : public testing::Environment {
 public:
  static std::string New() {
    static int number = 0;
    const std::string path = StrCat(root(), "/", number++);
    fs::create_directories(path);
    return path;
  }
  void TearDown() override { EXPECT_TRUE(RemoveDirectoryTree(root()).ok()); }

 private:
  static const std::string& root() {
    static const std::string path = [] {
      std::string pattern = testing::TempDir() + "/pmem_XXXXXX";
      return std::string(::mkdtemp(pattern.data()));
    }();
    return path;
  }
};
[[maybe_unused]] testing::Environment* const kDirectories = testing::AddGlobalTestEnvironment(new Directories);

std::unique_ptr<PmemTier> OpenTier(int64_t capacity_bytes) {
  PmemOptions options;
  options.directory = Directories::New();
  options.capacity_bytes = capacity_bytes;
  Result<std::unique_ptr<PmemTier>> tier = PmemTier::Open(options);
  EXPECT_TRUE(tier.ok()) << tier.status().ToString();
  return tier.ok() ? *std::move(tier) : nullptr;
}

INSTANTIATE_TEST_SUITE_P(Pmem, TierConformanceTest,
                         testing::Values(TierTestCase{"Pmem", [](std::shared_ptr<const RowLayout>) { return OpenTier(0); },
                                                      [](std::shared_ptr<const RowLayout> layout, int64_t max_rows) {
                                                        return OpenTier(max_rows * static_cast<int64_t>(layout->row_bytes()));
                                                      }}),
                         TierTestName);

class PmemTierTest : public testing::Test {
 protected:
  void Open(const std::string& directory = Directories::New()) {
    directory_ = directory;
    PmemOptions options;
    options.directory = directory;
    tier_.reset();
    tier_ = *PmemTier::Open(options);
    ASSERT_TRUE(tier_->SetLayout(TierTestLayout(2)).ok());
  }
  Status Write(int64_t first, int64_t n, uint32_t num_columns = 2) {
    std::vector<TestRecord> records;
    std::vector<WriteRecord> batch;
    for (int64_t i = 0; i < n; ++i) records.emplace_back(first + i, 1, num_columns);
    for (const TestRecord& record : records) batch.push_back(record.write());
    std::vector<uint32_t> locations(batch.size());
    MT_RETURN_IF_ERROR(tier_->Write(batch, locations.data()));
    for (int64_t i = 0; i < n; ++i) held_[first + i] = locations[static_cast<size_t>(i)];
    return OkStatus();
  }
  void Free(int64_t first, int64_t n) {
    std::vector<KeyLocation> freed;
    for (int64_t key = first; key < first + n; ++key) freed.push_back({key, held_.at(key)});
    tier_->Free(freed);
    for (int64_t key = first; key < first + n; ++key) held_.erase(key);
  }
  Status Read(int64_t key, std::vector<uint8_t>* row_data = nullptr) {
    std::vector<uint8_t> unused(TierTestLayout(3)->row_bytes());
    ReadRecord read;
    read.key = key;
    read.location = held_.at(key);
    read.row_data = row_data == nullptr ? unused.data() : row_data->data();
    MT_RETURN_IF_ERROR(tier_->Read(Span<ReadRecord>(&read, 1)));
    return read.status;
  }
  int64_t ReadableRows() {
    int64_t n = 0;
    for (const auto& [key, location] : held_) {
      std::vector<uint8_t> row_data(TierTestLayout(3)->row_bytes());
      const TestRecord record(key, 1, 2);  // of whose data wider ones are a continuation
      n += Read(key, &row_data).ok() && std::memcmp(row_data.data(), record.row_data.data(), record.row_data.size()) == 0;
    }
    return n;
  }
  std::vector<std::string> Files() {
    std::vector<std::string> files;
    for (const auto& file : fs::directory_iterator(directory_)) files.push_back(file.path());
    std::sort(files.begin(), files.end());
    return files;
  }
  // Runs `body` in a child; whether it returned true and no expectation failed.
  template <typename Body>
  bool InChild(Body body) {
    const pid_t child = ::fork();
    if (child == 0) ::_exit(body() && !HasFailure() ? 0 : 1);
    int status = 1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    return status == 0;
  }

  std::map<int64_t, uint32_t> held_;
  std::string directory_;
  std::unique_ptr<PmemTier> tier_;
};

std::string FileBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

TEST_F(PmemTierTest, FileIsAsTheFormatPageSays) {
  Open();
  ASSERT_TRUE(Write(-2, 1).ok());
  ASSERT_TRUE(tier_->Sync().ok());
  ASSERT_EQ(Files().size(), 1u);
  const std::string bytes = FileBytes(Files()[0]);
  const uint8_t* p = reinterpret_cast<const uint8_t*>(bytes.data());
  EXPECT_EQ(bytes.substr(0, 8), "MTPMROWS");
  const uint32_t schema_bytes = DecodeFixed32(p + 28);
  EXPECT_EQ(DecodeFixed32(p + 8), Crc32c(p + 12, 44 + schema_bytes));
  EXPECT_EQ(DecodeFixed32(p + 12), 1u);
  EXPECT_EQ(DecodeFixed32(p + 16), 4096u);
  EXPECT_EQ(DecodeFixed32(p + 20), 0u);
  EXPECT_EQ(DecodeFixed64(p + 32), 64u);
  EXPECT_EQ(DecodeFixed64(p + 40), 32u);
  EXPECT_EQ(bytes.size(), 4096 + DecodeFixed32(p + 24) * DecodeFixed64(p + 32));
  EXPECT_EQ(bytes.substr(56, 18), "[{\"name\": \"value\",");
  const TestRecord record(-2, 1, 2);
  const uint8_t* slot = p + 4096 + held_.at(-2) * 64;
  std::string checked = bytes.substr(48, 8);  // the file's id
  PutFixed32(&checked, held_.at(-2));
  checked.append(reinterpret_cast<const char*>(slot) + 4, 28 + 32);
  EXPECT_EQ(DecodeFixed32(slot), Crc32c(checked.data(), checked.size()));
  EXPECT_EQ(DecodeFixed32(slot + 4), 2u);
  EXPECT_EQ(static_cast<int64_t>(DecodeFixed64(slot + 8)), -2);
  EXPECT_EQ(DecodeFixed64(slot + 16), 1u);
  EXPECT_EQ(DecodeFixed32(slot + 24), record.header.frequency);
  EXPECT_EQ(std::memcmp(slot + 32, record.row_data.data(), 32), 0);
}

TEST_F(PmemTierTest, FilesAreFullyAllocatedAndDoubleAsRowsCome) {
  Open();
  EXPECT_TRUE(Files().empty());
  for (int64_t first = 0; first < 20000; first += 1000) ASSERT_TRUE(Write(first, 1000).ok());
  EXPECT_EQ(ReadableRows(), 20000);
  EXPECT_LE(Files().size(), 6u);
  int64_t bytes = 0;
  for (const std::string& file : Files()) {
    struct stat info;
    ASSERT_EQ(::stat(file.c_str(), &info), 0);
    EXPECT_GE(info.st_blocks * 512, info.st_size) << file;
    bytes += info.st_size;
  }
  EXPECT_LT(bytes, 64 * 2 * 22000);
  const TierStats stats = tier_->stats();
  EXPECT_GE(stats.stored_bytes + stats.resident_bytes, bytes);
  tier_.reset();
  EXPECT_TRUE(Files().empty());
}

TEST_F(PmemTierTest, FilesOfAnEarlierOneAreRemoved) {
  Open();
  const std::string left = directory_ + "/rows-000007.pmem";
  std::ofstream(left) << "of a killed process";
  Open(directory_);
  EXPECT_TRUE(Files().empty());
}

TEST_F(PmemTierTest, NarrowFilesGoWithTheirLastRow) {
  Open();
  ASSERT_TRUE(Write(0, 3000).ok());
  const size_t narrow = Files().size();
  ASSERT_TRUE(tier_->SetLayout(TierTestLayout(3)).ok());
  ASSERT_TRUE(Write(10000, 3000, 3).ok());
  EXPECT_EQ(ReadableRows(), 6000);
  EXPECT_GT(Files().size(), narrow);
  Free(0, 3000);
  ASSERT_TRUE(Write(20000, 3000, 3).ok());
  ASSERT_TRUE(Write(30000, 3000, 3).ok());
  for (const std::string& file : Files()) {
    EXPECT_GT(DecodeFixed64(reinterpret_cast<const uint8_t*>(FileBytes(file).data()) + 32), 64u) << file;
  }
  EXPECT_EQ(ReadableRows(), 9000);
}

TEST_F(PmemTierTest, FlippedBitIsDataLossNamingKeyFileAndLocation) {
  Open();
  ASSERT_TRUE(Write(0, 100).ok());
  const std::string file = Files()[0];
  for (const int64_t offset : {0, 4, 5, 9, 30, 40, 63}) {  // within the slot of key 7
    const int64_t at = 4096 + held_.at(7) * 64 + offset;
    const auto flip = [&] {
      std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
      stream.seekg(at);
      const char byte = static_cast<char>(stream.get() ^ 16);
      stream.seekp(at);
      stream.put(byte);
    };
    flip();
    const Status status = Read(7);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << offset;
    for (const std::string& part :
         {std::string("key 7 "), StrCat("location ", held_.at(7)), file, StrCat("offset ", 4096 + held_.at(7) * 64)}) {
      EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
    }
    flip();
    EXPECT_EQ(ReadableRows(), 100);
  }
}

// As a write that went astray leaves it: every byte is right, at the wrong place.
TEST_F(PmemTierTest, RecordOfAnotherSlotOrAnotherFileIsDataLossAndNoAbsentKey) {
  Open();
  ASSERT_TRUE(Write(0, 100).ok());
  const std::string first = Files()[0];
  const auto slot_of = [&](int64_t key) { return 4096 + static_cast<size_t>(held_.at(key)) * 64; };
  const std::string bytes = FileBytes(first);
  const auto put = [&](int64_t key, const std::string& slot) {
    std::fstream stream(Files()[0], std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(slot_of(key)));
    stream << slot;
  };
  put(7, bytes.substr(slot_of(8), 64));
  const Status status = Read(7);
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << status.ToString();
  for (const std::string& part : {std::string("key 7 "), first, StrCat("offset ", slot_of(7))}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
  EXPECT_EQ(ReadableRows(), 99);
  held_.clear();
  Open();
  ASSERT_TRUE(Write(0, 100).ok());
  put(7, bytes.substr(slot_of(7), 64));  // the same row of the same slot, of a file before
  EXPECT_EQ(Read(7).code(), StatusCode::kDataLoss);
  EXPECT_EQ(ReadableRows(), 99);
}

TEST_F(PmemTierTest, NamesThatAreTakenArePassedOverWhenItGrows) {
  Open();
  for (const char* name : {"rows-000001.pmem", "rows-000003.pmem", "rows-000004.pmem"}) {
    std::ofstream(directory_ + "/" + name) << "not ours";
  }
  for (int64_t first = 0; first < 8000; first += 1000) ASSERT_TRUE(Write(first, 1000).ok());
  EXPECT_EQ(ReadableRows(), 8000);
  EXPECT_EQ(FileBytes(directory_ + "/rows-000003.pmem"), "not ours");
}

// In a mount namespace of a child, so that nothing stays.
TEST_F(PmemTierTest, FullDiskIsResourceExhaustedUntilThereIsRoom) {
  const std::string directory = Directories::New();
  std::ofstream(directory + "/unmounted");
  const bool ok = InChild([&] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=1m") != 0) {
      std::printf("no mount here: %s\n", std::strerror(errno));
      return true;
    }
    Open(directory);
    Status status;
    for (int64_t first = 0; status.ok() && first < 100000; first += 1000) status = Write(first, 1000);
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.ToString();
    EXPECT_NE(status.message().find(directory), std::string::npos) << status.message();
    EXPECT_GT(held_.size(), 10000u);  // most of the disk
    EXPECT_EQ(ReadableRows(), static_cast<int64_t>(held_.size()));
    Free(0, 1000);
    EXPECT_TRUE(Write(200000, 1000).ok());
    EXPECT_FALSE(Write(300000, 1000).ok());
    EXPECT_EQ(::mount("tmpfs", directory.c_str(), "tmpfs", MS_REMOUNT, "size=8m"), 0);
    EXPECT_TRUE(Write(300000, 1000).ok());
    EXPECT_EQ(ReadableRows(), static_cast<int64_t>(held_.size()));
    tier_.reset();
    return true;
  });
  EXPECT_TRUE(ok);
}

TEST_F(PmemTierTest, FileSizeLimitIsResourceExhausted) {
  EXPECT_TRUE(InChild([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    Open();
    struct rlimit limit;
    ::getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = 100 << 10;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_TRUE(Write(0, 1000).ok());
    EXPECT_EQ(Write(1000, 9000).code(), StatusCode::kResourceExhausted);
    EXPECT_EQ(Files().size(), 1u);  // no half-made one
    EXPECT_EQ(ReadableRows(), 1000);
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_TRUE(Write(1000, 9000).ok());
    return ReadableRows() == 10000;
  }));
}

TEST_F(PmemTierTest, ForkedChildIsRefusedAndLeavesTheFiles) {
  Open();
  ASSERT_TRUE(Write(0, 10).ok());
  EXPECT_TRUE(InChild([&] {
    const bool refused = Read(1).code() == StatusCode::kFailedPrecondition &&
                         Write(20, 1).code() == StatusCode::kFailedPrecondition &&
                         tier_->Sync().code() == StatusCode::kFailedPrecondition;
    tier_.reset();
    return refused;
  }));
  EXPECT_EQ(Files().size(), 1u);
  EXPECT_EQ(ReadableRows(), 10);
}

TEST_F(PmemTierTest, MissingDirectoryIsOneClearError) {
  PmemOptions options;
  options.directory = Directories::New() + "/no/such";
  const Status status = PmemTier::Open(options).status();
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_NE(status.message().find(options.directory), std::string::npos) << status.message();
}

// The whole suite again, with libpmem configured to treat all files as persistent memory: rows are then written with
// non-temporal stores and flushed by CPU instructions.
TEST(PmemForcedTest, AllTestsPassOnThePersistentMemoryPath) {
  if (const char* forced = std::getenv("PMEM_IS_PMEM_FORCE"); forced != nullptr && std::string(forced) == "1") {
    const std::unique_ptr<PmemTier> tier = OpenTier(0);
    ASSERT_TRUE(tier->SetLayout(TierTestLayout(1)).ok());
    const TestRecord record(1, 1, 1);
    const WriteRecord write = record.write();
    uint32_t location = 0;
    ASSERT_TRUE(tier->Write(Span<const WriteRecord>(&write, 1), &location).ok());
    EXPECT_EQ(tier->stats().stored_bytes, 0);
    EXPECT_GT(tier->stats().resident_bytes, 0);
    return;
  }
  ::setenv("PMEM_IS_PMEM_FORCE", "1", 1);
  const std::string self = fs::read_symlink("/proc/self/exe");
  const int status = std::system(StrCat("'", self, "' >&2").c_str());
  ::unsetenv("PMEM_IS_PMEM_FORCE");
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace multitier
