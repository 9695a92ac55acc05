// What every rule does to one row, as plain scalar code straight from the formulas: what tests hold the rules against.

#ifndef CC_OPTIMIZER_REFERENCE_UPDATE_H_
#define CC_OPTIMIZER_REFERENCE_UPDATE_H_

#include <map>
#include <string>
#include <vector>

namespace multitier {

// Hyperparameters by name.
using Hyper = std::map<std::string, float>;

// One row in plain arrays, slots by name.
struct PlainRow {
  std::vector<float> w;
  std::map<std::string, std::vector<float>> slots;
};

// Fails the test where there is no reference of the rule. g: [dim]
void ReferenceUpdate(const std::string& rule, PlainRow* row, const float* g, const Hyper& h);

}  // namespace multitier

#endif  // CC_OPTIMIZER_REFERENCE_UPDATE_H_
