#include "cc/tensorflow/lookup/lookup_inputs.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {

static_assert(kNoTable == static_cast<uint16_t>(-1), "what ParseTables makes of -1");

absl::Status ReadForAttr(OpKernelConstruction* context, ReadFor* reason) {
  bool training;
  TF_RETURN_IF_ERROR(context->GetAttr("training", &training));
  *reason = training ? ReadFor::kTraining : ReadFor::kEvaluation;
  return absl::OkStatus();
}

absl::Status ParseTables(const std::string& variable, int64_t count, const Tensor& given, const TensorShape& keys,
                         bool may_be_unknown, std::vector<uint16_t>* tables) {
  if (given.shape() != keys) {
    return absl::InvalidArgumentError(absl::StrCat(variable, "tables: expected the shape of the keys, ", keys.DebugString(),
                                                   ", found ", given.shape().DebugString()));
  }
  const Span<const int64_t> numbers = Elements<int64_t>(given);
  tables->resize(numbers.size());
  const uint64_t first = may_be_unknown ? 1 : 0;  // so that -1 is the least
  const uint64_t limit = static_cast<uint64_t>(count) + first;
  uint64_t wrong = 0;
  for (size_t i = 0; i < numbers.size(); ++i) {
    wrong |= static_cast<uint64_t>(static_cast<uint64_t>(numbers[i]) + first >= limit);
    (*tables)[i] = static_cast<uint16_t>(numbers[i]);
  }
  if (wrong == 0) return absl::OkStatus();
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (static_cast<uint64_t>(numbers[i]) + first < limit) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(variable, "tables: expected 0 to ", count - 1, ", found tables[", i, "] = ", numbers[i]));
  }
  return absl::OkStatus();
}

absl::Status TakeTables(OpKernelContext* context, const EmbeddingTable& table, int inputs_before, const TensorShape& keys,
                        bool may_be_unknown, std::vector<uint16_t>* tables) {
  const std::string variable = absl::StrCat("embedding variable '", table.options().name, "': ");
  const auto count = static_cast<int64_t>(table.absent_values().initial().tables());
  if (context->num_inputs() > inputs_before) {
    return ParseTables(variable, count, context->input(inputs_before), keys, may_be_unknown, tables);
  }
  if (count == 1 || may_be_unknown || keys.num_elements() == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(variable, "tables: expected a table number for each id, because its initializer is a list of ", count,
                   "; found none: pass tables= to tf_multitier.lookup.embedding_lookup"));
}

absl::Status PooledAttrs::Init(OpKernelConstruction* context) {
  TF_RETURN_IF_ERROR(context->GetAttr("dim", &dim));
  TF_RETURN_IF_ERROR(context->GetAttr("has_weights", &has_weights));
  TF_RETURN_IF_ERROR(context->GetAttr("max_norm", &max_norm));
  TF_RETURN_IF_ERROR(ReadForAttr(context, &reason));
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("combiner", &name));
  const Result<Combiner> parsed = ParseCombiner(name);
  if (parsed.ok()) combiner = *parsed;
  return ToAbsl(parsed.status());
}

absl::Status AllocateEntryGradients(OpKernelContext* context, const PooledAttrs& attrs, int64_t n, float** entries,
                                    float** weights) {
  Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(0, TensorShape({n, attrs.dim}), &out));
  *entries = out->flat<float>().data();
  *weights = nullptr;
  if (!context->output_required(1)) return absl::OkStatus();
  TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({attrs.has_weights ? n : 0}), &out));
  if (attrs.has_weights && n > 0) *weights = out->flat<float>().data();
  return absl::OkStatus();
}

absl::Status CheckWeights(OpKernelContext* context, const Tensor& weights, bool has_weights, int64_t entries) {
  TF_RETURN_IF_ERROR(CheckRank(context, "weights", weights, 1));
  const int64_t expected = has_weights ? entries : 0;
  if (weights.NumElements() == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sparse lookup: expected ", expected, " weights (",
                                                 has_weights ? "one for each key" : "has_weights is false", "), found ",
                                                 weights.NumElements()));
}

absl::Status CheckOneHandle(OpKernelConstruction* context, const char* op) {
  int handles;
  TF_RETURN_IF_ERROR(context->GetAttr("N", &handles));
  if (handles == 1) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat(op, " on a GPU: expected one part, found ", handles));
}

absl::Status CheckPooledInputs(OpKernelContext* context, const EmbeddingTable& table, const Tensor& keys, const Tensor& indices,
                               const Tensor& weights, bool has_weights, int dim) {
  if (table.dim() != dim) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparse lookup in '", table.options().name, "': expected dim ", dim, ", found ", table.dim()));
  }
  TF_RETURN_IF_ERROR(CheckRank(context, "keys", keys, 1));
  TF_RETURN_IF_ERROR(CheckRank(context, "indices", indices, 1));
  TF_RETURN_IF_ERROR(CheckWeights(context, weights, has_weights, keys.NumElements()));
  if (indices.NumElements() == keys.NumElements()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("sparse lookup: expected one row index for each of ", keys.NumElements(),
                                                 " keys, found ", indices.NumElements()));
}

absl::Status AllocatePooled(OpKernelContext* context, const Tensor& batch, int dim, Tensor** out) {
  TF_RETURN_IF_ERROR(CheckRank(context, "batch", batch, 0));
  const int64_t rows = batch.scalar<int64_t>()();
  if (rows < 0) return absl::InvalidArgumentError(absl::StrCat("batch: expected at least 0, found ", rows));
  TensorShape shape;
  TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape({rows, dim}, &shape));
  return context->allocate_output(0, shape, out);
}

absl::Status CheckPooledGrad(OpKernelContext* context, int input, int dim) {
  const Tensor& grad = context->input(input);
  TF_RETURN_IF_ERROR(CheckRank(context, "grad", grad, 2));
  if (grad.dim_size(1) == dim) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("grad: expected shape [batch,", dim, "], found ", grad.shape().DebugString()));
}

absl::Status CheckClipped(OpKernelContext* context, bool gradient, int* dim) {
  const Tensor& values = context->input(context->num_inputs() - (gradient ? 2 : 1));
  const int rank = values.dims();
  if (rank < 1) return absl::InvalidArgumentError("values: expected rank 1 or more, found a scalar");
  const int64_t last = values.dim_size(rank - 1);
  if (last > std::numeric_limits<int>::max()) {
    return absl::InvalidArgumentError(absl::StrCat("values: expected a last dimension below 2^31, found ", last));
  }
  *dim = static_cast<int>(last);
  const TensorShape& grad = context->input(context->num_inputs() - 1).shape();
  if (grad == values.shape()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("grad: expected the shape of values, ", values.shape().DebugString(), ", found ", grad.DebugString()));
}

}  // namespace multitier
