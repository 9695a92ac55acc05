// SavePace: lets a thread that saves rest, so that the rest of the process keeps most of the processors.
//
// A save has more work than one processor does in the time of a few training steps. On a machine whose processors all work for
// the program, a thread that saves without a pause takes its full share of them, and training loses that. So a save rests
// after each piece. It takes an eighth of the machine, all of its threads together. It does not rest in these cases:
//
//   - The other threads of the process do nothing, or leave processors to the save: then it saves as fast as it can.
//   - Many copies of changed rows wait for the save. Operations would have to wait if there were more.
//
// What the other threads need is measured: the processor time of the process, less that of the saving threads. If other
// processes use the machine, the saving thread itself has to wait for a processor, and that is measured, too.
//
// Not thread-safe: each saving thread has its own.

#ifndef CC_TABLE_SAVE_PACE_H_
#define CC_TABLE_SAVE_PACE_H_

#include <cstddef>
#include <cstdint>

namespace multitier {

class SavePace {
 public:
  // Nanoseconds of three clocks.
  struct Times {
    int64_t wall = 0;
    int64_t process = 0;  // processor time of all threads
    int64_t thread = 0;   // processor time of this thread
    int64_t delay = 0;    // how long this thread could run and had no processor
  };

  // processors: of the machine. threads: that save.
  SavePace(int processors, int threads) : processors_(processors), threads_(threads) {}
  // Of this machine.
  explicit SavePace(int threads);
  SavePace(const SavePace&) = delete;
  SavePace& operator=(const SavePace&) = delete;

  // Rests after a piece. waiting: bytes of copies that wait, of at most `most`.
  void Rest(size_t waiting, size_t most);
  // For how many nanoseconds Rest would rest, at these times.
  int64_t RestAt(const Times& now, size_t waiting, size_t most);

 private:
  const int processors_, threads_;
  bool begun_ = false;
  Times window_;        // where the measurement began that is going on
  int64_t thread_ = 0;  // processor time of the thread when it rested last
  bool room_ = true;    // in the last window, for this thread next to the others
};

}  // namespace multitier

#endif  // CC_TABLE_SAVE_PACE_H_
