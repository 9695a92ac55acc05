// MemberOutput: what one member of an operation with device memory does with the rows of its distinct keys.
//
//   Prepare      memory, and the row of each entry        before the keys are looked for
//   Check        whether these rows are in range           once the numbers have come down
//   Enqueue      the values, plain or pooled
//   EnqueueSums  for a training lookup: the gradients of the values, summed by distinct key
//
// Thread-compatible.

#ifndef CC_HBM_MEMBER_OUTPUT_H_
#define CC_HBM_MEMBER_OUTPUT_H_

#include <cstdint>
#include <memory>

#include "cc/hbm/operation.h"

namespace multitier::hbm {

class MemberOutput : public HbmTable::Output {
 public:
  explicit MemberOutput(const DeviceMember& member) : m_(member) {}

  // What can be said without the device.
  Status Validate() const;
  HbmTable* table() const { return m_.table; }
  const DeviceKeys& keys() const { return m_.keys; }
  // Rows of the output; each step of a sequence is one.
  int64_t rows() const { return m_.batch * (m_.steps > 0 ? m_.steps : 1); }

  Status Prepare(HbmTable::Operation* op) override;
  Status Check(const HbmTable::Operation& op) const override;
  Status Enqueue(const HbmTable::Operation& op) override;
  // The rows of a slice of a group are known after Prepare.
  void RowsAre(const HbmTable::Operation& op) { pool_.rows = gather_.rows = op.find.rows; }
  // A member without keys: its rows are zeros.
  Status EnqueueZeros(HbmTable::Operation* op);

  // out: [entries] the gradient of each weight. REQUIRES: the member has weights
  Status EnqueueWeightsGradient(const float* grad, int64_t stride, float* out);
  bool weighted() const { return m_.weights != nullptr; }
  // grad: [rows, dim], stride floats apart. sums: out [distinct, dim]. occurrences: out [distinct]. The memory of the operation
  // is taken for it.
  Status EnqueueSums(HbmTable::Operation* op, const float* grad, int64_t stride, float* sums, uint64_t* occurrences);

 private:
  bool pooled() const { return m_.form != EntryForm::kDense || m_.max_norm >= 0; }
  device::Device* device() const { return m_.table->device(); }
  uint32_t dim() const { return static_cast<uint32_t>(m_.table->dim()); }
  Status PrepareRows(HbmTable::Operation* op);

  const DeviceMember m_;
  device::PoolArgs pool_{};
  device::GatherArgs gather_{};
  float* unclipped_ = nullptr;        // [keys, dim] of distinct keys, as they were looked up; with max_norm or weights
  const uint64_t* sorted_ = nullptr;  // entries by distinct key
};

}  // namespace multitier::hbm

#endif  // CC_HBM_MEMBER_OUTPUT_H_
