#include "cc/row/schema.h"

#include <gtest/gtest.h>

namespace multitier::schema_test {
namespace {

TEST(SchemaTest, ColumnsStandInOrderWithTheirPlaces) {
  RowLayout layout = *RowLayout::Create(3, DType::kFloat32);
  layout = *layout.WithColumn({"a \"slot\"\n", DType::kBFloat16, 5, 0.1f});
  EXPECT_EQ(ColumnsToJson(layout).ToString(),
            "[{\"name\": \"value\", \"dtype\": \"float32\", \"dim\": 3, \"initial_value\": 0, \"offset\": 0}, "
            "{\"name\": \"a \\\"slot\\\"\\u000a\", \"dtype\": \"bfloat16\", \"dim\": 5, \"initial_value\": 0.100000001, "
            "\"offset\": 16}]");
  const Json json = ColumnsToJson(layout);
  for (size_t i = 0; i < layout.columns().size(); ++i) {
    const Result<ColumnSpec> column = ColumnFromJson(json.items()[i]);
    ASSERT_TRUE(column.ok()) << column.status().ToString();
    EXPECT_EQ(column->name, layout.columns()[i].name);
    EXPECT_EQ(column->dtype, layout.columns()[i].dtype);
    EXPECT_EQ(column->dim, layout.columns()[i].dim);
    EXPECT_EQ(column->initial_value, layout.columns()[i].initial_value);
  }
}

TEST(SchemaTest, ColumnOfUnknownTypeOrSizeIsRefusedByName) {
  for (const char* text : {"{\"name\": \"c\", \"dtype\": \"int8\", \"dim\": 3, \"initial_value\": 0}",
                           "{\"name\": \"c\", \"dtype\": \"float32\", \"dim\": 0, \"initial_value\": 0}"}) {
    const Result<ColumnSpec> column = ColumnFromJson(*Json::Parse(text));
    EXPECT_EQ(column.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(column.status().message().find("'c'"), std::string::npos) << column.status().message();
  }
}

}  // namespace
}  // namespace multitier::schema_test
