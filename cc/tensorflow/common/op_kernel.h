// The names of TensorFlow that the sources of kernels write without its namespace. Headers write tensorflow::.

#ifndef CC_TENSORFLOW_COMMON_OP_KERNEL_H_
#define CC_TENSORFLOW_COMMON_OP_KERNEL_H_

#include "tensorflow/core/framework/op_kernel.h"

namespace multitier {

using tensorflow::AsyncOpKernel;
using tensorflow::DEVICE_CPU;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

}  // namespace multitier

#endif  // CC_TENSORFLOW_COMMON_OP_KERNEL_H_
