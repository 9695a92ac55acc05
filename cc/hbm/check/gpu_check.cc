// The check of a GPU: its kernels against the emulated device and the engine on it against tables on the CPU, bit for bit, and
// how fast both are. One JSON object on stdout, what it does on stderr. Exits with 0 where there is no GPU, and says so; with 1
// where a bit differs or a part fails.
//
//   gpu_check                all parts
//   gpu_check --part=NAME    one of them; each takes less than three minutes
//   gpu_check --small        small sizes, without the times: for compute-sanitizer
//   gpu_check --emulated     an emulated device in place of the GPU, and small sizes
//
// gpu_check.sh builds and runs it. The binary needs neither CUDA nor this repository where it runs.

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>

#include "cc/device/default_device.h"
#include "cc/device/emulated_device.h"
#include "cc/hbm/check/engine_check.h"
#include "cc/hbm/check/kernel_times.h"
#include "cc/hbm/check/launch_times.h"
#include "cc/hbm/check/pair_check.h"
#include "cc/hbm/check/row_times.h"
#include "cc/hbm/check/step_times.h"

namespace multitier::hbm {
namespace {

using Device = std::shared_ptr<device::Device>;

Device Emulated(uint64_t seed) {
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

// What was found of several checks.
class Found {
 public:
  void Add(const std::string& name, const Status& status) {
    ++checks_;
    if (status.ok()) return;
    ++differ_;
    std::fprintf(stderr, "%s: %s\n", name.c_str(), status.ToString().c_str());
  }
  Result<std::string> ToResult() const {
    if (differ_ > 0) return DataLossError(differ_, " of ", checks_, " checks found differences");
    JsonMembers json;
    json.Add("checks", StrCat(checks_));
    json.Add("differ", StrCat(differ_));
    return json.text();
  }

 private:
  int checks_ = 0, differ_ = 0;
};

Result<std::string> CheckPairs(const Device& gpu, bool small) {
  Found found;
  for (const uint32_t dim : {1u, 3u, 8u, 17u, 64u, 128u, 300u}) {
    if (small && dim % 17 != 0 && dim != 64) continue;
    PairCheckOptions options;
    options.seed = options.first_rule = dim;
    options.dim = dim;
    options.entries = small ? 24 : 300;
    options.rows = small ? 24 : 1000;
    options.keys = small ? 100 : 2500;
    found.Add(StrCat("pairs, dim ", dim), CheckPair(Emulated(dim), gpu, options));
  }
  return found.ToResult();
}

Result<std::string> CheckEngine(const Device& gpu, bool small) {
  EngineCheckOptions options;
  if (!small) {
    options.dim = 70;
    options.steps = 8;
    options.keys = 3000;
    options.batch = 2000;
    options.hbm_rows = 1500;
    options.threads = 4;
  }
  Found found;
  for (const EngineCheck& check : EngineChecks()) found.Add(check.name, check.run(gpu, options));
  return found.ToResult();
}

Result<std::string> TimeKernels(const Device& gpu, bool small) {
  KernelTimesOptions options;
  if (small) {
    options.index_rows = 500;
    options.value_rows = 300;
    options.value_dim = 8;
    options.batch = 200;
    options.repeats = 2;
  }
  return MeasureKernels(gpu, options);
}

Result<std::string> TimeRows(const Device& gpu, bool small) {
  RowTimesOptions options;
  if (small) {
    options.entries = 300;
    options.tables = 3;
    options.distinct = 60;
    options.rows = 64;
    options.dim = 8;
    options.hot_entries = 40;
    options.repeats = 2;
  }
  return MeasureRows(gpu, options);
}

Result<std::string> TimeSteps(const Device& gpu, bool small) {
  StepTimesOptions options;
  if (small) {
    options.tables = 3;
    options.entries = 60;
    options.drawn_from = 30;
    options.rows = 100;
    options.dim = 8;
    options.steps = 2;
  }
  return MeasureSteps(gpu, options);
}

struct Part {
  const char* name;
  Result<std::string> (*run)(const Device& gpu, bool small);
  bool times;
};
constexpr Part kParts[] = {
    {"pairs", CheckPairs, false},  {"engine", CheckEngine, false},  {"kernel_times", TimeKernels, true},
    {"row_times", TimeRows, true}, {"step_times", TimeSteps, true},
};

struct Arguments {
  std::string part;  // empty: all
  bool small = false, emulated = false;
};

int Main(const Arguments& arguments) {
  Result<Device> gpu = Emulated(99);
  if (!arguments.emulated) gpu = device::DefaultDevice();
  if (!gpu.ok()) {
    std::fprintf(stderr, "nothing was checked: %s\n", gpu.status().ToString().c_str());
    std::printf("{\"gpu\": null, \"reason\": %s}\n", Quoted(gpu.status().message()).c_str());
    return 0;
  }
  JsonMembers json;
  json.Add("gpu", Quoted((*gpu)->name()));
  bool failed = false;
  for (const Part& part : kParts) {
    if (!arguments.part.empty() ? arguments.part != part.name : arguments.small && !arguments.emulated && part.times) continue;
    const auto begin = std::chrono::steady_clock::now();
    const Result<std::string> found = part.run(*gpu, arguments.small || arguments.emulated);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::fprintf(stderr, "%s: %s, %.1f s\n", part.name, found.ok() ? "done" : found.status().ToString().c_str(), seconds);
    failed |= !found.ok();
    json.Add(part.name, found.ok() ? *found : StrCat("{\"error\": ", Quoted(found.status().ToString()), "}"));
    json.Add(StrCat("seconds_of_", part.name), StrCat(seconds));
  }
  std::printf("%s\n", json.text().c_str());
  return failed ? 1 : 0;
}

// False: it was not understood.
bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--small") {
      arguments->small = true;
    } else if (argument == "--emulated") {
      arguments->emulated = true;
    } else if (argument.rfind("--part=", 0) == 0) {
      arguments->part = argument.substr(std::strlen("--part="));
      bool known = false;
      for (const Part& part : kParts) known |= arguments->part == part.name;
      if (!known) return false;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace multitier::hbm

int main(int argc, char** argv) {
  multitier::hbm::Arguments arguments;
  if (multitier::hbm::Parse(argc, argv, &arguments)) return multitier::hbm::Main(arguments);
  std::string parts;
  for (const auto& part : multitier::hbm::kParts) parts += multitier::StrCat(parts.empty() ? "" : ", ", part.name);
  std::fprintf(stderr, "expected --small, --emulated and --part= with one of %s\n", parts.c_str());
  return 2;
}
