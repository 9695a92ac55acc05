#include "cc/row/row_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace multitier::row_layout_test {
namespace {

ColumnSpec Slot(const std::string& name, int dim, float initial_value = 0.0f, DType dtype = DType::kFloat32) {
  ColumnSpec spec;
  spec.name = name;
  spec.dtype = dtype;
  spec.dim = dim;
  spec.initial_value = initial_value;
  return spec;
}

TEST(RowLayoutTest, DimThreeWithAnAdagradSlotHas32RowBytes) {
  const RowLayout value_only = *RowLayout::Create(3, DType::kFloat32);
  EXPECT_EQ(value_only.row_bytes(), 16u);
  EXPECT_EQ(value_only.dim(), 3);
  const RowLayout layout = *value_only.WithColumn(Slot("accumulator", 3, 0.1f));
  EXPECT_EQ(layout.row_bytes(), 32u);
  EXPECT_EQ(layout.stride(), 64u);
  ASSERT_EQ(layout.columns().size(), 2u);
  EXPECT_EQ(layout.value().name, "value");
  EXPECT_EQ(layout.value().offset, 0u);
  EXPECT_EQ(layout.columns()[1].offset, 16u);
  EXPECT_EQ(layout.columns()[1].bytes, 16u);
  EXPECT_EQ(layout.Find("accumulator"), 1);
  EXPECT_EQ(layout.Find("value"), 0);
  EXPECT_EQ(layout.Find("momentum"), -1);
  EXPECT_EQ(value_only.columns().size(), 1u);  // unchanged
}

TEST(RowLayoutTest, OldColumnsKeepTheirPlaceWhereOneIsAdded) {
  RowLayout layout = *RowLayout::Create(17, DType::kBFloat16);
  for (const int dim : {17, 1, 200}) {
    const RowLayout wider = *layout.WithColumn(Slot(StrCat("slot_", dim), dim));
    for (size_t i = 0; i < layout.columns().size(); ++i) {
      EXPECT_EQ(wider.columns()[i].offset, layout.columns()[i].offset);
      EXPECT_EQ(wider.columns()[i].bytes, layout.columns()[i].bytes);
    }
    EXPECT_EQ(wider.columns().back().offset, layout.row_bytes());
    layout = wider;
  }
  EXPECT_EQ(layout.columns()[0].bytes, 48u);  // 34, to 16
}

TEST(RowLayoutTest, OverheadIsBoundedAtEveryDim) {
  for (int dim = 1; dim <= 1000; ++dim) {
    const RowLayout layout = *RowLayout::Create(dim, DType::kFloat32);
    EXPECT_LE(layout.stride() - layout.row_bytes() + kIndexBytesPerKeyBound, kMaxOverheadBytes) << dim;
    EXPECT_GE(layout.stride(), sizeof(RowHeader) + layout.row_bytes()) << dim;
    EXPECT_EQ(layout.stride() % 16, 0u) << dim;
  }
}

TEST(RowLayoutTest, DimsAndNamesOutOfRangeAreRefusedWithWhatWasFound) {
  for (const int dim : {0, -1, (1 << 20) + 1}) {
    const Status status = RowLayout::Create(dim, DType::kFloat32).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(StrCat("found ", dim)), std::string::npos) << status.message();
  }
  const RowLayout layout = *RowLayout::Create(1 << 20, DType::kFloat32);
  EXPECT_EQ(layout.WithColumn(Slot("m", 0)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(layout.WithColumn(Slot("", 1)).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(layout.WithColumn(Slot("value", 1)).status().code(), StatusCode::kInvalidArgument);
}

TEST(RowLayoutTest, RowBeyondOneGibibyteIsRefused) {
  RowLayout layout = *RowLayout::Create(1 << 20, DType::kFloat32);
  for (int i = 1; i < 256; ++i) layout = *layout.WithColumn(Slot(StrCat("s", i), 1 << 20));
  EXPECT_EQ(layout.row_bytes(), size_t{1} << 30);
  EXPECT_EQ(layout.WithColumn(Slot("more", 1)).status().code(), StatusCode::kInvalidArgument);
}

TEST(RowLayoutTest, FillSlotsWritesInitialValuesAndZeroPaddingFromTheColumnNamed) {
  RowLayout layout = *RowLayout::Create(3, DType::kFloat32);
  layout = *layout.WithColumn(Slot("a", 3, 0.1f));
  layout = *layout.WithColumn(Slot("b", 5, 1.5f, DType::kBFloat16));
  layout = *layout.WithColumn(Slot("c", 2, -2.0f, DType::kFloat16));
  std::vector<uint8_t> row(layout.row_bytes(), 0xee);
  layout.FillSlots(row.data(), 1);
  EXPECT_EQ(row[0], 0xee);
  EXPECT_EQ(row[15], 0xee);
  float a[4];
  std::memcpy(a, &row[16], sizeof(a));
  EXPECT_EQ(a[0], 0.1f);
  EXPECT_EQ(a[2], 0.1f);
  EXPECT_EQ(a[3], 0.0f);
  uint16_t halves[16];
  std::memcpy(halves, &row[32], sizeof(halves));
  EXPECT_EQ(halves[4], 0x3fc0);  // bfloat16 1.5
  EXPECT_EQ(halves[5], 0);
  EXPECT_EQ(halves[9], 0xc000);  // float16 -2
  EXPECT_EQ(halves[10], 0);
  std::vector<uint8_t> last(layout.row_bytes(), 0xee);
  layout.FillSlots(last.data(), 3);
  EXPECT_EQ(last[47], 0xee);
  EXPECT_EQ(last[49], 0xc0);
}

// The initial value of a one-element slot of `dtype`, as it lies in the row.
uint16_t Narrowed(float value, DType dtype) {
  RowLayout layout = *RowLayout::Create(1, DType::kFloat32);
  layout = *layout.WithColumn(Slot("s", 1, value, dtype));
  std::vector<uint8_t> row(layout.row_bytes());
  layout.FillSlots(row.data(), 1);
  uint16_t bits;
  std::memcpy(&bits, &row[16], sizeof(bits));
  return bits;
}

TEST(RowLayoutTest, NarrowInitialValuesRoundToNearestEven) {
  const float inf = std::numeric_limits<float>::infinity();
  const struct {
    float value;
    uint16_t float16;
    uint16_t bfloat16;
  } cases[] = {{0.0f, 0x0000, 0x0000},         {-0.0f, 0x8000, 0x8000},        {0.1f, 0x2e66, 0x3dcd},
               {1.0f, 0x3c00, 0x3f80},         {65504.0f, 0x7bff, 0x4780},     {65519.0f, 0x7bff, 0x4780},
               {65520.0f, 0x7c00, 0x4780},     {inf, 0x7c00, 0x7f80},          {0x1p-24f, 0x0001, 0x3380},
               {0x1p-25f, 0x0000, 0x3300},     {0x1.8p-25f, 0x0001, 0x3340},   {0x1p-14f, 0x0400, 0x3880},
               {0x1.ff8p-15f, 0x03ff, 0x3880}, {0x1.ffcp-15f, 0x0400, 0x3880}, {2049.0f, 0x6800, 0x4500},
               {2051.0f, 0x6802, 0x4500},      {-inf, 0xfc00, 0xff80},         {1e-10f, 0x0000, 0x2edc},
               {0x1.01p0f, 0x3c04, 0x3f80},    {0x1.03p0f, 0x3c0c, 0x3f82}};
  for (const auto& c : cases) {
    EXPECT_EQ(Narrowed(c.value, DType::kFloat16), c.float16) << c.value;
    EXPECT_EQ(Narrowed(c.value, DType::kBFloat16), c.bfloat16) << c.value;
  }
  EXPECT_GT(Narrowed(std::nanf(""), DType::kFloat16) & 0x7fff, 0x7c00);
  EXPECT_GT(Narrowed(std::nanf(""), DType::kBFloat16) & 0x7fff, 0x7f80);
}

TEST(RowLayoutTest, DTypesHaveSizesAndNames) {
  EXPECT_EQ(DTypeSize(DType::kFloat32), 4u);
  EXPECT_EQ(DTypeSize(DType::kBFloat16), 2u);
  EXPECT_EQ(DTypeSize(DType::kFloat16), 2u);
  EXPECT_STREQ(DTypeName(DType::kFloat32), "float32");
  EXPECT_STREQ(DTypeName(DType::kBFloat16), "bfloat16");
  EXPECT_STREQ(DTypeName(DType::kFloat16), "float16");
}

}  // namespace
}  // namespace multitier::row_layout_test
