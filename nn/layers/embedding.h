#pragma once
#include "nn/module.h"

namespace sherd::nn {

/// Rows of weight [rows, width] at integer ids of any shape -> [..., width].
class Embedding : public Layer<Embedding> {
 public:
  Embedding(std::int64_t rows, std::int64_t width, Init init = Init::normal(1));
  Tensor forward(const Tensor& ids);

  Parameter& weight;
};

}  // namespace sherd::nn
