// The engine on a device: tables in HBM against plain tables on the CPU, bit for bit.

#ifndef CC_HBM_CHECK_ENGINE_CHECK_H_
#define CC_HBM_CHECK_ENGINE_CHECK_H_

#include <cstdint>
#include <memory>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/device/device.h"

namespace multitier::hbm {

struct EngineCheckOptions {
  uint64_t seed = 1;
  int dim = 17;       // at most
  int steps = 4;      // of training
  int keys = 60;      // distinct keys of a table
  int batch = 40;     // keys of a table in a step at most
  int hbm_rows = 30;  // of a table above another tier
  int threads = 3;
};

// Each gives OK, or what differs first.
struct EngineCheck {
  const char* name;
  Status (*run)(const std::shared_ptr<device::Device>& device, const EngineCheckOptions& options);
};

//   rules     groups of tables of several dims, by each rule that runs on a device
//   growth    tables of type HBM, which grow several times
//   filters   tables with a counter filter and a Bloom filter
//   threads   threads with streams of their own train one group while it is saved
Span<const EngineCheck> EngineChecks();

}  // namespace multitier::hbm

#endif  // CC_HBM_CHECK_ENGINE_CHECK_H_
