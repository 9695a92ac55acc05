// A grouped lookup of NumPy arrays, and the update that follows it.

#ifndef CC_PYTHON_PY_GROUP_H_
#define CC_PYTHON_PY_GROUP_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cc/lookup/group_lookup.h"
#include "cc/python/arrays.h"
#include "cc/python/py_table.h"

namespace multitier {

// Keeps the tables and weights that its plan points to. Tables of one member are updated together, from the plan. A table of
// several members gets one update, of all their entries in order: what one lookup of the joined keys would give it.
class PyGroup {
 public:
  // A member for each of the tables. row_splits: int64 [batch + 1]. max_norms: below 0: none. sequences: whether the rows of a
  // member are not pooled but padded. train: whether Apply and WeightsGradients may be called. concat: whether the values of
  // members, pooled and of one batch size, stand side by side in one array.
  PyGroup(std::vector<std::shared_ptr<PyTable>> tables, std::vector<Array<int64_t>> keys,
          std::vector<Array<int64_t>> row_splits, const std::vector<std::string>& combiners,
          std::vector<std::optional<Array<float>>> weights, const std::vector<float>& max_norms,
          const std::vector<bool>& sequences, bool train, bool concat);

  // [batch, dim] each, or one [batch, sum of dims]; sequences [batch, steps, dim].
  std::vector<Array<float>> Values() const { return values_; }

  // Of a group made with train: a member's distinct keys, and how often each occurs.
  py::array Keys(int member) const;
  py::array Counts(int member) const;

  // Of a group made with train: [n] of each member's weights, none where it has none. grads: of the values, in their shapes.
  std::vector<std::optional<Array<float>>> WeightsGradients(const std::vector<Array<float>>& grads);

  // grads: as above. slot_columns: of each table. Where the update of a table fails, those of others still happen.
  void Apply(const std::string& rule, const std::vector<Array<float>>& grads, const std::vector<float>& hyper,
             const std::vector<std::vector<std::string>>& slot_columns, int64_t global_step);

 private:
  // Fills in where the gradients of members are. from: [members]
  void Point(const std::vector<Array<float>>& grads, std::vector<const float*>* from, GroupGradients* gradients) const;

  // How a member's table is updated: once, at the first member of that table.
  struct Update {
    size_t first = 0;           // the first member of the same table
    size_t offset = 0;          // of this member's entries among `keys` of that
    bool joined = false;        // whether there are others
    std::vector<int64_t> keys;  // joined: of all entries
  };

  std::vector<std::shared_ptr<PyTable>> tables_;
  std::vector<std::optional<Array<float>>> weights_;
  std::vector<Array<float>> values_;
  std::vector<int64_t> strides_;  // [members] with concat: elements of a row of the values; else none
  GroupPlan plan_;
  std::vector<Update> updates_;  // [members]; with train
};

}  // namespace multitier

#endif  // CC_PYTHON_PY_GROUP_H_
