/* Makes calls of the C library fail, for a program that is started with it as LD_PRELOAD.
 *
 *   attack("pwrite", 3, 2, ENOSPC, "/a/folder", 0)   the third and fourth write to a file below /a/folder fail
 *   attack("malloc", -50, 0, ENOMEM, "", 1 << 16)    one in 50 requests of 64 KiB or more fails, by chance
 *   calm()                                           none does; how many were made to fail
 *
 * Calls: open, read, pread, write, pwrite, fsync, rename, unlink, fallocate, truncate, mmap, pthread_create, malloc. Kinds of
 * one call (pread64, fdatasync, aligned_alloc, ...) count as one. Reads and writes of half the bytes come before a failing one
 * of them where `least` is 1.
 *
 * The kernel refuses io_uring, so that reads are calls of pread. cc/env/batch_reader_test.cc lets calls of io_uring fail.
 */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static atomic_int armed;
static char call_name[32], folder[512];
static long first, how_many;
static int with_error;
static size_t least_bytes;
static atomic_long seen, failed;
static atomic_ulong chance = 88172645463325252ul;

void attack(const char* call, long nth, long count, int error, const char* path, size_t least) {
  atomic_store(&armed, 0);
  snprintf(call_name, sizeof call_name, "%s", call);
  snprintf(folder, sizeof folder, "%s", path);
  first = nth, how_many = count, with_error = error, least_bytes = least;
  atomic_store(&seen, 0);
  atomic_store(&failed, 0);
  atomic_store(&armed, 1);
}

long calm(void) {
  atomic_store(&armed, 0);
  return atomic_load(&failed);
}

static int below(const char* path) { return strncmp(path, folder, strlen(folder)) == 0; }

static int fd_below(int fd) {
  char link[64], path[512];
  if (folder[0] == 0) return 1;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return below(path);
}

/* Whether this call is to fail; then errno is set. */
static int fails(const char* call, const char* path, int fd, size_t bytes) {
  if (!atomic_load(&armed) || strcmp(call, call_name) != 0) return 0;
  if (path != NULL ? !below(path) : fd >= 0 && !fd_below(fd)) return 0;
  if (bytes < least_bytes && (strcmp(call, "malloc") == 0 || strcmp(call, "mmap") == 0)) return 0;
  if (first < 0) {
    unsigned long x = atomic_load(&chance);
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    atomic_store(&chance, x);
    if (x % (unsigned long)-first != 0) return 0;
  } else {
    const long n = atomic_fetch_add(&seen, 1) + 1;
    if (n < first || n >= first + how_many) return 0;
  }
  atomic_fetch_add(&failed, 1);
  errno = with_error;
  return 1;
}

#define NEXT(name) \
  static __typeof__(&name) next; \
  if (next == NULL) next = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define MODE(flags)                               \
  mode_t mode = 0;                                \
  if ((flags) & (O_CREAT | O_TMPFILE)) {          \
    va_list list;                                 \
    va_start(list, flags);                        \
    mode = (mode_t)va_arg(list, unsigned);        \
    va_end(list);                                 \
  }

int open(const char* path, int flags, ...) {
  MODE(flags) NEXT(open);
  return fails("open", path, -1, 0) ? -1 : next(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE(flags) NEXT(open64);
  return fails("open", path, -1, 0) ? -1 : next(path, flags, mode);
}
ssize_t read(int fd, void* to, size_t n) {
  NEXT(read);
  return fails("read", NULL, fd, 0) ? -1 : next(fd, to, n);
}
ssize_t pread(int fd, void* to, size_t n, off_t at) {
  NEXT(pread);
  return fails("pread", NULL, fd, 0) ? -1 : next(fd, to, n, at);
}
ssize_t pread64(int fd, void* to, size_t n, off64_t at) {
  NEXT(pread64);
  return fails("pread", NULL, fd, 0) ? -1 : next(fd, to, n, at);
}
ssize_t write(int fd, const void* from, size_t n) {
  NEXT(write);
  if (!fails("write", NULL, fd, 0)) return next(fd, from, n);
  const int error = errno;
  if (least_bytes == 1) (void)!next(fd, from, n / 2);
  errno = error;
  return -1;
}
static ssize_t failed_pwrite(int fd, const void* from, size_t n, off64_t at) {
  NEXT(pwrite64);
  const int error = errno;
  if (least_bytes == 1) (void)!next(fd, from, n / 2 / 4096 * 4096, at);
  errno = error;
  return -1;
}
ssize_t pwrite(int fd, const void* from, size_t n, off_t at) {
  NEXT(pwrite);
  return fails("pwrite", NULL, fd, 0) ? failed_pwrite(fd, from, n, at) : next(fd, from, n, at);
}
ssize_t pwrite64(int fd, const void* from, size_t n, off64_t at) {
  NEXT(pwrite64);
  return fails("pwrite", NULL, fd, 0) ? failed_pwrite(fd, from, n, at) : next(fd, from, n, at);
}
int fsync(int fd) {
  NEXT(fsync);
  return fails("fsync", NULL, fd, 0) ? -1 : next(fd);
}
int fdatasync(int fd) {
  NEXT(fdatasync);
  return fails("fsync", NULL, fd, 0) ? -1 : next(fd);
}
int rename(const char* from, const char* to) {
  NEXT(rename);
  return fails("rename", from, -1, 0) ? -1 : next(from, to);
}
int unlink(const char* path) {
  NEXT(unlink);
  return fails("unlink", path, -1, 0) ? -1 : next(path);
}
int ftruncate(int fd, off_t n) {
  NEXT(ftruncate);
  return fails("truncate", NULL, fd, 0) ? -1 : next(fd, n);
}
int fallocate(int fd, int mode, off_t at, off_t n) {
  NEXT(fallocate);
  return fails("fallocate", NULL, fd, 0) ? -1 : next(fd, mode, at, n);
}
int posix_fallocate(int fd, off_t at, off_t n) {
  NEXT(posix_fallocate);
  return fails("fallocate", NULL, fd, 0) ? with_error : next(fd, at, n);
}
void* mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) {
  NEXT(mmap);
  return fails("mmap", NULL, fd, n) ? MAP_FAILED : next(at, n, protection, flags, fd, offset);
}
int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument) {
  NEXT(pthread_create);
  return fails("pthread_create", NULL, -1, 0) ? with_error : next(thread, attributes, body, argument);
}
void* malloc(size_t n) { return fails("malloc", NULL, -1, n) ? NULL : __libc_malloc(n); }
void* calloc(size_t n, size_t each) { return fails("malloc", NULL, -1, n * each) ? NULL : __libc_calloc(n, each); }
void* realloc(void* old, size_t n) { return fails("malloc", NULL, -1, n) ? NULL : __libc_realloc(old, n); }
void* aligned_alloc(size_t alignment, size_t n) {
  return fails("malloc", NULL, -1, n) ? NULL : __libc_memalign(alignment, n);
}
int posix_memalign(void** out, size_t alignment, size_t n) {
  if (fails("malloc", NULL, -1, n)) return ENOMEM;
  *out = __libc_memalign(alignment, n);
  return *out == NULL ? ENOMEM : 0;
}
/* The libraries hold liburing, whose calls of the kernel pass by the C library: the kernel itself refuses a ring. */
__attribute__((constructor)) static void refuse_rings(void) {
  struct sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog all = {sizeof program / sizeof program[0], program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) != 0) {
    perror("io_uring is not refused");
    _exit(1);
  }
}
