// Operations on tables in HBM whose keys, gradients and values are in device memory. The host is needed only for rows that are
// not in HBM.
//
//   LookupOnDevice     members -> values, plain or pooled                       serving
//   LookupOnDevice     members -> values, and a DevicePlan                      training
//   GradientOnDevice   plan, gradients of the values -> the sum of each distinct key's gradients
//   UpdateOnDevice     plan, such sums or gradients -> one optimizer step on the row of each distinct key
//   ApplyOnDevice      keys, gradients -> one optimizer step, without a plan
//   ClipOnDevice, EntryGradientsOnDevice    values -> clipped values; gradients of pooled or clipped values. Without a table
//
// A member is a lookup of one table: keys, where their values belong, and the output. One call has many members, of tables with
// any dims; a table may occur in several members. Values, rows, frequencies and versions are those of the operations with host
// memory (HbmTable, cc/group_lookup), bit for bit.
//
// Order. `stream` is the caller's (Device::Wrap). An operation reads and writes the caller's memory after the work that the
// caller enqueued on the stream before the call. Work that the caller enqueues after `done` was called runs after the
// operation, on the device. So the caller may free or reuse memory in the order of its stream, as TensorFlow does. An operation
// that begins after the `done` of another one sees the changes of that one, whatever their streams are.
//
// No call waits for the device. If it is known that no row misses (UpdateOnDevice with the plan of a training lookup), the call
// enqueues the work and calls `done` before it returns. Else a thread of the engine (workers.h) waits for the number of misses,
// brings the missed rows up, and calls `done`. `done` is called exactly once, from any thread. If it gets an error, the
// contents of outputs are arbitrary.
//
// Everything that the arguments point to, other than device memory, is read before the call returns. A plan and the tables must
// live until `done`. Errors: InvalidArgument with the member's name if sizes differ, or if rows are out of order or range;
// otherwise those of HbmTable.
//
// Thread-safe. A plan is used by one operation at a time.

#ifndef CC_HBM_DEVICE_OPERATIONS_H_
#define CC_HBM_DEVICE_OPERATIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/device/device.h"
#include "cc/device/kernels/kernels.h"
#include "cc/table/api/embedding_table.h"

namespace multitier::hbm {

class HbmTable;

using Done = std::function<void(Status)>;

// The table as one in HBM. Null if its storage type has no HBM.
HbmTable* HbmTableOf(EmbeddingTable* table);
device::Device& DeviceOf(const HbmTable& table);

// Keys in device memory.
struct DeviceKeys {
  const void* data = nullptr;  // [n] int64, or int32
  int64_t n = 0;
  bool is_int32 = false;
};

// Which row of the output an entry belongs to. An entry is a key and its weight.
enum class EntryForm {
  kDense,   // entry i is row i; not pooled. batch = the number of keys
  kRows,    // indices [entries]: the row of each, nondecreasing
  kSparse,  // indices [entries, 2]: (row, column) in row-major order. The column is the step of a sequence, else not used
  kRagged,  // splits [batch + 1]: row r has the entries [splits[r], splits[r + 1])
};

// Device memory: keys, indices, weights, out.
struct DeviceMember {
  HbmTable* table = nullptr;
  std::string name;  // for error messages: "member 3 ('user')"
  DeviceKeys keys;
  std::vector<uint16_t> tables;  // [n] in host memory, or empty: see EmbeddingTable::Lookup
  EntryForm form = EntryForm::kDense;
  const int64_t* indices = nullptr;  // by form; kRagged: the splits
  const float* weights = nullptr;    // [entries], or null: all are 1
  int64_t batch = 0;                 // rows of the output
  // kSparse, kRagged: a sequence is not pooled. Entry (r, step) is row r * steps + step of the output; zeros elsewhere.
  bool sequence = false;  // true where steps > 0, given or not. So only sequences without a step must say so
  int64_t steps = 0;
  device::PoolCombiner combiner = device::PoolCombiner::kSum;
  float max_norm = -1.0f;               // not negative: values are clipped to this norm before pooling
  float* out = nullptr;                 // [batch, dim], or [batch, steps, dim]
  int64_t stride = 0;                   // floats from one row of out to the next; 0: dim
  ReadFor reason = ReadFor::kTraining;  // what an absent key reads: see absent_values.h

  bool is_sequence() const { return sequence || steps > 0; }
};

// What a training lookup keeps for the gradient and the update: the distinct keys of each member and where their rows are.
// Until it is destroyed or filled again, these rows stay in HBM; so drop it as soon as the update was called, or if there is
// none. Its pointers are device memory, written before the `done` of the lookup in the sense of "Order".
class DevicePlan {
 public:
  DevicePlan();
  ~DevicePlan();
  DevicePlan(DevicePlan&&) noexcept;
  DevicePlan& operator=(DevicePlan&&) noexcept;

  int num_members() const;
  HbmTable* table(int member) const;
  // The rows of the member's output; each step of a sequence counts as a row.
  int64_t rows(int member) const;
  int64_t entries(int member) const;
  // The number of distinct keys.
  int64_t distinct(int member) const;

  struct State;  // of device_operations.cc
  State* state() const { return state_.get(); }

 private:
  std::unique_ptr<State> state_;
};

// plan: null for serving; nothing is created. Else the plan is filled; a key without a row counts as absent until an update. In
// both cases an absent key reads what the member's reason says.
void LookupOnDevice(Span<const DeviceMember> members, DevicePlan* plan, device::Stream stream, Done done);

// Device memory. Null pointers: not wanted.
struct DeviceGradient {
  int member = 0;                 // of the plan
  const float* grad = nullptr;    // in [rows, dim]: the gradient of the member's output; null: only keys and counts are wanted
  int64_t stride = 0;             // floats from one row of grad to the next; 0: dim
  float* sums = nullptr;          // out [distinct, dim]
  int64_t* keys = nullptr;        // out [distinct], in the order of their first occurrence
  int64_t* counts = nullptr;      // out [distinct]: occurrences
  float* weight_grads = nullptr;  // out [entries]: the gradient of each weight; REQUIRES: the member has weights
};

// Only enqueues. A member with max_norm: the gradient passes through the clipping.
Status GradientOnDevice(const DevicePlan& plan, Span<const DeviceGradient> gradients, device::Stream stream);

struct DeviceUpdate {
  int member = 0;               // of the plan
  const float* sums = nullptr;  // [distinct, dim] of the plan's keys; or
  const float* grad = nullptr;  // [rows, dim] of the member's output, as in DeviceGradient
  int64_t stride = 0;           // of grad
  ApplyRequest request;         // rule, slot_columns, hyper and global_step; nothing else is read
};

// Each table is updated completely or not at all. If one fails, the others are still updated, and the first error is given.
// The updates of a table that occurs more than once run one after the other.
void UpdateOnDevice(const DevicePlan& plan, Span<const DeviceUpdate> updates, device::Stream stream, Done done);

struct DeviceApply {
  HbmTable* table = nullptr;
  DeviceKeys keys;                    // repeats are allowed
  const float* grads = nullptr;       // [n, dim]
  const int64_t* counts = nullptr;    // [n] occurrences of each entry, not negative; null: one each
  ApplyRequest request;               // as in DeviceUpdate
  std::vector<uint16_t> tables = {};  // [n] in host memory, or empty: see ApplyRequest
};

// Values that are given, not looked up: entry i has the value values[i].
struct DeviceValues {
  HbmTable* table = nullptr;      // whose device does the work; only its dim is read
  std::string name;               // for error messages, as in DeviceMember
  const float* values = nullptr;  // [entries, dim]; null: EntryGradientsOnDevice without max_norm and weight_grads
  int64_t entries = 0;
  float max_norm = -1.0f;            // not negative: values are clipped to this norm
  const int64_t* indices = nullptr;  // [entries] nondecreasing: the row of each entry; null: entry i is row i
  const float* weights = nullptr;    // [entries], or null: all are 1
  int64_t batch = 0;                 // rows; entries, if indices is null
  device::PoolCombiner combiner = device::PoolCombiner::kSum;
};

// out: [entries, dim]: the clipped values. REQUIRES: a max_norm; neither indices nor weights
void ClipOnDevice(const DeviceValues& values, float* out, device::Stream stream, Done done);

// The gradients of the pooled values, with respect to the value of each entry before clipping, and to its weight.
// grad: [batch, dim]. entry_grads: out [entries, dim]. weight_grads: out [entries], or null; REQUIRES: weights
void EntryGradientsOnDevice(const DeviceValues& values, const float* grad, float* entry_grads, float* weight_grads,
                            device::Stream stream, Done done);

// As UpdateOnDevice.
void ApplyOnDevice(Span<const DeviceApply> applies, device::Stream stream, Done done);

}  // namespace multitier::hbm

#endif  // CC_HBM_DEVICE_OPERATIONS_H_
