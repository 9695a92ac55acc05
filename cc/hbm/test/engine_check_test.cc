// The check of the engine on the emulated device, and what it finds.

#include "cc/hbm/check/engine_check.h"

#include "cc/hbm/test/hbm_test_util.h"

namespace multitier::hbm::engine_check_test {
namespace {

EngineCheckOptions Small() {
  EngineCheckOptions options;
  options.steps = kSanitized ? 2 : 4;
  options.threads = kSanitized ? 2 : 3;
  return options;
}

std::shared_ptr<device::EmulatedDevice> NewDevice(const device::DeviceKernels& kernels, int new_memory) {
  device::EmulatedDevice::Options options;
  options.new_memory = new_memory;
  return std::make_shared<device::EmulatedDevice>(options, &kernels);
}

// What is in new memory must not matter.
TEST(EngineCheck, TheEngineOnTheEmulatedDeviceHasTheBitsOfTheCpu) {
  for (const EngineCheck& check : EngineChecks()) {
    for (const int byte : {0x00, 0xff}) {
      MT_EXPECT_OK(check.run(NewDevice(device::EmulatedKernels(), byte), Small()));
    }
  }
}

// An update whose last row gets no step: every check that trains by it says so.
TEST(EngineCheck, AnUpdateThatLeavesARowOutIsFound) {
  auto kernels = device::EmulatedKernels();
  kernels.update = [](device::Stream stream, device::DeviceRule rule, const device::UpdateArgs& given) {
    device::UpdateArgs args = given;
    args.sums += args.dim;
    return device::EmulatedKernels().update(stream, rule, args);
  };
  kernels.update_members = [](device::Stream stream, device::DeviceRule rule, const device::UpdateMembersArgs& given) {
    device::UpdateMembersArgs args = given;
    args.items -= 1;
    return device::EmulatedKernels().update_members(stream, rule, args);
  };
  for (const EngineCheck& check : EngineChecks()) {
    EngineCheckOptions options = Small();
    options.steps = 4;  // until filters have admitted keys
    const Status status = check.run(NewDevice(kernels, 0xa5), options);
    EXPECT_EQ(status.code(), StatusCode::kDataLoss) << check.name << ": " << status.ToString();
  }
}

}  // namespace
}  // namespace multitier::hbm::engine_check_test
