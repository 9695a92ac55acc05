// Ops that inspect a table, remove keys, prefetch rows into the first tier, or wait for background work: each next to its
// kernel.

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/base/helpers.h"
#include "cc/base/status.h"
#include "cc/table/api/stats_json.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/ops/shape_functions.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {
namespace {

using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// Shape, and input 1 is a scalar.
template <absl::Status (*Shape)(InferenceContext*)>
absl::Status WithScalar(InferenceContext* c) {
  ShapeHandle unused;
  TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 0, &unused));
  return Shape(c);
}

// A kernel whose input 0 is the handle of an initialised variable.
class TableKernel : public OpKernel {
 public:
  explicit TableKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) final {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, Find(context, &state));
    OP_REQUIRES_OK(context, Run(context, state->table.get()));
  }

 protected:
  virtual absl::Status Find(OpKernelContext* context, std::shared_ptr<VariableState>* state) {
    return GetState(context, 0, state);
  }
  virtual absl::Status Run(OpKernelContext* context, EmbeddingTable* table) = 0;

  static absl::Status SetScalar(OpKernelContext* context, int64_t value) {
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &out));
    out->scalar<int64_t>()() = value;
    return absl::OkStatus();
  }
  static absl::Status SetVector(OpKernelContext* context, const std::vector<int64_t>& values) {
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tensorflow::TensorShape({static_cast<int64_t>(values.size())}), &out));
    std::copy(values.begin(), values.end(), out->flat<int64_t>().data());
    return absl::OkStatus();
  }
};

// A kernel that removes rows.
class RemovingKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;

 protected:
  absl::Status Find(OpKernelContext* context, std::shared_ptr<VariableState>* state) final {
    return GetStateToChange(context, 0, state);
  }
};

class CountKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override { return SetScalar(context, table->TotalCount()); }
};

REGISTER_OP("MultitierCount")
    .Input("handle: resource")
    .Output("count: int64")
    .SetIsStateful()
    .SetShapeFn(HandleToScalar)
    .Doc("Number of keys that have a row.");
MULTITIER_HOST_KERNEL("MultitierCount", CountKernel, "handle", "count");

// Kernels that return one value of the table for each key.
template <auto Method>
class PerKeyKernel;
template <typename T, Status (EmbeddingTable::*Method)(Span<const int64_t>, T*)>
class PerKeyKernel<Method> : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const KeyInput input(context->input(1));
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, context->input(1).shape(), &out));
    return ToAbsl((table->*Method)(input.keys(), out->flat<T>().data()));
  }
};

class RemoveKernel : public RemovingKernel {
 public:
  using RemovingKernel::RemovingKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const KeyInput input(context->input(1));
    int64_t removed = 0;
    TF_RETURN_IF_ERROR(ToAbsl(table->Remove(input.keys(), &removed)));
    return SetScalar(context, removed);
  }
};

REGISTER_OP("MultitierRemove")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Output("removed: int64")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .SetIsStateful()
    .SetShapeFn(HandleToScalar)
    .Doc("Removes keys, with their slots, frequency and version. Returns the number of them that had a row.");
MULTITIER_HOST_KERNEL("MultitierRemove", RemoveKernel, "handle", "keys", "removed");

class ExpireKernel : public RemovingKernel {
 public:
  using RemovingKernel::RemovingKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    TF_RETURN_IF_ERROR(CheckRank(context, "global_step", context->input(1), 0));
    int64_t expired = 0;
    TF_RETURN_IF_ERROR(ToAbsl(table->Expire(context->input(1).scalar<int64_t>()(), &expired)));
    return SetScalar(context, expired);
  }
};

REGISTER_OP("MultitierExpire")
    .Input("handle: resource")
    .Input("global_step: int64")
    .Output("expired: int64")
    .SetIsStateful()
    .SetShapeFn(WithScalar<HandleToScalar>)
    .Doc("Removes the rows that are expired at global_step by steps_to_live or l2_weight_threshold. Returns their number.");
MULTITIER_HOST_KERNEL("MultitierExpire", ExpireKernel, "handle", "global_step", "expired");

class SetScoreKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    TF_RETURN_IF_ERROR(CheckRank(context, "score", context->input(1), 0));
    const int64_t score = context->input(1).scalar<int64_t>()();
    bool decreased = false;
    TF_RETURN_IF_ERROR(ToAbsl(table->SetScore(score, &decreased)));
    if (decreased) {
      LOG(WARNING) << StrCat("embedding variable '", table->options().name, "': set_score(", score,
                             ") is less than the score before: rows that are updated now are colder than older ones");
    }
    return absl::OkStatus();
  }

 protected:
  absl::Status Find(OpKernelContext* context, std::shared_ptr<VariableState>* state) override {
    return GetTrainableState(context, 0, state);
  }
};

REGISTER_OP("MultitierSetScore")
    .Input("handle: resource")
    .Input("score: int64")
    .SetIsStateful()
    .SetShapeFn(WithScalar<HandleOnly>)
    .Doc(R"doc(
Sets the score that updates give to their rows from now on. The variable's score must be custom.

score: any number. The first time that it is less than the one before, a warning is logged.
)doc");
MULTITIER_HOST_KERNEL("MultitierSetScore", SetScoreKernel, "handle", "score");

class StatsKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &out));
    out->scalar<tensorflow::tstring>()() = StatsToJson(table);
    return absl::OkStatus();
  }
};

REGISTER_OP("MultitierStats")
    .Input("handle: resource")
    .Output("stats: string")
    .SetIsStateful()
    .SetShapeFn(HandleToScalar)
    .Doc("Statistics of the table and its tiers as a JSON object.");
MULTITIER_HOST_KERNEL("MultitierStats", StatsKernel, "handle", "stats");

class ReleasePrefetchedKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext*, EmbeddingTable* table) override {
    table->ReleasePrefetched();
    return absl::OkStatus();
  }
};

REGISTER_OP("MultitierReleasePrefetched")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(HandleOnly)
    .Doc("Releases all rows that MultitierPrefetch pinned.");
MULTITIER_HOST_KERNEL("MultitierReleasePrefetched", ReleasePrefetchedKernel, "handle");

class LastUpdateKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const UpdateCounts counts = table->LastUpdate();
    const int64_t outputs[] = {counts.refused, counts.dropped};
    for (int i = 0; i < 2; ++i) {
      Tensor* out = nullptr;
      TF_RETURN_IF_ERROR(context->allocate_output(i, {}, &out));
      out->scalar<int64_t>()() = outputs[i];
    }
    return absl::OkStatus();
  }
};

REGISTER_OP("MultitierLastUpdate")
    .Input("handle: resource")
    .Output("refused: int64")
    .Output("dropped: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(1, c->Scalar());
      return HandleToScalar(c);
    })
    .Doc(R"doc(
What became of the rows in the last update that ended.

refused: new keys that got no row (on_full, refuse_colder).
dropped: rows that left the table while it ran, to make room (drop_coldest).
)doc");
MULTITIER_HOST_KERNEL("MultitierLastUpdate", LastUpdateKernel, "handle", "refused", "dropped");

class PopDroppedKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override { return SetVector(context, table->PopDropped()); }
};

REGISTER_OP("MultitierPopDropped")
    .Input("handle: resource")
    .Output("keys: int64")
    .SetIsStateful()
    .SetShapeFn(HandleToVector)
    .Doc(
        "Keys that a full last tier has dropped, or that were damaged and dropped, since the last call, as many of the newest "
        "as "
        "dropped_bytes hold (see drop_coldest, on_corruption).");
MULTITIER_HOST_KERNEL("MultitierPopDropped", PopDroppedKernel, "handle", "keys");

class RemovedSinceKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    TF_RETURN_IF_ERROR(CheckRank(context, "version", context->input(1), 0));
    const Result<std::vector<int64_t>> keys = table->RemovedSince(context->input(1).scalar<int64_t>()());
    if (!keys.ok()) return ToAbsl(keys.status());
    return SetVector(context, *keys);
  }
};

REGISTER_OP("MultitierRemovedSince")
    .Input("handle: resource")
    .Input("version: int64")
    .Output("keys: int64")
    .SetIsStateful()
    .SetShapeFn(WithScalar<HandleToVector>)
    .Doc(R"doc(
Keys without a row that had one at this version of the variable or later, and those that left at the newest version before it:
removed, expired or dropped. Each once, sorted.

FailedPrecondition where removals of that version are not known: before the variable was cleared, restored or opened, or beyond
removed_bytes.
)doc");
MULTITIER_HOST_KERNEL("MultitierRemovedSince", RemovedSinceKernel, "handle", "version", "keys");

// A kernel that may wait for a long time. It runs on its own thread, or on the calling thread if no thread can be started.
class WaitingKernel : public AsyncOpKernel {
 public:
  explicit WaitingKernel(OpKernelConstruction* context) : AsyncOpKernel(context) {}

  void ComputeAsync(OpKernelContext* context, DoneCallback done) final {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK_ASYNC(context, Find(context, &state), done);
    const auto held = std::make_shared<std::shared_ptr<VariableState>>(std::move(state));
    const auto run = [this, context, held, done = std::move(done)] {
      const absl::Status status = Run(context, *held == nullptr ? nullptr : (*held)->table.get());
      held->reset();  // before `done`: a session that is closed next closes its tables
      OP_REQUIRES_OK_ASYNC(context, status, done);
      done();
    };
    if (!RunApart(run)) run();
  }

 protected:
  // The state to run on; null: the table that Run is given is null.
  virtual absl::Status Find(OpKernelContext* context, std::shared_ptr<VariableState>* state) {
    return GetState(context, 0, state);
  }
  virtual absl::Status Run(OpKernelContext* context, EmbeddingTable* table) = 0;
};

// Calls a method that gives a Status.
template <auto Method>
class CallKernel : public WaitingKernel {
 public:
  using WaitingKernel::WaitingKernel;
  absl::Status Run(OpKernelContext*, EmbeddingTable* table) override { return ToAbsl((table->*Method)()); }
};

class PrefetchKernel : public WaitingKernel {
 public:
  explicit PrefetchKernel(OpKernelConstruction* context) : WaitingKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("timeout_us", &timeout_us_));
    OP_REQUIRES_OK(context, context->GetAttr("best_effort", &best_effort_));
  }

  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const KeyInput input(context->input(1));
    Tensor* pinned = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &pinned));
    int64_t n = 0;
    const Status status = table == nullptr ? OkStatus() : table->Prefetch(input.keys(), static_cast<uint64_t>(timeout_us_), &n);
    pinned->scalar<int64_t>()() = n;
    return best_effort_ ? absl::OkStatus() : ToAbsl(status);
  }

 protected:
  absl::Status Find(OpKernelContext* context, std::shared_ptr<VariableState>* state) override {
    return best_effort_ ? FindState(context, 0, state) : GetState(context, 0, state);
  }

 private:
  int64_t timeout_us_ = 0;
  bool best_effort_ = false;
};

REGISTER_OP("MultitierPrefetch")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Output("pinned: int64")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .Attr("timeout_us: int >= 0 = 10000000")
    .Attr("best_effort: bool = false")
    .SetIsStateful()
    .SetShapeFn(HandleToScalar)
    .Doc(R"doc(
Moves the rows of keys into DRAM and pins them there until their next use.

A hint: it creates no key, pins at most a quarter of the DRAM budget, and leaves other rows in their tier.

keys: of any shape, repeats allowed.
pinned: the number of rows that this call pins and that were not pinned before.
timeout_us: an unused row is unpinned after this time; of several calls before its use, the latest end applies.
best_effort: if the prefetch fails or the variable is not initialised, the op pins no rows and returns no error.
)doc");
MULTITIER_HOST_KERNEL("MultitierPrefetch", PrefetchKernel, "handle", "keys", "pinned");

REGISTER_OP("MultitierDrain")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(HandleOnly)
    .Doc("Waits until the background work that is due now has finished. Fails with the error of that work if it failed.");
MULTITIER_HOST_KERNEL("MultitierDrain", CallKernel<&EmbeddingTable::Drain>, "handle");

REGISTER_OP("MultitierFlush")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(HandleOnly)
    .Doc("Writes the rows that are only in memory to the last tier and syncs it. The variable must keep its rows.");
MULTITIER_HOST_KERNEL("MultitierFlush", CallKernel<&EmbeddingTable::Flush>, "handle");

class ReserveKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    TF_RETURN_IF_ERROR(CheckRank(context, "rows", context->input(1), 0));
    const int64_t rows = context->input(1).scalar<int64_t>()();
    if (rows >= 0) return ToAbsl(table->Reserve(static_cast<uint64_t>(rows)));
    return absl::InvalidArgumentError(
        absl::StrCat("embedding variable '", table->options().name, "': reserve: rows: expected at least 0, found ", rows));
  }
};

REGISTER_OP("MultitierReserve")
    .Input("handle: resource")
    .Input("rows: int64")
    .SetIsStateful()
    .SetShapeFn(WithScalar<HandleOnly>)
    .Doc(R"doc(
Takes the memory of the index and of DRAM for this number of rows, at most for the rows that the tiers hold.

rows: in all, at least 0.
)doc");
MULTITIER_HOST_KERNEL("MultitierReserve", ReserveKernel, "handle", "rows");

REGISTER_OP("MultitierCompact")
    .Input("handle: resource")
    .SetIsStateful()
    .SetShapeFn(HandleOnly)
    .Doc("Frees the disk space of dead records in the files of the variable's tiers. This may take long.");
MULTITIER_HOST_KERNEL("MultitierCompact", CallKernel<&EmbeddingTable::Compact>, "handle");

REGISTER_OP("MultitierFrequency")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Output("frequencies: int64")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .SetIsStateful()
    .SetShapeFn(HandleAndKeysToKeysShape)
    .Doc("Number of occurrences of each key in training. For a key without a row: its count if a filter counts it, else 0.");
MULTITIER_HOST_KERNEL("MultitierFrequency", PerKeyKernel<&EmbeddingTable::Frequency>, "handle", "keys", "frequencies");

REGISTER_OP("MultitierScore")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Output("scores: int64")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .SetIsStateful()
    .SetShapeFn(HandleAndKeysToKeysShape)
    .Doc("Score of each key: its frequency if the variable's score is frequency, else its version; -1 or 0 without a row.");
MULTITIER_HOST_KERNEL("MultitierScore", PerKeyKernel<&EmbeddingTable::ScoreOf>, "handle", "keys", "scores");

REGISTER_OP("MultitierVersion")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Output("versions: int64")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .SetIsStateful()
    .SetShapeFn(HandleAndKeysToKeysShape)
    .Doc("Version that the last update of each key has set (see score); -1 for a key without a row.");
MULTITIER_HOST_KERNEL("MultitierVersion", PerKeyKernel<&EmbeddingTable::Version>, "handle", "keys", "versions");

REGISTER_OP("MultitierLookupTier")
    .Input("handle: resource")
    .Input("keys: Tkeys")
    .Output("tiers: int32")
    .Attr("Tkeys: {int64, int32} = DT_INT64")
    .SetIsStateful()
    .SetShapeFn(HandleAndKeysToKeysShape)
    .Doc("The tier that holds each key, 0 the fastest; -1 for a key without a row.");
MULTITIER_HOST_KERNEL("MultitierLookupTier", PerKeyKernel<&EmbeddingTable::LookupTier>, "handle", "keys", "tiers");

}  // namespace
}  // namespace multitier
