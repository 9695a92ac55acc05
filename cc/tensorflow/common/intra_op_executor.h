// IntraOpExecutor: lends TensorFlow's intra-op threads to one engine call.
//
// The calling thread takes tasks too, and waits only for tasks that some thread has begun. It never waits for a free thread of
// the pool. So a call from a thread of the pool, or while all threads of the pool are busy, cannot hang.
//
// Thread-safe: several ParallelFor calls may run at once.

#ifndef CC_TENSORFLOW_COMMON_INTRA_OP_EXECUTOR_H_
#define CC_TENSORFLOW_COMMON_INTRA_OP_EXECUTOR_H_

#include <functional>

#include "cc/base/executor.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {

class IntraOpExecutor : public Executor {
 public:
  // REQUIRES: the context outlives the executor
  explicit IntraOpExecutor(tensorflow::OpKernelContext* context);

  void ParallelFor(int n, const std::function<void(int)>& task) override;

 private:
  tsl::thread::ThreadPool* const pool_;  // not owned; may be null
  const int num_threads_;
};

}  // namespace multitier

#endif  // CC_TENSORFLOW_COMMON_INTRA_OP_EXECUTOR_H_
