// What the tests of tables in HBM share.

#ifndef CC_HBM_HBM_TEST_UTIL_H_
#define CC_HBM_HBM_TEST_UTIL_H_

#include <memory>
#include <utility>
#include <vector>

#include "cc/device/emulated_device.h"
#include "cc/hbm/hbm_table.h"
#include "cc/hbm/operation.h"
#include "cc/table/table_test_util.h"

namespace multitier::hbm {

// Under a sanitizer a device is ten times as slow, and tests do less.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

inline std::shared_ptr<device::EmulatedDevice> NewEmulatedDevice(uint64_t seed = 1) {
  device::EmulatedDevice::Options options;
  options.simt.seed = seed;
  return std::make_shared<device::EmulatedDevice>(options, &device::EmulatedKernels());
}

// A table with room for `rows` rows of `options` in HBM.
inline std::unique_ptr<HbmTable> MakeHbmTable(TableOptions options, int rows, std::shared_ptr<device::Device> device,
                                              uint64_t first_operation = 0) {
  auto below = MakeTable(std::move(options));
  if (below == nullptr) return nullptr;
  const Budget budget = Budget::Bytes(static_cast<uint64_t>(rows) * below->layout()->row_bytes());
  HbmOptions hbm{std::move(device), budget, first_operation};
  auto table = HbmTable::Create(hbm, std::move(below));
  EXPECT_TRUE(table.ok()) << table.status().ToString();
  return table.ok() ? *std::move(table) : nullptr;
}

// The training as a request. Its arrays are the training's.
inline ApplyRequest RequestOf(const Training& training) {
  ApplyRequest request;
  request.keys = training.keys;
  request.grads = training.grads.data();
  request.counts = training.counts;
  request.rule = training.rule;
  for (const ColumnSpec& column : SlotColumns(*training.rule, 1)) request.slot_columns.push_back(column.name);
  request.hyper = training.hyper;
  request.global_step = training.step;
  return request;
}

inline Status Train(const Training& training, HbmTable* table) {
  MT_RETURN_IF_ERROR(table->AddSlots(SlotColumns(*training.rule, table->dim())));
  return table->Apply(RequestOf(training));
}

inline std::vector<float> LookupAll(HbmTable* table, const std::vector<int64_t>& keys) {
  std::vector<float> out(keys.size() * static_cast<size_t>(table->dim()));
  MT_EXPECT_OK(table->Lookup(keys, out.data()));
  return out;
}

inline std::vector<int32_t> TierOf(HbmTable* table, const std::vector<int64_t>& keys) {
  std::vector<int32_t> out(keys.size());
  MT_EXPECT_OK(table->LookupTier(keys, out.data()));
  return out;
}

// As EmbeddingTable::TakeSnapshot and Export.
inline Status SnapshotOf(HbmTable* table, bool all_columns, int64_t max_rows, const std::function<Status(Rows*)>& visit) {
  SnapshotRequest request;
  request.all_columns = all_columns;
  request.max_rows = max_rows;
  request.visit = visit;
  MT_ASSIGN_OR_RETURN(const std::unique_ptr<TableSnapshot> snapshot, table->PrepareSnapshot(std::move(request)));
  return snapshot->TakeAlone();
}
inline Result<Rows> ExportAll(HbmTable* table, bool all_columns = true) {
  Rows all;
  MT_RETURN_IF_ERROR(SnapshotOf(table, all_columns, INT64_MAX, [&](Rows* rows) {
    all = std::move(*rows);
    return OkStatus();
  }));
  return all;
}

// Every value, slot, frequency and version equal, bit for bit.
inline void ExpectSameTables(EmbeddingTable* plain, HbmTable* table) {
  const auto x = plain->Export(true), y = ExportAll(table);
  ASSERT_TRUE(x.ok() && y.ok()) << x.status().ToString() << " " << y.status().ToString();
  EXPECT_EQ(table->TotalCount(), static_cast<int64_t>(x->keys.size()));
  ExpectSameRows(*x, *y);
}

}  // namespace multitier::hbm

#endif  // CC_HBM_HBM_TEST_UTIL_H_
