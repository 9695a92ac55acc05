// Lists of tasks for the steps of a grouped lookup. The threads of an executor take tasks from a list, the most expensive
// first.

#ifndef CC_GROUP_LOOKUP_GROUP_TASKS_H_
#define CC_GROUP_LOOKUP_GROUP_TASKS_H_

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

#include "cc/base/executor.h"

namespace multitier {
namespace group_internal {

constexpr size_t kSerialEntries = 512;  // smaller groups run on the calling thread: waking others would cost more

struct Task {
  size_t cost;  // entries
  std::function<void()> run;
};

inline void RunAll(std::vector<Task>* tasks, Executor* executor) {
  std::stable_sort(tasks->begin(), tasks->end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
  size_t cost = 0;
  for (const Task& task : *tasks) cost += task.cost;
  ParallelFor(cost < kSerialEntries ? nullptr : executor, static_cast<int>(tasks->size()),
              [&](int i) { (*tasks)[static_cast<size_t>(i)].run(); });
}

}  // namespace group_internal
}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_GROUP_TASKS_H_
