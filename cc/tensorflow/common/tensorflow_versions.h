// The differences between the versions of TensorFlow for which the ops are built, in C++: 2.19, 2.20 and 2.21.
//
// MULTITIER_TF_MINOR is the minor version of the installed TensorFlow; Bazel defines it (third_party/local/configure.bzl).

#ifndef CC_TENSORFLOW_COMMON_TENSORFLOW_VERSIONS_H_
#define CC_TENSORFLOW_COMMON_TENSORFLOW_VERSIONS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tensorflow/core/platform/file_system.h"
#include "xla/stream_executor/stream.h"
#if MULTITIER_TF_MINOR >= 20
#include "xla/stream_executor/stream_executor.h"
#endif

namespace multitier {

// Reads up to `n` bytes at `offset`. `found` refers to the bytes that were read, in `out` or elsewhere. OutOfRange at the end
// of the file.
inline absl::Status ReadFile(const tensorflow::RandomAccessFile& file, uint64_t offset, size_t n, char* out,
                             absl::string_view* found) {
#if MULTITIER_TF_MINOR >= 20
  return file.Read(offset, *found, absl::MakeSpan(out, n));
#else
  return file.Read(offset, n, found, out);
#endif
}

// The number of a stream's GPU among those that CUDA shows to the process. gpu_id: TensorFlow's number of it, which differs if
// the program chose GPUs by `visible_device_list`. In 2.19, the header that states the other one needs headers of LLVM, which
// TensorFlow's package lacks.
inline int OrdinalOf(const stream_executor::Stream& stream, [[maybe_unused]] int gpu_id) {
#if MULTITIER_TF_MINOR >= 20
  return stream.parent()->device_ordinal();
#else
  return gpu_id;
#endif
}

}  // namespace multitier

#endif  // CC_TENSORFLOW_COMMON_TENSORFLOW_VERSIONS_H_
