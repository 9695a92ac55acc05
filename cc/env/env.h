// Env: everything the engine takes from the machine (files, memory, clock, threads) behind one interface.
//
//   Env::Posix()      the machine itself (posix_env.cc)
//   InMemoryEnv       files in memory, for tests (memory_env.h)
//   CachedFile        positioned files within a bound of descriptors (file_cache.h)
//   FaultEnv          a twin of any Env that fails the n-th call of a chosen kind, or drops unsynced data as a power
//                     loss would (fault_env.h, test only)
//
// Only what the engine calls stands here. Memory comes from Env so that tests can make the n-th allocation fail.
//
// Thread-safe: all methods, from any thread.

#ifndef CC_ENV_ENV_H_
#define CC_ENV_ENV_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace multitier {

// A file written front to back.
class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes, ignoring errors: call Close() to see them
  virtual Status Append(const void* data, size_t bytes) = 0;
  // What was appended survives a power loss once this returns OK.
  virtual Status Sync() = 0;
  virtual Status Close() = 0;
};

// A file read at any offset.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  // Reads exactly `bytes` bytes at `offset` into `out`; a file that ends earlier is DataLoss naming the file, the offset,
  // what was expected and what was found. Thread-safe.
  virtual Status Read(uint64_t offset, size_t bytes, void* out) const = 0;
  virtual Result<uint64_t> Size() const = 0;
};

// A file written and read at any offset: what a log keeps its segments in. Where direct(), offsets, sizes and addresses are
// multiples of kDirectAlignment, and the page cache is not used; elsewhere any will do. Thread-safe; who reads a range that
// another thread writes gets either.
class PositionedFile {
 public:
  static constexpr size_t kDirectAlignment = 4096;

  virtual ~PositionedFile() = default;
  // What a failed Write leaves in its range is undefined; the rest of the file is as it was.
  virtual Status Write(uint64_t offset, const void* data, size_t bytes) = 0;
  // As RandomAccessFile::Read.
  virtual Status Read(uint64_t offset, size_t bytes, void* out) const = 0;
  // What was written survives a power loss once this returns OK. After an error nobody knows what does, now or later: a
  // later OK proves nothing about what was written before.
  virtual Status Sync() = 0;
  // Makes the file `bytes` long where it is shorter (zeros), and takes the space for all of it, so that writes below it
  // do not run out. ResourceExhausted.
  virtual Status Allocate(uint64_t bytes) = 0;
  virtual Status Truncate(uint64_t bytes) = 0;  // REQUIRES: bytes <= size
  virtual Result<uint64_t> Size() const = 0;
  virtual bool direct() const { return false; }
  // For BatchReader; -1 where reads must go through Read().
  virtual int descriptor() const { return -1; }
};

class Env {
 public:
  virtual ~Env() = default;

  // The machine's own. Never destroyed.
  static Env* Posix();

  // --- Files. NotFound, AlreadyExists, PermissionDenied, ResourceExhausted (disk full), else Unavailable; every message
  // names the call and the path.
  virtual Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) = 0;  // truncates
  virtual Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) = 0;
  // kCreate: the file must not exist (AlreadyExists); kWrite: it must (NotFound); both can be read, too. `direct` asks for
  // direct(); a file system that refuses it gives a file that is not.
  enum class OpenMode { kCreate, kRead, kWrite };
  virtual Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode,
                                                                     bool direct) = 0;
  virtual Status RenameFile(const std::string& from, const std::string& to) = 0;  // atomic, replaces `to`
  virtual Status DeleteFile(const std::string& path) = 0;
  virtual Result<bool> FileExists(const std::string& path) = 0;
  virtual Status CreateDir(const std::string& path) = 0;  // OK where it exists already; parents are made too
  virtual Status DeleteDir(const std::string& path) = 0;  // REQUIRES: empty
  virtual Result<std::vector<std::string>> ListDir(const std::string& path) = 0;  // names only, sorted
  virtual Status SyncDir(const std::string& path) = 0;

  // --- Memory. Page-aligned and zero-filled; nullptr where there is none (or a fault is injected).
  // `huge` asks for 2 MiB pages: the block is aligned to 2 MiB where bytes >= 2 MiB.
  virtual void* AllocatePages(size_t bytes, bool huge) = 0;
  virtual void FreePages(void* pages, size_t bytes) = 0;
  // Address space without memory: pages appear (zero-filled) when they are first touched. Aligned to 2 MiB.
  virtual void* ReserveAddressSpace(size_t bytes, bool huge) = 0;
  // Asks whether `bytes` more of a reservation may be touched; false where memory is short (or a fault is injected).
  // A hint for tests and limits: the kernel may still overcommit.
  virtual bool CommitPages(void* pages, size_t bytes) = 0;
  // Asks the kernel to back [pages, pages + bytes) by huge pages now. Best effort.
  virtual void CollapsePages(void* pages, size_t bytes) = 0;

  // --- Clock. Monotonic.
  virtual uint64_t NowMicros() = 0;
  virtual void SleepMicros(uint64_t micros) = 0;
};

}  // namespace multitier

#endif  // CC_ENV_ENV_H_
