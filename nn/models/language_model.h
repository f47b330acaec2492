#pragma once
// The interface of language models that training and sampling use.
#include "nn/module.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

/// The output projection, weight [V, D], its own or tied to the token embedding. With targets it computes the loss in
/// chunks and never holds the full logits.
class LmHead : public Layer<LmHead> {
 public:
  LmHead(std::int64_t vocabulary, std::int64_t width, Init init)
      : weight(add_parameter("weight", {vocabulary, width}, init)) {}
  explicit LmHead(Parameter& tied) : weight(share_parameter("weight", tied)) {}
  Tensor forward(Tensor x, const Tensor& targets) {  // x [B, T, D]
    return targets.defined() ? linear_cross_entropy(std::move(x), weight, targets) : linear(std::move(x), weight);
  }

  Parameter& weight;
};

class LanguageModel : public Layer<LanguageModel> {
 public:
  /// tokens [B, T] (i32 or i64). With targets [B, T]: the 0-d mean loss in nats per token (targets of -100 do not
  /// count). Without: logits [B, T, V].
  virtual Tensor forward(const Tensor& tokens, const Tensor& targets) = 0;
  /// The repeated blocks in order, for fully_shard to wrap.
  virtual std::vector<Module*> blocks() = 0;
  virtual std::int64_t max_tokens() const = 0;
  /// Why leaves of a batch (numerics = layout_free) do not share a pass; empty: they may, because forward with targets
  /// keeps rows of dim 0 apart up to one linear_cross_entropy(), its result, and draws by Dropout modules alone.
  virtual std::string why_leaves_apart() const { return "the model does not say that it keeps rows apart"; }
};

}  // namespace sherd::nn
