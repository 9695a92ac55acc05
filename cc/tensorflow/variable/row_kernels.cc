// Kernels that move rows between a table and the program: Scan, Upsert; and those that change the whole table: Clear,
// SetBudget.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/embedding_variable.h"

namespace multitier {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpOutputList;

absl::Status SetVector(OpKernelContext* context, const char* output, const std::vector<int64_t>& values) {
  Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(output, TensorShape({static_cast<int64_t>(values.size())}), &out));
  std::copy(values.begin(), values.end(), out->flat<int64_t>().data());
  return absl::OkStatus();
}

absl::Status SetScalar(OpKernelContext* context, const char* output, int64_t value) {
  Tensor* out = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(output, {}, &out));
  out->scalar<int64_t>()() = value;
  return absl::OkStatus();
}

class ScanKernel : public OpKernel {
 public:
  explicit ScanKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("column_names", &request_.columns));
    OP_REQUIRES_OK(context, context->GetAttr("max_rows", &request_.max_rows));
    if (request_.columns.empty()) {
      request_.columns = {"value"};  // an empty list would mean all
      gives_columns_ = false;
    }
  }

  void Compute(OpKernelContext* context) final { OP_REQUIRES_OK(context, Run(context)); }

 private:
  absl::Status Run(OpKernelContext* context) const {
    std::shared_ptr<VariableState> state;
    TF_RETURN_IF_ERROR(GetState(context, 0, &state));
    ScanRequest request = request_;
    for (int i = 1; i < 4; ++i) TF_RETURN_IF_ERROR(CheckRank(context, "cursor and thresholds", context->input(i), 0));
    request.cursor = static_cast<uint64_t>(context->input(1).scalar<int64_t>()());
    request.min_version = context->input(2).scalar<int64_t>()();
    request.min_frequency = context->input(3).scalar<int64_t>()();
    uint64_t next = 0;
    Result<Rows> rows = state->table->Scan(request, &next);
    TF_RETURN_IF_ERROR(ToAbsl(rows.status()));
    TF_RETURN_IF_ERROR(SetVector(context, "keys", rows->keys));
    TF_RETURN_IF_ERROR(SetVector(context, "frequencies", rows->frequencies));
    TF_RETURN_IF_ERROR(SetVector(context, "versions", rows->versions));
    TF_RETURN_IF_ERROR(SetScalar(context, "next_cursor", static_cast<int64_t>(next)));
    return gives_columns_ ? SetColumns(context, *rows) : absl::OkStatus();
  }

  static absl::Status SetColumns(OpKernelContext* context, const Rows& rows) {
    OpOutputList outputs;
    TF_RETURN_IF_ERROR(context->output_list("columns", &outputs));
    const auto n = static_cast<int64_t>(rows.keys.size());
    const int64_t elements = rows.row_elements();
    int64_t begin = 0;
    for (size_t c = 0; c < rows.columns.size(); ++c) {
      const int64_t dim = rows.columns[c].dim;
      Tensor* out = nullptr;
      TF_RETURN_IF_ERROR(outputs.allocate(static_cast<int>(c), TensorShape({n, dim}), &out));
      float* to = out->flat<float>().data();
      for (int64_t i = 0; i < n; ++i) to = std::copy_n(rows.data.data() + i * elements + begin, dim, to);
      begin += dim;
    }
    return absl::OkStatus();
  }

  ScanRequest request_;
  bool gives_columns_ = true;
};

class PopDroppedRowsKernel : public OpKernel {
 public:
  explicit PopDroppedRowsKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("column_names", &names_));
  }

  void Compute(OpKernelContext* context) final { OP_REQUIRES_OK(context, Run(context)); }

 private:
  absl::Status Run(OpKernelContext* context) const {
    std::shared_ptr<VariableState> state;
    TF_RETURN_IF_ERROR(GetState(context, 0, &state));
    const std::shared_ptr<const RowLayout> layout = state->table->layout();
    for (const std::string& name : names_) {  // before anything is forgotten
      if (layout->Find(name) >= 0) continue;
      std::string there;
      for (const Column& column : layout->columns()) absl::StrAppend(&there, there.empty() ? "'" : ", '", column.name, "'");
      return absl::InvalidArgumentError(absl::StrCat("embedding variable '", state->table->options().name,
                                                     "': dropped rows: expected columns of ", there, ", found '", name, "'"));
    }
    const Result<Rows> rows = state->table->PopDroppedRows();
    TF_RETURN_IF_ERROR(ToAbsl(rows.status()));
    TF_RETURN_IF_ERROR(SetVector(context, "keys", rows->keys));
    TF_RETURN_IF_ERROR(SetVector(context, "frequencies", rows->frequencies));
    TF_RETURN_IF_ERROR(SetVector(context, "versions", rows->versions));
    OpOutputList outputs;
    TF_RETURN_IF_ERROR(context->output_list("columns", &outputs));
    for (size_t i = 0; i < names_.size(); ++i) TF_RETURN_IF_ERROR(SetColumn(*rows, names_[i], static_cast<int>(i), &outputs));
    return absl::OkStatus();
  }

  static absl::Status SetColumn(const Rows& rows, const std::string& name, int output, OpOutputList* outputs) {
    int64_t begin = 0;
    size_t c = 0;
    for (; rows.columns[c].name != name; ++c) begin += rows.columns[c].dim;
    const auto n = static_cast<int64_t>(rows.keys.size());
    const int64_t dim = rows.columns[c].dim, elements = rows.row_elements();
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(outputs->allocate(output, TensorShape({n, dim}), &out));
    float* to = out->flat<float>().data();
    for (int64_t i = 0; i < n; ++i) to = std::copy_n(rows.data.data() + i * elements + begin, dim, to);
    return absl::OkStatus();
  }

  std::vector<std::string> names_;
};

class UpsertKernel : public OpKernel {
 public:
  explicit UpsertKernel(OpKernelConstruction* context) : OpKernel(context) {
    std::string if_exists, repeats;
    OP_REQUIRES_OK(context, context->GetAttr("column_names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("if_exists", &if_exists));
    OP_REQUIRES_OK(context, context->GetAttr("repeats", &repeats));
    OP_REQUIRES_OK(context, context->GetAttr("check_finite", &check_finite_));
    OP_REQUIRES_OK(context, context->GetAttr("check_only", &check_only_));
    if_exists_ = if_exists == "keep" ? IfExists::kKeep : if_exists == "error" ? IfExists::kError : IfExists::kReplace;
    last_of_repeats_ = repeats == "last";
  }

  void Compute(OpKernelContext* context) final { OP_REQUIRES_OK(context, Run(context)); }

 private:
  absl::Status Run(OpKernelContext* context) const {
    std::shared_ptr<VariableState> state;
    TF_RETURN_IF_ERROR(GetStateToChange(context, 0, &state));
    TF_RETURN_IF_ERROR(CheckRank(context, "keys", context->input(1), 1));
    const KeyInput input(context->input(1));
    UpsertRequest request;
    request.keys = input.keys();
    request.if_exists = if_exists_;
    request.last_of_repeats = last_of_repeats_;
    request.check_only = check_only_;
    TF_RETURN_IF_ERROR(Columns(context, request.keys, &request.columns));
    TF_RETURN_IF_ERROR(Facts(context, "frequencies", &request.frequencies));
    TF_RETURN_IF_ERROR(Facts(context, "versions", &request.versions));
    const Result<int64_t> written = state->table->Upsert(request);
    TF_RETURN_IF_ERROR(ToAbsl(written.status()));
    return SetScalar(context, "written", *written);
  }

  absl::Status Columns(OpKernelContext* context, Span<const int64_t> keys, std::vector<UpsertRequest::Columns>* columns) const {
    OpInputList inputs;
    TF_RETURN_IF_ERROR(context->input_list("columns", &inputs));
    for (int c = 0; c < inputs.size(); ++c) {
      const Tensor& column = inputs[c];
      TF_RETURN_IF_ERROR(CheckRank(context, names_[c].c_str(), column, 2));
      if (column.dim_size(0) != static_cast<int64_t>(keys.size())) {
        return absl::InvalidArgumentError(
            absl::StrCat("upsert: expected ", keys.size(), " rows of column '", names_[c], "', found ", column.dim_size(0)));
      }
      TF_RETURN_IF_ERROR(CheckFinite(names_[c], keys, column));
      columns->push_back({names_[c], static_cast<int>(column.dim_size(1)), column.flat<float>().data()});
    }
    return absl::OkStatus();
  }

  absl::Status CheckFinite(const std::string& name, Span<const int64_t> keys, const Tensor& column) const {
    if (!check_finite_) return absl::OkStatus();
    const auto values = column.matrix<float>();
    for (size_t i = 0; i < keys.size(); ++i) {
      for (int64_t e = 0; e < column.dim_size(1); ++e) {
        const float v = values(static_cast<int64_t>(i), e);
        if (std::isfinite(v)) continue;
        return absl::InvalidArgumentError(
            absl::StrCat("upsert: expected finite numbers in column '", name, "', found ", v, " for key ", keys[i]));
      }
    }
    return absl::OkStatus();
  }

  static absl::Status Facts(OpKernelContext* context, const char* name, Span<const int64_t>* facts) {
    const Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(context->input(name, &tensor));
    TF_RETURN_IF_ERROR(CheckRank(context, name, *tensor, 1));
    *facts = Elements<int64_t>(*tensor);
    return absl::OkStatus();
  }

  std::vector<std::string> names_;
  IfExists if_exists_ = IfExists::kReplace;
  bool last_of_repeats_ = false;
  bool check_finite_ = false;
  bool check_only_ = false;
};

class ClearKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;
  void Compute(OpKernelContext* context) final {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetStateToChange(context, 0, &state));
    OP_REQUIRES_OK(context, ToAbsl(state->table->Clear()));
  }
};

class SetBudgetKernel : public OpKernel {
 public:
  explicit SetBudgetKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("in_rows", &in_rows_));
  }
  void Compute(OpKernelContext* context) final {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, GetState(context, 0, &state));
    OP_REQUIRES_OK(context, CheckRank(context, "size", context->input(1), 0));
    const auto size = static_cast<uint64_t>(std::max<int64_t>(context->input(1).scalar<int64_t>()(), 0));
    OP_REQUIRES_OK(context, ToAbsl(state->table->SetDramBudget(in_rows_ ? Budget::Rows(size) : Budget::Bytes(size))));
  }

 private:
  bool in_rows_ = false;
};

MULTITIER_HOST_KERNEL("MultitierScan", ScanKernel, "handle", "cursor", "min_version", "min_frequency", "keys", "columns",
                      "frequencies", "versions", "next_cursor");
MULTITIER_HOST_KERNEL("MultitierPopDroppedRows", PopDroppedRowsKernel, "handle", "keys", "columns", "frequencies", "versions");
MULTITIER_HOST_KERNEL("MultitierUpsert", UpsertKernel, "handle", "keys", "columns", "frequencies", "versions", "written");
MULTITIER_HOST_KERNEL("MultitierClear", ClearKernel, "handle");
MULTITIER_HOST_KERNEL("MultitierSetBudget", SetBudgetKernel, "handle", "size");

}  // namespace
}  // namespace multitier
