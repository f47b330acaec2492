#pragma once
#include <cmath>

#include "nn/module.h"
#include "nn/shardable.h"

namespace sherd::nn {

/// y = x weight^T + bias; weight [out, in], x [..., in] -> [..., out].
class Linear : public Layer<Linear>, public Shardable {
 public:
  struct Options {
    bool bias = true;
    std::optional<Init> init{};  ///< weight; default uniform(1/sqrt(in)), PyTorch's
  };
  Linear(std::int64_t in, std::int64_t out) : Linear(in, out, Options()) {}
  Linear(std::int64_t in, std::int64_t out, const Options& options);
  Tensor forward(const Tensor& x);
  Roles roles() const override { return {.out = {{"weight", 0}, {"bias", 0}}, .in = {{"weight", 1}}}; }

  Parameter& weight;
  Parameter* bias = nullptr;  ///< null without one
};

}  // namespace sherd::nn
