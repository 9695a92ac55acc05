#include "cc/row/schema.h"

#include <gtest/gtest.h>

namespace multitier {
namespace {

TEST(SchemaTest, ColumnsStandInOrderWithTheirPlaces) {
  RowLayout layout = *RowLayout::Create(3, DType::kFloat32);
  layout = *layout.WithColumn({"a \"slot\"\n", DType::kBFloat16, 5, 0.1f});
  EXPECT_EQ(ColumnsToJson(layout).ToString(),
            "[{\"name\": \"value\", \"dtype\": \"float32\", \"dim\": 3, \"initial_value\": 0, \"offset\": 0}, "
            "{\"name\": \"a \\\"slot\\\"\\u000a\", \"dtype\": \"bfloat16\", \"dim\": 5, \"initial_value\": 0.100000001, "
            "\"offset\": 16}]");
}

}  // namespace
}  // namespace multitier
