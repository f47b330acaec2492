#pragma once
// Steps that are recorded, written as text, read back and bound to the rank's slots again.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "compile/capture/capture.h"
#include "compile/ir/text/parse.h"
#include "compile/ir/text/print.h"
#include "compile/ir/verify.h"
#include "compile/run/bind.h"
#include "compile/run/guard.h"
#include "compile/run/replay.h"
#include "nn/layers/dropout.h"
#include "nn/models/gpt.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "tests/compile/tiny_net.h"

namespace sherd::testing {

using namespace ir;

inline Graph recorded(std::span<const Tensor> arguments, const std::function<std::vector<Tensor>()>& step) {
  Recorder recorder(arguments);
  const std::vector<Tensor> results = step();
  Graph graph = recorder.finish(results);
  verify(graph.program);
  return graph;
}

inline std::vector<Slot*> slots_of(TinyNet& net) {
  std::vector<Slot*> slots{&net.lr, &net.step, &net.scale, &net.draw_step};
  for (const auto* list : {&net.params, &net.m, &net.v})
    for (const auto& slot : *list) slots.push_back(slot.get());
  return slots;
}

/// GPT with dropout, clipping and AdamW.
struct GptTraining {
  nn::Gpt model{{.vocabulary = 17, .tokens = 8, .layers = 2, .heads = 2, .width = 8, .dropout = 0.1}};
  std::unique_ptr<nn::AdamW> optimizer;

  GptTraining() {
    model.materialize(nn::Seed{3});
    optimizer = std::make_unique<nn::AdamW>(model.parameters(), nn::AdamW::Options{.lr = 0.05, .weight_decay = 0.1});
  }
  /// i64 [2, 8], twice
  std::vector<Tensor> batch(int index) const {
    std::vector<std::int64_t> ids(16);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>((5 * i + i * i + 3) % 17);
    ids[0] = index % 17;
    return {Tensor::from<std::int64_t>(ids, {2, 8}), Tensor::from<std::int64_t>(ids, {2, 8})};
  }
  std::vector<Tensor> step(std::span<const Tensor> in) {
    const Tensor loss = model(in[0], in[1]);
    backward(loss);
    const Tensor norm = nn::clip_grad_norm(*optimizer, 0.5);
    optimizer->step_and_clear();
    return {loss.detach(), norm};
  }
  std::vector<nn::Parameter*> parameters() { return model.parameters(); }
};

/// Trains two equal ones after each other, so that names of slots are unique on the rank: one eagerly, the other by its
/// program, which has gone through its text. Results and parameters are bitwise equal.
template <class Make>
void expect_bound_step_is_eager(const Make& make) {
  constexpr int kSteps = 6;
  std::vector<std::vector<Tensor>> expected;
  std::vector<Tensor> parameters;
  nn::set_step(0);
  {
    auto eager = make();
    for (int i = 0; i < kSteps; ++i) expected.push_back(eager->step(eager->batch(i)));
    for (const nn::Parameter* p : eager->parameters()) parameters.push_back(p->value().local() + 0.0);
  }
  nn::set_step(0);
  auto training = make();
  std::string written;
  std::vector<Ref<Storage>> constants;
  for (int i = 0; i < kSteps; ++i) {
    const std::vector<Tensor> in = training->batch(i);
    std::vector<Tensor> results;
    if (i == 0) {
      results = training->step(in);
    } else if (i == 1) {
      const Graph graph = recorded(in, [&] { return results = training->step(in); });
      check_round_trip(graph.program);
      written = text(lower(graph));
      constants = graph.live.constants;
    } else {
      const Graph graph = bind(parse(written), {.slots = {}, .constants = constants});
      ASSERT_EQ(argument_mismatch(graph, in), "");
      ASSERT_EQ(setting_mismatch(graph), "");
      ASSERT_EQ(slot_mismatch(graph), "");
      results = Interpreter(graph).run(in);
    }
    for (std::size_t r = 0; r < results.size(); ++r)
      EXPECT_TRUE(same_bits(results[r], expected[static_cast<std::size_t>(i)][r])) << "step " << i << " result " << r;
  }
  const auto trained = training->parameters();
  for (std::size_t p = 0; p < trained.size(); ++p)
    EXPECT_TRUE(same_bits(trained[p]->value().local(), parameters[p])) << trained[p]->name();
}

}  // namespace sherd::testing
