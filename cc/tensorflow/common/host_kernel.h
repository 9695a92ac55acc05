// MULTITIER_HOST_KERNEL: registers a kernel that works in host memory, for the CPU and for GPUs. HostVariant: a variant of it.
//
// TensorFlow puts a variable's handle and all ops that take it on one device. So an op without a kernel for GPUs would keep the
// variable's other ops on the CPU too. The ops whose work is the host's (administration, queries, saves) have the same kernel
// on both. On a GPU all their tensors are in host memory; TensorFlow copies the others.

#ifndef CC_TENSORFLOW_COMMON_HOST_KERNEL_H_
#define CC_TENSORFLOW_COMMON_HOST_KERNEL_H_

#include <initializer_list>
#include <memory>

#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/variant_op_registry.h"

namespace multitier {

template <typename Kernel>
class HostKernel {
 public:
  // tensors: the names of all inputs and outputs of the op
  HostKernel(const char* op, const char* kernel, std::initializer_list<const char*> tensors) {
    for (const char* device : {tensorflow::DEVICE_CPU, tensorflow::DEVICE_GPU}) {
      tensorflow::KernelDefBuilder builder(op);
      builder.Device(device);
      for (const char* tensor : tensors) builder.HostMemory(tensor);
      const tensorflow::kernel_factory::OpKernelRegistrar registrar(builder.Build(), kernel, &Make);
    }
  }

 private:
  static tensorflow::OpKernel* Make(tensorflow::OpKernelConstruction* context) { return new Kernel(context); }
};

// Registers a variant of the ops. Its object is in host memory on every device, so a copy between devices is a copy of the
// object.
template <typename Variant>
class HostVariant {
 public:
  HostVariant() {
    for (const auto direction : {tensorflow::HOST_TO_DEVICE, tensorflow::DEVICE_TO_HOST, tensorflow::DEVICE_TO_DEVICE}) {
      const tensorflow::variant_op_registry_fn_registration::UnaryVariantDeviceCopyRegistration<Variant> registration(
          direction, tensorflow::TypeIndex::Make<Variant>(),
          [](const Variant& from, Variant* to, const tensorflow::UnaryVariantOpRegistry::AsyncTensorDeviceCopyFn&) {
            *to = from;
            return absl::OkStatus();
          });
    }
  }
};

}  // namespace multitier

// MULTITIER_HOST_KERNEL(op's name, class, names of all its inputs and outputs...)
#define MULTITIER_HOST_KERNEL(...) MULTITIER_HOST_KERNEL_AT(__COUNTER__, __VA_ARGS__)
#define MULTITIER_HOST_KERNEL_AT(number, ...) MULTITIER_HOST_KERNEL_NAMED(number, __VA_ARGS__)
#define MULTITIER_HOST_KERNEL_NAMED(number, op, kernel, ...) \
  [[maybe_unused]] const HostKernel<kernel> host_kernel_##number(op, #kernel, {__VA_ARGS__})

#endif  // CC_TENSORFLOW_COMMON_HOST_KERNEL_H_
