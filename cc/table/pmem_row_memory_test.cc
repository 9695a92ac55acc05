// The slab over mapped files passes the conformance suite of tiers; beside it what is the files' own.

#include "cc/tier/pmem/pmem_row_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "cc/tier/dram/dram_tier.h"
#include "cc/tier/tier_conformance.h"

namespace multitier {
namespace {

namespace fs = std::filesystem;

std::string NewDirectory() {
  static int made = 0;
  const std::string directory = StrCat(testing::TempDir(), "/pmem_row_memory_", ::getpid(), "_", made++);
  fs::remove_all(directory);
  fs::create_directories(directory);
  return directory;
}

std::unique_ptr<PmemRowMemory> Open(const std::string& directory) {
  auto memory = PmemRowMemory::Open(directory);
  EXPECT_TRUE(memory.ok()) << memory.status().ToString();
  return memory.ok() ? *std::move(memory) : nullptr;
}

size_t BytesIn(const std::string& directory) {
  size_t bytes = 0;
  for (const auto& file : fs::directory_iterator(directory)) bytes += file.file_size();
  return bytes;
}

std::unique_ptr<Tier> MakeSlab(std::shared_ptr<const RowLayout> layout) {
  return std::make_unique<DramTier>(Env::Posix(), std::move(layout), Open(NewDirectory()));
}

INSTANTIATE_TEST_SUITE_P(PmemSlab, TierConformanceTest,
                         testing::Values(TierTestCase{"PmemSlab", MakeSlab, nullptr, /*synchronized=*/false}), TierTestName);

TEST(PmemRowMemoryTest, PiecesDoNotOverlapAndFilesGoWithTheirLastPiece) {
  const std::string directory = NewDirectory();
  auto memory = Open(directory);
  std::mt19937_64 random(1);
  struct Piece {
    uint8_t* at;
    size_t bytes;
    uint8_t fill;
  };
  std::vector<Piece> pieces;
  for (int i = 0; i < 400; ++i) {
    if (random() % 3 != 0 || pieces.empty()) {
      const size_t bytes = 4096 * (1 + random() % 3);
      auto at = memory->Allocate(bytes);
      ASSERT_TRUE(at.ok()) << at.status().ToString();
      pieces.push_back(Piece{static_cast<uint8_t*>(*at), bytes, static_cast<uint8_t>(i)});
      std::memset(*at, i, bytes);
      continue;
    }
    const size_t which = random() % pieces.size();
    const Piece piece = pieces[which];
    for (size_t b = 0; b < piece.bytes; b += 511) ASSERT_EQ(piece.at[b], piece.fill);
    memory->Free(piece.at, piece.bytes);
    pieces.erase(pieces.begin() + static_cast<long>(which));
    EXPECT_EQ(BytesIn(directory), memory->bytes());
  }
  for (const Piece& piece : pieces) memory->Free(piece.at, piece.bytes);
  EXPECT_EQ(memory->bytes(), 0u);
  EXPECT_EQ(BytesIn(directory), 0u);
}

TEST(PmemRowMemoryTest, FilesOfAnEarlierOneAreRemovedAndOwnOnesAtTheEnd) {
  const std::string directory = NewDirectory();
  auto memory = Open(directory);
  ASSERT_TRUE(memory->Allocate(8192).ok());
  (void)memory.release();  // killed
  EXPECT_GT(BytesIn(directory), 0u);
  memory = Open(directory);
  EXPECT_EQ(BytesIn(directory), 0u);
  ASSERT_TRUE(memory->Allocate(8192).ok());
  memory.reset();
  EXPECT_EQ(BytesIn(directory), 0u);
}

TEST(PmemRowMemoryTest, FullDiskIsResourceExhaustedNamingTheFile) {
  const std::string directory = NewDirectory();
  auto memory = Open(directory);
  const auto piece = memory->Allocate(size_t{1} << 50);
  EXPECT_FALSE(piece.ok());
  EXPECT_NE(piece.status().message().find(directory), std::string::npos) << piece.status().message();
  EXPECT_EQ(BytesIn(directory), 0u);
  EXPECT_TRUE(memory->Allocate(4096).ok());
}

TEST(PmemRowMemoryTest, NameThatIsTakenIsPassedOver) {
  const std::string directory = NewDirectory();
  auto memory = Open(directory);
  fs::create_directories(directory + "/slab-1.pmem");
  std::ofstream(directory + "/slab-2.pmem") << "mine";
  ASSERT_TRUE(memory->Allocate(8192).ok());
  EXPECT_TRUE(fs::exists(directory + "/slab-3.pmem"));
  memory.reset();
  EXPECT_EQ(fs::file_size(directory + "/slab-2.pmem"), 4u);
}

TEST(PmemRowMemoryTest, ForkedChildGetsNothingAndLeavesTheFiles) {
  const std::string directory = NewDirectory();
  auto memory = Open(directory);
  ASSERT_TRUE(memory->Allocate(4096).ok());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const bool refused = memory->Allocate(4096).status().code() == StatusCode::kFailedPrecondition;
    memory.reset();
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_GT(BytesIn(directory), 0u);
}

}  // namespace
}  // namespace multitier
