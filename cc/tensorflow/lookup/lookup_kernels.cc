// Kernels of lookups, of their gradients, and of the routing of keys to partitions.

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/group_lookup/pooling.h"
#include "cc/group_lookup/sparse_lookup.h"
#include "cc/partition/partition.h"
#include "cc/partition/partition_keys.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/intra_op_executor.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/lookup/lookup_inputs.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

// The values of keys of one table.
class ReadKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) final {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetState(context, 0, &state));
    const Tensor& keys = context->input(1);
    TensorShape shape = keys.shape();
    OP_REQUIRES_OK(context, shape.AddDimWithStatus(state->table->dim()));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, shape, &out));
    std::vector<uint16_t> tables;
    OP_REQUIRES_OK(context, TakeTables(context, *state->table, 2, keys.shape(), /*may_be_unknown=*/false, &tables));
    const KeyInput input(keys);
    OP_REQUIRES_OK(context, ToAbsl(Read(context, state->table.get(), input.keys(), tables, out->flat<float>().data())));
  }

 private:
  virtual Status Read(OpKernelContext* context, EmbeddingTable* table, Span<const int64_t> keys, Span<const uint16_t> tables,
                      float* out) = 0;
};

class LookupKernel : public ReadKernel {
 public:
  explicit LookupKernel(OpKernelConstruction* context) : ReadKernel(context) {
    OP_REQUIRES_OK(context, ReadForAttr(context, &reason_));
  }

 private:
  Status Read(OpKernelContext* context, EmbeddingTable* table, Span<const int64_t> keys, Span<const uint16_t> tables,
              float* out) override {
    IntraOpExecutor executor(context);
    return table->Lookup(keys, out, &executor, nullptr, 0, reason_, tables);
  }

  ReadFor reason_ = ReadFor::kTraining;
};

class PeekKernel : public ReadKernel {
 public:
  using ReadKernel::ReadKernel;

 private:
  Status Read(OpKernelContext*, EmbeddingTable* table, Span<const int64_t> keys, Span<const uint16_t> tables,
              float* out) override {
    return table->Peek(keys, out, tables);
  }
};

// The inputs that both sparse lookups begin with: N handles, keys, indices, weights.
class SparseInputs {
 public:
  absl::Status Parse(OpKernelContext* context, int num_handles, bool has_weights) {
    for (int i = 0; i < num_handles; ++i) {
      std::shared_ptr<VariableState> state;
      TF_RETURN_IF_ERROR(GetState(context, i, &state));
      states_.push_back(std::move(state));
      tables_.push_back(states_.back()->table.get());
    }
    const Tensor& keys = context->input(num_handles);
    const Tensor& indices = context->input(num_handles + 1);
    const Tensor& weights = context->input(num_handles + 2);
    TF_RETURN_IF_ERROR(CheckRank(context, "keys", keys, 1));
    TF_RETURN_IF_ERROR(CheckRank(context, "indices", indices, 1));
    TF_RETURN_IF_ERROR(CheckWeights(context, weights, has_weights, keys.NumElements()));
    keys_ = std::make_unique<KeyInput>(keys);
    lookup.partitions = Span<EmbeddingTable* const>(tables_.data(), tables_.size());
    lookup.keys = keys_->keys();
    lookup.batch.indices = Elements<int64_t>(indices);
    lookup.batch.weights = Elements<float>(weights);
    return absl::OkStatus();
  }

  SparseLookup lookup;

 private:
  std::vector<std::shared_ptr<VariableState>> states_;
  std::vector<EmbeddingTable*> tables_;
  std::unique_ptr<KeyInput> keys_;
};

class LookupSparseKernel : public OpKernel {
 public:
  explicit LookupSparseKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &num_handles_));
    OP_REQUIRES_OK(context, attrs_.Init(context));
  }

  void Compute(OpKernelContext* context) override {
    SparseInputs inputs;
    OP_REQUIRES_OK(context, inputs.Parse(context, num_handles_, attrs_.has_weights));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, AllocatePooled(context, context->input(num_handles_ + 3), attrs_.dim, &out));
    SparseLookup* lookup = &inputs.lookup;
    lookup->batch.batch = out->dim_size(0);
    lookup->batch.dim = attrs_.dim;
    lookup->batch.combiner = attrs_.combiner;
    lookup->max_norm = attrs_.max_norm;
    lookup->reason = attrs_.reason;
    IntraOpExecutor executor(context);
    OP_REQUIRES_OK(context, ToAbsl(LookupSparse(*lookup, out->flat<float>().data(), &executor)));
  }

 private:
  int num_handles_ = 0;
  PooledAttrs attrs_;
};

class LookupSparseGradKernel : public OpKernel {
 public:
  explicit LookupSparseGradKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("N", &num_handles_));
    OP_REQUIRES_OK(context, attrs_.Init(context));
  }

  void Compute(OpKernelContext* context) override {
    SparseInputs inputs;
    OP_REQUIRES_OK(context, inputs.Parse(context, num_handles_, attrs_.has_weights));
    OP_REQUIRES_OK(context, CheckPooledGrad(context, num_handles_ + 3, attrs_.dim));
    const Tensor& grad = context->input(num_handles_ + 3);
    SparseLookup* lookup = &inputs.lookup;
    lookup->reason = attrs_.reason;
    lookup->max_norm = attrs_.max_norm;
    lookup->batch.batch = grad.dim_size(0);
    lookup->batch.dim = attrs_.dim;
    lookup->batch.combiner = attrs_.combiner;
    const int64_t n = context->input(num_handles_).NumElements();
    float *entry_grads, *weight_grads;
    OP_REQUIRES_OK(context, AllocateEntryGradients(context, attrs_, n, &entry_grads, &weight_grads));
    IntraOpExecutor executor(context);
    OP_REQUIRES_OK(context,
                   ToAbsl(LookupSparseGradient(*lookup, grad.flat<float>().data(), entry_grads, weight_grads, &executor)));
  }

 private:
  int num_handles_ = 0;
  PooledAttrs attrs_;
};

// The last inputs are those of the arithmetic; a handle before them says where the op runs, and is not read.
template <bool kGradient>
class ClipByNormKernel : public OpKernel {
 public:
  explicit ClipByNormKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("max_norm", &max_norm_));
  }

  void Compute(OpKernelContext* context) override {
    int dim;
    OP_REQUIRES_OK(context, CheckClipped(context, kGradient, &dim));
    const int changed = context->num_inputs() - 1;
    const Tensor& given = context->input(changed);
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->forward_input_or_allocate_output({changed}, 0, given.shape(), &out));
    float* const to = out->flat<float>().data();
    const float* const from = given.flat<float>().data();
    if (to != from) std::copy(from, from + given.NumElements(), to);
    if (given.NumElements() == 0) return;
    IntraOpExecutor executor(context);
    const int64_t n = given.NumElements() / dim;
    if constexpr (kGradient) {
      const EntryValues values{context->input(changed - 1).flat<float>().data(), nullptr};
      ClipByNormGradient(values, n, dim, max_norm_, to, &executor);
    } else {
      ClipByNorm(to, n, dim, max_norm_, &executor);
    }
  }

 private:
  float max_norm_ = 0.0f;
};

template <typename Key>
class PartitionKeysKernel : public OpKernel {
 public:
  explicit PartitionKeysKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_partitions", &num_partitions_));
    OP_REQUIRES(context, num_partitions_ <= kPartitionBuckets,
                absl::InvalidArgumentError(
                    absl::StrCat("num_partitions: expected 1 to ", kPartitionBuckets, ", found ", num_partitions_)));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor& keys = context->input(0);
    OP_REQUIRES_OK(context, CheckRank(context, "keys", keys, 1));
    OP_REQUIRES(context, keys.NumElements() <= std::numeric_limits<int32_t>::max(),
                absl::InvalidArgumentError(absl::StrCat("keys: expected fewer than 2^31, found ", keys.NumElements())));
    const KeyInput input(keys);
    const PartitionedKeys routed = PartitionKeys(input.keys(), num_partitions_);
    for (int p = 0; p < num_partitions_; ++p) {
      const Span<const int32_t> positions = routed.positions_of(p);
      const Span<const int64_t> part = routed.keys_of(p);
      const TensorShape shape({static_cast<int64_t>(part.size())});
      Tensor* out_positions = nullptr;
      Tensor* out_keys = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(p, shape, &out_positions));
      OP_REQUIRES_OK(context, context->allocate_output(num_partitions_ + p, shape, &out_keys));
      std::copy(positions.begin(), positions.end(), out_positions->flat<int32_t>().data());
      std::transform(part.begin(), part.end(), out_keys->flat<Key>().data(), [](int64_t key) { return static_cast<Key>(key); });
    }
  }

 private:
  int num_partitions_ = 0;
};

REGISTER_KERNEL_BUILDER(Name("MultitierLookup").Device(DEVICE_CPU), LookupKernel);
MULTITIER_HOST_KERNEL("MultitierPeek", PeekKernel, "handle", "keys", "tables", "values");
REGISTER_KERNEL_BUILDER(Name("MultitierLookupSparse").Device(DEVICE_CPU), LookupSparseKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierLookupSparseGrad").Device(DEVICE_CPU), LookupSparseGradKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierClipByNorm").Device(DEVICE_CPU).TypeConstraint<float>("dtype"), ClipByNormKernel<false>);
REGISTER_KERNEL_BUILDER(Name("MultitierClipByNormGrad").Device(DEVICE_CPU).TypeConstraint<float>("dtype"),
                        ClipByNormKernel<true>);
REGISTER_KERNEL_BUILDER(Name("MultitierHbmClipByNorm").Device(DEVICE_CPU), ClipByNormKernel<false>);
REGISTER_KERNEL_BUILDER(Name("MultitierHbmClipByNormGrad").Device(DEVICE_CPU), ClipByNormKernel<true>);
REGISTER_KERNEL_BUILDER(Name("MultitierPartitionKeys").Device(DEVICE_CPU).TypeConstraint<int64_t>("Tkeys"),
                        PartitionKeysKernel<int64_t>);
REGISTER_KERNEL_BUILDER(Name("MultitierPartitionKeys").Device(DEVICE_CPU).TypeConstraint<int32_t>("Tkeys"),
                        PartitionKeysKernel<int32_t>);

}  // namespace
}  // namespace multitier
