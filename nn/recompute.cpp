#include "nn/recompute.h"

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "nn/module_list.h"
#include "runtime/autograd/segment.h"
#include "runtime/exec/context.h"
#include "runtime/tensor/nearest.h"

namespace sherd::nn {

namespace {

class RecomputeHook final : public ModuleHook, public SegmentPolicy {
 public:
  explicit RecomputeHook(Recompute policy) : policy_(std::move(policy)) {}

  void before_forward(Module& module) override {
    const bool keeps_all = policy_.mode == Recompute::none && tape_modes().segment == 0;
    std::unique_ptr<SegmentScope> scope;
    if (RankContext::current().grad_enabled && !keeps_all) {
      module.check_recomputable();
      scope = std::make_unique<SegmentScope>(*this);
    }
    scopes_.push_back(std::move(scope));
  }
  void after_forward(Module&, const std::function<void(const TensorVisitor&)>&) override { scopes_.pop_back(); }
  void abandon_forward(Module&, std::string_view) noexcept override { scopes_.pop_back(); }
  bool can_recompute() const override { return true; }

  Saves saves(const Op& row) const override {
    if (policy_.mode == Recompute::none) return Saves::needs;
    const bool is_kept =
        policy_.mode == Recompute::selective && std::ranges::find(policy_.keeps, &row) != policy_.keeps.end();
    return is_kept ? Saves::results : Saves::nothing;
  }

 private:
  const Recompute policy_;
  std::vector<std::unique_ptr<SegmentScope>> scopes_;  // of the calls that run now, the innermost last; null: none
};

void check_free(const Module& module) {
  check(!is_container(module), "recompute: module \"{}\" is a container without a forward; recompute its items",
        module.label());
  for (const auto& hook : module.hooks())
    check(dynamic_cast<const RecomputeHook*>(hook.get()) == nullptr,
          "recompute: module \"{}\" is recomputed by a policy already", module.label());
}

}  // namespace

Recompute recompute_policy(std::string_view name) {
  constexpr std::array kModes{std::pair(std::string_view("none"), Recompute::none),
                              std::pair(std::string_view("selective"), Recompute::selective),
                              std::pair(std::string_view("full"), Recompute::full)};
  std::vector<std::string> names;
  for (const auto& [text, mode] : kModes) {
    if (text == name) return {.mode = mode};
    names.emplace_back(text);
  }
  fail("recompute = \"{}\" is none of {}{}", name, fmt::join(names, ", "), did_you_mean(name, names));
}

void recompute(Module& module, Recompute policy) {
  check_free(module);
  module.add_hook(std::make_shared<RecomputeHook>(std::move(policy)));
}

void recompute_blocks(Module& model, const Recompute& policy) {
  const std::vector<Module*> blocks = listed_modules(model, "recompute_blocks");
  for (const Module* block : blocks) check_free(*block);
  for (Module* block : blocks) recompute(*block, policy);
}

}  // namespace sherd::nn
