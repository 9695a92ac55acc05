// SyncOnce: syncs a file that no process writes to any more, unless this process has synced it before. A save links many
// files that an earlier save also linked, and each sync waits for the device.
//
// It remembers files by device, inode, length and time of the last write. A file that was written since is another one.
//
// Thread-safe.

#ifndef CC_TENSORFLOW_CHECKPOINT_SYNC_ONCE_H_
#define CC_TENSORFLOW_CHECKPOINT_SYNC_ONCE_H_

#include <cstdint>
#include <string>

#include "cc/base/status.h"

namespace multitier {

// The size of the file. After OK, all its bytes survive a power loss. NotFound if there is none.
Result<int64_t> SyncOnce(const std::string& path);

}  // namespace multitier

#endif  // CC_TENSORFLOW_CHECKPOINT_SYNC_ONCE_H_
