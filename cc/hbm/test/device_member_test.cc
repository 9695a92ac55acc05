// What a member of a device lookup may say: sequences without a step, and what absent keys read in evaluation.

#include "cc/hbm/test/device_caller.h"

namespace multitier::hbm::device_member_test {
namespace {

TEST(DeviceMember, ASequenceWithoutAStepHasNoRowsAndWritesNothing) {
  Pair pair(4, 64, 1);
  DeviceCaller caller(pair.device);
  const std::vector<float> before(12, 2.0f);
  DeviceMember member = caller.Plain(pair.table.get(), {});
  member.sequence = true;
  member.batch = 3;
  member.out = caller.memory()->Up(before);
  for (const EntryForm form : {EntryForm::kSparse, EntryForm::kRagged}) {
    member.form = form;
    member.indices = form == EntryForm::kRagged ? caller.memory()->Up(std::vector<int64_t>(4, 0)) : nullptr;
    for (const bool training : {false, true}) {
      DevicePlan plan;
      MT_ASSERT_OK(caller.Lookup({member}, training ? &plan : nullptr));
      EXPECT_EQ(caller.memory()->Down(member.out, 12), before);
      if (!training) continue;
      EXPECT_EQ(plan.rows(0), 0);
      EXPECT_EQ(plan.distinct(0), 0);
      const Training nothing = Sgd({}, 1.0f, 4);
      MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(nothing, 0)}));
    }
  }
  member.keys = caller.Keys({5});
  member.indices = caller.memory()->Up(std::vector<int64_t>{0, 0, 1, 1});
  const Status refused = caller.Lookup({member});
  EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "table 't', member: expected steps in [0, 0), found 1 keys");
}

// The keys 0 to 5 have rows, in HBM or below it.
TEST(DeviceMember, AbsentKeysReadWhatTheReasonOfTheLookupSays) {
  for (const bool filters : {false, true}) {
    TableOptions basic = BasicOptions(4), tiered = TieredOptions(4, 4, std::make_shared<MemoryTier>());
    for (TableOptions* options : {&basic, &tiered}) {
      options->eval_initializer = InitializerSpec();
      options->eval_initializer->a = 0.75f;
      if (!filters) continue;
      options->filter.kind = AdmissionKind::kCounter;
      options->filter.filter_freq = 2;
    }
    const auto device = NewEmulatedDevice(3);
    const auto plain = MakeTable(basic);
    const auto table = MakeHbmTable(tiered, 4, device);
    DeviceCaller caller(device);
    for (int i = 0; i < 2; ++i) {
      MT_ASSERT_OK(Sgd(Range(0, 6), 1.0f, 4).Run(plain.get()));
      MT_ASSERT_OK(caller.Apply(Sgd(Range(0, 6), 1.0f, 4), table.get()));
    }
    std::vector<float> expected(20);
    for (const ReadFor reason : {ReadFor::kTraining, ReadFor::kEvaluation, ReadFor::kTraining}) {
      for (const std::vector<int64_t>& keys : {std::vector<int64_t>{0, 90, 5, 91, 0}, {91, 1, 2, 90, 3}}) {
        MT_ASSERT_OK(plain->Lookup(keys, expected.data(), nullptr, nullptr, 0, reason));
        for (const bool training : {false, true}) {
          DeviceMember member = caller.Plain(table.get(), keys);
          member.reason = reason;
          DevicePlan plan;
          MT_ASSERT_OK(caller.Lookup({member}, training ? &plan : nullptr));
          EXPECT_TRUE(SameBits(caller.Values(member), expected)) << filters << training << static_cast<int>(reason);
        }
      }
    }
    EXPECT_EQ(table->TotalCount(), 6);
  }
}

}  // namespace
}  // namespace multitier::hbm::device_member_test
