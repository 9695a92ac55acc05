// DeviceCall: a running op with inputs and outputs in device memory: the variables that it uses, and its stream.
//
//   Add         a variable; the first one opens the stream
//   Finisher    what the engine calls when the rest of the work is enqueued: sets the op's status and ends the op. Says which
//               variables are full (VariableState::WarnOfRefused)
//   End         ends the op at once, with an error
//
// Owns its variables until the op is done. Releases them before it tells TensorFlow: a session that is closed next closes its
// tables. Not thread-safe.

#ifndef CC_TENSORFLOW_DEVICE_DEVICE_CALL_H_
#define CC_TENSORFLOW_DEVICE_DEVICE_CALL_H_

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "cc/group_lookup/pooling.h"
#include "cc/hbm/device_operations.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/device/op_stream.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {

class DeviceCall {
 public:
  DeviceCall(OpKernelContext* context, AsyncOpKernel::DoneCallback done) : context_(context), done_(std::move(done)) {}

  // The errors are those of OpStream::FindTable.
  absl::Status Add(std::shared_ptr<VariableState> state, hbm::HbmTable** table) {
    TF_RETURN_IF_ERROR(OpStream::FindTable(context_, state->table.get(), table));
    if (stream_ == nullptr) TF_RETURN_IF_ERROR(OpStream::Open(context_, &hbm::DeviceOf(**table), &stream_));
    states_.push_back(std::move(state));
    return absl::OkStatus();
  }

  const std::vector<std::shared_ptr<VariableState>>& states() const { return states_; }
  OpStream* stream() const { return stream_.get(); }

  void End(const absl::Status& status) {
    stream_.reset();
    states_.clear();
    context_->SetStatus(status);
    const AsyncOpKernel::DoneCallback done = std::move(done_);
    done();
  }

  static hbm::Done Finisher(std::shared_ptr<DeviceCall> call) {
    return [call = std::move(call)](Status status) {
      const Status finished = call->stream_->Finish();
      for (const auto& state : call->states_) {
        if (state->table->options().on_full == OnFull::kRefuse) state->WarnOfRefused(state->table->LastUpdate().refused);
      }
      call->End(ToAbsl(status.ok() ? finished : status));
    };
  }

 private:
  OpKernelContext* const context_;
  AsyncOpKernel::DoneCallback done_;
  std::vector<std::shared_ptr<VariableState>> states_;
  std::unique_ptr<OpStream> stream_;
};

inline hbm::DeviceKeys KeysOf(const Tensor& keys) {
  hbm::DeviceKeys its;
  its.data = keys.tensor_data().data();
  its.n = keys.NumElements();
  its.is_int32 = keys.dtype() == tensorflow::DT_INT32;
  return its;
}

inline device::PoolCombiner PoolCombinerOf(Combiner combiner) {
  switch (combiner) {
    case Combiner::kSum:
      return device::PoolCombiner::kSum;
    case Combiner::kMean:
      return device::PoolCombiner::kMean;
    case Combiner::kSqrtN:
      break;
  }
  return device::PoolCombiner::kSqrtN;
}

}  // namespace multitier

#endif  // CC_TENSORFLOW_DEVICE_DEVICE_CALL_H_
