// The kernels of the exchange. They parse the inputs, call group_lookup/exchange.h and return the outputs.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/group_lookup/exchange.h"
#include "cc/tensorflow/common/host_kernel.h"
#include "cc/tensorflow/common/intra_op_executor.h"
#include "cc/tensorflow/common/op_kernel.h"
#include "cc/tensorflow/common/status_bridge.h"
#include "cc/tensorflow/lookup/group_inputs.h"
#include "cc/tensorflow/lookup/group_plan.h"
#include "cc/tensorflow/lookup/group_specs.h"
#include "cc/tensorflow/lookup/plan_input.h"
#include "cc/tensorflow/variable/embedding_variable.h"
#include "tensorflow/core/framework/variant_op_registry.h"

namespace multitier {
namespace {

struct KeptExchange {
  ExchangePlan plan;
  std::vector<Tensor> weights;
  std::vector<TensorShape> shapes;  // of each member's values
};

// ExchangePlan as a tensor: a scalar variant that MultitierRoute passes to MultitierPool, and that one to its gradient. It
// cannot leave the process.
class ExchangePlanVariant {
 public:
  ExchangePlanVariant() = default;
  explicit ExchangePlanVariant(std::shared_ptr<KeptExchange> kept) : kept_(std::move(kept)) {}

  // Null if the tensor has no plan.
  const std::shared_ptr<KeptExchange>& kept() const { return kept_; }

  std::string TypeName() const { return "tf_multitier::ExchangePlan"; }
  std::string DebugString() const { return "an exchange's plan"; }
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }

 private:
  std::shared_ptr<KeptExchange> kept_;
};

absl::Status GetExchange(OpKernelContext* context, int num_homes, std::shared_ptr<KeptExchange>* kept) {
  TF_RETURN_IF_ERROR(PlanInput<ExchangePlanVariant>(context, 0, "the plan of an exchange", kept));
  if ((*kept)->plan.num_homes() == num_homes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("exchange: expected ", (*kept)->plan.num_homes(), " homes, as the plan has, found ", num_homes));
}

template <typename Plan>
Tensor ScalarVariant(Plan plan) {
  Tensor scalar(tensorflow::DT_VARIANT, TensorShape({}));
  scalar.scalar<tensorflow::Variant>()() = std::move(plan);
  return scalar;
}

absl::Status WireType(OpKernelConstruction* context, DType* wire) {
  tensorflow::DataType type;
  TF_RETURN_IF_ERROR(context->GetAttr("T", &type));
  *wire = type == tensorflow::DT_HALF ? DType::kFloat16 : type == tensorflow::DT_BFLOAT16 ? DType::kBFloat16 : DType::kFloat32;
  return absl::OkStatus();
}

// Input `input` has what crosses from `peer`, and may have more.
absl::Status TakeWire(OpKernelContext* context, int input, const char* peer, int64_t elements, WireIn* wire) {
  const Tensor& given = context->input(input);
  wire->data.push_back(static_cast<const uint8_t*>(given.data()));
  if (given.NumElements() >= elements) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      context->op_kernel().type_string(), ": expected at least ", elements, " elements of ", peer, " ", wire->data.size() - 1,
      ", found ", given.NumElements(), ": do all processes run the same version of the package?"));
}

absl::Status MakeWire(OpKernelContext* context, int output, int64_t elements, WireOut* wire) {
  Tensor* made = nullptr;
  TF_RETURN_IF_ERROR(context->allocate_output(output, TensorShape({elements}), &made));
  wire->data.push_back(static_cast<uint8_t*>(made->data()));
  return absl::OkStatus();
}

class RouteKernel : public OpKernel {
 public:
  explicit RouteKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, ReadMemberSpecs(context, &specs_));
    OP_REQUIRES_OK(context, context->GetAttr("homes", &homes_));
    OP_REQUIRES_OK(context, context->GetAttr("H", &num_homes_));
    OP_REQUIRES_OK(context, WireType(context, &wire_));
    units_.resize(homes_.size());
  }

  void Compute(OpKernelContext* context) override {
    GroupInputs inputs;
    OP_REQUIRES_OK(context, ParseMembers(context, specs_, 0, true, &inputs));
    for (size_t i = 0; i < specs_.size(); ++i) {
      inputs.members[i].units = Span<const GroupUnit>(units_.data(), static_cast<size_t>(specs_[i].units));
    }
    std::shared_ptr<KeptExchange> kept = plans_->Take();
    kept->weights = std::move(inputs.weights);
    kept->shapes = std::move(inputs.shapes);
    IntraOpExecutor executor(context);
    OP_REQUIRES_OK(context, ToAbsl(RouteGroup(inputs.members, homes_, num_homes_, wire_, &kept->plan, &executor)));
    std::vector<int64_t*> requests;
    for (int h = 0; h < num_homes_; ++h) {
      Tensor* request = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(h, TensorShape({kept->plan.words(h)}), &request));
      requests.push_back(request->flat<int64_t>().data());
    }
    WriteRequests(kept->plan, Span<int64_t* const>(requests.data(), requests.size()), &executor);
    Tensor* elements = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(num_homes_, TensorShape({num_homes_}), &elements));
    for (int h = 0; h < num_homes_; ++h) elements->flat<int64_t>()(h) = kept->plan.elements(h);
    context->set_output(num_homes_ + 1, ScalarVariant(ExchangePlanVariant(std::move(kept))));
  }

 private:
  const std::shared_ptr<PlanPool<KeptExchange>> plans_ = std::make_shared<PlanPool<KeptExchange>>();
  std::vector<MemberSpec> specs_;
  std::vector<int> homes_;
  std::vector<GroupUnit> units_;  // empty; a member takes as many as it has
  int num_homes_ = 0;
  DType wire_ = DType::kFloat32;
};

class PoolKernel : public OpKernel {
 public:
  explicit PoolKernel(OpKernelConstruction* context) : OpKernel(context) {
    std::vector<std::string> names;
    std::vector<int> dims;
    OP_REQUIRES_OK(context, context->GetAttr("members", &names));
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims));
    OP_REQUIRES_OK(context, context->GetAttr("H", &num_homes_));
    OP_REQUIRES_OK(context, WireType(context, &wire_));
    for (size_t i = 0; i < names.size(); ++i) {
      MemberSpec spec{};
      spec.name = names[i];
      spec.dim = dims[i];
      specs_.push_back(std::move(spec));
    }
    OP_REQUIRES_OK(context, GetJoins(context, specs_.size(), context->num_outputs() - 1, &joins_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<KeptExchange> kept;
    OP_REQUIRES_OK(context, GetExchange(context, num_homes_, &kept));
    OP_REQUIRES_OK(context, CheckMembers(kept->plan.group()));
    WireIn rows{wire_, {}};
    for (int h = 0; h < num_homes_; ++h) {
      OP_REQUIRES_OK(context, TakeWire(context, 1 + h, "home", kept->plan.elements(h), &rows));
    }
    std::vector<PooledValues> values(specs_.size());
    OP_REQUIRES_OK(context, AllocateValues(context, specs_, joins_, kept->shapes, &values));
    IntraOpExecutor executor(context);
    OP_REQUIRES_OK(context, ToAbsl(PoolGroup(rows, values, &kept->plan, &executor)));
    context->set_output(static_cast<int>(joins_.size()), context->input(0));
  }

 private:
  absl::Status CheckMembers(const GroupPlan& plan) const {
    bool same = plan.num_members() == static_cast<int>(specs_.size());
    for (size_t i = 0; same && i < specs_.size(); ++i) same = plan.dim(static_cast<int>(i)) == specs_[i].dim;
    if (same) return absl::OkStatus();
    return absl::InvalidArgumentError("MultitierPool: expected the members and dims of MultitierRoute, found others");
  }

  std::vector<MemberSpec> specs_;  // names and dims
  std::vector<int> joins_;         // members of each output
  int num_homes_ = 0;
  DType wire_ = DType::kFloat32;
};

class PoolGradKernel : public OpKernel {
 public:
  explicit PoolGradKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, inputs_.Init(context, context->num_inputs() - 1));
    OP_REQUIRES_OK(context, context->GetAttr("weighted", &weighted_));
    OP_REQUIRES_OK(context, context->GetAttr("H", &num_homes_));
    OP_REQUIRES_OK(context, WireType(context, &wire_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<KeptExchange> kept;
    OP_REQUIRES_OK(context, GetExchange(context, num_homes_, &kept));
    OP_REQUIRES(context, kept->plan.pooled(),
                absl::InternalError("MultitierPoolGrad: expected a plan that MultitierPool finished, found one without rows"));
    const GroupPlan& plan = kept->plan.group();
    std::vector<const float*> grads;
    std::vector<int64_t> strides;
    OP_REQUIRES_OK(context, inputs_.Point(context, 1, ValuesOf(plan), &grads, &strides));
    WireOut sums{wire_, {}};
    for (int h = 0; h < num_homes_; ++h) OP_REQUIRES_OK(context, MakeWire(context, h, kept->plan.elements(h), &sums));
    std::vector<float*> weights_gradients(static_cast<size_t>(plan.num_members()), nullptr);
    int weights_out = num_homes_;
    for (size_t g = 0; g < inputs_.members().size(); ++g) {
      if (!weighted_[g]) continue;
      const int member = inputs_.members()[g];
      Tensor* gradient = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(weights_out++, TensorShape({plan.entries(member)}), &gradient));
      if (plan.weighted(member)) weights_gradients[static_cast<size_t>(member)] = gradient->flat<float>().data();
    }
    IntraOpExecutor executor(context);
    GroupGradients gradients;
    gradients.grads = Span<const float* const>(grads.data(), grads.size());
    gradients.strides = strides;
    gradients.weights_gradients = Span<float* const>(weights_gradients.data(), weights_gradients.size());
    OP_REQUIRES_OK(context, ToAbsl(GradientForHomes(kept->plan, gradients, sums, &executor)));
  }

 private:
  GradientInputs inputs_;
  std::vector<bool> weighted_;
  int num_homes_ = 0;
  DType wire_ = DType::kFloat32;
};

// What MultitierServe and its gradient have in common: the requests of askers to the parts of a home.
class HomeKernel : public OpKernel {
 public:
  explicit HomeKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("dims", &dims_));
    OP_REQUIRES_OK(context, context->GetAttr("A", &num_askers_));
    OP_REQUIRES_OK(context, WireType(context, &wire_));
  }

 protected:
  absl::Status Parse(OpKernelContext* context, int first_input, std::vector<Request>* requests) const {
    for (int a = 0; a < num_askers_; ++a) {
      Result<Request> request = ParseRequest(Elements<int64_t>(context->input(first_input + a)));
      TF_RETURN_IF_ERROR(ToAbsl(request.status()));
      requests->push_back(*std::move(request));
    }
    return ToAbsl(CheckRequests(*requests, dims_));
  }

  std::vector<int> dims_;  // of each part
  int num_askers_ = 0;
  DType wire_ = DType::kFloat32;
};

class ServeKernel : public HomeKernel {
 public:
  explicit ServeKernel(OpKernelConstruction* context) : HomeKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
    OP_REQUIRES_OK(context, context->GetAttr("training", &training_));
  }

  void Compute(OpKernelContext* context) override {
    std::vector<Request> requests;
    OP_REQUIRES_OK(context, Parse(context, static_cast<int>(names_.size()), &requests));
    std::vector<std::shared_ptr<VariableState>> states(names_.size());
    std::vector<ServedPart> parts(names_.size());
    for (size_t u = 0; u < names_.size(); ++u) {
      OP_REQUIRES_OK(context, GetState(context, static_cast<int>(u), &states[u]));
      parts[u] = ServedPart{names_[u], states[u]->table.get()};
    }
    WireOut rows{wire_, {}};
    for (int a = 0; a < num_askers_; ++a) {
      OP_REQUIRES_OK(context, MakeWire(context, a, requests[static_cast<size_t>(a)].elements(), &rows));
    }
    std::shared_ptr<KeptPlan> kept = context->output_required(num_askers_) ? plans_->Take() : nullptr;
    IntraOpExecutor executor(context);
    const ReadFor reason = training_ ? ReadFor::kTraining : ReadFor::kEvaluation;
    OP_REQUIRES_OK(context,
                   ToAbsl(ServeLookup(parts, requests, reason, kept == nullptr ? nullptr : &kept->plan, rows, &executor)));
    if (kept != nullptr) context->set_output(num_askers_, ScalarVariant(GroupPlanVariant(std::move(kept))));
  }

 private:
  const std::shared_ptr<PlanPool<KeptPlan>> plans_ = std::make_shared<PlanPool<KeptPlan>>();
  std::vector<std::string> names_;
  bool training_ = true;
};

class ServeGradKernel : public HomeKernel {
 public:
  using HomeKernel::HomeKernel;

  void Compute(OpKernelContext* context) override {
    std::vector<Request> requests;
    OP_REQUIRES_OK(context, Parse(context, 0, &requests));
    WireIn sums{wire_, {}};
    for (int a = 0; a < num_askers_; ++a) {
      const int64_t elements = requests[static_cast<size_t>(a)].elements();
      OP_REQUIRES_OK(context, TakeWire(context, num_askers_ + a, "asker", elements, &sums));
    }
    std::vector<float*> gradients;
    for (size_t u = 0; u < dims_.size(); ++u) {
      Tensor* gradient = nullptr;
      OP_REQUIRES_OK(
          context, context->allocate_output(static_cast<int>(u), TensorShape({RowsOfPart(requests, u), dims_[u]}), &gradient));
      gradients.push_back(gradient->flat<float>().data());
    }
    IntraOpExecutor executor(context);
    GradientsOfParts(requests, sums, Span<float* const>(gradients.data(), gradients.size()), &executor);
  }
};

class PlanTablesKernel : public OpKernel {
 public:
  explicit PlanTablesKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("units", &units_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<const KeptPlan> kept;
    OP_REQUIRES_OK(context, GetPlan(context, 0, &kept));
    for (size_t i = 0; i < units_.size(); ++i) {
      const int unit = units_[i];
      OP_REQUIRES(context, unit >= 0 && unit < kept->plan.num_units(),
                  absl::InvalidArgumentError(
                      absl::StrCat("MultitierPlanTables: expected parts below ", kept->plan.num_units(), ", found ", unit)));
      const Span<const uint16_t> tables = kept->plan.tables(unit);
      const auto keys = static_cast<int64_t>(kept->plan.keys(unit).size());
      Tensor* given = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(static_cast<int>(i), TensorShape({keys}), &given));
      given->flat<int64_t>().setConstant(int64_t{-1});
      std::transform(tables.begin(), tables.end(), given->flat<int64_t>().data(),
                     [](uint16_t table) { return table == kNoTable ? int64_t{-1} : int64_t{table}; });
    }
  }

 private:
  std::vector<int> units_;
};

// A tape around a tf.function asks for zeros of each output of the function, also of the plan. The gradient does not read them.
absl::Status NoExchangePlan(OpKernelContext*, const ExchangePlanVariant&, ExchangePlanVariant* zeros) {
  *zeros = ExchangePlanVariant();
  return absl::OkStatus();
}

using tensorflow::TypeIndex;  // the macro expects the name here
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP, tensorflow::DEVICE_CPU, ExchangePlanVariant,
                                         NoExchangePlan);
REGISTER_UNARY_VARIANT_UNARY_OP_FUNCTION(tensorflow::ZEROS_LIKE_VARIANT_UNARY_OP, tensorflow::DEVICE_GPU, ExchangePlanVariant,
                                         NoExchangePlan);

[[maybe_unused]] const HostVariant<ExchangePlanVariant> host_exchange_plan;

REGISTER_KERNEL_BUILDER(Name("MultitierRoute").Device(tensorflow::DEVICE_CPU), RouteKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierServe").Device(tensorflow::DEVICE_CPU), ServeKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierServeGrad").Device(tensorflow::DEVICE_CPU), ServeGradKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierPlanTables").Device(tensorflow::DEVICE_CPU), PlanTablesKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierPool").Device(tensorflow::DEVICE_CPU), PoolKernel);
REGISTER_KERNEL_BUILDER(Name("MultitierPoolGrad").Device(tensorflow::DEVICE_CPU), PoolGradKernel);

}  // namespace
}  // namespace multitier
