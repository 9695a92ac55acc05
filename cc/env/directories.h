// Directories of the file system: what a path is, what a directory contains, its removal. InstanceDirectory and InstanceLock
// use them; files of the tiers go through Env (env.h).
//
// Thread-safe: functions without state. Errors name the path.

#ifndef CC_ENV_DIRECTORIES_H_
#define CC_ENV_DIRECTORIES_H_

#include <functional>
#include <string>
#include <vector>

#include "cc/base/status.h"

namespace multitier {

bool IsDirectory(const std::string& path);
// Whether the path names anything. A symbolic link exists, even if its target does not.
bool PathExists(const std::string& path);
// The absolute path: the process may change its working directory later.
Result<std::string> AbsolutePath(const std::string& path);
// Names in the directory, without "." and "..", in no order.
Result<std::vector<std::string>> ListNames(const std::string& path);
// Makes new and deleted names in the directory survive a power loss.
Status SyncDirectory(const std::string& path);
// Removes the contents of a directory, except the names for which `keeps` returns true.
Status RemoveContents(const std::string& path, const std::function<bool(const std::string&)>& keeps);
// Removes a directory and everything in it. OK if it does not exist. Symbolic links are removed, not followed.
Status RemoveDirectoryTree(const std::string& path);

}  // namespace multitier

#endif  // CC_ENV_DIRECTORIES_H_
