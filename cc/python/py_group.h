// PyGroup: a grouped lookup of NumPy arrays, and the update that follows it.

#ifndef CC_PYTHON_PY_GROUP_H_
#define CC_PYTHON_PY_GROUP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/group_lookup/group_lookup.h"
#include "cc/python/arrays.h"
#include "cc/python/py_table.h"

namespace multitier {

// It keeps the tables and weights to which its plan points. Tables that belong to one member are updated together, from the
// plan. A table of several members gets one update with all their entries in order, as if one member had all the keys.
class PyGroup {
 public:
  // Has one member per table. row_splits: int64 [batch + 1]. max_norms: below 0: none. sequences: true: the rows of a member
  // are padded instead of pooled. train: whether Apply and WeightsGradients may be called. concat: whether the values of all
  // members, which must be pooled and have one batch size, are concatenated in one array.
  PyGroup(std::vector<std::shared_ptr<PyTable>> tables, std::vector<Array<int64_t>> keys,
          std::vector<Array<int64_t>> row_splits, const std::vector<std::string>& combiners,
          std::vector<std::optional<Array<float>>> weights, const std::vector<float>& max_norms,
          const std::vector<bool>& sequences, bool train, bool concat);

  // One [batch, dim] per member, or with concat one [batch, sum of dims]. Sequences: [batch, steps, dim].
  std::vector<Array<float>> Values() const { return values_; }

  // A member's distinct keys, and the number of occurrences of each. REQUIRES: train
  py::array Keys(int member) const;
  py::array Counts(int member) const;

  // The gradients [n] of each member's weights, or none for a member without weights. grads: gradients of the values, in their
  // shapes. REQUIRES: train
  std::vector<std::optional<Array<float>>> WeightsGradients(const std::vector<Array<float>>& grads);

  // grads: see above. slot_columns: one list per table. If the update of a table fails, the other tables are still updated.
  // REQUIRES: train
  void Apply(const std::string& rule, const std::vector<Array<float>>& grads, const std::vector<float>& hyper,
             const std::vector<std::vector<std::string>>& slot_columns, int64_t global_step);

 private:
  // Sets the addresses of the gradients of members. from: [members]
  void Point(const std::vector<Array<float>>& grads, std::vector<const float*>* from, GroupGradients* gradients) const;

  // How a member's table is updated. The first member of a table updates it once.
  struct Update {
    size_t first = 0;           // the first member with the same table
    size_t offset = 0;          // offset of this member's entries in `keys` of the first member
    bool joined = false;        // whether other members have the same table
    std::vector<int64_t> keys;  // first member, if joined: the keys of all entries
  };

  std::vector<std::shared_ptr<PyTable>> tables_;
  std::vector<std::optional<Array<float>>> weights_;
  std::vector<Array<float>> values_;
  std::vector<int64_t> strides_;  // [members] with concat: elements of a row of the values; otherwise empty
  GroupPlan plan_;
  std::vector<Update> updates_;  // [members]; with train
};

}  // namespace multitier

#endif  // CC_PYTHON_PY_GROUP_H_
