// CachedFile: a positioned file that is open only while it is used or was used recently. So tiers with thousands of files need
// only a bounded number of descriptors in the whole process.
//
//   closed --Open()--> open, in the process's list of open files, newest first --the list is full--> closed
//
// A caller that keeps the result of Open() keeps the descriptor open. So at most capacity() files are open, plus those in use.
//
// Thread-safe. Open() of a file that was deleted while it was closed is NotFound.

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
  // Creates the file and opens it for writing. Later Open() calls also open it for writing. AlreadyExists if it exists.
  static Result<std::shared_ptr<CachedFile>> Create(Env* env, const std::string& path, bool direct);
  // An existing file, for reading. Does not open it yet.
  static std::shared_ptr<CachedFile> ForReading(Env* env, const std::string& path, bool direct);
  // An existing file, for reading, which stays open as long as the object exists: it can be read after it was deleted. It is
  // not in the list, and not part of capacity().
  static Result<std::shared_ptr<CachedFile>> HeldOpen(Env* env, const std::string& path, bool direct);
  ~CachedFile();
  CachedFile(const CachedFile&) = delete;
  CachedFile& operator=(const CachedFile&) = delete;

  // The open file. Opens it if it is closed; errors are those of Env::OpenPositionedFile.
  Result<std::shared_ptr<PositionedFile>> Open();
  // Returns the length of the file that the path names now. NotFound if it names none. DataLoss if it names another file than
  // the open one: what is written to the open one is lost when it is closed.
  Result<uint64_t> CheckName() const;
  // Later Open() calls open the file for reading only.
  void SetReadOnly();
  const std::string& path() const { return path_; }

  // The methods of Env. If the process is out of descriptors, they close some cached files and try again.
  static Status SyncDir(Env* env, const std::string& path);
  static Result<std::vector<std::string>> ListDir(Env* env, const std::string& path);

  // The bound for the whole process. Default: 1,000, or a quarter of the process's limit of descriptors if that is less.
  static size_t capacity();
  static void SetCapacity(size_t files);  // REQUIRES: files > 0
  // The number of files in the list.
  static size_t open_files();

 private:
  struct Shared;
  CachedFile(Env* env, std::string path, bool direct, bool writable);
  static Shared* GetShared();
  // Runs `operation`. If it fails for lack of descriptors, closes half of the open files and runs it once more.
  template <typename Operation>
  static auto WithDescriptors(const Operation& operation);

  Env* const env_;
  const std::string path_;
  const bool direct_;
  std::shared_ptr<PositionedFile> held_;  // of HeldOpen; never changes
  // Guarded by the list's mutex.
  bool writable_;
  std::shared_ptr<PositionedFile> file_;
  std::list<CachedFile*>::iterator position_;
};

}  // namespace multitier

#endif  // CC_ENV_FILE_CACHE_H_
