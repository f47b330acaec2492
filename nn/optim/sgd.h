#pragma once
#include "nn/optim/optimizer.h"

namespace sherd::nn {

/// Stochastic gradient descent with momentum, PyTorch's definition. Error naming an option that is negative or not
/// finite.
class Sgd final : public Optimizer {
 public:
  struct Options {
    double lr = 1e-2;
    double momentum = 0;
    double weight_decay = 0;
    bool nesterov = false;
  };
  explicit Sgd(std::vector<Parameter*> parameters) : Sgd(std::move(parameters), Options()) {}
  Sgd(std::vector<Parameter*> parameters, const Options& options);

 private:
  std::vector<std::string> state_kinds() const override;
  bool updates(DType dtype) const override { return dtype == DType::f32 || dtype == DType::f64; }
  void update(std::vector<UpdatedPart> parts, const Tensor& lr, const Tensor& step, const Tensor& scale) override;
  const Options options_;
};

}  // namespace sherd::nn
