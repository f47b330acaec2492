#include "nn/optim/sgd.h"

#include "nn/optim/check_options.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/optimizer.h"

namespace sherd::nn {

namespace {
const Sgd::Options& checked_sgd(const Sgd::Options& options) {
  check_not_negative("Sgd: lr", options.lr);
  check_not_negative("Sgd: momentum", options.momentum);
  check_not_negative("Sgd: weight_decay", options.weight_decay);
  return options;
}
}  // namespace

Sgd::Sgd(std::vector<Parameter*> parameters, const Options& options)
    : Optimizer(std::move(parameters), checked_sgd(options).lr), options_(options) {
  check(!options.nesterov || options.momentum > 0, "nesterov needs a momentum above 0");
}

std::vector<std::string> Sgd::state_kinds() const {
  return options_.momentum != 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{};
}

void Sgd::update(std::vector<UpdatedPart> parts, const Tensor& lr, const Tensor&, const Tensor& scale) {
  std::vector<Tensor> params, momenta, grads;
  for (std::vector<Tensor>* list : {&params, &momenta, &grads}) list->reserve(parts.size());
  for (UpdatedPart& part : parts) {
    params.push_back(std::move(part.value));
    if (options_.momentum != 0) momenta.push_back(std::move(part.state[0]));
    grads.push_back(std::move(part.gradient));
  }
  if (params.empty()) return;
  SgdAttrs attrs;
  attrs.momentum = options_.momentum;
  attrs.weight_decay = options_.weight_decay;
  attrs.nesterov = options_.nesterov;
  sgd_step(params, momenta, grads, lr, scale, attrs);
}

}  // namespace sherd::nn
