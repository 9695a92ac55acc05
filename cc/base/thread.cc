#include "cc/base/thread.h"

#include <errno.h>
#include <sched.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <utility>

namespace multitier {
namespace {

thread_local bool has_batch = false;  // from a BatchScheduling

// Of this thread.
bool SetPolicy(int policy) {
  const sched_param parameters{};
  return ::sched_setscheduler(0, policy, &parameters) == 0;
}

struct Beginning {
  char name[16];
  bool inherits_batch;
  std::function<void()> body;
};

void* Begin(void* argument) {
  const std::unique_ptr<Beginning> beginning(static_cast<Beginning*>(argument));
  pthread_setname_np(pthread_self(), beginning->name);
  if (beginning->inherits_batch) (void)SetPolicy(SCHED_OTHER);  // any thread may leave SCHED_BATCH
  beginning->body();
  return nullptr;
}

Status Failed(const char* name, int error) {
  return Status(StatusCode::kResourceExhausted, StrCat("thread '", name, "' could not be started: ", std::strerror(error)),
                error);
}

Status StartAs(const char* name, std::function<void()> body, int detach_state, pthread_t* thread) {
  auto beginning = std::make_unique<Beginning>();
  std::snprintf(beginning->name, sizeof(beginning->name), "%s", name);
  beginning->inherits_batch = has_batch;
  beginning->body = std::move(body);
  pthread_attr_t attributes;
  int error = pthread_attr_init(&attributes);
  if (error != 0) return Failed(name, error);
  pthread_attr_setdetachstate(&attributes, detach_state);
  error = pthread_create(thread, &attributes, Begin, beginning.get());
  pthread_attr_destroy(&attributes);
  if (error != 0) return Failed(name, error);
  (void)beginning.release();  // the thread's
  return OkStatus();
}

}  // namespace

Status StartThread(const char* name, std::function<void()> body) {
  pthread_t thread;
  return StartAs(name, std::move(body), PTHREAD_CREATE_DETACHED, &thread);
}

Status Thread::Start(const char* name, std::function<void()> body) {
  MT_CHECK(!started_);
  const Status status = StartAs(name, std::move(body), PTHREAD_CREATE_JOINABLE, &thread_);
  started_ = status.ok();
  return status;
}

void Thread::Join() {
  if (!started_) return;
  pthread_join(thread_, nullptr);
  started_ = false;
}

BatchScheduling::BatchScheduling() : changed_(::sched_getscheduler(0) == SCHED_OTHER && SetPolicy(SCHED_BATCH)) {
  if (changed_) has_batch = true;
}

BatchScheduling::~BatchScheduling() {
  if (!changed_) return;
  has_batch = false;
  (void)SetPolicy(SCHED_OTHER);
}

}  // namespace multitier
