#include "nn/non_finite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/agree.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/copy/offload.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"
#include "runtime/tensor/no_copy.h"
#include "runtime/tensor/quantity.h"

namespace sherd::nn {

namespace {

bool is_finite(const Tensor& t) {
  const Tensor local = t.local().detach();
  if (!is_floating(local.dtype()) || local.numel() == 0) return true;
  return std::isfinite(sum(mul(local, 0)).item<double>());  // 0 x NaN and 0 x infinity are NaN
}

/// A non-finite value; `place` counts the checked values in an order that is the same on all ranks.
struct Finding {
  std::size_t place = std::numeric_limits<std::size_t>::max();
  std::string what;
};

/// The earliest of all ranks' findings as text; empty if there is none.
std::string earliest(ProcessGroup& group, const Finding& own) {
  const std::vector<std::string> texts = gather_text(group, fmt::format("{} {}", own.place, own.what));
  Finding first;
  std::size_t rank = 0;
  for (const std::size_t r : indices(texts)) {
    const std::size_t space = texts[r].find(' ');
    const auto place = *number_of<std::size_t>(std::string_view(texts[r]).substr(0, space));
    if (place < first.place) first = {place, texts[r].substr(space + 1)}, rank = r;
  }
  if (first.what.empty()) return "";
  return group.size() == 1 ? first.what : fmt::format("{} on rank {}", first.what, rank);
}

class OutputWatch final : public ModuleHook {
 public:
  void after_forward(Module& module, const std::function<void(const TensorVisitor&)>& visit_outputs) override {
    const std::size_t place = outputs_++;
    if (!found_.what.empty()) return;
    const GradMode off(false);
    visit_outputs([&](const Tensor& t) {
      if (found_.what.empty() && !is_finite(t)) {
        const std::string path = module.path();
        found_ = {place, path.empty() ? "the output of the model" : fmt::format("the output of \"{}\"", path)};
      }
    });
  }
  bool can_recompute() const override { return true; }  // recomputed outputs have the bits that were looked at
  const Finding& found() const { return found_; }

 private:
  std::size_t outputs_ = 0;
  Finding found_;
};

/// The same hook on every module of a tree.
class Attached : NoCopy {
 public:
  Attached(Module& model, std::shared_ptr<ModuleHook> hook) : model_(model), hook_(std::move(hook)) {
    model_.for_each_module([&](Module& m) { m.add_hook(hook_); });
  }
  ~Attached() {
    model_.for_each_module([&](Module& m) { m.remove_hook(*hook_); });
  }

 private:
  Module& model_;
  std::shared_ptr<ModuleHook> hook_;
};

Finding first_gradient(const Module& model) {
  const GradMode off(false);
  const auto parameters = model.named_parameters();
  for (std::size_t i = parameters.size(); i-- > 0;) {
    const auto& [name, p] = parameters[i];
    if (!p->grad().defined()) continue;
    const bool all_finite = is_finite(p->grad());
    leave_memory(p->grad());
    if (!all_finite) return {parameters.size() - i, fmt::format("the gradient of \"{}\"", name)};
  }
  return {};
}

}  // namespace

std::string first_non_finite(Module& model, ProcessGroup& group, const std::function<void()>& forward_and_backward) {
  const PurposeScope purpose("first_non_finite");
  const auto watch = std::make_shared<OutputWatch>();
  {
    const Attached attached(model, watch);
    forward_and_backward();
  }
  const std::string output = earliest(group, watch->found());
  return output.empty() ? earliest(group, first_gradient(model)) : output;
}

}  // namespace sherd::nn
