// tf_multitier._engine.salvage: what is whole in SSDHASH files.

#ifndef CC_PYTHON_SALVAGE_H_
#define CC_PYTHON_SALVAGE_H_

#include <pybind11/pybind11.h>

#include <string>

namespace multitier {

// What SalvageSegments found: "rows" as Table.export gives them, and what it says of the damage.
pybind11::dict SalvageDirectory(const std::string& directory);

}  // namespace multitier

#endif  // CC_PYTHON_SALVAGE_H_
