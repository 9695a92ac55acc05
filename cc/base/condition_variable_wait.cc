// Takes the place of std::condition_variable::wait in the two shared libraries: GCC 12's has a symbol version of its own, and
// would be all that they need of a C++ library newer than GCC 11's.

#include <pthread.h>

#include <condition_variable>
#include <mutex>

extern "C" __attribute__((visibility("hidden"))) void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(
    std::condition_variable* changed, std::unique_lock<std::mutex>* lock) {
  pthread_cond_wait(changed->native_handle(), lock->mutex()->native_handle());
}
