// SharedTables: the tables of read-only variables, which all sessions of the process share.
//
// A key says which rows a table has: the checkpoint's path, the manifests of its parts (each names a part file of its own) and
// the options of the variable. Variables with equal keys get the same table: N sessions of one model hold its rows once. The
// registry does not keep a table alive. Each variable that was restored holds a reference, and so does each running operation;
// the last one to end deletes the table. Models of two versions have different keys and live side by side.
//
// Thread-safe: all methods.

#ifndef CC_TENSORFLOW_VARIABLE_SHARED_TABLES_H_
#define CC_TENSORFLOW_VARIABLE_SHARED_TABLES_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "cc/base/json.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {

class SharedTables {
 public:
  using Make = std::function<absl::Status(std::shared_ptr<VariableState>*)>;

  // The one of this process.
  static SharedTables& Global();

  // The state under `key`. If nothing holds one, calls `make`. Callers with the same key wait for one another, so that the rows
  // are read once; if `make` fails, the next of them calls its own. checkpoint: for List.
  absl::Status FindOrMake(const std::string& key, const std::string& checkpoint, const Make& make,
                          std::shared_ptr<VariableState>* state);

  // An array of objects: variable, checkpoint, rows, users.
  Json List();

 private:
  struct Entry {
    absl::Mutex making;  // held while make runs; locked before mutex_
    std::string checkpoint;
    std::weak_ptr<VariableState> state;  // guarded by mutex_ of SharedTables
  };

  absl::Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace multitier

#endif  // CC_TENSORFLOW_VARIABLE_SHARED_TABLES_H_
