// Two emulated devices with other seeds give the same bits, and the check finds what is planted in each launch function. The
// check of a GPU is the same, with the GPU as one of the two.

#include "cc/hbm/check/pair_check.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::pair_check_test {
namespace {

using device::DeviceKernels;

#if defined(__SANITIZE_THREAD__)
constexpr bool kTsan = true;
#else
constexpr bool kTsan = false;
#endif
constexpr bool kAsan = kSanitized && !kTsan;

std::shared_ptr<device::EmulatedDevice> NewDevice(const DeviceKernels& kernels, uint64_t seed = 1, int new_memory = 0xa5) {
  device::EmulatedDevice::Options options;
  options.simt.seed = seed;
  options.new_memory = new_memory;
  return std::make_shared<device::EmulatedDevice>(options, &kernels);
}

PairCheckOptions Small() {
  PairCheckOptions options;
  options.entries = kSanitized ? 5 : 24;
  options.rows = kSanitized ? 8 : 24;
  options.keys = kSanitized ? 40 : 100;
  return options;
}

TEST(PairCheck, TwoSeedsOfTheDeviceGiveTheSameBits) {
  for (const uint32_t dim : {1u, 17u, 64u}) {
    PairCheckOptions options = Small();
    options.seed = options.first_rule = dim;
    options.dim = dim;
    if (kSanitized) options.batches = 5;
    MT_EXPECT_OK(CheckPair(NewEmulatedDevice(1), NewEmulatedDevice(options.seed + 7), options));
  }
}

TEST(PairCheck, NothingThatWasNeverWrittenIsRead) {
  PairCheckOptions options = Small();
  options.batches = kSanitized ? 4 : 9;
  std::vector<uint64_t> digests;
  for (const int byte : {0x00, 0xff}) {
    const auto device = NewDevice(device::EmulatedKernels(), 1, byte);
    MT_ASSERT_OK(CheckPair(device, NewEmulatedDevice(2), options));
    digests.push_back(device->copied_down());
  }
  EXPECT_EQ(digests[0], digests[1]);
}

// What is planted in a launch function. Each launch leaves something out.
struct Plant {
  const char* name;
  void (*put)(DeviceKernels* kernels);
};

#define PLANT_NOTHING(function)                                                                       \
  Plant {                                                                                             \
    #function, [](DeviceKernels* kernels) { kernels->function = [](auto...) { return OkStatus(); }; } \
  }

const std::vector<Plant>& LeftOut() {
  static const std::vector<Plant> plants = {
      PLANT_NOTHING(dedup),       PLANT_NOTHING(find),        PLANT_NOTHING(compact),         PLANT_NOTHING(chain),
      PLANT_NOTHING(place),       PLANT_NOTHING(reclaim),     PLANT_NOTHING(exchange),        PLANT_NOTHING(gather),
      PLANT_NOTHING(stage),       PLANT_NOTHING(sum),         PLANT_NOTHING(update),          PLANT_NOTHING(update_members),
      PLANT_NOTHING(list_dirty),  PLANT_NOTHING(take_listed), PLANT_NOTHING(move_index),      PLANT_NOTHING(move_rows),
      PLANT_NOTHING(mark),        PLANT_NOTHING(take_out),    PLANT_NOTHING(forget),          PLANT_NOTHING(reset),
      PLANT_NOTHING(renumber),    PLANT_NOTHING(pin),         PLANT_NOTHING(count_forgotten), PLANT_NOTHING(widen),
      PLANT_NOTHING(localize),    PLANT_NOTHING(scales),      PLANT_NOTHING(entry_rows),      PLANT_NOTHING(values),
      PLANT_NOTHING(begins),      PLANT_NOTHING(pieces),      PLANT_NOTHING(sweep_pins),      PLANT_NOTHING(gradients),
      PLANT_NOTHING(corrections), PLANT_NOTHING(bear),
  };
  return plants;
}

#define PLANT_LESS(function, args_type, ...)                                          \
  Plant {                                                                             \
    #function, [](DeviceKernels* kernels) {                                           \
      kernels->function = [](device::Stream stream, const device::args_type& given) { \
        device::args_type args = given;                                               \
        __VA_ARGS__;                                                                  \
        return device::EmulatedKernels().function(stream, args);                      \
      };                                                                              \
    }                                                                                 \
  }

// The last item, or the last element of each.
const std::vector<Plant>& Shortened() {
  static const std::vector<Plant> plants = {
    PLANT_LESS(gather, GatherArgs, args.dim -= args.dim > 1),
    PLANT_LESS(sum, SumArgs, args.dim -= args.dim > 1),
    PLANT_LESS(widen, WidenArgs, args.n -= 1),
    PLANT_LESS(pieces, PiecesArgs, args.n -= 1),
    PLANT_LESS(localize, LocalizeArgs, args.dedup.n -= 1),
    PLANT_LESS(entry_rows, OutputArgs, args.items -= 1),
    PLANT_LESS(values, OutputArgs, args.items -= 1),
    PLANT_LESS(begins, BeginsArgs, args.n -= 1),
    PLANT_LESS(gradients, GradientArgs, args.items -= 1),
    PLANT_LESS(corrections, GradientArgs, args.items -= args.items > 0),
    PLANT_LESS(take_listed, TakeListedArgs, args.n -= 1),
    PLANT_LESS(move_rows, MoveArgs, args.from_capacity -= 1),
    PLANT_LESS(reset, ResetArgs, args.capacity -= 1),
    PLANT_LESS(sweep_pins, SweepPinsArgs, args.num_kept -= 1),
    PLANT_LESS(take_out, TakeOutArgs, args.row_bytes -= 16),
    PLANT_LESS(pin, PinArgs, args.operation += 1),
    PLANT_LESS(find, FindArgs, args.stamp = false),
    PLANT_LESS(mark, MarkArgs, args.which = device::Marked::kAll),
    PLANT_LESS(stage, StageArgs, args.insert_provisional = true),
    PLANT_LESS(place, InsertArgs, args.floor += 1),
    PLANT_LESS(bear, BearArgs, args.misses = nullptr),
    PLANT_LESS(gather, GatherArgs, if (args.value_dtype == DType::kFloat16) args.value_dtype = DType::kBFloat16),
    PLANT_LESS(values, OutputArgs, args.items -= args.halves),
  };
  return plants;
}

// The function that is named in the error is the one with the mistake.
void ExpectFound(const Plant& plant) {
  DeviceKernels kernels = device::EmulatedKernels();
  plant.put(&kernels);
  const Status status = CheckPair(NewEmulatedDevice(3), NewDevice(kernels, 5), Small());
  EXPECT_EQ(status.code(), StatusCode::kDataLoss) << plant.name << ": " << status.ToString();
  EXPECT_NE(status.message().find(StrCat(", ", plant.name, ", ")), std::string::npos)
      << plant.name << ": " << status.ToString();
}

TEST(PairCheck, ALaunchThatDoesNothingIsFound) {
  for (const Plant& plant : LeftOut()) ExpectFound(plant);
}

#define PLANT_IN_UPDATE(function, args_type, ...)                                                                        \
  Plant {                                                                                                                \
    #function, [](DeviceKernels* kernels) {                                                                              \
      kernels->function = [](device::Stream stream, device::DeviceRule rule, const device::args_type& given) -> Status { \
        device::args_type args = given;                                                                                  \
        __VA_ARGS__;                                                                                                     \
        return device::EmulatedKernels().function(stream, rule, args);                                                   \
      };                                                                                                                 \
    }                                                                                                                    \
  }

// Values of 16 bits that are rounded by the bits of another step, or to the nearest, or are not updated.
TEST(PairCheck, AnotherRoundingIsFound) {
  ExpectFound(PLANT_IN_UPDATE(update, UpdateArgs, args.step += 1));
  ExpectFound(PLANT_IN_UPDATE(update, UpdateArgs, args.stochastic = false));
  ExpectFound(PLANT_IN_UPDATE(update_members, UpdateMembersArgs, if (args.halves) return OkStatus()));
}

TEST(PairCheck, ALaunchThatLeavesSomethingOutIsFound) {
  for (const Plant& plant : Shortened()) ExpectFound(plant);
}

// The functions of kernels.h, as its text has them.
std::set<std::string> FunctionsOfKernels() {
  std::ifstream file("cc/device/kernels/kernels.h");
  EXPECT_TRUE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const size_t begin = all.find("struct DeviceKernels {");
  const std::string members = all.substr(begin, all.find("};", begin) - begin);
  const std::regex function(R"(\(\*(\w+)\)\()");
  std::set<std::string> names;
  for (std::sregex_iterator at(members.begin(), members.end(), function), end; at != end; ++at) names.insert((*at)[1]);
  return names;
}

// A new function needs a step of PairSide::Steps, and a line of LeftOut: it shows that the step calls the function.
TEST(PairCheck, EveryLaunchFunctionIsCalled) {
  const std::set<std::string> functions = FunctionsOfKernels();
  EXPECT_EQ(functions.size() * sizeof(void (*)()), sizeof(DeviceKernels));
  std::set<std::string> planted;
  for (const Plant& plant : LeftOut()) planted.insert(plant.name);
  EXPECT_EQ(planted, functions);
  const std::vector<std::string> called = LaunchesOfPairCheck();
  EXPECT_EQ(std::set<std::string>(called.begin(), called.end()), functions);
}

// A launch that reads what was never written: the last place of what it writes is left as it was.
TEST(PairCheck, AReadOfWhatWasNeverWrittenIsFound) {
  std::vector<uint64_t> digests;
  DeviceKernels kernels = device::EmulatedKernels();
  PLANT_LESS(values, OutputArgs, args.items -= 1).put(&kernels);
  for (const int byte : {0x00, 0xff}) {
    const auto device = NewDevice(kernels, 1, byte);
    PairCheckOptions options = Small();
    options.batches = 1;
    (void)CheckPair(device, NewEmulatedDevice(2), options);
    digests.push_back(device->copied_down());
  }
  EXPECT_NE(digests[0], digests[1]);
}

// What sanitizers find.
device::Stream other_stream;  // of the device with the mistake

void CheckPlanted(const Plant& plant) {
  DeviceKernels kernels = device::EmulatedKernels();
  plant.put(&kernels);
  const auto device = NewDevice(kernels, 5);
  other_stream = *device->NewStream();
  PairCheckOptions options = Small();
  options.batches = 1;
  std::exit(CheckPair(NewEmulatedDevice(3), device, options).ok() ? 0 : 1);
}

TEST(PairCheckDeathTest, ItemsTooManyAreAccessesOutsideOfMemory) {
  if (!kAsan) GTEST_SKIP() << "only AddressSanitizer finds it";
  EXPECT_DEATH(CheckPlanted(PLANT_LESS(begins, BeginsArgs, args.n += 64)), "heap-buffer-overflow");
  EXPECT_DEATH(CheckPlanted(PLANT_LESS(widen, WidenArgs, args.n += 64)), "heap-buffer-overflow");
}

TEST(PairCheckDeathTest, ALaunchOnAStreamThatNobodyWaitsForIsARace) {
  if (!kTsan) GTEST_SKIP() << "the bits may be right: only ThreadSanitizer finds it";
  // It reads flags of rows too early. Where a launch reads a pointer too early, it may end the process first.
  const Plant plant{"mark", [](DeviceKernels* kernels) {
                      kernels->mark = [](device::Stream, const device::MarkArgs& args) {
                        return device::EmulatedKernels().mark(other_stream, args);
                      };
                    }};
  EXPECT_EXIT(CheckPlanted(plant), testing::ExitedWithCode(66), "data race");
}

}  // namespace
}  // namespace multitier::hbm::pair_check_test
