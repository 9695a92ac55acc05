// OpStream: the stream on which an op's inputs and outputs in device memory are written and read, as the engine's device takes
// it.
//
//   a GPU               TensorFlow's stream of that GPU. Finish returns at once: what TensorFlow enqueues next runs afterwards.
//   the emulated device memory of a TensorFlow device is the host's then, and TensorFlow's stream says nothing about the
//                       emulator's work. So the op gets a stream of its own, and Finish waits for it. For tests.
//
// The object of one op. Not thread-safe.

#ifndef CC_TENSORFLOW_DEVICE_OP_STREAM_H_
#define CC_TENSORFLOW_DEVICE_OP_STREAM_H_

#include <memory>

#include "absl/status/status.h"
#include "cc/device/device.h"
#include "cc/hbm/device_operations.h"
#include "cc/table/api/embedding_table.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {

class OpStream {
 public:
  // The table in HBM of a variable. FailedPrecondition, with the variable's name, if it has none, or none in the memory of the
  // op's device.
  static absl::Status FindTable(tensorflow::OpKernelContext* context, EmbeddingTable* table, hbm::HbmTable** found);

  // REQUIRES: device is that of a table that FindTable found
  static absl::Status Open(tensorflow::OpKernelContext* context, device::Device* device, std::unique_ptr<OpStream>* stream);
  ~OpStream();
  OpStream(const OpStream&) = delete;
  OpStream& operator=(const OpStream&) = delete;

  device::Stream get() const { return stream_; }
  device::Device* device() const { return device_; }
  // After the op's last work was enqueued, and before the op is done.
  Status Finish();

 private:
  OpStream(device::Device* device, device::Stream stream, bool owned) : device_(device), stream_(stream), owned_(owned) {}

  device::Device* const device_;
  const device::Stream stream_;
  const bool owned_;
};

}  // namespace multitier

#endif  // CC_TENSORFLOW_DEVICE_OP_STREAM_H_
