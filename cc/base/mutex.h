// Mutex, MutexLock: std::mutex with clang's thread-safety annotations, which `configure.py check` verifies.
//
//   Mutex mutex_;
//   int rows_ MT_GUARDED_BY(mutex_) = 0;
//   void Grow() MT_REQUIRES(mutex_);  // the caller holds it
//
//   MutexLock lock(mutex_);
//   lock.Wait(changed_, [this]() MT_REQUIRES(mutex_) { return rows_ > 0; });
//
// The annotations are empty for other compilers. The analysis cannot follow a lock that moves between functions, or that is
// taken in a loop over objects. Mark such a function MT_NO_THREAD_SAFETY_ANALYSIS and say why.

#ifndef CC_BASE_MUTEX_H_
#define CC_BASE_MUTEX_H_

#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define MT_ATTRIBUTE(x) __attribute__((x))
#else
#define MT_ATTRIBUTE(x)
#endif

// For a class: it is a lock; or, scoped, it holds a lock from its construction to its destruction.
#define MT_CAPABILITY(name) MT_ATTRIBUTE(capability(name))
#define MT_SCOPED_CAPABILITY MT_ATTRIBUTE(scoped_lockable)
// For a member: it, or the object that it points to, is used only while the lock is held.
#define MT_GUARDED_BY(lock) MT_ATTRIBUTE(guarded_by(lock))
#define MT_PT_GUARDED_BY(lock) MT_ATTRIBUTE(pt_guarded_by(lock))
// For a function: the caller holds the locks (exclusively or shared), or must not hold them.
#define MT_REQUIRES(...) MT_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define MT_REQUIRES_SHARED(...) MT_ATTRIBUTE(requires_shared_capability(__VA_ARGS__))
#define MT_EXCLUDES(...) MT_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// For a function: it takes or releases the locks. Without arguments: the lock of its class.
#define MT_ACQUIRE(...) MT_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define MT_ACQUIRE_SHARED(...) MT_ATTRIBUTE(acquire_shared_capability(__VA_ARGS__))
#define MT_RELEASE(...) MT_ATTRIBUTE(release_capability(__VA_ARGS__))
#define MT_RELEASE_SHARED(...) MT_ATTRIBUTE(release_shared_capability(__VA_ARGS__))
#define MT_TRY_ACQUIRE(...) MT_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define MT_RETURN_CAPABILITY(lock) MT_ATTRIBUTE(lock_returned(lock))
#define MT_NO_THREAD_SAFETY_ANALYSIS MT_ATTRIBUTE(no_thread_safety_analysis)

namespace multitier {

class MT_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() MT_ACQUIRE() { mutex_.lock(); }
  void unlock() MT_RELEASE() { mutex_.unlock(); }
  bool try_lock() MT_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

class MT_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) MT_ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~MutexLock() MT_RELEASE() {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  // Release and take the lock for work in between that must not hold it.
  void Unlock() MT_RELEASE() { lock_.unlock(); }
  void Lock() MT_ACQUIRE() { lock_.lock(); }

  // Releases the lock until `changed` is notified, and holds it again on return. With `done`, repeats this until done().
  void Wait(std::condition_variable& changed) { changed.wait(lock_); }
  template <typename Predicate>
  void Wait(std::condition_variable& changed, Predicate done) MT_NO_THREAD_SAFETY_ANALYSIS {
    changed.wait(lock_, done);
  }
  // False if `time` passed before a notification.
  template <typename Time>
  bool WaitUntil(std::condition_variable& changed, const Time& time) {
    return changed.wait_until(lock_, time) == std::cv_status::no_timeout;
  }
  // Until done(), for at most `time`. Returns done().
  template <typename Time, typename Predicate>
  bool WaitFor(std::condition_variable& changed, const Time& time, Predicate done) MT_NO_THREAD_SAFETY_ANALYSIS {
    return changed.wait_for(lock_, time, done);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace multitier

#endif  // CC_BASE_MUTEX_H_
