// MeasureSteps: how long whole training steps of a group of tables in HBM take, and a save of them.

#ifndef CC_HBM_CHECK_STEP_TIMES_H_
#define CC_HBM_CHECK_STEP_TIMES_H_

#include <cstdint>
#include <memory>
#include <string>

#include "cc/base/status.h"
#include "cc/device/device.h"

namespace multitier::hbm {

struct StepTimesOptions {
  uint32_t tables = 10;
  uint32_t entries = 104857;    // keys of a table in a step
  uint32_t drawn_from = 38000;  // distinct keys of a table in a step at most
  uint32_t rows = 350000;       // of a table before the steps
  int dim = 128;
  int steps = 20;                 // the median is given
  double seconds_of_a_case = 20;  // fewer steps where they take longer, but two
};

// A JSON object. The step is a training lookup, and an update of all tables by SGD or Adam; of the keys of each table none,
// one, or one of a hundred is new. The same with a tenth of the rows in HBM, over DRAM. A save of tables whose rows have all
// changed, and of those in which one step has changed rows.
//   seconds          wall time of the step, from the call to the end of its work on the device
//   device_seconds   by events on the caller's stream
Result<std::string> MeasureSteps(const std::shared_ptr<device::Device>& device, const StepTimesOptions& options);

}  // namespace multitier::hbm

#endif  // CC_HBM_CHECK_STEP_TIMES_H_
