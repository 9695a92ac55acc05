// Kept rows that a read-only variable uses where they are: any number of processes, one copy on the disk.
//
//   1. find    the kept directory in force. No process may hold it, and it must be closed: only then do its files have all rows
//              of one moment. A trainer that runs, or that was killed, has rows in memory that its files have in an older state
//   2. open    the files, all of them, which stay open. No lock is taken, and nothing is written
//   3. check   that instance.variable is what it was in step 1. If so, no process has changed a file in between: one that takes
//              the rows over writes `open` there before it deletes or writes a segment
//
// Afterwards a trainer may take the rows over. A reader goes on with those that it opened, until it is opened again. The disk
// has the files that the trainer deletes as long as a reader has them open.
//
// Variables of one process with equal options share the table (shared_tables.h).

#ifndef CC_TENSORFLOW_VARIABLE_KEPT_READER_H_
#define CC_TENSORFLOW_VARIABLE_KEPT_READER_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {

// manifest: that of the part of a checkpoint which the rows must be; none: whatever they are. FailedPrecondition if there are
// no kept rows, if they are in use, not closed, of another variable, or of another checkpoint. DataLoss if files are missing or
// damaged. The directory does not change.
absl::Status OpenInPlace(const VariableOptions& options, const std::string& name, const std::optional<std::string>& manifest,
                         std::shared_ptr<VariableState>* state);

}  // namespace multitier

#endif  // CC_TENSORFLOW_VARIABLE_KEPT_READER_H_
