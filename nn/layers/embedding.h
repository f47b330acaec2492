#pragma once
#include "nn/module.h"
#include "nn/shardable.h"

namespace sherd::nn {

/// Rows of weight [rows, width] at integer ids of any shape -> [..., width].
class Embedding : public Layer<Embedding>, public Shardable {
 public:
  Embedding(std::int64_t rows, std::int64_t width, Init init = Init::normal(1));
  Tensor forward(const Tensor& ids);
  Roles roles() const override { return {.out = {{"weight", 1}}, .vocabulary = {{"weight", 0}}}; }

  Parameter& weight;
};

}  // namespace sherd::nn
