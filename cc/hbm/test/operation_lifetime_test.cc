// What operations with device memory leave behind, and what they may outlive: scratch memory of a group, numbers that a group
// took, rows that no update followed, locks of a process that forks.

#include <sys/wait.h>
#include <unistd.h>

#include "cc/hbm/test/device_caller.h"

namespace multitier::hbm::operation_lifetime_test {
namespace {

// The first table of a group lends the memory of all its members. The update of another one may run on when it ends.
TEST(OperationLifetime, MemoryOfAGroupOutlivesTheTableThatLendsIt) {
  const auto device = std::make_shared<HeldDevice>();
  const auto lent = std::make_shared<std::atomic<int64_t>>(0);
  const auto options = [] { return TieredOptions(4, 8, std::make_shared<MemoryTier>()); };
  std::unique_ptr<HbmTable> first = MakeHbmTable(options(), 64, device, 0, CountingSource(device, lent));
  const std::unique_ptr<HbmTable> second = MakeHbmTable(options(), 64, device);
  DeviceCaller caller(device);
  const Training training = Sgd({1, 2}, -1.0f, 4);
  for (HbmTable* table : {first.get(), second.get()}) MT_ASSERT_OK(Train(training, table));
  {
    DevicePlan plan;
    MT_ASSERT_OK(caller.Lookup({caller.Plain(first.get(), training.keys), caller.Plain(second.get(), training.keys)}, &plan));
    device->Hold(second->queue()->stream());
    MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 1)}));
  }
  first = nullptr;
  device->Let();
  EXPECT_EQ(second->TotalCount(), 2);  // waits until the operation of the update has ended
  EXPECT_EQ(*lent, 0);
  std::vector<int64_t> frequencies(2);
  MT_ASSERT_OK(second->Frequency(training.keys, frequencies.data()));
  EXPECT_EQ(frequencies, std::vector<int64_t>(2, 2));
}

// A group takes its number before its tables get their operations: another operation may have a higher one by then.
TEST(OperationLifetime, AnOlderNumberDoesNotMakeRowsOfALaterOperationOld) {
  constexpr uint64_t kRenumber = uint64_t{1} << 29;
  TableOptions options = TieredOptions(4, 8, std::make_shared<MemoryTier>());
  options.initializer = InitializerSpec();
  const auto table = MakeHbmTable(options, /*rows=*/1, NewEmulatedDevice(), kRenumber - 3);
  MT_ASSERT_OK(Train(Sgd({1}, -1.0f, 4), table.get()));
  uint64_t older;
  {
    MutexLock lock(table->queue()->enqueue());
    older = table->queue()->NextOperation();
  }
  HbmTable::Operation later(table.get());
  ASSERT_EQ(older, kRenumber - 1);
  ASSERT_EQ(later.number, kRenumber);
  MT_ASSERT_OK(table->Find(&later, std::vector<int64_t>{1}));  // has the address of the row now
  {
    const HbmTable::Operation of_group(table.get(), older);
  }
  MT_ASSERT_OK(Train(Sgd({3}, -1.0f, 4), table.get()));  // finds no row that may leave
  const Training training = Sgd({1}, -1.0f, 4);
  MT_ASSERT_OK(table->FinishApply(&later, RequestOf(training)));
  EXPECT_EQ(LookupAll(table.get(), {1, 3}), (std::vector<float>{2, 2, 2, 2, 1, 1, 1, 1}));
}

TEST(OperationLifetime, RowsThatNoUpdateFollowedUseUpNoBudget) {
  const auto device = NewEmulatedDevice();
  const auto table = GrowingTable(BasicOptions(4), device, 10 * 16);
  DeviceCaller caller(device);
  {
    DevicePlan abandoned;
    caller.LookupAll(table.get(), Range(0, 8), &abandoned);
  }
  MT_ASSERT_OK(caller.Apply(Sgd(Range(20, 28), 1.0f, 4), table.get()));
  EXPECT_EQ(table->TotalCount(), 8);
  EXPECT_EQ(caller.Apply(Sgd(Range(30, 33), 1.0f, 4), table.get()).code(), StatusCode::kResourceExhausted);
  MT_ASSERT_OK(caller.Apply(Sgd(Range(30, 32), 1.0f, 4), table.get()));
  EXPECT_EQ(table->TotalCount(), 10);
}

// 0, or the line of this file that something else happened in.
int InChild(HeldDevice* device, const DevicePlan& plan, const DeviceMember& member, std::unique_ptr<HbmTable>* table) {
  const int64_t calls = device->calls();
  (void)(*table)->TotalCount();
  (void)(*table)->Stats();
  Awaited looked_up, updated, applied;
  const std::vector<DeviceMember> members = {member};
  LookupOnDevice(members, nullptr, device::Stream{}, looked_up.done());
  if (!looked_up.called() || looked_up.Wait().code() != StatusCode::kFailedPrecondition) return __LINE__;
  const Training training = Sgd({1, 2}, -1.0f, 4);
  DeviceUpdate update;
  update.request = RequestOf(training);
  UpdateOnDevice(plan, std::vector<DeviceUpdate>{update}, device::Stream{}, updated.done());
  if (!updated.called() || updated.Wait().code() != StatusCode::kFailedPrecondition) return __LINE__;
  DeviceApply apply;
  apply.table = table->get();
  apply.request = update.request;
  ApplyOnDevice(std::vector<DeviceApply>{apply}, device::Stream{}, applied.done());
  if (!applied.called() || applied.Wait().code() != StatusCode::kFailedPrecondition) return __LINE__;
  const std::vector<DeviceGradient> gradients = {DeviceGradient()};
  if (GradientOnDevice(plan, gradients, device::Stream{}).code() != StatusCode::kFailedPrecondition) return __LINE__;
  if (device->calls() != calls) return __LINE__;
  return 0;
}

TEST(OperationLifetime, AForkedChildNeitherWaitsNorTouchesTheDevice) {
  const auto device = std::make_shared<HeldDevice>();
  std::unique_ptr<HbmTable> table = MakeHbmTable(TieredOptions(4, 8, std::make_shared<MemoryTier>()), 64, device);
  DeviceCaller caller(device);
  const Training training = Sgd({1, 2}, -1.0f, 4);
  const DeviceMember member = caller.Plain(table.get(), training.keys);
  DevicePlan kept, plan;
  MT_ASSERT_OK(caller.Lookup({member}, &kept));
  MT_ASSERT_OK(caller.Lookup({member}, &plan));
  device->Hold(table->queue()->stream());
  MT_ASSERT_OK(caller.Update(plan, {caller.UpdateOf(training, 0)}));  // its new rows are not counted yet
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);                         // ends a child that hangs
    table->queue()->enqueue().lock();  // as a thread of the parent may hold it
    const int line = InChild(device.get(), kept, member, &table);
    kept = DevicePlan();
    plan = DevicePlan();
    table = nullptr;
    _exit(line == 0 ? 0 : 1 + (line & 0x7f));
  }
  device->Let();
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(table->TotalCount(), 2);
}

// A snapshot at its moment keeps the gate of a table closed.
TEST(OperationLifetime, AnUpdateWithoutKeysWaitsForNoGate) {
  Pair pair(4, 64, 1);
  DeviceCaller caller(pair.device);
  DevicePlan plan;
  caller.LookupAll(pair.table.get(), {}, &plan);
  SnapshotRequest request;
  request.max_rows = 100;
  request.visit = [](Rows*) { return OkStatus(); };
  auto snapshot = pair.table->PrepareSnapshot(std::move(request));
  MT_ASSERT_OK(snapshot.status());
  MT_ASSERT_OK((*snapshot)->Hold());
  alarm(60);  // ends a test that hangs
  Training training = Sgd({}, 1.0f, 4);
  training.step = 7;
  Awaited updated;
  UpdateOnDevice(plan, std::vector<DeviceUpdate>{caller.UpdateOf(training, 0)}, caller.stream(), updated.done());
  EXPECT_FALSE(updated.called());
  (*snapshot)->Mark();
  (*snapshot)->Release();
  MT_EXPECT_OK(updated.Wait());
  alarm(0);
  MT_EXPECT_OK((*snapshot)->Run());
  *snapshot = nullptr;
  MT_ASSERT_OK(training.Run(pair.plain.get()));
  EXPECT_EQ(pair.table->NewestStep(), pair.plain->NewestStep());
  const Training next = Sgd({1}, 1.0f, 4);  // its version is the number of applies
  MT_ASSERT_OK(next.Run(pair.plain.get()));
  MT_ASSERT_OK(caller.Apply(next, pair.table.get()));
  ExpectSameTables(pair.plain.get(), pair.table.get());
}

}  // namespace
}  // namespace multitier::hbm::operation_lifetime_test
