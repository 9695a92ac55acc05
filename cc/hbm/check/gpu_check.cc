// The check of a GPU: kernels on it against the emulated device, bit for bit,
// and how fast they are. One JSON object on stdout; what it does on stderr.
// Exits with 0 where there is no GPU, and says so; with 1 where a bit differs
// or the timings fail.
//
//   gpu_check            all
//   gpu_check --small    few and small batches, for compute-sanitizer; no
//   timings
//
// gpu_check.sh builds it and runs both.

#include <cstdio>
#include <cstring>
#include <string>

#include "cc/device/cuda_device.h"
#include "cc/device/emulated_device.h"
#include "cc/hbm/check/kernel_times.h"
#include "cc/hbm/check/pair_check.h"

namespace multitier::hbm {
namespace {

std::shared_ptr<device::Device> Emulated(uint64_t seed) {
  device::EmulatedDevice::Options options;
  options.simt.seed = seed;
  options.simt.max_switches = uint64_t{1} << 40;
  return std::make_shared<device::EmulatedDevice>(options, &device::EmulatedKernels());
}

// As a JSON string.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return quoted + "\"";
}

// The number of checks that found a difference; each is on stderr.
int CheckAll(const std::shared_ptr<device::Device>& gpu, bool small, int* checks) {
  int wrong = 0;
  const uint32_t dims[] = {1, 3, 8, 17, 64, 128, 300};
  for (int rule = 0; rule <= static_cast<int>(device::DeviceRule::kFtrlPowerShrinkage); ++rule) {
    for (const bool lfu : {false, true}) {
      PairCheckOptions options;
      options.rule = static_cast<device::DeviceRule>(rule);
      options.rank_by = lfu ? device::RankBy::kFrequency : device::RankBy::kNothing;
      options.dim = dims[static_cast<size_t>(rule * 2 + lfu) % 7];
      options.seed = static_cast<uint64_t>(rule) * 2 + lfu + 1;
      options.rows = small ? 150 : 3000;
      options.keys = small ? 500 : 9000;
      options.batch = small ? 200 : 4000;
      options.batches = small ? 2 : 10;
      const Status status = CheckPair(Emulated(options.seed), gpu, options);
      ++*checks;
      if (status.ok()) continue;
      ++wrong;
      std::fprintf(stderr, "rule %d, %s, dim %u: %s\n", rule, lfu ? "LFU" : "LRU", options.dim, status.ToString().c_str());
    }
  }
  return wrong;
}

int Main(bool small) {
  const auto gpu = device::OpenCudaDevice();
  if (!gpu.ok()) {
    std::fprintf(stderr, "nothing was checked: %s\n", gpu.status().ToString().c_str());
    std::printf("{\"gpu\": null, \"reason\": %s}\n", Quoted(gpu.status().message()).c_str());
    return 0;
  }
  int checks = 0;
  const int wrong = CheckAll(*gpu, small, &checks);
  std::fprintf(stderr, "%s: %d checks against the emulated device, %d differ\n", (*gpu)->name(), checks, wrong);
  std::string times = "null";
  bool timed = true;
  if (!small) {
    const auto measured = MeasureKernels(*gpu, KernelTimesOptions());
    timed = measured.ok();
    times = timed ? *measured : StrCat("{\"error\": ", Quoted(measured.status().ToString()), "}");
    if (!timed) std::fprintf(stderr, "the timings failed: %s\n", measured.status().ToString().c_str());
  }
  std::printf("{\"gpu\": %s, \"checks\": %d, \"differ\": %d, \"times\": %s}\n", Quoted((*gpu)->name()).c_str(), checks, wrong,
              times.c_str());
  return wrong == 0 && timed ? 0 : 1;
}

}  // namespace
}  // namespace multitier::hbm

int main(int argc, char** argv) { return multitier::hbm::Main(argc > 1 && std::strcmp(argv[1], "--small") == 0); }
