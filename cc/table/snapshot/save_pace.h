// SavePace: lets a thread that saves rest, so that the rest of the process keeps most of the processors.
//
// A save has more work than one processor does in the time of a few training steps. On a machine whose processors all work for
// the program, a thread that saves without a pause takes its full share of them, and training loses that. So a save rests
// after each piece. It takes an eighth of the processor time that the process gets, all of its threads together. If other
// processes leave little to this one, a save takes an eighth of that little; but at least a thirty-second of the machine, so
// that it ends. It does not rest in these cases:
//
//   - The other threads of the process do nothing, or leave a processor to each saving thread (all processors, if there are
//     more saving threads than processors). Then it saves as fast as it can.
//   - Many copies of changed rows wait for the save. Operations would have to wait if there were more. From half of the most
//     on, the save rests less. From seven eighths on it does not rest, and a rest that goes on ends.
//
// While it saves, a thread has the policy SCHED_BATCH (BatchScheduling): when it wakes up, it does not take the processor from
// a thread that runs.
//
// What the other threads need is measured: the processor time of the process, less that of the saving threads (SavingThreads).
// If other processes use the machine, the saving thread itself has to wait for a processor, and that is measured, too.
//
// Not thread-safe: each saving thread has its own.

#ifndef CC_TABLE_SNAPSHOT_SAVE_PACE_H_
#define CC_TABLE_SNAPSHOT_SAVE_PACE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "cc/base/thread.h"

namespace multitier {

// The threads of one save: how many of them save now, and their processor time. Thread-safe.
struct SavingThreads {
  std::atomic<int> running{0};
  std::atomic<int64_t> took{0};  // ns
};

class SavePace {
 public:
  // Nanoseconds of four clocks, and the number of threads that save.
  struct Times {
    int64_t wall = 0;
    int64_t process = 0;  // processor time of all threads
    int64_t saving = 0;   // processor time of the threads that save
    int64_t thread = 0;   // processor time of this thread
    int64_t delay = 0;    // how long this thread could run and had no processor
    int threads = 1;
  };

  // On this machine, for the calling thread, which counts as one of `threads` until this object is destroyed.
  explicit SavePace(SavingThreads* threads);
  // On a machine with this number of processors, for RestAt alone.
  explicit SavePace(int processors) : processors_(processors) {}
  ~SavePace();
  SavePace(const SavePace&) = delete;
  SavePace& operator=(const SavePace&) = delete;

  // Rests after a piece. waiting: gives the bytes of copies that wait, of at most `most`.
  void Rest(const std::function<size_t()>& waiting, size_t most);
  // For how many nanoseconds Rest would rest, at these times.
  int64_t RestAt(const Times& now, size_t waiting, size_t most);

 private:
  const int processors_;
  SavingThreads* const threads_ = nullptr;
  const std::optional<BatchScheduling> batch_;  // none for RestAt alone
  bool begun_ = false;
  Times window_;               // where the measurement began that is going on
  int64_t thread_ = 0;         // processor time of the thread when it rested last
  int64_t counted_ = 0;        // processor time of the thread that is in `took`
  double gets_ = processors_;  // processors that the process used in the last window
  bool room_ = true;           // in the last window, for the saving threads next to the others
};

}  // namespace multitier

#endif  // CC_TABLE_SNAPSHOT_SAVE_PACE_H_
