#include "nn/optim/adamw.h"

#include "nn/optim/check_options.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"

namespace sherd::nn {

namespace {
const AdamW::Options& checked(const AdamW::Options& options) {
  check_not_negative("AdamW: lr", options.lr);
  check_decay_rate("AdamW: beta1", options.beta1);
  check_decay_rate("AdamW: beta2", options.beta2);
  check_not_negative("AdamW: eps", options.eps);
  check_not_subnormal("AdamW: eps", options.eps);
  check_not_negative("AdamW: weight_decay", options.weight_decay);
  return options;
}
}  // namespace

AdamW::AdamW(std::vector<Parameter*> parameters, const Options& options)
    : Optimizer(std::move(parameters), checked(options).lr), options_(options) {}

void AdamW::update(std::vector<UpdatedPart> parts, const Tensor& lr, const Tensor& step, const Tensor& scale) {
  const auto decays = [&](const UpdatedPart& part) {
    return !options_.decay_matrices_only || parameters()[part.parameter]->shape().size() >= 2;
  };
  for (const bool decay : {true, false}) {
    std::vector<Tensor> params, m, v, grads;
    for (std::vector<Tensor>* list : {&params, &m, &v, &grads}) list->reserve(parts.size());
    for (UpdatedPart& part : parts) {
      if (decays(part) != decay) continue;
      params.push_back(std::move(part.value));
      m.push_back(std::move(part.state[0]));
      v.push_back(std::move(part.state[1]));
      grads.push_back(std::move(part.gradient));
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
