#include "cc/tensorflow/device/op_stream.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "cc/device/emulated_device.h"
#include "cc/tensorflow/common/hbm_memory.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/common/tensorflow_gpu.h"

namespace multitier {
namespace {

bool IsEmulated(const device::Device& device) { return dynamic_cast<const device::EmulatedDevice*>(&device) != nullptr; }

// What is wrong with the place of a table for an op on this GPU; null if nothing is.
const char* Misplaced(const hbm::HbmTable* table, const std::optional<TensorFlowGpu>& gpu) {
  if (table == nullptr) return "one without HBM";
  if (!gpu) return "an op on a device without a stream";
  const bool emulated = IsEmulated(hbm::DeviceOf(*table));
  if (emulated != gpu->is_plugin) return emulated ? "one on the emulated device (TF_MULTITIER_DEVICE)" : "one on a GPU of CUDA";
  return emulated || gpu->ordinal == kGpuOfTables ? nullptr : "one on the first GPU of this process";
}

}  // namespace

absl::Status OpStream::FindTable(OpKernelContext* context, EmbeddingTable* table, hbm::HbmTable** found) {
  *found = hbm::HbmTableOf(table);
  const char* const misplaced = Misplaced(*found, GpuOf(*context->device()));
  if (misplaced == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(context->op_kernel().type_string(), ": embedding variable '",
                                                    table->options().name, "' on ", context->device()->name(),
                                                    ": expected a table in the memory of this GPU, found ", misplaced,
                                                    ": place the variable on the CPU (tf.device('/CPU:0'))"));
}

absl::Status OpStream::Open(OpKernelContext* context, device::Device* device, std::unique_ptr<OpStream>* stream) {
  if (!IsEmulated(*device)) {
    stream->reset(new OpStream(device, device->Wrap(GpuOf(*context->device())->stream), /*owned=*/false));
    return absl::OkStatus();
  }
  const Result<device::Stream> made = device->NewStream();
  TF_RETURN_IF_ERROR(ToAbsl(made.status()));
  stream->reset(new OpStream(device, *made, /*owned=*/true));
  return absl::OkStatus();
}

OpStream::~OpStream() {
  if (!owned_) return;
  if (device_->Synchronize(stream_).ok()) device_->Delete(stream_);
}

Status OpStream::Finish() { return owned_ ? device_->Synchronize(stream_) : OkStatus(); }

}  // namespace multitier
