// A slab of rows over mapped files keeps its rows, and its files come and go with them.

#include "cc/tier/pmem/pmem_row_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>

#include "cc/row/row_slab.h"

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

std::shared_ptr<const RowLayout> LayoutOf(int slots) {
  RowLayout layout = *RowLayout::Create(12, DType::kFloat32);
  for (int i = 0; i < slots; ++i) layout = *layout.WithColumn({StrCat("slot", i), DType::kFloat32, 5, 0.5f});
  return std::make_shared<const RowLayout>(std::move(layout));
}

// Rows come, go and are widened at random; each keeps its key and its value.
TEST(PmemRowMemoryTest, ASlabOverFilesKeepsItsRows) {
  const std::string directory = NewDirectory();
  RowSlab slab(Env::Posix(), LayoutOf(0), Open(directory));
  std::mt19937_64 random(2);
  std::map<uint32_t, int64_t> key_at;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 3 != 0 || key_at.empty()) {
      ASSERT_TRUE(slab.Reserve(1).ok());
      const uint32_t location = slab.Allocate();
      slab.Header(location)->key = step;
      std::memset(RowSlab::Data(slab.Header(location)), step & 0xff, 48);
      ASSERT_TRUE(key_at.emplace(location, step).second);
    } else {
      const auto row = std::next(key_at.begin(), static_cast<long>(random() % std::min<size_t>(key_at.size(), 50)));
      slab.Release(row->first);
      key_at.erase(row);
    }
    if (step % 8000 != 7999) continue;
    auto room = slab.RoomFor(LayoutOf(step / 8000 + 1));
    ASSERT_TRUE(room.ok()) << room.status().ToString();
    slab.MoveInto(*std::move(room));
  }
  EXPECT_EQ(slab.rows(), key_at.size());
  for (const auto& [location, key] : key_at) {
    const uint8_t* data = RowSlab::Data(slab.Header(location));
    ASSERT_EQ(slab.Header(location)->key, key);
    for (int b = 0; b < 48; ++b) ASSERT_EQ(data[b], key & 0xff);
  }
  EXPECT_GE(BytesIn(directory), key_at.size() * slab.layout()->stride());
  slab.Clear();
  EXPECT_EQ(BytesIn(directory), 0u);
}

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
  static const PmemRowMemory* const killed = memory.release();
  EXPECT_NE(killed, nullptr);
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
