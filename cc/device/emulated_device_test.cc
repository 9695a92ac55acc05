// Streams, events, memory and faults of the emulated device.

#include "cc/device/emulated_device.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "cc/device/device_code.h"

namespace multitier::device {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif

struct AddArgs {
  int64_t* values;
  int n;
  int64_t add;
};

__global__ void AddKernel(AddArgs args) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < args.n) args.values[i] += args.add;
}

Status Add(Stream stream, int64_t* values, int n, int64_t add) {
  const AddArgs args{values, n, add};
  return MT_LAUNCH(stream, (static_cast<unsigned>(n) + 63) / 64, 64, AddKernel, args);
}

std::shared_ptr<EmulatedDevice> NewDevice(uint64_t seed = 1, size_t memory_bytes = 1 << 20) {
  EmulatedDevice::Options options;
  options.simt.seed = seed;
  options.memory_bytes = memory_bytes;
  return std::make_shared<EmulatedDevice>(options, nullptr);
}

constexpr int kN = 100;
constexpr size_t kBytes = kN * sizeof(int64_t);

TEST(EmulatedDeviceTest, WorkOfOneStreamRunsInOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    auto device = NewDevice(seed);
    const Stream stream = *device->NewStream();
    const Buffer memory = *Buffer::OnDevice(device, kBytes), pinned = *Buffer::Pinned(device, kBytes);
    ASSERT_TRUE(device->Fill(stream, memory.as<void>(), 0, kBytes).ok());
    ASSERT_TRUE(Add(stream, memory.as<int64_t>(), kN, 5).ok());
    ASSERT_TRUE(Add(stream, memory.as<int64_t>(), kN, 2).ok());
    ASSERT_TRUE(device->Copy(stream, pinned.as<void>(), memory.as<void>(), kBytes).ok());
    ASSERT_TRUE(device->Synchronize(stream).ok());
    for (int i = 0; i < kN; ++i) ASSERT_EQ(pinned.as<int64_t>()[i], 7);
  }
}

TEST(EmulatedDeviceTest, TheDigestOfWhatCameDownShowsAReadOfNewMemory) {
  for (const size_t written : {kBytes, kBytes - 1}) {
    std::vector<uint64_t> digests;
    for (const int byte : {0x00, 0xff}) {
      EmulatedDevice::Options options;
      options.new_memory = byte;
      auto device = std::make_shared<EmulatedDevice>(options, nullptr);
      const Stream stream = *device->NewStream();
      const Buffer memory = *Buffer::OnDevice(device, kBytes), other = *Buffer::OnDevice(device, kBytes);
      const Buffer pinned = *Buffer::Pinned(device, kBytes);
      ASSERT_TRUE(device->Fill(stream, memory.as<void>(), 7, written).ok());
      ASSERT_TRUE(device->Copy(stream, other.as<void>(), memory.as<void>(), kBytes).ok());  // does not come down
      ASSERT_TRUE(device->Copy(stream, pinned.as<void>(), other.as<void>(), kBytes).ok());
      ASSERT_TRUE(device->Synchronize(stream).ok());
      digests.push_back(device->copied_down());
    }
    EXPECT_EQ(digests[0] == digests[1], written == kBytes);
  }
}

TEST(EmulatedDeviceTest, TimedEventsGiveTheTimeBetweenThem) {
  auto device = NewDevice();
  const Stream stream = *device->NewStream();
  const Event first = *device->NewTimedEvent(), second = *device->NewTimedEvent();
  const Buffer memory = *Buffer::OnDevice(device, kBytes);
  ASSERT_TRUE(device->Record(stream, first).ok());
  ASSERT_TRUE(device->Fill(stream, memory.as<void>(), 0, kBytes).ok());
  ASSERT_TRUE(device->Record(stream, second).ok());
  ASSERT_TRUE(device->Synchronize(stream).ok());
  EXPECT_GT(*device->Seconds(first, second), 0);
  EXPECT_EQ(*device->Seconds(first, first), 0);
  device->Delete(first);
  device->Delete(second);
}

// A stream whose wait is still enqueued when the event ends.
TEST(EmulatedDeviceTest, AnEventMayEndBeforeAWaitForIt) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    auto device = NewDevice(seed);
    const Stream one = *device->NewStream(), two = *device->NewStream();
    const Event event = *device->NewEvent();
    ASSERT_TRUE(device->Record(one, event).ok());
    ASSERT_TRUE(device->Wait(two, event).ok());
    ASSERT_TRUE(device->Synchronize(one).ok());
    device->Delete(event);
    ASSERT_TRUE(device->Synchronize(two).ok());
  }
}

// Two streams add to one array by turns, host and streams ordered by events alone. Plants leave one order out.
enum class Leave { kNothing, kStreamWait, kHostWait };

std::shared_ptr<EmulatedDevice> NewDeviceWithLateCopies(uint64_t seed, int late_copies) {
  EmulatedDevice::Options options;
  options.simt.seed = seed;
  options.late_copies = late_copies;
  return std::make_shared<EmulatedDevice>(options, nullptr);
}

constexpr uint64_t kExpectedSum = uint64_t{11} * 55 * kN;  // after round r each value is 11 * r

uint64_t TwoStreams(uint64_t seed, Leave leave) {
  auto device = NewDevice(seed);
  const Stream one = *device->NewStream(), two = *device->NewStream();
  const Event first = *device->NewEvent(), second = *device->NewEvent();
  const Buffer memory = *Buffer::OnDevice(device, kBytes), pinned = *Buffer::Pinned(device, kBytes);
  int64_t* const values = memory.as<int64_t>();
  uint64_t sum = 0;
  MT_CHECK(device->Fill(one, values, 0, kBytes).ok());
  for (int round = 0; round < 10; ++round) {
    MT_CHECK(Add(one, values, kN, 1).ok() && device->Record(one, first).ok());
    if (leave != Leave::kStreamWait) MT_CHECK(device->Wait(two, first).ok());
    MT_CHECK(Add(two, values, kN, 10).ok() && device->Copy(two, pinned.as<void>(), values, kBytes).ok());
    MT_CHECK(device->Record(two, second).ok() && device->Wait(one, second).ok());
    while (leave != Leave::kHostWait && !*device->Happened(second)) {
    }
    for (int i = 0; i < kN; ++i) sum += pinned.as<uint64_t>()[i];
  }
  MT_CHECK(device->Synchronize(one).ok() && device->Synchronize(two).ok());
  device->Delete(first);
  device->Delete(second);
  return sum;
}

TEST(EmulatedDeviceTest, EventsOrderStreamsAndTheHost) {
  for (uint64_t seed = 1; seed <= (kTsan ? 3 : 20); ++seed) ASSERT_EQ(TwoStreams(seed, Leave::kNothing), kExpectedSum);
}

void RunPlanted(Leave leave) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    if (TwoStreams(seed, leave) == kExpectedSum) continue;
    std::fprintf(stderr, "wrong result\n");
    std::exit(1);
  }
  std::exit(0);
}

TEST(EmulatedDeviceDeathTest, AStreamThatDoesNotWaitIsFound) {
  EXPECT_EXIT(RunPlanted(Leave::kStreamWait), testing::ExitedWithCode(kTsan ? 66 : 1), kTsan ? "data race" : "wrong result");
}

TEST(EmulatedDeviceDeathTest, AHostThatReadsTooEarlyIsFound) {
  EXPECT_EXIT(RunPlanted(Leave::kHostWait), testing::ExitedWithCode(kTsan ? 66 : 1), kTsan ? "data race" : "wrong result");
}

// One stream copies, the other one adds to what was copied. Returns the last of the values.
int64_t CopyThenAdd(uint64_t seed, int late_copies, bool waits, int64_t* overtaken) {
  auto device = NewDeviceWithLateCopies(seed, late_copies);
  const Stream one = *device->NewStream(), two = *device->NewStream();
  const Event copied = *device->NewEvent();
  const Buffer from = *Buffer::OnDevice(device, kBytes), to = *Buffer::OnDevice(device, kBytes);
  const Buffer pinned = *Buffer::Pinned(device, kBytes);
  MT_CHECK(device->Fill(two, to.as<void>(), 0, kBytes).ok() && device->Synchronize(two).ok());
  MT_CHECK(device->Fill(one, from.as<void>(), 1, kBytes).ok() && device->Synchronize(one).ok());
  MT_CHECK(device->Copy(one, to.as<void>(), from.as<void>(), kBytes).ok() && device->Record(one, copied).ok());
  if (waits) MT_CHECK(device->Wait(two, copied).ok());
  MT_CHECK(Add(two, to.as<int64_t>(), kN, 1).ok() && device->Copy(two, pinned.as<void>(), to.as<void>(), kBytes).ok());
  MT_CHECK(device->Synchronize(two).ok() && device->Synchronize(one).ok());
  device->Delete(copied);
  *overtaken = device->overtaken_copies();
  return pinned.as<int64_t>()[kN - 1];
}

TEST(EmulatedDeviceTest, ALateCopyIsOvertakenByEveryStreamThatDoesNotWaitForIt) {
  int64_t overtaken = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    EXPECT_EQ(CopyThenAdd(seed, 1, /*waits=*/true, &overtaken), 0x0101010101010102) << seed;
    EXPECT_EQ(overtaken, 0);
    if (kTsan) continue;  // it reports the race
    EXPECT_NE(CopyThenAdd(seed, 1, /*waits=*/false, &overtaken), 0x0101010101010102) << seed;
    EXPECT_GT(overtaken, 0);
  }
}

// Of two streams that record one event, the later one may come to its record first.
TEST(EmulatedDeviceTest, AWaitIsForTheRecordBeforeIt) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    auto device = NewDevice(seed);
    const Stream first = *device->NewStream(), second = *device->NewStream(), waits = *device->NewStream();
    const Event event = *device->NewEvent();
    const Buffer memory = *Buffer::OnDevice(device, kBytes), pinned = *Buffer::Pinned(device, kBytes);
    ASSERT_TRUE(device->Fill(first, memory.as<void>(), 0, kBytes).ok());
    ASSERT_TRUE(device->Fill(first, memory.as<void>(), 1, kBytes).ok());
    ASSERT_TRUE(device->Record(first, event).ok());
    ASSERT_TRUE(device->Wait(waits, event).ok());
    ASSERT_TRUE(device->Copy(waits, pinned.as<void>(), memory.as<void>(), kBytes).ok());
    ASSERT_TRUE(device->Record(second, event).ok());
    ASSERT_TRUE(device->Synchronize(waits).ok());
    EXPECT_EQ(pinned.as<char>()[0], 1) << seed;
    for (const Stream stream : {first, second}) ASSERT_TRUE(device->Synchronize(stream).ok());
    device->Delete(event);
    for (const Stream stream : {first, second, waits}) device->Delete(stream);
  }
}

TEST(EmulatedDeviceTest, AnEventThatWasNeverRecordedHasHappened) {
  auto device = NewDevice();
  const Event event = *device->NewEvent();
  EXPECT_TRUE(*device->Happened(event));
  device->Delete(event);
}

TEST(EmulatedDeviceTest, ThreadsEnqueueSideBySide) {
  auto device = NewDevice();
  const auto work = [&device] {
    const Stream stream = *device->NewStream();
    const Buffer memory = *Buffer::OnDevice(device, kBytes), pinned = *Buffer::Pinned(device, kBytes);
    ASSERT_TRUE(device->Fill(stream, memory.as<void>(), 0, kBytes).ok());
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(Add(stream, memory.as<int64_t>(), kN, i).ok());
    ASSERT_TRUE(device->Copy(stream, pinned.as<void>(), memory.as<void>(), kBytes).ok());
    ASSERT_TRUE(device->Synchronize(stream).ok());
    for (int i = 0; i < kN; ++i) ASSERT_EQ(pinned.as<int64_t>()[i], 190);
    device->Delete(stream);
  };
  std::thread other(work);
  work();
  other.join();
}

TEST(EmulatedDeviceTest, ATooLargeAllocationNamesWhatWasAskedAndFree) {
  auto device = NewDevice(1, 4096);
  const Buffer held = *Buffer::OnDevice(device, 1024);
  EXPECT_EQ(device->used_bytes(), 1024u);
  const Status status = Buffer::OnDevice(device, 4000).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "emulated device: no memory for 4000 bytes; 3072 of 4096 bytes are free");
}

TEST(EmulatedDeviceTest, MemoryIsFreeAgainAfterItsBuffer) {
  auto device = NewDevice(1, 4096);
  {
    const Buffer held = *Buffer::OnDevice(device, 4096);
  }
  EXPECT_EQ(device->used_bytes(), 0u);
  EXPECT_TRUE(Buffer::OnDevice(device, 4096).ok());
}

TEST(EmulatedDeviceTest, EachCallCanFailAndTheDeviceGoesOn) {
  auto device = NewDevice();
  const Stream stream = *device->NewStream();
  const Buffer memory = *Buffer::OnDevice(device, kBytes);
  int failed = 0;
  for (int n = 0; n < 4; ++n) {
    device->FailCall(n);
    failed += !device->Fill(stream, memory.as<void>(), 0, kBytes).ok();
    failed += !Add(stream, memory.as<int64_t>(), kN, 1).ok();
    failed += !device->Synchronize(stream).ok();
    failed += !Buffer::OnDevice(device, 8).ok();
  }
  EXPECT_EQ(failed, 4);
}

}  // namespace
}  // namespace multitier::device
