#include "cc/optimizer/reference_update.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cc/optimizer/power.h"

namespace multitier {
namespace {

float AdamAlpha(const Hyper& h) {
  return h.at("learning_rate") * std::sqrt(1.0f - h.at("beta2_power")) / (1.0f - h.at("beta1_power"));
}

void ReferenceAdagradStep(PlainRow* row, const float* g, float lr) {
  const size_t dim = row->w.size();
  for (size_t d = 0; d < dim; ++d) {
    float& a = row->slots["accumulator"][d];
    a = a + g[d] * g[d];
    if (dim == 1) {
      row->w[d] = row->w[d] - lr * g[d] / std::sqrt(a);
    } else {
      const float inverse = 1.0f / std::sqrt(a);
      row->w[d] = row->w[d] - lr * g[d] * inverse;
    }
  }
}

void ReferenceAdagradDecay(PlainRow* row, const float* g, const Hyper& h) {
  float& power = row->slots["accumulator_decay_power"][0];
  if (h.at("decay_count") > power) {
    power += 1;
    for (float& a : row->slots["accumulator"]) {
      a = a * h.at("accumulator_decay_rate");
      if (a < h.at("accumulator_baseline")) a = h.at("accumulator_baseline");
    }
  }
  ReferenceAdagradStep(row, g, h.at("learning_rate"));
}

void ReferenceMomentum(PlainRow* row, const float* g, const Hyper& h) {
  const float lr = h.at("learning_rate"), mu = h.at("momentum");
  for (size_t d = 0; d < row->w.size(); ++d) {
    float& a = row->slots["momentum"][d];
    a = a * mu + g[d];
    if (h.at("use_nesterov") != 0) {
      row->w[d] = row->w[d] - (lr * g[d] + lr * mu * a);
    } else {
      row->w[d] = row->w[d] - lr * a;
    }
  }
}

void ReferenceAdam(const std::string& rule, PlainRow* row, const float* g, const Hyper& h) {
  const float lr = h.at("learning_rate"), beta1 = h.at("beta1"), beta2 = h.at("beta2"), epsilon = h.at("epsilon");
  const bool rmsprop = rule == "adam_async" && h.at("apply_sparse_rmsprop") != 0;
  for (size_t d = 0; d < row->w.size(); ++d) {
    float &w = row->w[d], &m = row->slots["m"][d], &v = row->slots["v"][d];
    v = v * beta2 + g[d] * (g[d] * (1.0f - beta2));
    if (rmsprop) {
      const float inverse = 1.0f / std::sqrt(v + epsilon);
      m = m * beta1 + inverse * lr * g[d];
      w = w - m;
      continue;
    }
    m = m * beta1 + g[d] * (1.0f - beta1);
    if (rule == "adamw") {
      w = w - (m / (std::sqrt(v) + epsilon) + h.at("weight_decay") * w) * AdamAlpha(h);
    } else {
      w = w - AdamAlpha(h) * m / (std::sqrt(v) + epsilon);
    }
  }
}

void ReferenceAmsgrad(PlainRow* row, const float* g, const Hyper& h) {
  for (size_t d = 0; d < row->w.size(); ++d) {
    float &m = row->slots["m"][d], &v = row->slots["v"][d], &v_max = row->slots["v_max"][d];
    m = m * h.at("beta1") + g[d] * (1.0f - h.at("beta1"));
    v = v * h.at("beta2") + g[d] * (g[d] * (1.0f - h.at("beta2")));
    v_max = std::fmax(v_max, v);
    row->w[d] = row->w[d] - AdamAlpha(h) * m / (std::sqrt(v_max) + h.at("epsilon"));
  }
}

void ReferenceNadam(PlainRow* row, const float* g, const Hyper& h) {
  const float product = h.at("momentum_product"), next = h.at("momentum_next");
  const float of_moment = next / (1.0f - product * next), of_gradient = (1.0f - h.at("momentum")) / (1.0f - product);
  for (size_t d = 0; d < row->w.size(); ++d) {
    float &m = row->slots["m"][d], &v = row->slots["v"][d];
    m = m * h.at("beta1") + g[d] * (1.0f - h.at("beta1"));
    v = v * h.at("beta2") + g[d] * (g[d] * (1.0f - h.at("beta2")));
    const float ahead = of_moment * m + of_gradient * g[d];
    const float root = std::sqrt(v / (1.0f - h.at("beta2_power")));
    row->w[d] = row->w[d] - h.at("learning_rate") * ahead / (root + h.at("epsilon"));
  }
}

void ReferenceAdamax(PlainRow* row, const float* g, const Hyper& h) {
  const float rate = h.at("learning_rate") / (1.0f - h.at("beta1_power"));
  for (size_t d = 0; d < row->w.size(); ++d) {
    float &m = row->slots["m"][d], &u = row->slots["u"][d];
    m = m * h.at("beta1") + g[d] * (1.0f - h.at("beta1"));
    u = std::fmax(u * h.at("beta2"), std::fabs(g[d]));
    row->w[d] = row->w[d] - rate * m / (u + h.at("epsilon"));
  }
}

void ReferenceLion(PlainRow* row, const float* g, const Hyper& h) {
  for (size_t d = 0; d < row->w.size(); ++d) {
    float& m = row->slots["m"][d];
    const float mean = m * h.at("beta1") + g[d] * (1.0f - h.at("beta1"));
    if (mean != 0) row->w[d] = row->w[d] - h.at("learning_rate") * std::copysign(1.0f, mean);
    m = m * h.at("beta2") + g[d] * (1.0f - h.at("beta2"));
  }
}

void ReferenceRmsProp(bool centered, PlainRow* row, const float* g, const Hyper& h) {
  const float decay = h.at("decay");
  for (size_t d = 0; d < row->w.size(); ++d) {
    float &rms = row->slots["rms"][d], &momentum = row->slots["momentum"][d];
    rms = rms * decay + g[d] * g[d] * (1.0f - decay);
    float variance = rms + h.at("epsilon");
    if (centered) {
      float& mg = row->slots["mg"][d];
      mg = mg * decay + g[d] * (1.0f - decay);
      variance = variance - mg * mg;
    }
    const float inverse = 1.0f / std::sqrt(variance);
    momentum = momentum * h.at("momentum") + inverse * h.at("learning_rate") * g[d];
    row->w[d] = row->w[d] - momentum;
  }
}

void ReferenceFtrl(PlainRow* row, const float* g, const Hyper& h) {
  const float lr = h.at("learning_rate"), p = h.at("learning_rate_power"), l1 = h.at("l1");
  const size_t dim = row->w.size();
  auto root = [p](float x) { return p == -0.5f ? std::sqrt(x) : Power(x, -p); };
  for (size_t d = 0; d < dim; ++d) {
    float &w = row->w[d], &accum = row->slots["accum"][d], &linear = row->slots["linear"][d];
    const float next = accum + g[d] * g[d];
    float shrunk = g[d];
    if (h.at("l2_shrinkage") > 0) shrunk = g[d] + 2.0f * h.at("l2_shrinkage") * w;
    const float step = (root(next) - root(accum)) / lr * w;
    linear = dim == 1 ? linear + shrunk - step : linear + (shrunk - step);
    const float clipped = std::fmax(std::fmin(linear, l1), -l1);
    w = (clipped - linear) / (root(next) / lr + 2.0f * h.at("l2"));
    accum = next;
  }
}

void ReferenceRowwiseAdagrad(PlainRow* row, const float* g, const Hyper& h) {
  const size_t dim = row->w.size();
  float lane[16] = {};
  for (size_t d = 0; d < dim; ++d) lane[d % 16] += g[d] * g[d];
  for (int half : {8, 4, 2, 1}) {
    for (int l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  float& a = row->slots["accumulator"][0];
  a = a + lane[0] / static_cast<float>(dim);
  const float step = h.at("learning_rate") / (std::sqrt(a) + h.at("epsilon"));
  for (size_t d = 0; d < dim; ++d) row->w[d] = row->w[d] - step * g[d];
}

void ReferenceAdadelta(PlainRow* row, const float* g, const Hyper& h) {
  const float rho = h.at("rho"), epsilon = h.at("epsilon");
  for (size_t d = 0; d < row->w.size(); ++d) {
    float &accum = row->slots["accum"][d], &accum_update = row->slots["accum_update"][d];
    accum = accum * rho + g[d] * g[d] * (1.0f - rho);
    const float inverse = 1.0f / std::sqrt(accum + epsilon);
    const float update = std::sqrt(accum_update + epsilon) * inverse * g[d];
    row->w[d] = row->w[d] - update * h.at("learning_rate");
    accum_update = accum_update * rho + update * update * (1.0f - rho);
  }
}

}  // namespace

void ReferenceUpdate(const std::string& rule, PlainRow* row, const float* g, const Hyper& h) {
  if (rule == "sgd") {
    for (size_t d = 0; d < row->w.size(); ++d) row->w[d] = row->w[d] - g[d] * h.at("learning_rate");
  } else if (rule == "momentum") {
    ReferenceMomentum(row, g, h);
  } else if (rule == "adagrad") {
    ReferenceAdagradStep(row, g, h.at("learning_rate"));
  } else if (rule == "adagrad_epsilon") {
    for (size_t d = 0; d < row->w.size(); ++d) {
      float& a = row->slots["accumulator"][d];
      a = a + g[d] * g[d];
      row->w[d] = row->w[d] - h.at("learning_rate") * g[d] / (std::sqrt(a) + h.at("epsilon"));
    }
  } else if (rule == "adagrad_decay" || rule == "adagrad_decay_v2") {
    ReferenceAdagradDecay(row, g, h);
  } else if (rule == "adam" || rule == "adam_async" || rule == "adamw") {
    ReferenceAdam(rule, row, g, h);
  } else if (rule == "adam_amsgrad") {
    ReferenceAmsgrad(row, g, h);
  } else if (rule == "nadam") {
    ReferenceNadam(row, g, h);
  } else if (rule == "adamax") {
    ReferenceAdamax(row, g, h);
  } else if (rule == "lion") {
    ReferenceLion(row, g, h);
  } else if (rule == "rmsprop" || rule == "centered_rmsprop") {
    ReferenceRmsProp(rule == "centered_rmsprop", row, g, h);
  } else if (rule == "ftrl") {
    ReferenceFtrl(row, g, h);
  } else if (rule == "rowwise_adagrad") {
    ReferenceRowwiseAdagrad(row, g, h);
  } else if (rule == "adadelta") {
    ReferenceAdadelta(row, g, h);
  } else {
    FAIL() << "no reference of " << rule;
  }
}

}  // namespace multitier
