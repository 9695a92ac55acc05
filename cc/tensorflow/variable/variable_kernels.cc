// Kernels that make a variable: its handle, its table, its slots.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "cc/tensorflow/variable/kept_reader.h"
#include "cc/tensorflow/variable/kept_table.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace multitier {
namespace {

// Creates the handle once; every step returns the same tensor.
class HandleKernel : public OpKernel {
 public:
  explicit HandleKernel(OpKernelConstruction* context) : OpKernel(context), handle_(tensorflow::DT_RESOURCE, {}) {
    tensorflow::ContainerInfo info;
    OP_REQUIRES_OK(context, info.Init(context->resource_manager(), def(), /*use_node_name_as_default=*/true));
    tensorflow::DtypeAndPartialTensorShape content;
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &content.dtype));
    OP_REQUIRES_OK(context, context->GetAttr("shape", &content.shape));
    handle_.scalar<tensorflow::ResourceHandle>()() = tensorflow::MakeResourceHandle<EmbeddingVariable>(
        context, info.container(), info.name(), std::vector<tensorflow::DtypeAndPartialTensorShape>{content});
  }

  void Compute(OpKernelContext* context) override { context->set_output(0, handle_); }
  bool IsExpensive() override { return false; }

 private:
  Tensor handle_;
};

// Makes another variable, which its handle owns, each time.
class OwnedHandleKernel : public OpKernel {
 public:
  explicit OwnedHandleKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dtype", &content_.dtype));
    OP_REQUIRES_OK(context, context->GetAttr("shape", &content_.shape));
  }

  void Compute(OpKernelContext* context) override {
    OP_REQUIRES_OK(context, CheckRank(context, "variable_name", context->input(0), 0));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    tensorflow::ResourceHandle handle =
        tensorflow::ResourceHandle::MakeRefCountingHandle(new EmbeddingVariable, context->device()->name(), {content_});
    handle.set_name(context->input(0).scalar<tensorflow::tstring>()());
    out->scalar<tensorflow::ResourceHandle>()() = std::move(handle);
  }

  bool IsExpensive() override { return false; }

 private:
  tensorflow::DtypeAndPartialTensorShape content_;
};

class DestroyKernel : public OpKernel {
 public:
  explicit DestroyKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, FindState(context, 0, &state));
    if (state != nullptr) OP_REQUIRES_OK(context, SetState(context, 0, nullptr));
  }
};

class InitializeKernel : public OpKernel {
 public:
  explicit InitializeKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, VariableOptions::FromAttrs(context, &options_));
  }

  void Compute(OpKernelContext* context) override {
    const std::string name = tensorflow::HandleFromInput(context, 0).name();
    InitializerSpec initializer = options_.table.initializer;
    OP_REQUIRES_OK(context, TakeMatrix(name, context->input(1), &initializer));
    std::shared_ptr<VariableState> state;
    if (options_.table.in_place) {
      OP_REQUIRES_OK(context, OpenInPlace(options_, name, std::nullopt, &state));
    } else if (options_.table.keep) {
      OP_REQUIRES_OK(context, FindState(context, 0, &state));
      if (state != nullptr) return;  // an initializer opens what is kept: it is open
      OP_REQUIRES_OK(context, OpenKept(options_, name, &state));
    }
    if (state == nullptr) OP_REQUIRES_OK(context, options_.MakeState(name, std::move(initializer), nullptr, &state));
    OP_REQUIRES_OK(context, SetState(context, 0, std::move(state)));
  }

 private:
  // The initial matrix. It must be present if and only if the initializer is `matrix`.
  absl::Status TakeMatrix(const std::string& name, const Tensor& matrix, InitializerSpec* initializer) const {
    const int64_t rows = initializer->matrix_rows;
    if (initializer->kind == InitializerKind::kMatrix && rows < 1) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": initializer matrix: expected matrix_rows >= 1, found ", rows));
    }
    if (matrix.dims() != 2 || matrix.dim_size(0) != rows || matrix.dim_size(1) != options_.table.dim) {
      return absl::InvalidArgumentError(absl::StrCat(name, ": expected an initial matrix of shape [", rows, ",",
                                                     options_.table.dim, "], found ", matrix.shape().DebugString()));
    }
    if (rows == 0) return absl::OkStatus();
    const Span<const float> values = Elements<float>(matrix);
    initializer->matrix = std::make_shared<const std::vector<float>>(values.begin(), values.end());
    return absl::OkStatus();
  }

  VariableOptions options_;
};

class AddSlotsKernel : public OpKernel {
 public:
  explicit AddSlotsKernel(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<std::string> names;
    std::vector<int64_t> dims;
    std::vector<float> initial_values;
    OP_REQUIRES_OK(context, context->GetAttr("slot_names", &names));
    OP_REQUIRES_OK(context, context->GetAttr("slot_dims", &dims));
    OP_REQUIRES_OK(context, context->GetAttr("slot_initial_values", &initial_values));
    OP_REQUIRES(context, names.size() == dims.size() && names.size() == initial_values.size(),
                absl::InvalidArgumentError(absl::StrCat("slot_dims and slot_initial_values: expected ", names.size(),
                                                        " entries, one for each of slot_names, found ", dims.size(), " and ",
                                                        initial_values.size())));
    for (size_t i = 0; i < names.size(); ++i) {
      OP_REQUIRES(context, dims[i] >= 1 && dims[i] <= (1 << 20),
                  absl::InvalidArgumentError(
                      absl::StrCat("slot '", names[i], "': expected a dim of 1 to ", 1 << 20, ", found ", dims[i])));
      slots_.push_back(ColumnSpec{names[i], DType::kFloat32, static_cast<int>(dims[i]), initial_values[i]});
    }
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    // A restore adds the same slots with the same initial values to rows that have none.
    OP_REQUIRES_OK(context, GetTrainableState(context, 0, &state));
    OP_REQUIRES_OK(context, ToAbsl(state->table->AddSlots(slots_)));
  }

 private:
  std::vector<ColumnSpec> slots_;
};

class IsInitializedKernel : public OpKernel {
 public:
  explicit IsInitializedKernel(OpKernelConstruction* context) : OpKernel(context) {}

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<VariableState> state;
    OP_REQUIRES_OK(context, FindState(context, 0, &state));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &out));
    out->scalar<bool>()() = state != nullptr;
  }

  bool IsExpensive() override { return false; }
};

class NothingKernel : public OpKernel {
 public:
  explicit NothingKernel(OpKernelConstruction* context) : OpKernel(context) {}
  void Compute(OpKernelContext*) override {}
  bool IsExpensive() override { return false; }
};

MULTITIER_HOST_KERNEL("Multitier_import_tf_multitier", NothingKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierEmbeddingVariableHandle").Device(DEVICE_CPU), HandleKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierOwnedEmbeddingVariableHandle").Device(DEVICE_CPU), OwnedHandleKernel);
MULTITIER_HOST_KERNEL("MultitierHbmEmbeddingVariableHandle", HandleKernel, "handle");
MULTITIER_HOST_KERNEL("MultitierOwnedHbmEmbeddingVariableHandle", OwnedHandleKernel, "variable_name", "handle");
MULTITIER_HOST_KERNEL("MultitierDestroy", DestroyKernel, "handle");
MULTITIER_HOST_KERNEL("MultitierInitialize", InitializeKernel, "handle", "matrix");
MULTITIER_HOST_KERNEL("MultitierAddSlots", AddSlotsKernel, "handle");
MULTITIER_HOST_KERNEL("MultitierIsInitialized", IsInitializedKernel, "handle", "is_initialized");

}  // namespace
}  // namespace multitier
