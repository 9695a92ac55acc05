#include "cc/group_lookup/exchange_request.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "cc/group_lookup/exchange.h"
#include "cc/group_lookup/group_test_util.h"

namespace multitier::exchange_request_test {
namespace {

// Words whose last one ends at a page that cannot be read.
class Guarded {
 public:
  explicit Guarded(const std::vector<int64_t>& words) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), bytes = words.size() * sizeof(int64_t);
    size_ = (bytes / page + 2) * page;
    void* const mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(mapped, MAP_FAILED);
    base_ = static_cast<char*>(mapped);
    EXPECT_EQ(mprotect(base_ + size_ - page, page, PROT_NONE), 0);
    int64_t* const to = reinterpret_cast<int64_t*>(base_ + size_ - page - bytes);
    std::copy(words.begin(), words.end(), to);
    words_ = Span<const int64_t>(to, words.size());
  }
  ~Guarded() { munmap(base_, size_); }
  Guarded(const Guarded&) = delete;

  Span<const int64_t> words() const { return words_; }

 private:
  char* base_ = nullptr;
  size_t size_ = 0;
  Span<const int64_t> words_;
};

RequestShape Rows(int64_t dim, int64_t keys, bool counted) {
  RequestShape shape;
  shape.dim = dim;
  shape.keys = keys;
  shape.counted = counted;
  return shape;
}

RequestShape Pooled(int64_t dim, int64_t keys, int64_t entries, int64_t rows) {
  RequestShape shape = Rows(dim, keys, false);
  shape.pooled = true;
  shape.combiner = Combiner::kMean;
  shape.entries = entries;
  shape.pooled_rows = rows;
  return shape;
}

// Parts of dims 4, 4, 2, with keys, with counts, pooled at home. The last two have 3 tables.
std::vector<int64_t> SomeRequest() {
  std::vector<RequestShape> shapes = {Rows(4, 3, false), Rows(4, 5, true), Pooled(2, 4, 7, 3)};
  shapes[1].tabled = shapes[2].tabled = true;
  std::vector<int64_t> words(static_cast<size_t>(RequestWords(shapes)));
  const auto parts = BeginRequest(shapes, words.data());
  for (const auto& part : parts) {
    for (int64_t k = 0; k < part.keys; ++k) part.key_words[k] = k == 0 ? std::numeric_limits<int64_t>::min() : 10 * k;
    for (int64_t k = 0; k < part.counts.size(); ++k) part.counts.Put(k, k + 1);
    for (int64_t k = 0; k < part.tables.size(); ++k) part.tables.Put(k, k % 3);
    for (int64_t e = 0; e < part.index.size(); ++e) part.index.Put(e, e % 4);
    for (int64_t r = 0; r < part.ends.size(); ++r) part.ends.Put(r, r == 2 ? 7 : 2);
  }
  return words;
}

TEST(ExchangeRequestTest, IsReadAsItWasWritten) {
  std::vector<int64_t> words = SomeRequest();
  EXPECT_EQ(words.size(), 2 + 3 * 3 + 3 + (5 + 3 + 2) + (4 + 1 + 4 + 2));
  words.resize(words.size() + 100, -1);  // padding
  const Result<Request> request = ParseRequest(words);
  ASSERT_TRUE(request.ok()) << request.status().ToString();
  ASSERT_EQ(request->parts.size(), 3);
  EXPECT_EQ(request->elements(), 3 * 4 + 5 * 4 + 3 * 2);
  const ReadPart &plain = request->parts[0], &counted = request->parts[1], &pooled = request->parts[2];
  EXPECT_EQ(plain.key_words[0], std::numeric_limits<int64_t>::min());
  EXPECT_EQ(plain.counts.size(), 0);
  EXPECT_EQ(plain.tables.size(), 0);
  for (int64_t k = 0; k < 5; ++k) EXPECT_EQ(counted.counts[k], k + 1);
  for (int64_t k = 0; k < 5; ++k) EXPECT_EQ(counted.tables[k], k % 3);
  for (int64_t k = 0; k < 4; ++k) EXPECT_EQ(pooled.tables[k], k % 3);
  EXPECT_EQ(pooled.combiner, Combiner::kMean);
  for (int64_t e = 0; e < 7; ++e) EXPECT_EQ(pooled.index[e], e % 4);
  EXPECT_EQ(pooled.ends[0], 2);
  EXPECT_EQ(pooled.ends[1], 2);
  EXPECT_EQ(pooled.ends[2], 7);
  const std::vector<Request> requests = {*request};
  EXPECT_TRUE(CheckRequests(requests, std::vector<int>{4, 4, 2}).ok());
  EXPECT_EQ(CheckRequests(requests, std::vector<int>{4, 4}).message(),
            "request of an exchange: expected 2 parts, found 3: do all processes run the same version of the package?");
  EXPECT_EQ(CheckRequests(requests, std::vector<int>{4, 8, 2}).message(),
            "request of an exchange: expected dim 8 of part 1, found 4: do all processes run the same version of the package?");
}

TEST(ExchangeRequestTest, AKeyTakesAtMost12BytesAndAPart48) {
  for (int64_t keys = 0; keys < 40; ++keys) {
    for (size_t parts = 1; parts < 4; ++parts) {
      const std::vector<RequestShape> shapes(parts, Rows(16, keys, true));
      EXPECT_LE(8 * RequestWords(shapes), static_cast<int64_t>(parts) * (12 * keys + 48));
    }
  }
}

// Whatever the words are: an error that says what to check, or a request that can be served, in memory that its words bound.
TEST(ExchangeRequestTest, DamagedRequestsAreRefusedOrServed) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto first = MakeTable("a", 4), second = MakeTable("b", 4, 0, 3), third = MakeTable("c", 2, 0, 3);
  const std::vector<ServedPart> parts = {{"a", first.get()}, {"b", second.get()}, {"c", third.get()}};
  const std::vector<int> dims = {4, 4, 2};
  const std::vector<int64_t> intact = SomeRequest();
  const int64_t extremes[] = {0,       1,          -1,          int64_t{1} << 31,
                              1 << 30, 0xffffffff, 0x7fffffff7, std::numeric_limits<int64_t>::min(),
                              -2,      2,          1ll << 62,   std::numeric_limits<int64_t>::max()};
  int served = 0, refused = 0, of_other_tables = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<int64_t> words = intact;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < changes && !words.empty(); ++i) {
      int64_t& word = words[random() % (random() % 2 == 0 ? std::min<size_t>(11, words.size()) : words.size())];
      switch (random() % 6) {
        case 0:
          words.resize(random() % (words.size() + 1));
          break;
        case 1:
          word = static_cast<int64_t>(static_cast<uint64_t>(word) ^ uint64_t{1} << random() % 64);
          break;
        case 2:
          word = static_cast<int64_t>(random());
          break;
        case 3:
          word = extremes[random() % 12];
          break;
        case 4:  // one half
          word = static_cast<int64_t>((static_cast<uint64_t>(word) & 0xffffffff00000000u) | (random() & 0xffffffffu));
          break;
        default:
          word = static_cast<int64_t>(static_cast<uint64_t>(word) + random() % 5 - 2);
      }
    }
    const Guarded guarded(words);
    Result<Request> request = ParseRequest(guarded.words());
    std::vector<Request> requests;
    if (request.ok()) requests.push_back(*std::move(request));
    const Status status = request.ok() ? CheckRequests(requests, dims) : request.status();
    if (!status.ok()) {
      ++refused;
      ASSERT_EQ(status.code(), StatusCode::kInvalidArgument);
      ASSERT_EQ(status.message().rfind("request of an exchange: expected ", 0), 0) << status.message();
      continue;
    }
    ASSERT_LE(requests[0].elements(), static_cast<int64_t>(8 * words.size()));
    std::vector<float> rows(static_cast<size_t>(requests[0].elements()));
    GroupPlan plan;
    const WireOut out{DType::kFloat32, {reinterpret_cast<uint8_t*>(rows.data())}};
    const Status read = ServeLookup(parts, requests, ReadFor::kTraining, &plan, out);
    if (!read.ok()) {
      ++of_other_tables;
      ASSERT_EQ(read.code(), StatusCode::kInvalidArgument);
      ASSERT_NE(read.message().find("': tables: expected "), std::string::npos) << read.message();
      continue;
    }
    ++served;
    for (int u = 0; u < plan.num_units(); ++u) {
      const Span<const int64_t> counts = plan.counts(u);
      ASSERT_TRUE(std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count > 0; }));
    }
  }
  EXPECT_GT(served, 0);
  EXPECT_GT(refused, 0);
  EXPECT_GT(of_other_tables, 0);
}

}  // namespace
}  // namespace multitier::exchange_request_test
