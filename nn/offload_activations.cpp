#include "nn/offload_activations.h"

#include <memory>
#include <utility>

#include "nn/module_list.h"
#include "nn/optim/offloaded_state.h"
#include "runtime/exec/context.h"

namespace sherd::nn {

namespace {

/// Opens a scope around forward. One of a module below another one's is the same scope again.
class OffloadHook final : public ModuleHook {
 public:
  explicit OffloadHook(std::shared_ptr<OffloadSaved> saved) : saved_(std::move(saved)) {}

  void before_forward(Module&) override {
    scopes_.push_back(RankContext::current().grad_enabled ? std::make_unique<SavedPolicy::Scope>(*saved_) : nullptr);
  }
  void after_forward(Module&, const std::function<void(const TensorVisitor&)>&) override { scopes_.pop_back(); }
  void abandon_forward(Module&, std::string_view) noexcept override { scopes_.pop_back(); }
  bool can_recompute() const override { return true; }

 private:
  const std::shared_ptr<OffloadSaved> saved_;
  std::vector<std::unique_ptr<SavedPolicy::Scope>> scopes_;  // of the calls that run now, the innermost last
};

void check_not_offloaded(const Module& module) {
  check(!is_container(module), "offload_activations: module \"{}\" is a container without a forward; offload its items",
        module.label());
  for (const auto& hook : module.hooks())
    check(dynamic_cast<const OffloadHook*>(hook.get()) == nullptr,
          "offload_activations: module \"{}\" is offloaded already", module.label());
}

}  // namespace

void offload_activations(const std::vector<Module*>& modules, const OffloadSavedOptions& options) {
  for (const Module* module : modules) check_not_offloaded(*module);
  const auto saved = std::make_shared<OffloadSaved>(options, bytes_per_rank);
  for (Module* module : modules) module->add_hook(std::make_shared<OffloadHook>(saved));
}

void offload_activations(Module& model, const OffloadSavedOptions& options) {
  offload_activations(listed_modules(model, "offload_activations"), options);
}

}  // namespace sherd::nn
