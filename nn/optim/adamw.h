#pragma once
#include "nn/optim/optimizer.h"

namespace sherd::nn {

/// Adam with decoupled weight decay (Loshchilov & Hutter, 2019), in PyTorch's order of operations. Error naming an
/// option that is negative, not a finite f32 or, of betas, not below 1; or an eps above 0 that is no normal f32.
class AdamW final : public Optimizer {
 public:
  struct Options {
    double lr = 1e-3;
    double beta1 = 0.9, beta2 = 0.999;
    double eps = 1e-8;
    double weight_decay = 0.01;
    /// Decay parameters of two and more dims only: matrices and embeddings, not biases and norms.
    bool decay_matrices_only = false;
  };
  explicit AdamW(std::vector<Parameter*> parameters) : AdamW(std::move(parameters), Options()) {}
  AdamW(std::vector<Parameter*> parameters, const Options& options);

 private:
  std::vector<std::string> state_kinds() const override { return {"m", "v"}; }
  bool updates(DType dtype) const override { return dtype == DType::f32 || dtype == DType::f64; }
  bool counts_updates() const override { return true; }
  void update(std::vector<UpdatedPart> parts, const Tensor& lr, const Tensor& step, const Tensor& scale) override;
  const Options options_;
};
using AdamWOptions = AdamW::Options;

}  // namespace sherd::nn
