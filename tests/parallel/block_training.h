#pragma once
// A small language model of blocks in training, for what sets modules up in a way of its own and must not change a bit:
// recomputation, activations outside of memory.
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "compile/compile.h"
#include "nn/models/language_model.h"
#include "nn/optim/adamw.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/two_dim_net.h"

namespace sherd::testing {

/// A rank's share of it. A Case has a Grid3 `grid`, a `config()` of a model of 13 symbols, `tokens` of its sequences,
/// and how steps go: `accumulate` micro-batches, `in_flight` (one runs forward before the backward of the one before),
/// and `captured`. Its constructor makes the model; who derives sets modules up, and calls start().
template <class Case>
class BlockTraining {
 public:
  /// The sum of the micro-batches' losses.
  Tensor step(std::int64_t index) {
    nn::set_step(index);
    const std::vector<Tensor> in = batch(index);
    return case_.captured ? (*compiled)(in)[0] : update(in);
  }
  /// Tokens and targets of every micro-batch, in sequences of that many tokens; 0: of all.
  std::vector<Tensor> batch(std::int64_t index, std::int64_t tokens = 0) const {
    if (tokens == 0) tokens = case_.tokens;
    std::vector<Tensor> result;
    for (int i = 0; i < 2 * case_.accumulate; ++i) {
      std::vector<std::int32_t> ids;
      for (std::int64_t at = 0; at < 2 * tokens; ++at)
        ids.push_back(static_cast<std::int32_t>((7 * at + at * at + index + 3 * data_rank() + 5 * i) % 13));
      result.push_back(Tensor::from<std::int32_t>(ids, {2, tokens}));
    }
    return result;
  }
  Tensor update(std::span<const Tensor> in) {
    Tensor total, waiting;
    for (int m = 0; m < case_.accumulate; ++m) {
      const auto at = static_cast<std::size_t>(2 * m);
      Tensor loss = (*model)(in[at], in[at + 1]);
      total = total.defined() ? add(total, loss.local().detach()) : loss.local().detach();
      if (case_.in_flight) std::swap(loss, waiting);
      if (loss.defined()) run_backward(loss, m + 1 == case_.accumulate);
    }
    if (waiting.defined()) run_backward(waiting, true);
    optimizer->step_and_clear();
    return total;
  }
  std::vector<Tensor> values() const {
    std::vector<Tensor> result;
    for (const nn::Parameter* p : model->parameters()) result.push_back(p->sharded_value().local().detach() + 0.0);
    return result;
  }

  std::unique_ptr<nn::LanguageModel> model;
  std::unique_ptr<nn::AdamW> optimizer;
  std::optional<CompiledStep> compiled;

 protected:
  BlockTraining(const std::shared_ptr<ProcessGroup>& group, const Case& c)
      : case_(c), root_(c.grid.mesh(group)), group_(group) {
    nn::set_seed({3});
    nn::set_step(0);
    model = nn::make_language_model(c.config());
  }
  void start() {
    optimizer = std::make_unique<nn::AdamW>(model->parameters(), nn::AdamW::Options{.lr = 0.01});
    compiled.emplace([this](std::span<const Tensor> in) { return std::vector<Tensor>{update(in)}; },
                     CompileOptions{.group = group_});
  }
  const Case case_;
  const DeviceMesh root_;

 private:
  std::int64_t data_rank() const { return root_.coordinate(0) * root_.size(1) + root_.coordinate(1); }
  void run_backward(const Tensor& loss, bool is_last) const {
    if (case_.accumulate > 1) nn::units(*model).set_requires_gradient_sync(is_last);
    backward(loss);
  }
  const std::shared_ptr<ProcessGroup> group_;
};

}  // namespace sherd::testing
