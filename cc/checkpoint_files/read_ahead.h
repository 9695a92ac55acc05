// ReadAhead: gives the rows of a part file to a visitor, while another thread reads the blocks that follow.
//
//   another thread   Next into an empty block  ->  filled, in order  ->  the caller: visit, and the block is empty again
//
// At most kBlocksAhead blocks are in memory. Where no thread can be started, or the file is small, the caller reads the blocks
// itself.

#ifndef CC_CHECKPOINT_FILES_READ_AHEAD_H_
#define CC_CHECKPOINT_FILES_READ_AHEAD_H_

#include <functional>

#include "cc/base/status.h"
#include "cc/checkpoint_files/part_file.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {

constexpr size_t kBlocksAhead = 3;

// Calls visit, on the calling thread, with what file->Next gives until file->ended(). The first error of either ends it. Errors
// come in the order of the file: visit gets every block before the one that cannot be read.
Status ReadAhead(PartFileReader* file, const std::function<Status(Rows*)>& visit);

}  // namespace multitier

#endif  // CC_CHECKPOINT_FILES_READ_AHEAD_H_
