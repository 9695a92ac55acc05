// MemberOutput: what one member of an operation with device memory does with the rows of its distinct keys.
//
//   Describe   memory, and what the kernels must know       before the keys are looked for
//   Check      whether the rows of the entries are in range  once the numbers have come down
//
// OutputGroup: the launches for several members, one for each step.
//
//   EnqueueRows     the row of each entry    before the keys are looked for
//   EnqueueScales   what values are divided by, behind find
//   EnqueueValues   scales, and the values: plain or pooled
//
// Thread-compatible.

#ifndef CC_HBM_MEMBER_OUTPUT_H_
#define CC_HBM_MEMBER_OUTPUT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "cc/hbm/operation.h"
#include "cc/hbm/upload.h"

namespace multitier::hbm {

class MemberOutput {
 public:
  // What find knows of the member's keys, on the device: see OutputMember.
  struct Keys {
    uint8_t* const* rows;
    const uint32_t* first;
    const uint32_t* num_keys;
    const uint32_t* misses;
    const uint32_t* inverse;
    uint32_t* first_bad;
    uint32_t n;
    const float* values = nullptr;  // [n, dim]: the value of each entry; then all others but first_bad and n are null
  };

  explicit MemberOutput(const DeviceMember& member) : m_(member) {}

  // What can be said without the device.
  Status Validate() const;
  HbmTable* table() const { return m_.table; }
  const DeviceKeys& keys() const { return m_.keys; }
  const std::vector<uint16_t>& tables() const { return m_.tables; }
  ReadFor reason() const { return m_.reason; }
  bool weighted() const { return m_.weights != nullptr; }
  // Rows of the output; each step of a sequence is one.
  int64_t rows() const { return m_.batch * (m_.is_sequence() ? m_.steps : 1); }

  // training: the values may get a gradient.
  Status Describe(const Keys& keys, bool training, Scratch* scratch);
  const device::OutputMember& described() const { return described_; }
  Status Check(uint32_t first_bad) const;

 private:
  uint32_t dim() const { return static_cast<uint32_t>(m_.table->dim()); }

  const DeviceMember m_;
  device::OutputMember described_{};
};

class OutputGroup {
 public:
  static size_t Room(size_t members);
  // Adds what the members have described. brought_up: each key has a row by now, whatever was missed before. REQUIRES: at least
  // one member
  Status Describe(const std::vector<const MemberOutput*>& members, bool brought_up, Upload* upload);
  Status EnqueueRows() const;
  Status EnqueueScales() const;
  Status EnqueueValues() const;

 private:
  device::Stream stream_;
  const device::DeviceKernels* kernels_ = nullptr;
  device::OutputArgs rows_{}, scales_{}, values_{}, half_values_{};
};

// One member alone.
class SoleOutput : public HbmTable::Output {
 public:
  explicit SoleOutput(MemberOutput* member) : member_(member) {}
  Status Take(HbmTable::Operation* op) override;
  Status Prepare(HbmTable::Operation* op) override;
  Status Check(const HbmTable::Operation& op) const override { return member_->Check(op.counted->first_bad); }
  Status Enqueue(const HbmTable::Operation&) override { return group_.EnqueueValues(); }

 private:
  MemberOutput* const member_;
  OutputGroup group_;
  std::optional<Upload> upload_;
};

}  // namespace multitier::hbm

#endif  // CC_HBM_MEMBER_OUTPUT_H_
