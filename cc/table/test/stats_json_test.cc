#include "cc/table/api/stats_json.h"

#include <gtest/gtest.h>

#include "cc/base/json.h"
#include "cc/table/test/table_test_util.h"

namespace multitier::stats_json_test {
namespace {

TEST(StatsJson, HoldsWhatTheTableCounted) {
  auto table = MakeTable(TieredOptions(4, 2, std::make_shared<MemoryTier>()));
  MT_ASSERT_OK(Sgd({1, 2, 3}, 1.0f, 4).Run(table.get()));
  LookupAll(table.get(), {1, 2, 3, 4});
  const auto json = Json::Parse(StatsToJson(table.get()));
  ASSERT_TRUE(json.ok()) << json.status().ToString();
  EXPECT_EQ(*json->GetInt("rows"), 3);
  EXPECT_EQ(*json->GetInt("created"), 3);
  EXPECT_EQ(*json->GetInt("lookups"), 4);
  EXPECT_EQ(*json->GetInt("absent"), 1);
  EXPECT_EQ(*json->GetString("sticky_error"), "");
  const auto tiers = json->GetArray("tiers");
  ASSERT_TRUE(tiers.ok());
  ASSERT_EQ((*tiers)->items().size(), 2u);
  EXPECT_EQ(*(*tiers)->items()[0].GetInt("rows"), 2);
  EXPECT_EQ(*(*tiers)->items()[1].GetString("name"), "memory");
}

}  // namespace
}  // namespace multitier::stats_json_test
