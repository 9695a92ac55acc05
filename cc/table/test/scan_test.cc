// Scan: what one call gives, thresholds, and keys that come, leave or change while a scan runs.

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "cc/table/test/table_test_util.h"
#include "cc/tier/test_tiers/memory_tier.h"

namespace multitier::scan_test {
namespace {

// Scans a whole table in pieces of `max_rows`. Calls between(cursor) after each. Returns how often each key came as a row.
template <typename Between>
std::map<int64_t, int> TimesGiven(EmbeddingTable* table, int64_t max_rows, Between between,
                                  std::map<int64_t, int>* counted = nullptr) {
  std::map<int64_t, int> times;
  ScanRequest request{0, max_rows, {"value"}};
  int calls = 0;
  do {
    const auto rows = table->Scan(request, &request.cursor);
    EXPECT_TRUE(rows.ok()) << rows.status().ToString();
    if (!rows.ok() || ++calls > 10000) {
      ADD_FAILURE() << "the scan does not end";
      break;
    }
    for (const int64_t key : rows->keys) ++times[key];
    for (const int64_t key : rows->counted_keys) {
      if (counted != nullptr) ++(*counted)[key];
    }
    between(request.cursor);
  } while (request.cursor != 0);
  return times;
}

TEST(Scan, GivesEachKeyOnceWhileTheIndexGrows) {
  auto table = MakeTable(BasicOptions(1));
  MT_ASSERT_OK(Sgd(Range(0, 1000), 1.0f, 1).Run(table.get()));
  std::vector<int> seen(1000);
  uint64_t cursor = 0;
  int64_t next_key = 1000;
  do {
    const auto rows = table->Scan(ScanRequest{cursor, 200, {"value"}}, &cursor);
    ASSERT_TRUE(rows.ok()) << rows.status().ToString();
    for (const int64_t key : rows->keys) {
      if (key < 1000) ++seen[static_cast<size_t>(key)];
    }
    MT_ASSERT_OK(Sgd(Range(next_key, next_key + 500), 1.0f, 1).Run(table.get()));
    next_key += 500;
  } while (cursor != 0);
  EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), 1000);
}

TEST(Scan, RefusesTheCursorOfAnotherTable) {
  const auto table = MakeTable(BasicOptions(1));
  MT_ASSERT_OK(Sgd(Range(0, 1000), 1.0f, 1).Run(table.get()));
  uint64_t cursor = 0, unused = 0;
  MT_ASSERT_OK(table->Scan(ScanRequest{0, 10, {"value"}}, &cursor).status());
  ASSERT_NE(cursor, 0u);
  EXPECT_LT(cursor, uint64_t{1} << 63);  // TensorFlow takes it as an int64
  MT_EXPECT_OK(table->Scan(ScanRequest{cursor, 10, {"value"}}, &unused).status());
  const auto other = MakeTable(BasicOptions(1));
  EXPECT_EQ(other->Scan(ScanRequest{cursor, 10, {"value"}}, &unused).status().code(), StatusCode::kInvalidArgument);
  for (const uint64_t bad : {cursor | uint64_t{1} << 49, cursor | uint64_t{1} << 63, uint64_t{1}}) {
    const Status status = table->Scan(ScanRequest{bad, 10, {"value"}}, &unused).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("a cursor that an earlier scan of this table returned"), std::string::npos);
  }
}

TEST(Scan, EndsWhileRowsAreAddedFasterThanItGivesThem) {
  const auto table = MakeTable(BasicOptions(1));
  MT_ASSERT_OK(Sgd(Range(0, 1000), 1.0f, 1).Run(table.get()));
  int64_t next_key = 1000;
  const auto times = TimesGiven(table.get(), 100, [&](uint64_t) {
    MT_ASSERT_OK(Sgd(Range(next_key, next_key + 1000), 1.0f, 1).Run(table.get()));
    next_key += 1000;
  });
  for (int64_t key = 0; key < 1000; ++key) EXPECT_EQ(times.at(key), 1) << key;
  EXPECT_LT(static_cast<int64_t>(times.size()), next_key);
}

TEST(Scan, GivesKeysThatStayOnceWhileOthersLeaveAndTheirSlotsAreUsedAgain) {
  const auto table = MakeTable(BasicOptions(1));
  MT_ASSERT_OK(Sgd(Range(0, 2000), 1.0f, 1).Run(table.get()));
  int64_t leaves = 1, comes = 2000;
  const auto times = TimesGiven(table.get(), 50, [&](uint64_t) {
    int64_t removed = 0;
    std::vector<int64_t> keys;
    for (; keys.size() < 20 && leaves < 2000; leaves += 2) keys.push_back(leaves);
    MT_ASSERT_OK(table->Remove(keys, &removed));
    MT_ASSERT_OK(Sgd(Range(comes, comes + 25), 1.0f, 1).Run(table.get()));
    comes += 25;
  });
  for (int64_t key = 0; key < 2000; key += 2) EXPECT_EQ(times.at(key), 1) << key;
  for (const auto& [key, n] : times) EXPECT_EQ(n, 1) << key;
}

TEST(Scan, GivesRowsOnceWhileColumnsAreAdded) {
  const auto table = MakeTable(BasicOptions(2));
  MT_ASSERT_OK(Sgd(Range(0, 500), 1.0f, 2).Run(table.get()));
  int slots = 0;
  const auto times = TimesGiven(table.get(), 60, [&](uint64_t) {
    ColumnSpec slot;
    slot.name = StrCat("s", slots++);
    slot.dim = 3;
    MT_ASSERT_OK(table->AddSlots(std::vector<ColumnSpec>{slot}));
  });
  EXPECT_GE(slots, 8);
  EXPECT_EQ(times.size(), 500u);
  for (const auto& [key, n] : times) EXPECT_EQ(n, 1) << key;
}

TEST(Scan, EndsAfterTheTableWasCleared) {
  const auto table = MakeTable(BasicOptions(1));
  MT_ASSERT_OK(Sgd(Range(0, 1000), 1.0f, 1).Run(table.get()));
  bool cleared = false;
  const auto times = TimesGiven(table.get(), 10, [&](uint64_t) {
    if (!std::exchange(cleared, true)) MT_ASSERT_OK(table->Clear());
  });
  EXPECT_EQ(times.size(), 10u);
}

TEST(Scan, MissesNoCountedKeyThatBecomesARow) {
  TableOptions options = BasicOptions(1);
  options.filter.kind = AdmissionKind::kCounter;
  options.filter.filter_freq = 2;
  const auto table = MakeTable(options);
  MT_ASSERT_OK(Sgd(Range(0, 400), 1.0f, 1).Run(table.get()));
  ASSERT_EQ(table->TotalCount(), 0);
  int64_t admitted = 0;
  std::map<int64_t, int> counted;
  const auto times = TimesGiven(
      table.get(), 20,
      [&](uint64_t) {
        const int64_t end = std::min<int64_t>(400, admitted + 30);
        if (admitted < end) MT_ASSERT_OK(Sgd(Range(admitted, end), 1.0f, 1).Run(table.get()));
        admitted = end;
      },
      &counted);
  for (int64_t key = 0; key < 400; ++key) {
    const int as_counted = counted.count(key) == 0 ? 0 : counted.at(key), as_row = times.count(key) == 0 ? 0 : times.at(key);
    EXPECT_LE(as_counted, 1) << key;
    EXPECT_LE(as_row, 1) << key;
    EXPECT_GE(as_counted + as_row, 1) << key;
  }
}

TEST(Scan, GivesTheColumnsNamedOfTheRowsAboveTheThresholds) {
  const auto table = MakeTable(TieredOptions(1, 4, std::make_shared<MemoryTier>()));
  ColumnSpec slot;
  slot.name = "s";
  slot.dim = 2;
  slot.initial_value = 0.5f;
  MT_ASSERT_OK(table->AddSlots(std::vector<ColumnSpec>{slot}));
  for (int64_t step = 0; step < 30; ++step) {
    Training training = Sgd({step, 0}, 1.0f, 1);
    training.step = step;
    MT_ASSERT_OK(training.Run(table.get()));
  }
  const auto keys_of = [&](ScanRequest request) {
    std::set<int64_t> keys;
    do {
      const auto rows = table->Scan(request, &request.cursor);
      EXPECT_TRUE(rows.ok()) << rows.status().ToString();
      EXPECT_EQ(rows->columns.size(), 2u);
      EXPECT_EQ(rows->columns[0].name, "s");
      for (size_t i = 0; i < rows->keys.size(); ++i) {
        EXPECT_TRUE(keys.insert(rows->keys[i]).second);
        EXPECT_EQ(rows->data[3 * i], 0.5f);
        EXPECT_EQ(rows->data[3 * i + 2], LookupAll(table.get(), {rows->keys[i]})[0]);
      }
    } while (request.cursor != 0);
    return keys;
  };
  ScanRequest request{0, 7, {"s", "value"}};
  EXPECT_EQ(keys_of(request).size(), 30u);
  request.min_version = 25;
  EXPECT_EQ(keys_of(request), (std::set<int64_t>{0, 25, 26, 27, 28, 29}));
  request.min_frequency = 2;
  EXPECT_EQ(keys_of(request), std::set<int64_t>{0});
  uint64_t next = 0;
  EXPECT_EQ(table->Scan(ScanRequest{0, 7, {"t"}}, &next).status().message(),
            "table 't': scan: expected columns of 'value', 's', found 't'");
}

}  // namespace
}  // namespace multitier::scan_test
