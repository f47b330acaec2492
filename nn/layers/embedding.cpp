#include "nn/layers/embedding.h"

#include "runtime/op/rows/ops.h"

namespace sherd::nn {

Embedding::Embedding(std::int64_t rows, std::int64_t width, Init init)
    : weight(add_parameter("weight", {rows, width}, init)) {}

Tensor Embedding::forward(const Tensor& ids) { return embedding(weight, ids); }

}  // namespace sherd::nn
