#pragma once
// A small model in training, with what is offloaded or without: the same but for that.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "compile/compile.h"
#include "nn/checkpoint/training_state.h"
#include "nn/models/model_config.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/sgd.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "runtime/autograd/autograd.h"
#include "tests/parallel/strategy_cases.h"
#include "tests/support/near.h"
#include "tests/support/ranks.h"
#include "tests/support/temp_dir.h"

namespace sherd::testing {

using Group = std::shared_ptr<ProcessGroup>;

enum class Offloads : std::uint8_t { optimizer, parameters, all };

struct OffloadCase {
  nn::UnitPolicy policy = nn::strategy("full_shard");
  bool is_sharded = true, captured = false, clips = false, sgd = false;
  Offloads what = Offloads::optimizer;
  bool in_backward = false, clears = false;  ///< of what is offloaded
  int accumulate = 1, steps = 5;
  std::int64_t bytes_in_flight = 12 << 10;  // pieces of 4 KiB: several, of which some split a matrix
  std::int64_t kept = 0;                    // bytes in memory of shards with their gradients, and of state
};

/// A rank's model in training.
class OffloadTraining {
 public:
  OffloadTraining(const Group& group, const DeviceMesh& mesh, const OffloadCase& c, const std::string& folder)
      : case_(c), rank_(group->rank()), is_offloaded_(!folder.empty()) {
    nn::set_seed({3});
    model = nn::make_language_model(nn::Gpt::Config{
        .vocabulary = 13, .tokens = 8, .layers = 2, .heads = 2, .width = 16, .bias = true, .tied_head = true});
    nn::UnitPolicy policy = c.policy;
    if (is_offloaded_ && c.what != Offloads::optimizer)
      policy.offload = nn::ShardOffload{.folder = folder,
                                        .gradients = c.what == Offloads::all,
                                        .bytes_in_flight = c.bytes_in_flight,
                                        .bytes_in_memory = c.kept};
    if (c.is_sharded) nn::shard_units(*model, mesh, nn::units_by("block"), policy);
    model->materialize(nn::Seed{11});
    if (c.sgd) optimizer = std::make_unique<nn::Sgd>(model->parameters(), nn::Sgd::Options{.lr = 0.1, .momentum = 0.9});
    else optimizer = std::make_unique<nn::AdamW>(model->parameters(), nn::AdamW::Options{.lr = 0.01});
    if (is_offloaded_ && c.what != Offloads::parameters)
      optimizer->offload({.folder = folder, .bytes_in_flight = c.bytes_in_flight, .bytes_in_memory = c.kept});
    compiled.emplace([this](std::span<const Tensor> in) { return std::vector<Tensor>{update(in)}; },
                     CompileOptions{.group = group});
  }
  Tensor step(std::int64_t index) {
    const std::vector<Tensor> in = batch(index);
    return case_.captured ? (*compiled)(in)[0] : update(in);
  }
  std::vector<Tensor> batch(std::int64_t index) const {
    std::vector<Tensor> result;
    for (int i = 0; i < 2 * case_.accumulate; ++i) {
      std::vector<std::int32_t> ids;
      for (std::int64_t at = 0; at < 16; ++at)
        ids.push_back(static_cast<std::int32_t>((7 * at + at * at + index + 3 * rank_ + 5 * i) % 13));
      result.push_back(Tensor::from<std::int32_t>(ids, {2, 8}));
    }
    return result;
  }
  std::vector<Tensor> values() {
    std::vector<Tensor> result;
    for (const nn::StateEntry& entry : nn::training_state(*model, optimizer.get()))
      result.push_back(nn::state_tensor(entry).local().detach() + 0.0);
    return result;
  }

  std::unique_ptr<nn::LanguageModel> model;
  std::unique_ptr<nn::Optimizer> optimizer;
  std::optional<CompiledStep> compiled;

 private:
  Tensor update(std::span<const Tensor> in) {
    Tensor total;
    for (int m = 0; m < case_.accumulate; ++m) {
      const auto at = static_cast<std::size_t>(2 * m);
      if (case_.in_backward && is_offloaded_ && m + 1 == case_.accumulate)
        optimizer->step_in_backward({.clears_gradients = case_.clears});
      const Tensor loss = (*model)(in[at], in[at + 1]);
      total = total.defined() ? add(total, loss.local().detach()) : loss.local().detach();
      if (case_.accumulate > 1 && case_.is_sharded)
        nn::units(*model).set_requires_gradient_sync(m + 1 == case_.accumulate);
      backward(loss);
    }
    if (case_.clips) nn::clip_grad_norm(*optimizer, 0.05);
    optimizer->step_and_clear();
    return total;
  }
  OffloadCase case_;
  std::int64_t rank_;
  bool is_offloaded_;
};

inline void expect_same_values(OffloadTraining& a, OffloadTraining& b) {
  const std::vector<Tensor> actual = a.values(), expected = b.values();
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(same_bits(actual[i], expected[i])) << "entry " << i;
}

inline void expect_bits_of_none(const Group& group, const DeviceMesh& mesh, const OffloadCase& c) {
  const TempDir dir;
  OffloadTraining held(group, mesh, c, ""), offloaded(group, mesh, c, dir.path());
  for (std::int64_t i = 0; i < c.steps; ++i)
    EXPECT_TRUE(same_bits(offloaded.step(i), held.step(i))) << "step " << i << " " << offloaded.compiled->why();
  if (c.captured) { EXPECT_EQ(offloaded.compiled->mode(), CompiledStep::Mode::replay) << offloaded.compiled->why(); }
  expect_same_values(offloaded, held);
}

}  // namespace sherd::testing
