#include "nn/optim/adamw.h"

#include "runtime/op/ops.h"

namespace sherd::nn {

AdamW::AdamW(std::vector<Parameter*> parameters, const AdamWOptions& options)
    : Optimizer(std::move(parameters), options.lr), options_(options) {}

void AdamW::update(const std::vector<std::size_t>& active, const Tensor& lr, const Tensor& step, const Tensor& scale) {
  const auto decays = [&](std::size_t i) {
    return !options_.decay_matrices_only || parameters()[i]->shape().size() >= 2;
  };
  for (const bool decay : {true, false}) {
    std::vector<Tensor> params, m, v, grads;
    for (std::vector<Tensor>* list : {&params, &m, &v, &grads}) list->reserve(active.size());
    for (std::size_t i : active) {
      if (decays(i) != decay) continue;
      params.push_back(parameters()[i]->sharded_value());
      m.push_back(state_slot(i, 0).value());
      v.push_back(state_slot(i, 1).value());
      grads.push_back(parameters()[i]->grad());
    }
    if (params.empty()) continue;
    AdamWAttrs attrs;
    attrs.beta1 = options_.beta1;
    attrs.beta2 = options_.beta2;
    attrs.eps = options_.eps;
    attrs.weight_decay = decay ? options_.weight_decay : 0;
    adamw_step(params, m, v, grads, lr, step, scale, attrs);
  }
}

}  // namespace sherd::nn
