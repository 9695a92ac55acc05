// Tests of the Tier contract. Every tier passes them; the test file of a tier instantiates them and adds its own tests:
//
//   INSTANTIATE_TEST_SUITE_P(Memory, TierConformanceTest, testing::Values(TierTestCase{...}), TierTestName);
//
// Test only.

#ifndef CC_TIER_TIER_CONFORMANCE_H_
#define CC_TIER_TIER_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "cc/row/row_layout.h"
#include "cc/tier/tier.h"
#include "gtest/gtest.h"

namespace multitier {

struct TierTestCase {
  std::string name;
  // Makes an empty tier that shares nothing with tiers made before.
  std::function<std::unique_ptr<Tier>(std::shared_ptr<const RowLayout>)> make;
  // As `make`, with a bound of max_rows records of that layout. Null: the tier has no bound.
  std::function<std::unique_ptr<Tier>(std::shared_ptr<const RowLayout>, int64_t max_rows)> make_bounded;
};

inline void PrintTo(const TierTestCase& test_case, std::ostream* out) { *out << test_case.name; }
inline std::string TierTestName(const testing::TestParamInfo<TierTestCase>& info) { return info.param.name; }

// Layouts of 1, 2 and 3 columns: value (3 elements), slot (3 float32), wide slot (5 bfloat16). A column's bytes do not depend
// on the value's dtype.
std::shared_ptr<const RowLayout> TierTestLayout(size_t num_columns, DType value_dtype = DType::kFloat32);

// A record that owns its row data. The arguments determine every byte, so a test detects a torn record.
struct TestRecord {
  TestRecord() = default;
  TestRecord(int64_t key, uint64_t generation, uint32_t num_columns);
  WriteRecord write() const { return WriteRecord{header, row_data.data()}; }

  RecordHeader header;
  std::vector<uint8_t> row_data;  // exactly num_columns columns
};

class TierConformanceTest : public testing::TestWithParam<TierTestCase> {
 protected:
  void SetUp() override;
  // Makes the tier, with two columns and values of that dtype.
  void MakeTier(DType value_dtype);

  uint32_t Write(const TestRecord& record);
  std::vector<uint32_t> Write(const std::vector<TestRecord>& records);
  void Free(int64_t key, uint32_t location);
  // Expects the record at the location; columns that it was written without have their initial value.
  void ExpectRead(const TestRecord& record, uint32_t location);
  // Expects that the location reads as NotFound or as a record of another key.
  void ExpectGone(int64_t key, uint32_t location);
  // Expects that Scan visits exactly these records, and that stats() agrees.
  void ExpectHeld(const std::map<uint32_t, TestRecord>& records);
  void SetColumns(size_t num_columns);

  DType value_dtype_ = DType::kFloat32;
  std::shared_ptr<const RowLayout> layout_;  // 2 columns at first
  std::unique_ptr<Tier> tier_;
};

}  // namespace multitier

#endif  // CC_TIER_TIER_CONFORMANCE_H_
