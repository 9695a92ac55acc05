// Exchange: a grouped lookup whose rows are elsewhere. Each *home* of rows (a server, or a process) is asked once for all of
// them.
//
//   asker                                          home
//   RouteGroup: plan, split by home -- request --> ServeLookup: one LookupGroup for all askers
//   PoolGroup <----------------------- rows -----
//   GradientForHomes: a key's sum ---- sums -----> GradientsOfParts --> GradientOfGroup, UpdateGroup on ServeLookup's plan
//
// A distinct key crosses once each way: its id, its occurrences, the number of its table, its row, the sum of its gradients.
// The asker plans, clips and pools as LookupGroup does, and sums as GradientOfGroup. So one home, many homes and LookupGroup
// give the same bits, as long as rows cross as float32. Over several askers a key's gradient is the sum of their sums, in their
// order; of a part that is pooled at home, the sum of all occurrences, in the order of askers. Its table is that of the first
// asker, and there of the first occurrence.
//
// Parts are the units of the group, in its order; a home has some of them. A part may be pooled at home, where fewer bytes then
// cross: a row of a batch in place of the rows of its keys. It has one part, no weights and no max_norm.
//
// Thread-safe: plain functions. A plan is immutable between RouteGroup and PoolGroup and from then on.

#ifndef CC_GROUP_LOOKUP_EXCHANGE_H_
#define CC_GROUP_LOOKUP_EXCHANGE_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "cc/base/executor.h"
#include "cc/base/span.h"
#include "cc/base/status.h"
#include "cc/group_lookup/exchange_request.h"
#include "cc/group_lookup/group_lookup.h"
#include "cc/row/row_layout.h"

namespace multitier {

// Rows or gradients that cross: for each home, or each asker, elements of a type.
template <typename Byte>
struct Wire {
  DType dtype = DType::kFloat32;
  std::vector<Byte*> data;
};
using WireIn = Wire<const uint8_t>;
using WireOut = Wire<uint8_t>;

// What an asker keeps from its request to its gradient.
class ExchangePlan {
 public:
  int num_homes() const { return static_cast<int>(homes_.size()); }
  int64_t words(int home) const { return homes_[static_cast<size_t>(home)].words; }        // of its request
  int64_t elements(int home) const { return homes_[static_cast<size_t>(home)].elements; }  // of its rows and its sums
  // The members' numbers of rows and of entries.
  const GroupPlan& group() const { return group_; }
  bool pooled() const { return state_.load() == kPooled; }

 private:
  friend class Exchange;

  enum State { kRouted, kPooling, kPooled };
  struct Part {
    int home = 0;
    RequestShape shape;
    int64_t first_element = 0;  // in its home's rows
  };
  struct Home {
    std::vector<int> parts;
    int64_t words = 0, elements = 0;
  };

  GroupPlan group_;
  std::vector<Part> parts_;  // by unit
  std::vector<Home> homes_;
  std::atomic<State> state_{kRouted};
};

// Plans the requests. members: as in LookupGroup, each unit empty, with hash routing; `out` is not used. homes: [units] of
// `num_homes`. wire: the type of rows. InvalidArgument: see LookupGroup; or a message of 2 GiB.
Status RouteGroup(Span<const GroupMember> members, Span<const int> homes, int num_homes, DType wire, ExchangePlan* plan,
                  Executor* executor = nullptr);
// requests: [homes] -> [words]
void WriteRequests(const ExchangePlan& plan, Span<int64_t* const> requests, Executor* executor = nullptr);

struct PooledValues {
  float* out = nullptr;  // [batch, steps, dim]
  int64_t stride = 0;    // row stride of `out`, in elements
};

// The values of each member. rows: [homes] -> [elements]. Internal: the plan was pooled before.
Status PoolGroup(const WireIn& rows, Span<const PooledValues> values, ExchangePlan* plan, Executor* executor = nullptr);

// What goes back. Of `gradients`, sums and entries_gradients are not used. sums: [homes] -> [elements], with zeros for members
// without a gradient. REQUIRES: plan.pooled()
Status GradientForHomes(const ExchangePlan& plan, const GroupGradients& gradients, const WireOut& sums,
                        Executor* executor = nullptr);

// A part at its home.
struct ServedPart {
  std::string name;  // for messages
  EmbeddingTable* table = nullptr;
};

// Answers the requests of all askers. plan (may be null): of a group whose members are the parts; counts are the occurrences of
// all askers. rows: [askers] -> [elements]. REQUIRES: CheckRequests is OK
Status ServeLookup(Span<const ServedPart> parts, Span<const Request> requests, ReadFor reason, GroupPlan* plan,
                   const WireOut& rows, Executor* executor = nullptr);

// The rows of the gradient of a part in ServeLookup's plan.
int64_t RowsOfPart(Span<const Request> requests, size_t part);
// gradients: [parts] -> [RowsOfPart, dim], from the askers' sums. REQUIRES: CheckRequests is OK
void GradientsOfParts(Span<const Request> requests, const WireIn& sums, Span<float* const> gradients,
                      Executor* executor = nullptr);

}  // namespace multitier

#endif  // CC_GROUP_LOOKUP_EXCHANGE_H_
