// The kernels that read the last uses of one bucket: the sweep of pins, and the search for a victim.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "cc/device/emulated_device.h"
#include "cc/device/kernels/kernels.h"
#include "cc/device/kernels/test_memory.h"

namespace multitier::device {
namespace {

// A table of one bucket whose slots have these last operations; 0 in `used`: empty.
class PinnedSlots {
 public:
  PinnedSlots(const std::vector<uint32_t>& last, const std::vector<uint8_t>& used) : n_(last.size()) {
    std::vector<uint32_t> last_used(kBucketSlots, 0);
    std::vector<uint8_t> digests(kBucketSlots, 0);
    std::copy(last.begin(), last.end(), last_used.begin());
    std::copy(used.begin(), used.end(), digests.begin());
    Table table{};
    table.last_used = last_used_ = memory_.Up(last_used);
    table.digests = memory_.Up(digests);
    table_ = memory_.Up(std::vector<Table>{table});
  }
  // The rows that stay pinned, of each kept operation. *last: of the slots afterwards.
  std::vector<uint32_t> Sweep(uint32_t operation, const std::vector<uint32_t>& kept, std::vector<uint32_t>* last) {
    auto* const pinned = memory_.Filled<uint32_t>(kept.size(), 0);
    const SweepPinsArgs args{table_, 1, operation, memory_.Up(kept), static_cast<uint32_t>(kept.size()), pinned};
    MT_CHECK(device_->kernels().sweep_pins(stream_, args).ok());
    *last = memory_.Down(last_used_, n_);
    return memory_.Down(pinned, kept.size());
  }

 private:
  const std::shared_ptr<Device> device_ = std::make_shared<EmulatedDevice>(EmulatedDevice::Options(), &EmulatedKernels());
  const Stream stream_ = *device_->NewStream();
  TestMemory memory_{device_, stream_};
  const size_t n_;
  uint32_t* last_used_ = nullptr;
  Table* table_ = nullptr;
};

TEST(BucketKernelsTest, ASweepCountsThePinsThatStayAndReleasesTheOthersToTheTimeOfTheirPrefetch) {
  for (const uint32_t now : {1000u, 5u}) {  // in the second, numbers have wrapped
    const uint32_t a = now - 90, b = now - 50, c = now - 20;
    const std::vector<uint32_t> before = {a + kPinAhead, b + kPinAhead, c + kPinAhead, b + kPinAhead, now - 1, c + kPinAhead};
    PinnedSlots slots(before, {1, 2, 3, 4, 5, 0});
    std::vector<uint32_t> kept = {a - 1, b, c + 1}, last;
    std::sort(kept.begin(), kept.end());
    std::vector<uint32_t> expected;
    for (const uint32_t operation : kept) expected.push_back(operation == b ? 2 : 0);
    EXPECT_EQ(slots.Sweep(now, kept, &last), expected);
    EXPECT_EQ(last, (std::vector<uint32_t>{a, before[1], c, before[3], now - 1, before[5]}));
    EXPECT_EQ(slots.Sweep(now, {}, &last), std::vector<uint32_t>());
    EXPECT_EQ(last, (std::vector<uint32_t>{a, b, c, b, now - 1, before[5]}));
  }
}

// The search for a victim: digests, last uses and ranks, 128 + 512 + 1,024 bytes of a bucket. A table without slots shows that
// nothing else is read, where no row may leave.
TEST(BucketKernelsTest, ASearchForAVictimReadsNoSlot) {
  for (const RankBy rank_by : {RankBy::kNothing, RankBy::kFrequency, RankBy::kVersion}) {
    const auto device = std::make_shared<EmulatedDevice>(EmulatedDevice::Options(), &EmulatedKernels());
    const Stream stream = *device->NewStream();
    TestMemory memory(device, stream);
    constexpr uint32_t kNow = 9;
    Table table{};
    table.digests = memory.Filled<uint8_t>(kBucketSlots, 1);
    table.last_used = memory.Up(std::vector<uint32_t>(kBucketSlots, kNow));
    table.ranks = rank_by == RankBy::kNothing ? nullptr : memory.Filled<uint64_t>(kBucketSlots, 0);
    table.rank_by = rank_by;
    table.buckets = 1;
    table.num_free = memory.Filled<uint32_t>(1, 0);
    table.heads = memory.Filled<uint32_t>(1, 0xff);
    table.row_stride = 32;
    InsertArgs insert{};
    insert.tables = memory.Up(std::vector<Table>{table});
    insert.num_tables = 1;
    insert.keys = memory.Up(std::vector<int64_t>{77});
    insert.key_tables = memory.Filled<uint32_t>(1, 0);
    insert.missed = memory.Filled<uint32_t>(1, 0);
    insert.num_missed = memory.Up(std::vector<uint32_t>{1});
    insert.max_missed = 1;
    insert.operation = insert.floor = kNow;
    insert.staged_rows = memory.Filled<uint8_t>(table.row_stride, 0);
    insert.staged_stride = table.row_stride;
    for (uint32_t** one : {&insert.begins, &insert.ends, &insert.bases, &insert.next, &insert.offered, &insert.consumed}) {
      *one = memory.Filled<uint32_t>(1, 0x5c);
    }
    insert.rows = memory.Filled<uint8_t*>(1, 0);
    insert.victims = memory.Filled<Victim>(1, 0x5c);
    ASSERT_TRUE(device->kernels().chain(stream, insert).ok());
    ASSERT_TRUE(device->kernels().place(stream, insert).ok());
    EXPECT_EQ(memory.Down(insert.victims, 1)[0].row, kNone);
    EXPECT_EQ(memory.Down(insert.rows, 1)[0], insert.staged_rows);
  }
}

}  // namespace
}  // namespace multitier::device
