// Kernels that inspect a table, remove keys, prefetch rows into the first tier, or wait for background work.

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/base/helpers.h"
#include "cc/table/api/stats_json.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/platform/logging.h"

namespace multitier {
namespace {

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

// Kernels that return one value of the table for each key.
template <typename T, Status (EmbeddingTable::*Method)(Span<const int64_t>, T*)>
class PerKeyKernel : public TableKernel {
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

class SetScoreKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    TF_RETURN_IF_ERROR(CheckRank(context, "score", context->input(1), 0));
    const int64_t score = context->input(1).scalar<int64_t>()();
    bool decreased = false;
    TF_RETURN_IF_ERROR(ToAbsl(table->SetScore(score, &decreased)));
    if (decreased) {
      LOG(WARNING) << "embedding variable '" << table->options().name << "': set_score(" << score
                   << ") is less than the score before: rows that are updated now are colder than older ones";
    }
    return absl::OkStatus();
  }

 protected:
  absl::Status Find(OpKernelContext* context, std::shared_ptr<VariableState>* state) override {
    return GetTrainableState(context, 0, state);
  }
};

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

class ReleasePrefetchedKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext*, EmbeddingTable* table) override {
    table->ReleasePrefetched();
    return absl::OkStatus();
  }
};

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

class PopDroppedKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    const std::vector<int64_t> keys = table->PopDropped();
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tensorflow::TensorShape({static_cast<int64_t>(keys.size())}), &out));
    std::copy(keys.begin(), keys.end(), out->flat<int64_t>().data());
    return absl::OkStatus();
  }
};

class RemovedSinceKernel : public TableKernel {
 public:
  using TableKernel::TableKernel;
  absl::Status Run(OpKernelContext* context, EmbeddingTable* table) override {
    TF_RETURN_IF_ERROR(CheckRank(context, "version", context->input(1), 0));
    const Result<std::vector<int64_t>> keys = table->RemovedSince(context->input(1).scalar<int64_t>()());
    if (!keys.ok()) return ToAbsl(keys.status());
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(context->allocate_output(0, tensorflow::TensorShape({static_cast<int64_t>(keys->size())}), &out));
    std::copy(keys->begin(), keys->end(), out->flat<int64_t>().data());
    return absl::OkStatus();
  }
};

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

class DrainKernel : public WaitingKernel {
 public:
  using WaitingKernel::WaitingKernel;
  absl::Status Run(OpKernelContext*, EmbeddingTable* table) override { return ToAbsl(table->Drain()); }
};

class FlushKernel : public WaitingKernel {
 public:
  using WaitingKernel::WaitingKernel;
  absl::Status Run(OpKernelContext*, EmbeddingTable* table) override { return ToAbsl(table->Flush()); }
};

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

class CompactKernel : public WaitingKernel {
 public:
  using WaitingKernel::WaitingKernel;
  absl::Status Run(OpKernelContext*, EmbeddingTable* table) override { return ToAbsl(table->Compact()); }
};

using FrequencyKernel = PerKeyKernel<int64_t, &EmbeddingTable::Frequency>;
using ScoreKernel = PerKeyKernel<int64_t, &EmbeddingTable::ScoreOf>;
using VersionKernel = PerKeyKernel<int64_t, &EmbeddingTable::Version>;
using LookupTierKernel = PerKeyKernel<int32_t, &EmbeddingTable::LookupTier>;

MULTITIER_HOST_KERNEL("MultitierCount", CountKernel, "handle", "count");
MULTITIER_HOST_KERNEL("MultitierFrequency", FrequencyKernel, "handle", "keys", "frequencies");
MULTITIER_HOST_KERNEL("MultitierVersion", VersionKernel, "handle", "keys", "versions");
MULTITIER_HOST_KERNEL("MultitierScore", ScoreKernel, "handle", "keys", "scores");
MULTITIER_HOST_KERNEL("MultitierSetScore", SetScoreKernel, "handle", "score");
MULTITIER_HOST_KERNEL("MultitierLookupTier", LookupTierKernel, "handle", "keys", "tiers");
MULTITIER_HOST_KERNEL("MultitierRemove", RemoveKernel, "handle", "keys", "removed");
MULTITIER_HOST_KERNEL("MultitierExpire", ExpireKernel, "handle", "global_step", "expired");
MULTITIER_HOST_KERNEL("MultitierStats", StatsKernel, "handle", "stats");
MULTITIER_HOST_KERNEL("MultitierPrefetch", PrefetchKernel, "handle", "keys", "pinned");
MULTITIER_HOST_KERNEL("MultitierReleasePrefetched", ReleasePrefetchedKernel, "handle");
MULTITIER_HOST_KERNEL("MultitierLastUpdate", LastUpdateKernel, "handle", "refused", "dropped");
MULTITIER_HOST_KERNEL("MultitierPopDropped", PopDroppedKernel, "handle", "keys");
MULTITIER_HOST_KERNEL("MultitierRemovedSince", RemovedSinceKernel, "handle", "version", "keys");
MULTITIER_HOST_KERNEL("MultitierDrain", DrainKernel, "handle");
MULTITIER_HOST_KERNEL("MultitierFlush", FlushKernel, "handle");
MULTITIER_HOST_KERNEL("MultitierReserve", ReserveKernel, "handle", "rows");
MULTITIER_HOST_KERNEL("MultitierCompact", CompactKernel, "handle");

}  // namespace
}  // namespace multitier
