#include "cc/table/apply/apply_operation.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/optimizer/update_rule.h"
#include "cc/table/test/table_parts_test_util.h"

namespace multitier::apply_operation_test {
namespace {

constexpr int kDim = 4;
constexpr float kInitial = 0.5f;

// Rows of four elements that start at 0.5, and plain SGD at rate 1: an update subtracts the gradient.
class ApplyOperationTest : public ::testing::Test {
 protected:
  void Make(AdmissionSpec admission = {}, uint64_t dram_rows = 100, bool has_lower = true) {
    TableOptions options;
    options.name = "t";
    options.dim = kDim;
    options.dram_budget_bytes = dram_rows * kDim * sizeof(float);
    options.filter = admission;
    InitializerSpec initial_value;
    initial_value.a = kInitial;
    parts_ = std::make_unique<TableParts>(std::move(options), initial_value, has_lower);
    base_ = &parts_->base;
    if (admission.kind != AdmissionKind::kBloom) return;
    auto bloom = CountingBloomFilter::Create(base_->env, admission.max_element_size, 0.01, 32);
    ASSERT_TRUE(bloom.ok());
    base_->bloom = *std::move(bloom);
  }
  std::unique_ptr<ApplyOperation> NewOperation() {
    return std::make_unique<ApplyOperation>(base_, &parts_->demoter, &parts_->reader);
  }
  // REQUIRES: `keys` outlives what is returned
  static ApplyOperation::Keys KeysOf(const std::vector<int64_t>& keys) {
    ApplyOperation::Keys of;
    of.keys = keys;
    return of;
  }
  Status Gather(ApplyOperation* operation, const std::vector<int64_t>& keys) {
    return operation->Gather(KeysOf(keys), nullptr);
  }
  // Every gradient is 1.
  void Update(ApplyOperation* operation, const std::vector<int64_t>& keys, int64_t version) {
    const std::vector<float> grads(keys.size() * kDim, 1.0f);
    ApplyRequest request;
    request.keys = keys;
    request.grads = grads.data();
    request.rule = *FindUpdateRule("sgd");
    request.hyper = {1.0f};  // the learning rate
    operation->Update(request, {}, version, /*step=*/version, nullptr);
  }
  void Apply(const std::vector<int64_t>& keys, int64_t version = 1) {
    auto operation = NewOperation();
    ASSERT_TRUE(Gather(operation.get(), keys).ok());
    Update(operation.get(), keys, version);
  }
  // Every row moves to the tier below.
  void DemoteAll() {
    DroppedRows dropped;
    RowMover mover(base_, &parts_->demoter.records(), &dropped);
    size_t moved = 0;
    ASSERT_TRUE(mover.Demote(ShardWriter(base_->shards[0]), dram_rows(), &moved).ok());
    ASSERT_EQ(dram_rows(), 0u);
  }
  Found Find(int64_t key) { return Shard::Locked(base_->shards[0])->Find(key, HashKey(key)); }
  float first_element(int64_t key) { return reinterpret_cast<const float*>(RowSlab::Data(Find(key).row))[0]; }
  int64_t rows() { return Shard::Locked(base_->shards[0])->counts().rows; }
  size_t dram_rows() { return Shard::Locked(base_->shards[0])->dram_rows(); }

  const std::vector<int64_t> three_keys_ = {7, 8, 9};
  std::unique_ptr<TableParts> parts_;
  TableBase* base_ = nullptr;  // of parts_
};

AdmissionSpec CountTo(AdmissionKind kind, uint32_t frequency) {
  AdmissionSpec admission;
  admission.kind = kind;
  admission.filter_freq = frequency;
  admission.max_element_size = 100;
  return admission;
}

TEST_F(ApplyOperationTest, GatherPinsARowThatIsNoKeysUntilUpdate) {
  Make();
  auto operation = NewOperation();
  ASSERT_TRUE(Gather(operation.get(), {7}).ok());
  const RowHeader* row = Find(7).row;
  EXPECT_TRUE(row->has(kRowUncommitted));
  EXPECT_EQ(row->pins, 1);
  EXPECT_EQ(rows(), 0);
  Update(operation.get(), {7}, /*version=*/3);
  EXPECT_FALSE(row->has(kRowUncommitted));
  EXPECT_EQ(row->pins, 0);
  EXPECT_EQ(row->version, 3);
  EXPECT_EQ(rows(), 1);
}

TEST_F(ApplyOperationTest, RepeatedKeysAreUpdatedOnceWithTheSumAndCountEachTime) {
  Make();
  Apply({7, 8, 7, 7});
  EXPECT_EQ(first_element(7), kInitial - 3.0f);
  EXPECT_EQ(first_element(8), kInitial - 1.0f);
  EXPECT_EQ(Find(7).row->frequency, 3u);
}

TEST_F(ApplyOperationTest, ARowOfTheTierBelowComesUpAndIsUpdatedThere) {
  Make();
  Apply({7});
  DemoteAll();
  ASSERT_EQ(Find(7).row, nullptr);
  Apply({7}, /*version=*/2);
  EXPECT_EQ(first_element(7), kInitial - 2.0f);
  EXPECT_EQ(Find(7).row->frequency, 2u);
}

TEST_F(ApplyOperationTest, AGatherThatFailsTakesBackWhatItDid) {
  Make();
  Apply({7});
  DemoteAll();
  Apply({9});
  const int64_t rows_before = rows();
  const size_t dram_before = dram_rows();
  parts_->tier->FailRead(1, InternalError("broken"));
  EXPECT_EQ(Gather(NewOperation().get(), {5, 9, 7}).code(), StatusCode::kInternal);
  EXPECT_EQ(Find(5).row, nullptr);
  EXPECT_EQ(Find(9).row->pins, 0);
  EXPECT_EQ(rows(), rows_before);
  EXPECT_EQ(dram_rows(), dram_before);
  EXPECT_EQ(base_->common.dram_rows, static_cast<int64_t>(dram_before));
  Apply({7}, /*version=*/2);  // what was pending is not
  EXPECT_EQ(first_element(7), kInitial - 2.0f);
}

TEST_F(ApplyOperationTest, WithoutRoomNothingIsCreated) {
  Make({}, /*dram_rows=*/2, /*has_lower=*/false);
  const Status status = Gather(NewOperation().get(), {1, 2, 3});
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_NE(status.message().find("holds 0 of 2 rows"), std::string::npos) << status.message();
  EXPECT_EQ(dram_rows(), 0u);
  EXPECT_EQ(base_->common.dram_rows, 0);
}

TEST_F(ApplyOperationTest, ACountedKeyHasNoRowBelowItsThreshold) {
  Make(CountTo(AdmissionKind::kCounter, 3));
  Apply({7, 7});
  EXPECT_EQ(rows(), 0);
  EXPECT_EQ(Find(7).counted->frequency, 2u);
  EXPECT_EQ(Find(7).counted->pins, 0u);
  Apply({7});
  EXPECT_EQ(rows(), 1);
  EXPECT_EQ(Find(7).row->frequency, 3u);
}

TEST_F(ApplyOperationTest, UndoPutsACountedKeyBackThatHadReachedItsThreshold) {
  Make(CountTo(AdmissionKind::kCounter, 2));
  Apply({9, 9});
  DemoteAll();
  Apply({7});
  parts_->tier->FailRead(1, InternalError("broken"));
  EXPECT_FALSE(Gather(NewOperation().get(), {7, 9}).ok());
  ASSERT_NE(Find(7).counted, nullptr);
  EXPECT_EQ(Find(7).counted->frequency, 1u);
  EXPECT_EQ(Find(7).counted->pins, 0u);
}

TEST_F(ApplyOperationTest, UndoTakesTheCountsOutOfTheBloomFilter) {
  Make(CountTo(AdmissionKind::kBloom, 5), /*dram_rows=*/1, /*has_lower=*/false);
  const std::vector<int64_t> counts = {5, 5, 1};
  ApplyOperation::Keys keys = KeysOf(three_keys_);
  keys.counts = counts;
  EXPECT_EQ(NewOperation()->Gather(keys, nullptr).code(), StatusCode::kResourceExhausted);
  for (const int64_t key : three_keys_) EXPECT_EQ(base_->bloom->Estimate(key), 0) << key;
}

TEST_F(ApplyOperationTest, WhatIsImportedAsksNoFilter) {
  Make(CountTo(AdmissionKind::kCounter, 3));
  ApplyOperation::Keys keys = KeysOf(three_keys_);
  keys.admits_all = true;
  auto operation = NewOperation();
  ASSERT_TRUE(operation->Gather(keys, nullptr).ok());
  for (uint32_t e = 0; e < 3; ++e) EXPECT_EQ(operation->row(e)->key, operation->batch().key(e));
  for (const int64_t key : three_keys_) {
    RowHeader* const row = Find(key).row;
    Shard::Locked(base_->shards[0])->Unpin(row);
  }
}

}  // namespace
}  // namespace multitier::apply_operation_test
