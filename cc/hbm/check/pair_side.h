// PairSide: one of the two sides of the pair check (pair_check.h): tables on a device, and the launches of a batch.
//
// A batch has a member for each of kMemberForms, with a table of its own. Each step launches one function of DeviceKernels, and
// copies down everything that the launch defines. What no launch has written is not copied down.

#ifndef CC_HBM_CHECK_PAIR_SIDE_H_
#define CC_HBM_CHECK_PAIR_SIDE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cc/base/span.h"
#include "cc/device/kernels/test_memory.h"
#include "cc/hbm/check/pair_check.h"
#include "cc/hbm/device_table.h"

namespace multitier::hbm {

// Of a member: its entries, its output and its table.
struct MemberForm {
  const char* name;
  bool pooled;
  uint32_t columns;  // of indices; 0: none
  bool splits;       // indices are row splits
  uint32_t steps;    // of a sequence; 0: none
  bool weighted;
  device::PoolCombiner combiner;
  float max_norm;
  bool int32_keys;
  device::RankBy rank_by;     // of its table
  bool absent, out_of_order;  // keys without rows; indices out of order: then there are no values
  DType value_dtype;          // of its table
};
extern const Span<const MemberForm> kMemberForms;

// What both sides get.
struct PairBatch {
  struct Member {
    std::vector<int64_t> keys, indices;
    std::vector<float> weights;  // [entries] or empty
    std::vector<float> grads;    // [num_rows, stride]
    uint32_t batch = 0, num_rows = 0, dim = 0, stride = 0;
  };
  std::vector<Member> members;
  std::vector<int64_t> keys;                  // of all members
  std::vector<uint32_t> ends;                 // of the keys of each
  std::vector<float> grads;                   // [keys, the smallest dim]
  static constexpr uint32_t kOperations = 4;  // from one batch to the next
  uint32_t number = 0, operation = 0, smallest_dim = 0;
  device::DeviceRule rule{};

  uint32_t n() const { return static_cast<uint32_t>(keys.size()); }
};

// Bytes of named arrays, in the order in which they came down.
using PairArrays = std::vector<std::pair<std::string, std::vector<uint8_t>>>;

class PairSide {
 public:
  PairSide(std::shared_ptr<device::Device> device, const PairCheckOptions& options);
  ~PairSide();

  struct Step {
    const char* launch;  // the function of DeviceKernels
    Status (PairSide::*run)();
  };
  static Span<const Step> Steps();

  Status Make();
  void Begin(const PairBatch* batch);
  // out: what came down in this step.
  Status Run(const Step& step, PairArrays* out);
  Status End();

 private:
  // --- pair_side.cc: of all tables together
  Status Reset();
  Status Widen();
  Status Pieces();
  Status Dedup();
  Status Find();
  Status Compact();
  Status Stage();
  Status Chain();
  Status Place();
  Status Reclaim();
  Status Exchange();
  Status Bear();
  Status Gather();
  Status Sum();
  Status Update();
  // --- pair_members.cc: of the members of a group
  Status Localize();
  Status EntryRows();
  Status Scales();
  Status Values();
  Status Begins();
  Status Gradients();
  Status Corrections();
  Status UpdateMembers();
  // --- pair_leaving.cc
  Status Pin();
  Status SweepPins();
  Status ListDirty();
  Status TakeListed();
  Status Mark();
  Status TakeOut();
  Status Forget();
  Status CountForgotten();
  Status MoveIndex();
  Status MoveRows();
  Status Renumber();

  struct Member {
    device::OutputMember output{};
    device::GradientMember gradient{};
    device::MemberCounts counts{};
    uint32_t first_entry = 0;
    bool has_values = false;
  };
  // Of one batch.
  struct Work {
    Work(std::shared_ptr<device::Device> device, device::Stream stream) : memory(std::move(device), stream) {}
    device::TestMemory memory;
    device::DedupArgs dedup{}, group_dedup{};
    device::FindArgs find{}, group_find{};
    device::CompactArgs missed{}, to_place{}, to_take{}, to_forget{};
    device::InsertArgs insert{};
    device::ExchangeArgs exchange{};
    device::SumArgs sum{};
    device::ForgetArgs forget{};
    device::MoveArgs move{};
    std::unique_ptr<DeviceTable> other;
    uint32_t distinct = 0, misses = 0, placed = 0, dirty = 0, taken = 0, forgotten = 0;
    std::vector<uint32_t> tables;       // [distinct] of each key
    std::vector<int64_t> missed_keys;   // [misses]
    std::vector<uint32_t> missed_list;  // [misses]
    std::vector<Member> members;
    Member given;                   // its entries have values of their own
    uint32_t* first_bad = nullptr;  // [members], and of `given`
    uint32_t* begins = nullptr;
  };

  device::TestMemory& memory() { return work_->memory; }
  uint64_t* Scan(uint32_t n) { return memory().Filled<uint64_t>(device::ScanScratch::Words(n), 0); }
  device::CompactArgs CompactOf(const uint32_t* marked, const uint32_t* num_keys, uint32_t max_keys);
  // Copies n elements down, and keeps them for the comparison.
  template <typename T>
  std::vector<T> Read(const char* name, const T* from, size_t n);
  template <typename T>
  void Keep(const char* name, const std::vector<T>& values);
  // Reads a number that must be at most `most`.
  Status ReadCount(const char* name, const uint32_t* from, uint32_t most, uint32_t* count);
  void ReadArrays(const DeviceTable& table);
  // Its arrays, and its rows that are used.
  void ReadTable(const DeviceTable& table);
  void ReadTables();
  std::vector<device::StagedMember> StageMembers(bool apart, std::vector<uint8_t>* rows) const;
  Result<const uint64_t*> Sorted(const device::DedupArgs& dedup);
  device::UpdateArgs UpdateOf(size_t table, uint32_t dim, uint32_t max_keys);
  // Tables take turns from batch to batch.
  const DeviceTable& of_turn(uint32_t ahead) const { return *tables_[(batch_->number + ahead) % tables_.size()]; }

  template <typename Args, typename M>
  Args LaunchOf(const std::vector<M>& members, uint64_t (*items)(const M&));
  device::OutputArgs OutputsOf(uint64_t (*items)(const device::OutputMember&));
  device::GradientArgs GradientsOf(uint64_t (*items)(const device::GradientMember&), bool given);
  void Describe(size_t m);
  void DescribeGiven();
  void DescribeGradient(size_t m);
  void ReadGradients();

  const std::shared_ptr<device::Device> device_;
  const device::DeviceKernels& kernels_;
  const PairCheckOptions options_;
  device::Stream stream_;
  std::vector<std::unique_ptr<DeviceTable>> tables_;
  uint32_t stride_ = 0;  // the largest of a row
  const PairBatch* batch_ = nullptr;
  std::unique_ptr<Work> work_;
  PairArrays* out_ = nullptr;
};

template <typename T>
void PairSide::Keep(const char* name, const std::vector<T>& values) {
  const auto* const bytes = reinterpret_cast<const uint8_t*>(values.data());
  out_->emplace_back(name, std::vector<uint8_t>(bytes, bytes + values.size() * sizeof(T)));
}

template <typename T>
std::vector<T> PairSide::Read(const char* name, const T* from, size_t n) {
  std::vector<T> values = memory().Down(from, n);
  Keep(name, values);
  return values;
}

}  // namespace multitier::hbm

#endif  // CC_HBM_CHECK_PAIR_SIDE_H_
