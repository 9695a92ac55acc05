// One element of Adagrad. See adagrad.cc and adagrad_epsilon.cc.

#ifndef CC_OPTIMIZER_ADAGRAD_KERNEL_H_
#define CC_OPTIMIZER_ADAGRAD_KERNEL_H_

#include <cmath>

#include "cc/base/host_device.h"
#include "cc/optimizer/adagrad_step.h"

namespace multitier {

struct AdagradKernel {
  static constexpr int kSlots = 1;
  static constexpr int kRowSlots = 0;
  MT_HOST_DEVICE AdagradKernel(const float* hyper, int dim) : learning_rate_(hyper[0]), one_element_(dim == 1) {}
  MT_HOST_DEVICE void operator()(float& w, float& accumulator, float g) const {
    AdagradStep(w, accumulator, g, learning_rate_, one_element_);
  }

 private:
  const float learning_rate_;
  const bool one_element_;
};

struct AdagradEpsilonKernel {
  static constexpr int kSlots = 1;
  static constexpr int kRowSlots = 0;
  MT_HOST_DEVICE AdagradEpsilonKernel(const float* hyper, int) : learning_rate_(hyper[0]), epsilon_(hyper[1]) {}
  MT_HOST_DEVICE void operator()(float& w, float& accumulator, float g) const {
    accumulator += g * g;
    w -= (learning_rate_ * g) / (std::sqrt(accumulator) + epsilon_);
  }

 private:
  const float learning_rate_;
  const float epsilon_;
};

}  // namespace multitier

#endif  // CC_OPTIMIZER_ADAGRAD_KERNEL_H_
