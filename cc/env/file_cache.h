// CachedFile: a positioned file that is open only while it is used or was used lately, so that tiers of thousands of files
// stay within a bound of descriptors for the whole process.
//
//   closed --Open()--> open, in the process's list of open files, newest first --the list is full--> closed
//
// Who holds what Open() gave keeps the descriptor beyond that: at most capacity() files are open, and those in use.
//
// Thread-safe. A file that was deleted while it was closed is NotFound.

#ifndef CC_ENV_FILE_CACHE_H_
#define CC_ENV_FILE_CACHE_H_

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "cc/env/env.h"

namespace multitier {

class CachedFile {
 public:
  // Creates the file (AlreadyExists), open for writing now and later.
  static Result<std::shared_ptr<CachedFile>> Create(Env* env, const std::string& path, bool direct);
  // A file that is there, for reading. Opens nothing yet.
  static std::shared_ptr<CachedFile> ForReading(Env* env, const std::string& path, bool direct);
  ~CachedFile();
  CachedFile(const CachedFile&) = delete;
  CachedFile& operator=(const CachedFile&) = delete;

  // The open file; opened if it is not. What Env::OpenPositionedFile says where that fails.
  Result<std::shared_ptr<PositionedFile>> Open();
  // From now on it is opened for reading only.
  void SetReadOnly();
  const std::string& path() const { return path_; }

  // As those of Env; where the process is out of descriptors, which open files here may hold, some are closed first.
  static Status SyncDir(Env* env, const std::string& path);
  static Result<std::vector<std::string>> ListDir(Env* env, const std::string& path);

  // Of the whole process. Default: 1,000, or a quarter of the descriptors that the process may have where that is less.
  static size_t capacity();
  static void SetCapacity(size_t files);  // REQUIRES: files > 0
  // Files in the list now.
  static size_t open_files();

 private:
  struct Shared;
  CachedFile(Env* env, std::string path, bool direct, bool writable);
  static Shared* GetShared();
  // What `operation` gives; where that is for want of descriptors, half of the open files are closed and it is asked once more.
  template <typename Operation>
  static auto WithDescriptors(const Operation& operation);

  Env* const env_;
  const std::string path_;
  const bool direct_;
  // Guarded by the list's mutex.
  bool writable_;
  std::shared_ptr<PositionedFile> file_;
  std::list<CachedFile*>::iterator position_;
};

}  // namespace multitier

#endif  // CC_ENV_FILE_CACHE_H_
