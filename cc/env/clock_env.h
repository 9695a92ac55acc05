// ClockEnv: the file system of the machine with a clock that stands still until a test sets it.

#ifndef CC_ENV_CLOCK_ENV_H_
#define CC_ENV_CLOCK_ENV_H_

#include <atomic>
#include <cstdint>

#include "cc/env/fault_env.h"

namespace multitier {

class ClockEnv : public FaultEnv {
 public:
  ClockEnv() : FaultEnv(Env::Posix()) {}
  uint64_t NowMicros() override { return now; }
  std::atomic<uint64_t> now{1};
};

}  // namespace multitier

#endif  // CC_ENV_CLOCK_ENV_H_
