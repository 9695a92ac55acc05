#include "cc/table/test/table_test_util.h"

namespace multitier {

std::vector<float> SomeHyper(const UpdateRule& rule) {
  std::vector<float> hyper;
  for (const char* name : rule.hyperparameters()) {
    const std::string h = name;
    if (h == "epsilon") {
      hyper.push_back(1e-6f);
    } else if (h == "learning_rate_power") {
      hyper.push_back(-0.5f);
    } else if (h.rfind("use_", 0) == 0 || h.rfind("apply_", 0) == 0 || h == "decay_count") {
      hyper.push_back(0.0f);
    } else if (h == "beta1" || h == "beta2" || h == "decay" || h == "rho" || h == "momentum") {
      hyper.push_back(0.9f);
    } else {
      hyper.push_back(0.1f);
    }
  }
  return hyper;
}

}  // namespace multitier
