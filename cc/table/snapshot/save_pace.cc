#include "cc/table/snapshot/save_pace.h"

#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace multitier {
namespace {

constexpr double kShare = 1.0 / 8;             // of what the process gets, for all saving threads
constexpr double kLeast = 1.0 / 4;             // of the machine: what a process counts as getting at least
constexpr int64_t kWindow = 20'000'000;        // ns: the processor time of a process grows in steps of a few ms
constexpr int64_t kLongestRest = 100'000'000;  // ns
constexpr int64_t kSlice = 5'000'000;          // ns: so often a rest looks at the copies that wait
constexpr double kCalm = 0.5;                  // of the most copies: up to here it rests fully
constexpr double kNoRest = 0.875;              // likewise: from here on it does not rest
constexpr double kTolerance = 0.1;             // processors
constexpr double kIdle = 0.1;                  // processors: less than this is no work
constexpr double kDelayed = 0.2;               // of the time in which it could run

int64_t Read(clockid_t clock) {
  timespec now{};
  (void)::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// 0 where the kernel does not say.
int64_t ReadDelay() {
  const int file = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[96];
  const ssize_t bytes = ::read(file, text, sizeof(text) - 1);
  ::close(file);
  if (bytes <= 0) return 0;
  text[bytes] = '\0';
  char* end = text;
  (void)std::strtoll(text, &end, 10);  // the processor time
  return std::strtoll(end, nullptr, 10);
}

int Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

}  // namespace

SavePace::SavePace(SavingThreads* threads)
    : processors_(Processors()), threads_(threads), batch_(std::in_place), counted_(Read(CLOCK_THREAD_CPUTIME_ID)) {
  ++threads_->running;
}

SavePace::~SavePace() {
  if (threads_ == nullptr) return;
  threads_->took += Read(CLOCK_THREAD_CPUTIME_ID) - counted_;
  --threads_->running;
}

int64_t SavePace::RestAt(const Times& now, size_t waiting, size_t most) {
  if (!begun_) {
    begun_ = true;
    window_ = now;
    thread_ = now.thread;
    return 0;
  }
  const int64_t wall = now.wall - window_.wall;
  if (wall >= kWindow) {
    const int64_t ran = now.thread - window_.thread, delay = now.delay - window_.delay;
    const int64_t saving = now.saving - window_.saving;
    const double used = static_cast<double>(now.process - window_.process) / static_cast<double>(wall);
    const double others = used - static_cast<double>(saving) / static_cast<double>(wall);
    gets_ = std::clamp(used, kLeast * processors_, static_cast<double>(processors_));
    const int wanted = std::min(now.threads, processors_);
    const bool delayed = static_cast<double>(delay) > kDelayed * static_cast<double>(ran + delay);
    room_ = others < kIdle || (!delayed && others + wanted <= processors_ + kTolerance);
    window_ = now;
  }
  const int64_t worked = now.thread - thread_;
  thread_ = now.thread;
  const double share = kShare * gets_ / now.threads;
  if (room_ || share >= 1) return 0;
  const double full = most == 0 ? 1 : static_cast<double>(waiting) / static_cast<double>(most);
  const double calm = std::clamp((kNoRest - full) / (kNoRest - kCalm), 0.0, 1.0);
  return std::min(kLongestRest, static_cast<int64_t>(static_cast<double>(worked) * (1 / share - 1) * calm));
}

void SavePace::Rest(const std::function<size_t()>& waiting, size_t most) {
  Times now;
  now.wall = Read(CLOCK_MONOTONIC);
  now.process = Read(CLOCK_PROCESS_CPUTIME_ID);
  now.thread = Read(CLOCK_THREAD_CPUTIME_ID);
  now.delay = ReadDelay();
  const int64_t ran = now.thread - counted_;
  counted_ = now.thread;
  now.saving = threads_->took += ran;
  now.threads = threads_->running;
  const int64_t end = now.wall + RestAt(now, waiting(), most);
  const auto too_many = [&] { return static_cast<double>(waiting()) >= kNoRest * static_cast<double>(most); };
  for (int64_t wall = now.wall; wall < end && !too_many(); wall = Read(CLOCK_MONOTONIC)) {
    const timespec slice{0, std::min(kSlice, end - wall)};
    (void)::nanosleep(&slice, nullptr);  // a signal ends it early
  }
}

}  // namespace multitier
