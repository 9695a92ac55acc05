// DemotionPool: the process's threads for what tables do in the background, shared by all of them: demotion, and retries of
// what failed. How jobs run: cc/base/background.h.
//
// Made at the first use and never destroyed. A forked child has no threads of its parent's pool: it gets a new one.
//
// Thread-safe.

#ifndef CC_TABLE_API_DEMOTION_POOL_H_
#define CC_TABLE_API_DEMOTION_POOL_H_

#include "cc/base/background.h"
#include "cc/base/status.h"

namespace multitier {

class DemotionPool : public BackgroundPool {
 public:
  static constexpr const char* kThreadsVariable = "TF_MULTI_TIER_EV_EVICTION_THREADS";
  static constexpr int kMaxThreads = 64;

  // The pool of this process, with as many threads as the variable says when it is made (1 where it is unset).
  // InvalidArgument naming the variable where its value is not a number from 1 to 64; a later other value is warned of once.
  static Result<DemotionPool*> Get();
  // The value of the variable; 1 where it is unset.
  static Result<int> ThreadsFromEnvironment();

 private:
  explicit DemotionPool(int threads) : BackgroundPool("mt-demotion", threads) {}
};

}  // namespace multitier

#endif  // CC_TABLE_API_DEMOTION_POOL_H_
