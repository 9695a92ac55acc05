// Env: one interface for what the engine uses of the machine: files, memory and the clock.
//
//   Env::Posix()      the machine itself (posix_env.cc)
//   InMemoryEnv       files in memory, for tests (memory_env.h)
//   CachedFile        positioned files within a bound of descriptors (file_cache.h)
//   FaultEnv          wraps any Env and fails the n-th call of a chosen kind, or drops unsynced data as a power loss would
//                     (fault_env.h, test only)
//
// The interface has only what the engine calls. It includes memory so that tests can make the n-th allocation fail.
//
// Thread-safe: any thread may call any method.

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

// A file that is written from front to back.
class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes, ignoring errors: call Close() to see them
  virtual Status Append(const void* data, size_t bytes) = 0;
  // After OK, all appended bytes survive a power loss.
  virtual Status Sync() = 0;
  virtual Status Close() = 0;
};

// A file that is read at any offset.
class RandomAccessFile {
 public:
  virtual ~RandomAccessFile() = default;
  // Reads exactly `bytes` bytes at `offset` into `out`. DataLoss if the file ends earlier; the message names the file, the
  // offset, and the expected and found number of bytes. Thread-safe.
  virtual Status Read(uint64_t offset, size_t bytes, void* out) const = 0;
  virtual Result<uint64_t> Size() const = 0;
};

// A file that is written and read at any offset, for example a segment of a log. If direct(), offsets, sizes and addresses must
// be multiples of kDirectAlignment, and the page cache is not used. Otherwise any values are allowed. Thread-safe. A read of a
// range that another thread writes returns old or new bytes.
class PositionedFile {
 public:
  static constexpr size_t kDirectAlignment = 4096;

  virtual ~PositionedFile() = default;
  // After an error, the content of the range is undefined; the rest of the file has not changed.
  virtual Status Write(uint64_t offset, const void* data, size_t bytes) = 0;
  // See RandomAccessFile::Read.
  virtual Status Read(uint64_t offset, size_t bytes, void* out) const = 0;
  // After OK, all written bytes survive a power loss. After an error, bytes written before it may be lost, even if a later Sync
  // returns OK.
  virtual Status Sync() = 0;
  // Extends the file with zeros to `bytes` if it is shorter, and allocates the space for all of it, so that writes below
  // `bytes` do not run out of space. ResourceExhausted if the disk is full.
  virtual Status Allocate(uint64_t bytes) = 0;
  virtual Status Truncate(uint64_t bytes) = 0;  // REQUIRES: bytes <= size
  virtual Result<uint64_t> Size() const = 0;
  virtual bool direct() const { return false; }
  // For BatchReader; -1 if reads must use Read().
  virtual int descriptor() const { return -1; }
};

class Env {
 public:
  virtual ~Env() = default;

  // The Env of the machine itself. Never destroyed.
  static Env* Posix();

  // --- Files. Errors: NotFound, AlreadyExists, PermissionDenied, ResourceExhausted (disk full), else Unavailable. Every
  // message names the call and the path.
  virtual Result<std::unique_ptr<WritableFile>> NewWritableFile(const std::string& path) = 0;  // truncates
  virtual Result<std::unique_ptr<RandomAccessFile>> NewRandomAccessFile(const std::string& path) = 0;
  // kCreate: AlreadyExists if the file exists. kWrite: NotFound if it does not. Both also allow reads. `direct` asks for
  // direct(); if the file system refuses that, the file is not direct().
  enum class OpenMode { kCreate, kRead, kWrite };
  virtual Result<std::unique_ptr<PositionedFile>> OpenPositionedFile(const std::string& path, OpenMode mode, bool direct) = 0;
  virtual Status RenameFile(const std::string& from, const std::string& to) = 0;  // atomic, replaces `to`
  // Gives the file a second name. AlreadyExists if there is one of that name. os_error() is EXDEV for a name on another file
  // system.
  virtual Status LinkFile(const std::string& from, const std::string& to) = 0;
  // How many names the file has.
  virtual Result<uint64_t> CountNames(const std::string& path) = 0;
  virtual Status DeleteFile(const std::string& path) = 0;
  virtual Result<bool> FileExists(const std::string& path) = 0;
  virtual Status CreateDir(const std::string& path) = 0;  // OK if it exists already; parents are made too
  virtual Status DeleteDir(const std::string& path) = 0;  // REQUIRES: empty
  virtual Result<std::vector<std::string>> ListDir(const std::string& path) = 0;  // names only, sorted
  virtual Status SyncDir(const std::string& path) = 0;
  // Syncs a file that is not written to any more. After OK, all its bytes survive a power loss.
  Status SyncFile(const std::string& path);

  // --- Memory. Page-aligned and zero-filled; nullptr if there is no memory (or a fault is injected).
  // `huge` asks for 2 MiB pages: the block is aligned to 2 MiB if bytes >= 2 MiB.
  virtual void* AllocatePages(size_t bytes, bool huge) = 0;
  virtual void FreePages(void* pages, size_t bytes) = 0;
  // Reserves address space without memory. Pages are allocated, zero-filled, when they are first touched. Aligned to 2 MiB.
  virtual void* ReserveAddressSpace(size_t bytes, bool huge) = 0;
  // Whether `bytes` more of a reservation may be touched. False if memory is short (or a fault is injected). For tests and
  // limits: the kernel may still overcommit.
  virtual bool CommitPages(void* pages, size_t bytes) = 0;
  // Asks the kernel to use huge pages for [pages, pages + bytes) now. Best effort.
  virtual void CollapsePages(void* pages, size_t bytes) = 0;

  // --- Clock. Monotonic.
  virtual uint64_t NowMicros() = 0;
  virtual void SleepMicros(uint64_t micros) = 0;
};

}  // namespace multitier

#endif  // CC_ENV_ENV_H_
