// The emulator: its intrinsics, its checks, and mistakes planted in a kernel.

#include "cc/device/simt/simt.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "cc/device/device_code.h"
#include "cc/device/simt/planted_table.h"

namespace multitier::simt {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAsan = true;
#else
constexpr bool kAsan = false;
#endif

Options WithSeed(uint64_t seed) {
  Options options;
  options.seed = seed;
  return options;
}

// Runs `body` in every thread of one launch.
template <typename Body>
void RunKernel(Machine* machine, Dim3 grid, Dim3 block, const Body& body) {
  machine->Run(grid, block, [](const void* args) { (*static_cast<const Body*>(args))(); }, &body);
}

template <typename Body>
void RunKernel(Dim3 grid, Dim3 block, const Body& body) {
  Machine machine(WithSeed(1));
  RunKernel(&machine, grid, block, body);
}

TEST(SimtTest, EveryThreadOfTheGridRunsOnce) {
  std::vector<int> runs(2 * 3 * 4 * 5, 0);
  RunKernel(Dim3(2, 3), Dim3(4, 5), [&runs] {
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x, thread = threadIdx.y * blockDim.x + threadIdx.x;
    ++runs[block * 20 + thread];
  });
  EXPECT_EQ(runs, std::vector<int>(120, 1));
}

TEST(SimtTest, ShufflesGiveTheSourceLanesValue) {
  std::vector<int> rotated(64), halves(64), up(64), butterfly(64);
  RunKernel(1, 64, [&] {
    const int t = static_cast<int>(threadIdx.x), lane = t % 32;
    rotated[t] = __shfl_sync(0xffffffffu, t, (lane + 1) % 32);
    halves[t] = __shfl_sync(0xffffffffu, t, 3, 8);
    up[t] = __shfl_up_sync(0xffffffffu, t, 2);
    butterfly[t] = __shfl_xor_sync(0xffffffffu, t, 4);
  });
  for (int t = 0; t < 64; ++t) {
    const int first = t / 32 * 32, lane = t % 32;
    EXPECT_EQ(rotated[t], first + (lane + 1) % 32);
    EXPECT_EQ(halves[t], t / 8 * 8 + 3);
    EXPECT_EQ(up[t], lane < 2 ? t : t - 2);
    EXPECT_EQ(butterfly[t], t ^ 4);
  }
}

TEST(SimtTest, VotesCountTheLanesOfTheMask) {
  std::vector<unsigned> ballots(32);
  std::vector<int> any(32), all(32);
  RunKernel(1, 32, [&] {
    const unsigned lane = threadIdx.x, half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    ballots[lane] = __ballot_sync(half, lane % 2 == 0);
    any[lane] = __any_sync(half, lane == 20);
    all[lane] = __all_sync(half, lane < 16);
  });
  for (unsigned lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(ballots[lane], lane < 16 ? 0x00005555u : 0x55550000u);
    EXPECT_EQ(any[lane], lane >= 16);
    EXPECT_EQ(all[lane], lane < 16);
  }
}

TEST(SimtTest, BarriersOrderSharedMemoryOfABlock) {
  std::vector<unsigned> out(3 * 96);
  RunKernel(3, 96, [&out] {
    using Values = unsigned[96];
    MT_SHARED(Values, values);
    for (int round = 0; round < 4; ++round) {
      values[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x + static_cast<unsigned>(round);
      __syncthreads();
      out[blockIdx.x * 96 + threadIdx.x] = values[95 - threadIdx.x];
      __syncthreads();
    }
  });
  for (unsigned b = 0; b < 3; ++b) {
    for (unsigned t = 0; t < 96; ++t) EXPECT_EQ(out[b * 96 + t], b * 1000 + 95 - t + 3);
  }
}

TEST(SimtTest, AtomicsOfAllThreadsAdd) {
  uint32_t sum = 0, least = 1u << 30;
  RunKernel(8, 128, [&] {
    device::AtomicAdd<device::kRelaxed>(&sum, threadIdx.x);
    device::AtomicMin<device::kRelaxed>(&least, 7 + blockIdx.x * 128 + threadIdx.x);
  });
  EXPECT_EQ(sum, 8u * 127 * 128 / 2);
  EXPECT_EQ(least, 7u);
}

TEST(SimtTest, TheSeedDeterminesTheOrderOfThreads) {
  const auto order = [](uint64_t seed) {
    std::vector<uint32_t> out(256);
    uint32_t next = 0;
    Machine machine(WithSeed(seed));
    RunKernel(&machine, 4, 64, [&] {
      const uint32_t place = device::AtomicAdd<device::kRelaxed>(&next, 1u);
      out[place] = blockIdx.x * 64 + threadIdx.x;
    });
    return out;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

// Checks. Each ends the process with the reason.

using SimtDeathTest = testing::Test;

TEST(SimtDeathTest, AMaskWithoutTheCallerIsFound) {
  EXPECT_DEATH(RunKernel(1, 32, [] { __syncwarp(threadIdx.x == 3 ? 1u : 0xfffffff7u); }), "whose mask 00000001 lacks it");
}

TEST(SimtDeathTest, AMaskWithALaneThatReturnedIsFound) {
  EXPECT_DEATH(RunKernel(1, 32,
                         [] {
                           if (threadIdx.x == 5) return;
                           __ballot_sync(0xffffffffu, 1);
                         }),
               "returned");
}

TEST(SimtDeathTest, LanesThatDisagreeOnTheMaskAreFound) {
  EXPECT_DEATH(RunKernel(1, 32, [] { __syncwarp(threadIdx.x < 16 ? 0xffffffffu : 0xffff0000u); }),
               "wait under mask|names mask");
}

TEST(SimtDeathTest, LanesAtDifferentCollectivesAreFound) {
  EXPECT_DEATH(RunKernel(1, 32,
                         [] {
                           if (threadIdx.x % 2 == 0) {
                             __syncwarp();
                           } else {
                             __ballot_sync(0xffffffffu, 1);
                           }
                         }),
               "meet at different collectives");
}

TEST(SimtDeathTest, AShuffleFromOutsideOfTheMaskIsFound) {
  EXPECT_DEATH(RunKernel(1, 32,
                         [] {
                           if (threadIdx.x < 8) __shfl_sync(0xffu, 1, 9);
                         }),
               "shuffle from lane 9");
}

TEST(SimtDeathTest, ABarrierThatSomeThreadsNeverReachIsFound) {
  EXPECT_DEATH(RunKernel(1, 64,
                         [] {
                           if (threadIdx.x < 32) {
                             __syncthreads();
                           } else {
                             __syncwarp(1u << threadIdx.x % 32 | 1u << (threadIdx.x % 32 ^ 1));
                             if (threadIdx.x == 40) __ballot_sync(3u << 8, 1);  // lane 9 does not come
                           }
                         }),
               "deadlock|returned while");
}

TEST(SimtDeathTest, AnEndlessSpinIsFound) {
  Options options = WithSeed(1);
  options.max_switches = 10000;
  uint32_t flag = 0;
  EXPECT_DEATH(
      {
        Machine machine(options);
        RunKernel(&machine, 1, 2, [&flag] {
          while (device::AtomicLoad<device::kAcquire>(&flag) == 0) {
          }
        });
      },
      "no progress");
}

TEST(SimtDeathTest, TooMuchSharedMemoryIsFound) {
  struct Big {
    char bytes[64 << 10];
  };
  EXPECT_DEATH(RunKernel(1, 1,
                         [] {
                           MT_SHARED(Big, big);
                           big.bytes[0] = 1;
                         }),
               "too much shared memory");
}

TEST(SimtDeathTest, AFunctionOfKernelsOutsideOfOneIsFound) { EXPECT_DEATH(Lane(), "outside of a kernel"); }

// A kernel with mistakes in it.

struct PlantedRun {
  std::vector<uint32_t> digests, counters;
  std::vector<device::PlantedSlot> slots;
  std::vector<float> rows;
  bool wrong = false;  // a key had two rows, or a row was found half written
};

PlantedRun RunPlanted(uint64_t seed, device::Plant plant) {
  constexpr uint32_t kBuckets = 2, kRows = kBuckets * device::kPlantedSlots;
  constexpr int kStride = 40;
  PlantedRun run;
  run.digests.assign(kBuckets * 32, 0);
  run.counters.assign(3, 0);
  run.slots.resize(kRows);
  run.rows.assign(kRows * kStride, 0);
  device::EmulatedDevice::Options options;
  options.simt.seed = seed;
  options.simt.max_switches = 1u << 21;
  device::EmulatedDevice device(options, nullptr);
  const device::Stream stream = *device.NewStream();
  std::map<int64_t, uint32_t> expected;
  for (uint32_t batch = 0; batch < 3; ++batch) {
    std::vector<int64_t> keys(200);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<int64_t>(i * 7919 * (batch + 1) % 97) - 5;
    std::vector<uint32_t> out(keys.size());
    device::FindOrInsertArgs args;
    args.table = {run.digests.data(), run.slots.data(), run.rows.data(), run.counters.data(), kBuckets, kStride};
    args.keys = keys.data();
    args.n = static_cast<uint32_t>(keys.size());
    args.stamp = batch + 1;
    args.rows_out = out.data();
    args.plant = plant;
    EXPECT_TRUE(device::LaunchFindOrInsert(stream, args).ok());
    EXPECT_TRUE(device.Synchronize(stream).ok());
    for (size_t i = 0; i < keys.size(); ++i) {
      if (expected.emplace(keys[i], out[i]).first->second != out[i]) run.wrong = true;
    }
  }
  if (run.counters[0] != expected.size() || run.counters[2] != 0) run.wrong = true;
  return run;
}

TEST(SimtPlantTest, TheRightKernelIsRight) {
  for (uint64_t seed = 1; seed <= (kTsan ? 3 : 20); ++seed) EXPECT_FALSE(RunPlanted(seed, device::Plant::kNone).wrong) << seed;
}

// Ends the process with 1 where a result was wrong; TSan and ASan end it themselves.
void RunSeeds(device::Plant plant) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    if (!RunPlanted(seed, plant).wrong) continue;
    std::fprintf(stderr, "wrong result\n");
    std::exit(1);
  }
  std::exit(0);
}

constexpr char kRace[] = "data race";

TEST(SimtPlantDeathTest, ARelaxedPublishIsARace) {
  if (!kTsan) GTEST_SKIP() << "x86 orders stores: only ThreadSanitizer finds it";
  EXPECT_EXIT(RunSeeds(device::Plant::kRelaxedPublish), testing::ExitedWithCode(66), kRace);
}

TEST(SimtPlantDeathTest, APublishBeforeOtherLanesAreDoneIsFound) {
  if (kAsan) GTEST_SKIP() << "as in the plain build";
  EXPECT_EXIT(RunSeeds(device::Plant::kNoSyncBeforePublish), testing::ExitedWithCode(kTsan ? 66 : 1),
              kTsan ? kRace : "wrong result");
}

TEST(SimtPlantDeathTest, AClaimByLoadAndStoreIsFound) {
  if (kAsan) GTEST_SKIP() << "as in the plain build";
  if (kTsan) {
    EXPECT_EXIT(RunSeeds(device::Plant::kStoreClaim), testing::ExitedWithCode(66), kRace);
  } else {  // two claims of one slot leave a digest that threads wait for
    EXPECT_DEATH(RunSeeds(device::Plant::kStoreClaim), "no progress");
  }
}

TEST(SimtPlantDeathTest, AReadOfWhatAnotherLaneAcquiredIsARace) {
  if (!kTsan) GTEST_SKIP() << "the emulator's values are always the newest: only ThreadSanitizer finds it";
  EXPECT_EXIT(RunSeeds(device::Plant::kNoSyncAfterFind), testing::ExitedWithCode(66), kRace);
}

TEST(SimtPlantDeathTest, AReadPastTheLastRowIsFound) {
  if (!kAsan) GTEST_SKIP() << "only AddressSanitizer finds it";
  EXPECT_DEATH(RunSeeds(device::Plant::kOutOfBounds), "heap-buffer-overflow");
}

}  // namespace
}  // namespace multitier::simt
