// Whether threads of this process wait until something wakes them. Tests look at this in place of sleeping: a thread that is
// blocked has come to where it waits, and a process whose threads are all blocked uses no CPU.
//
// A thread is blocked while it is in a wait that has no time limit, and was in the same wait a moment before: /proc says in
// which system call a thread is, and how often it was switched. Needs Linux's /proc/<pid>/task/<tid>/syscall.

#ifndef CC_BASE_BLOCKED_TEST_UTIL_H_
#define CC_BASE_BLOCKED_TEST_UTIL_H_

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

namespace multitier {

inline pid_t ThisThread() { return static_cast<pid_t>(::syscall(SYS_gettid)); }

namespace blocked_internal {

constexpr std::chrono::seconds kGiveUp{60};

// How often a thread was switched so far, where it is in a futex wait without a time limit; else nothing.
inline std::optional<int64_t> SwitchesOfAWaiter(pid_t tid) {
  const std::string task = "/proc/self/task/" + std::to_string(tid);
  std::ifstream call(task + "/syscall");
  std::string number, address, operation, value, timeout;
  if (!(call >> number >> address >> operation >> value >> timeout)) return std::nullopt;
  if (number != std::to_string(SYS_futex) || std::strtoull(timeout.c_str(), nullptr, 16) != 0) return std::nullopt;
  std::ifstream status(task + "/status");
  int64_t switches = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.find("ctxt_switches:") == std::string::npos) continue;
    switches += std::atoll(line.substr(line.find(':') + 1).c_str());
  }
  return switches;
}

// Whether it is a thread of the kernel for io_uring: an idle one may stay, and runs no code of the process.
inline bool IsOfTheKernel(pid_t tid) {
  std::string name;
  return bool(std::ifstream("/proc/self/task/" + std::to_string(tid) + "/comm") >> name) && name.rfind("iou-", 0) == 0;
}

// The same of each thread but the calling one; nothing where one of them does not wait.
inline std::optional<std::map<pid_t, int64_t>> SwitchesOfAllOthers() {
  std::map<pid_t, int64_t> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    const pid_t tid = std::atoi(entry.path().filename().c_str());
    if (tid == ThisThread() || IsOfTheKernel(tid)) continue;
    const std::optional<int64_t> switches = SwitchesOfAWaiter(tid);
    if (!switches) return std::nullopt;
    all[tid] = *switches;
  }
  return all;
}

// Returns true once `look` gives something, and the same again; false after a minute.
template <typename Look>
bool AwaitTheSameTwice(const Look& look) {
  const auto give_up = std::chrono::steady_clock::now() + kGiveUp;
  while (std::chrono::steady_clock::now() < give_up) {
    const auto before = look();
    std::this_thread::yield();
    if (before && before == look()) return true;
  }
  return false;
}

}  // namespace blocked_internal

// Returns true once the thread is blocked, false after a minute.
inline bool AwaitBlocked(pid_t tid) {
  return blocked_internal::AwaitTheSameTwice([&] { return blocked_internal::SwitchesOfAWaiter(tid); });
}

// Returns true once all threads but the calling one are blocked at one moment, false after a minute.
inline bool AwaitAllOthersBlocked() {
  return blocked_internal::AwaitTheSameTwice([] { return blocked_internal::SwitchesOfAllOthers(); });
}

}  // namespace multitier

#endif  // CC_BASE_BLOCKED_TEST_UTIL_H_
