#include "cc/group_lookup/sparse_lookup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/partition/partition.h"

namespace multitier::sparse_lookup_test {
namespace {

constexpr int kDim = 4;

std::unique_ptr<EmbeddingTable> MakeTable(int dim = kDim) {
  TableOptions options;
  options.name = "t";
  options.dim = dim;
  options.initializer.kind = InitializerKind::kUniform;
  options.initializer.a = -1.0f;
  options.initializer.b = 1.0f;
  options.initializer.seed = 3;
  Result<std::unique_ptr<EmbeddingTable>> table = EmbeddingTable::Create(std::move(options));
  EXPECT_TRUE(table.ok()) << table.status().ToString();
  return *std::move(table);
}

// A batch with an empty row (1) and a repeated key.
struct Input {
  std::vector<int64_t> keys = {5, 7, 5, -1, 1000};
  std::vector<int64_t> indices = {0, 0, 2, 2, 3};
  std::vector<float> weights;

  SparseLookup view(const std::vector<EmbeddingTable*>& tables) const {
    SparseLookup lookup;
    lookup.partitions = Span<EmbeddingTable* const>(tables.data(), tables.size());
    lookup.keys = keys;
    lookup.batch = SparseBatch{indices, weights, 4, kDim, Combiner::kMean};
    return lookup;
  }
};

// Trains `key` of the table that owns it, so that partitions differ from their initial values.
void Train(const std::vector<EmbeddingTable*>& tables, int64_t key) {
  const std::vector<int64_t> keys = {key};
  const std::vector<float> grads = {1.0f, 2.0f, 3.0f, 4.0f};
  ApplyRequest request;
  request.keys = keys;
  request.grads = grads.data();
  request.rule = *FindUpdateRule("sgd");
  request.hyper = {0.5f};
  const Status status = tables[PartitionOf(key, static_cast<int>(tables.size()))]->Apply(request);
  ASSERT_TRUE(status.ok()) << status.ToString();
}

TEST(SparseLookupTest, PartitionsReadAsOneTable) {
  const auto whole = MakeTable();
  const auto a = MakeTable(), b = MakeTable(), c = MakeTable();
  const std::vector<EmbeddingTable*> one = {whole.get()}, three = {a.get(), b.get(), c.get()};
  for (int64_t key : {5, -1, 1000}) {
    Train(one, key);
    Train(three, key);
  }
  const Input input;
  std::vector<float> expected(4 * kDim, 9.0f), found(4 * kDim, 8.0f);
  ASSERT_TRUE(LookupSparse(input.view(one), expected.data()).ok());
  ASSERT_TRUE(LookupSparse(input.view(three), found.data()).ok());
  EXPECT_EQ(expected, found);
  EXPECT_TRUE(std::all_of(found.begin() + kDim, found.begin() + 2 * kDim, [](float x) { return x == 0.0f; }));
  EXPECT_EQ(whole->TotalCount(), 3);  // reading created nothing
}

TEST(SparseLookupTest, OneEntryPerRowIsTheLookup) {
  const auto table = MakeTable();
  const std::vector<EmbeddingTable*> tables = {table.get()};
  Input input;
  input.keys = {3, 3, -8, 9};
  input.indices = {0, 1, 2, 3};
  std::vector<float> expected(4 * kDim), found(4 * kDim);
  ASSERT_TRUE(table->Lookup(input.keys, expected.data()).ok());
  ASSERT_TRUE(LookupSparse(input.view(tables), found.data()).ok());
  EXPECT_EQ(expected, found);
}

TEST(SparseLookupTest, MaxNormClipsBeforePooling) {
  const auto table = MakeTable();
  const std::vector<EmbeddingTable*> tables = {table.get()};
  const Input input;
  SparseLookup lookup = input.view(tables);
  lookup.batch.combiner = Combiner::kSum;
  lookup.max_norm = 0.25f;
  std::vector<float> found(4 * kDim), clipped(input.keys.size() * kDim), expected(4 * kDim);
  ASSERT_TRUE(LookupSparse(lookup, found.data()).ok());
  ASSERT_TRUE(table->Lookup(input.keys, clipped.data()).ok());
  ClipByNorm(clipped.data(), static_cast<int64_t>(input.keys.size()), kDim, 0.25f);
  Pool(lookup.batch, EntryValues{clipped.data(), nullptr}, expected.data());
  EXPECT_EQ(expected, found);
}

TEST(SparseLookupTest, GradientsRoutePartitions) {
  const auto whole = MakeTable();
  const auto a = MakeTable(), b = MakeTable();
  Input input;
  input.weights = {1.0f, 2.0f, 0.5f, 3.0f, 1.5f};
  const std::vector<float> grad(4 * kDim, 0.5f);
  std::vector<float> expected(5), found(5);
  const std::vector<EmbeddingTable*> one = {whole.get()}, two = {a.get(), b.get()};
  for (const float max_norm : {-1.0f, 0.25f}) {
    std::vector<float> expected_entries(5 * kDim), found_entries(5 * kDim);
    SparseLookup from_one = input.view(one), from_two = input.view(two);
    from_one.max_norm = from_two.max_norm = max_norm;
    ASSERT_TRUE(LookupSparseGradient(from_one, grad.data(), expected_entries.data(), expected.data()).ok());
    ASSERT_TRUE(LookupSparseGradient(from_two, grad.data(), found_entries.data(), found.data()).ok());
    EXPECT_EQ(expected, found);
    EXPECT_EQ(expected_entries, found_entries);
  }
}

TEST(SparseLookupTest, InputsThatDoNotFitAreRefused) {
  const auto table = MakeTable(), wide = MakeTable(kDim + 1);
  std::vector<EmbeddingTable*> tables = {table.get()};
  std::vector<float> out(4 * kDim);
  Input input;
  input.indices.pop_back();
  EXPECT_NE(LookupSparse(input.view(tables), out.data()).message().find("5 keys, found 4"), std::string::npos);
  tables = {wide.get()};
  EXPECT_NE(LookupSparse(Input().view(tables), out.data()).message().find("expected dim 4, found 5"), std::string::npos);
  EXPECT_EQ(LookupSparse(Input().view({}), out.data()).code(), StatusCode::kInvalidArgument);
  tables = {table.get()};
  std::vector<float> entries(5 * kDim), weights(5);
  EXPECT_NE(LookupSparseGradient(Input().view(tables), out.data(), entries.data(), weights.data())
                .message()
                .find("expected 5 weights"),
            std::string::npos);
}

}  // namespace
}  // namespace multitier::sparse_lookup_test
