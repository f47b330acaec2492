// cuDNN's attention for one context: a plan per shape, strides and kind, built at its first call and kept.
#include "runtime/cuda/attention/cudnn_attention.h"

#include <cstdio>
#include <limits>
#include <map>
#include <optional>

#include "runtime/cuda/attention/attention.h"
#include "runtime/cuda/device/context.h"

namespace sherd::cuda {

namespace {

using Tensor = CudnnAttention::Tensor;

// cuDNN reads rows by 16 bytes. Strides of dims of size 1 mean nothing; they become those of a dense tensor, so that
// equal calls have equal plans.
bool add(CudnnAttention& a, Tensor which, const HeadsView& view, std::int64_t heads, std::int64_t rows,
         std::int64_t elements) {
  const std::int64_t pieces = elements > 1 ? 8 : 1;  // of 16 bytes; the log-sum-exp has no such rows
  CudnnAttention::HeadStrides s{view.batch, view.head, view.row};
  const CudnnAttention::HeadStrides dense{heads * rows * elements, rows * elements, elements}, sizes{a.b, heads, rows};
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (sizes[i] == 1) s[i] = dense[i];
    if (s[i] <= 0 || s[i] % pieces != 0) return false;
  }
  a.strides[static_cast<std::size_t>(which)] = s;
  return view.element == 1 && reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
}

CudnnAttention problem_of(const AttentionShape& n) {
  CudnnAttention a;
  a.dtype = n.dtype;
  a.b = n.b;
  a.h = n.h;
  a.g = n.g;
  a.tq = n.tq;
  a.tk = n.tk;
  a.k = n.k;
  a.causal = n.causal;
  return a;
}

// A graph's arguments by id; those it does not have are left out.
class Arguments {
 public:
  explicit Arguments(const AttentionShape& shape) : scale_(static_cast<float>(shape.scale)) {
    set(kIdScale, &scale_);
    set(kIdMinusInfinity, &minus_infinity_);
    set(kIdOne, &one_);
  }
  void set(CudnnAttentionId id, const void* pointer) { pointers_[static_cast<std::size_t>(id)] = pointer; }
  std::vector<CudnnArgument> of(const std::vector<std::int64_t>& ids) const {
    std::vector<CudnnArgument> arguments;
    for (const std::int64_t id : ids) arguments.push_back({id, pointers_[static_cast<std::size_t>(id)]});
    return arguments;
  }

 private:
  const float scale_, minus_infinity_ = -std::numeric_limits<float>::infinity(), one_ = 1;
  std::array<const void*, kIdDqSum + 1> pointers_{};
};

class CudnnLibrary final : public AttentionLibrary {
 public:
  CudnnLibrary(Context& context, cudnnHandle_t handle) : context_(context), handle_(handle) {
    check_cudnn(cudnn_api().set_stream(handle_, context_.stream()), "choosing a stream");
  }
  ~CudnnLibrary() override {
    forward_.clear();
    backward_.clear();
    static_cast<void>(cudnn_api().destroy(handle_));
  }

  bool forward(const AttentionShape& n, const AttentionForward& t) override {
    if (why_not_cudnn(n)) return false;
    CudnnAttention a = problem_of(n);
    const bool takes = add(a, Tensor::q, t.q, a.h, a.tq, a.k) && add(a, Tensor::k, t.k, a.g, a.tk, a.k) &&
                       add(a, Tensor::v, t.v, a.g, a.tk, a.k) && add(a, Tensor::out, t.out, a.h, a.tq, a.k) &&
                       add(a, Tensor::lse, {t.lse, a.h * a.tq, a.tq, 1, 1}, a.h, a.tq, 1);
    const Entry* entry = takes ? &find(forward_, a, attention_forward_graph, "attention forward") : nullptr;
    if (!entry || !entry->plan) return false;
    Arguments arguments(n);
    arguments.set(kIdQ, t.q.data);
    arguments.set(kIdK, t.k.data);
    arguments.set(kIdV, t.v.data);
    arguments.set(kIdOut, t.out.data);
    arguments.set(kIdLse, t.lse);
    run(*entry, arguments);
    return true;
  }

  bool backward(const AttentionShape& n, const AttentionBackward& t, bool deterministic) override {
    if (why_not_cudnn_backward(n)) return false;
    CudnnAttention a = problem_of(n);
    a.deterministic = deterministic;
    const bool takes = add(a, Tensor::q, t.q, a.h, a.tq, a.k) && add(a, Tensor::k, t.k, a.g, a.tk, a.k) &&
                       add(a, Tensor::v, t.v, a.g, a.tk, a.k) && add(a, Tensor::out, t.out, a.h, a.tq, a.k) &&
                       add(a, Tensor::grad, t.grad, a.h, a.tq, a.k) && add(a, Tensor::dq, t.dq, a.h, a.tq, a.k) &&
                       add(a, Tensor::dk, t.dk, a.g, a.tk, a.k) && add(a, Tensor::dv, t.dv, a.g, a.tk, a.k) &&
                       add(a, Tensor::lse, t.lse, a.h, a.tq, 1);
    const Entry* entry = takes ? &find(backward_, a, attention_backward_graph, "attention backward") : nullptr;
    if (!entry || !entry->plan) return false;
    const std::int64_t rows = n.query_rows();
    const Workspace dots(context_, rows * 4), dq_sum(context_, deterministic ? 0 : rows * a.k * 4);
    Arguments arguments(n);
    arguments.set(kIdQ, t.q.data);
    arguments.set(kIdK, t.k.data);
    arguments.set(kIdV, t.v.data);
    arguments.set(kIdOut, t.out.data);
    arguments.set(kIdLse, t.lse.data);
    arguments.set(kIdGrad, t.grad.data);
    arguments.set(kIdDq, t.dq.data);
    arguments.set(kIdDk, t.dk.data);
    arguments.set(kIdDv, t.dv.data);
    arguments.set(kIdDots, dots.data());
    arguments.set(kIdDqSum, dq_sum.data());
    run(*entry, arguments);
    return true;
  }

 private:
  struct Entry {
    std::vector<std::int64_t> ids;
    std::optional<CudnnPlan> plan;  // none: cuDNN has no engine for it
  };
  using Entries = std::map<CudnnAttention, Entry>;

  const Entry& find(Entries& entries, const CudnnAttention& a, CudnnGraph (*graph_of)(const CudnnAttention&),
                    const char* what) {
    const auto found = entries.find(a);
    if (found != entries.end()) return found->second;
    Entry entry;
    const CudnnGraph graph = graph_of(a);
    for (const CudnnTensor& tensor : graph.tensors())
      if (tensor.kind != CudnnTensor::Kind::inner) entry.ids.push_back(tensor.id);
    try {
      entry.plan.emplace(graph, CudnnTarget{handle_, {}}, what);
    } catch (const CudnnUnsupported&) {}  // own kernels compute it
    return entries.emplace(a, std::move(entry)).first->second;
  }

  void run(const Entry& entry, const Arguments& arguments) {
    const Workspace workspace(context_, entry.plan->workspace_bytes());
    static_cast<void>(context_.stream());  // makes the device the current one
    context_.log().add("cuDNN's attention", context_.log().row());
    entry.plan->run(handle_, arguments.of(entry.ids), workspace.data());
  }

  Context& context_;
  const cudnnHandle_t handle_;
  Entries forward_, backward_;
};

// A library that is there and goes unused costs time that its owner would want to know of; one that is not there is
// known to be missing.
void say_what_is_refused() {
  static const bool said = [] {
    if (!cudnn_api().version.empty())
      fmt::print(stderr, "sherd: attention by own kernels: {}\n", cudnn_api().library.reason());
    return true;
  }();
  static_cast<void>(said);
}

}  // namespace

std::unique_ptr<AttentionLibrary> open_cudnn(Context& context) {
  if (!cudnn_api().library.usable()) {
    say_what_is_refused();
    return nullptr;
  }
  cudnnHandle_t handle = nullptr;
  check_cudnn(cudnn_api().create(&handle), "creating a handle (SHERD_ATTENTION=own does without)");
  return std::make_unique<CudnnLibrary>(context, handle);
}

std::string describe_cudnn() { return cudnn_api().library.describe(cudnn_api().version); }

}  // namespace sherd::cuda
