// LayerOver: a table that does not change, and above it a layer with what changed since.
//
//   key --- in the layer? --- yes: its row there; a removed key reads as an absent one
//                        \--- no: the table below
//
// A model that serves takes a delta this way (tensorflow/checkpoint/restore_kernel.cc): all versions that continue one base
// share the base, and each has a layer of its own. Time and memory are proportional to what changed. The rows of the layer are
// in DRAM.
//
// Import and Remove fill the layer. REQUIRES: no other operation runs at the same time as these two. All other methods are
// thread-safe. Whatever else would change rows is refused with FailedPrecondition.

#ifndef CC_CHECKPOINT_FILES_LAYERED_TABLE_H_
#define CC_CHECKPOINT_FILES_LAYERED_TABLE_H_

#include <memory>

#include "cc/base/status.h"
#include "cc/table/api/embedding_table.h"

namespace multitier {

// A table that reads as `below`, which must not change any more, until its layer has rows. It has the value column alone.
Result<std::unique_ptr<EmbeddingTable>> LayerOver(std::shared_ptr<EmbeddingTable> below);

}  // namespace multitier

#endif  // CC_CHECKPOINT_FILES_LAYERED_TABLE_H_
