// Whole models under their plans: the numbers of one rank, and per block exactly the communication that tensor
// parallelism needs.
#include <gtest/gtest.h>

#include "compile/compile.h"
#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"
#include "nn/layers/dropout.h"
#include "nn/models/gpt_plan.h"
#include "nn/models/llama_plan.h"
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/comm_counter.h"
#include "tests/parallel/nets.h"
#include "tests/support/expect_error.h"
#include "tests/support/near.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

namespace sherd::testing {
namespace {

using Group = std::shared_ptr<ProcessGroup>;
using Options = nn::TensorParallelOptions;

// Odd sizes wherever heads allow: the vocabulary, the hidden width, the number of tokens.
nn::Llama::Config llama_config() {
  return {.vocabulary = 13,
          .tokens = 8,
          .layers = 2,
          .heads = 4,
          .kv_heads = 2,
          .width = 16,
          .hidden = 17,
          .init_std = 0.3};
}
nn::Gpt::Config gpt_config() {
  return {.vocabulary = 11, .tokens = 7, .layers = 2, .heads = 2, .width = 6, .hidden = 5, .init_std = 0.3};
}

struct Batch {
  Tensor tokens, targets;
};
Batch batch_of_ids(std::int64_t vocabulary, std::int64_t tokens, std::size_t step) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(3 * tokens)), next = ids;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>((i * 7 + step * 5 + i * i) % static_cast<std::size_t>(vocabulary));
    next[i] = static_cast<std::int32_t>((i * 5 + 3 + step) % static_cast<std::size_t>(vocabulary));
  }
  next[4] = -100;  // does not count
  return {Tensor::from<std::int32_t>(ids, {3, tokens}), Tensor::from<std::int32_t>(next, {3, tokens})};
}

std::int64_t calls(const CommCounter& counter, comm::CommOp kind, std::string_view module) {
  std::int64_t n = 0;
  for (const CommCounter::Entry& e : counter.entries())
    if (e.kind == kind && (e.module == module || e.module.starts_with(std::string(module) + "."))) n += e.item.calls;
  return n;
}

struct ExpectedCalls {
  std::int64_t all_gather = 0, reduce_scatter = 0, all_reduce = 0;
};
void expect_calls(const CommCounter& counter, std::string_view module, const ExpectedCalls& expected) {
  EXPECT_EQ(calls(counter, comm::CommOp::all_gather, module), expected.all_gather) << module << counter.describe();
  EXPECT_EQ(calls(counter, comm::CommOp::reduce_scatter, module), expected.reduce_scatter)
      << module << counter.describe();
  EXPECT_EQ(calls(counter, comm::CommOp::all_reduce, module), expected.all_reduce) << module << counter.describe();
}

// Trains both for some steps on the same batches.
void expect_plan_parity(nn::LanguageModel& model, nn::LanguageModel& reference, const DeviceMesh& mesh,
                        const nn::Plan& plan, std::int64_t vocabulary, std::int64_t tokens) {
  nn::parallelize(model, mesh, plan);
  model.materialize(nn::Seed{3});
  reference.materialize(nn::Seed{3});
  const StrictCommunication strict;
  const auto side = [&](nn::LanguageModel& m) {
    return Side{m, [&](std::uint64_t step) {
                  nn::set_step(static_cast<std::int64_t>(step));
                  const Batch batch = batch_of_ids(vocabulary, tokens, step);
                  return m(batch.tokens, batch.targets);
                }};
  };
  // The logits tell of the values: gradients of GPT's key biases are rounding errors only, which AdamW makes large.
  expect_trains_alike(side(model), side(reference),
                      {.max_norm = 0.5, .norm_limit = 1e-4, .gradient_limit = 1e-5, .value_limit = 0});
  GradMode off(false);
  const Batch batch = batch_of_ids(vocabulary, tokens, 9);
  const auto logits_of = [&](nn::LanguageModel& m) {
    nn::set_step(9);
    return whole(m(batch.tokens, Tensor()));
  };
  EXPECT_TRUE(near(logits_of(model), logits_of(reference), 1e-3));
}

TEST(TensorParallel, F157_LlamaWithRopeGroupedQueriesAndLossParallel) {
  for (bool sequence : {false, true})
    for (bool loss : {true, false})
      for (bool tied : {false, true})
        run_ranks(2, [&](const Group& group) {
          nn::Llama::Config config = llama_config();
          config.tied_head = tied;
          nn::Llama model(config), reference(config);
          const Options options{.sequence_parallel = sequence, .loss_parallel = loss};
          SCOPED_TRACE(fmt::format("sequence {} loss {} tied {}", sequence, loss, tied));
          expect_plan_parity(model, reference, DeviceMesh(group, "tp"), nn::llama_plan(config, options),
                             config.vocabulary, 5);
        });
}

TEST(TensorParallel, F157_GptWithBiasesPositionsDropoutAndTiedHead) {
  for (bool sequence : {false, true})
    for (bool loss : {true, false})
      run_ranks(2, [&](const Group& group) {
        nn::Gpt::Config config = gpt_config();
        config.dropout = 0.2;  // the mask is that of one rank
        nn::Gpt model(config), reference(config);
        const Options options{.sequence_parallel = sequence, .loss_parallel = loss};
        SCOPED_TRACE(fmt::format("sequence {} loss {}", sequence, loss));
        expect_plan_parity(model, reference, DeviceMesh(group, "tp"), nn::gpt_plan(config, options), config.vocabulary,
                           7);
      });
}

TEST(TensorParallel, F157_OneAndFourRanksAndProcesses) {
  const auto parity = [](const Group& group) {
    nn::Llama::Config config = llama_config();
    config.kv_heads = 4;
    nn::Llama model(config), reference(config);
    expect_plan_parity(model, reference, DeviceMesh(group, "tp"), nn::llama_plan(config, {.sequence_parallel = true}),
                       config.vocabulary, 5);
  };
  for (int ranks : {1, 4}) run_ranks(ranks, parity);
  run_processes(2, parity);
}

TEST(TensorParallel, F154_HeadsThatDoNotDivideAreRefused) {
  run_ranks(2, [](const Group& group) {
    const DeviceMesh mesh(group, "tp");
    nn::Llama::Config config = llama_config();
    config.kv_heads = 1;
    nn::Llama llama(config);
    expect_error([&] { nn::parallelize(llama, mesh, nn::llama_plan(config)); },
                 {"\"blocks.0.attn\"", "1 key-value heads", "2 ranks", "\"tp\""});
    nn::Gpt::Config odd = gpt_config();
    odd.heads = 3;
    nn::Gpt gpt(odd);
    expect_error([&] { nn::parallelize(gpt, mesh, nn::gpt_plan(odd)); }, {"\"blocks.0.attn\"", "3 heads"});
    // Only the feed-forward parts are cut: heads do not matter.
    nn::parallelize(gpt, mesh, {{"blocks.*.mlp.up", nn::colwise()}, {"blocks.*.mlp.down", nn::rowwise()}});
  });
}

TEST(TensorParallel, F151_BlocksCommunicateTwiceEachWay) {
  for (bool tied : {false, true})
    run_ranks(2, [&](const Group& group) {
      nn::Llama::Config config = llama_config();
      config.tied_head = tied;
      nn::Llama model(config);
      nn::parallelize(model, DeviceMesh(group, "tp"), nn::llama_plan(config));
      model.materialize();
      const StrictCommunication strict;
      const Batch batch = batch_of_ids(13, 6, 0);
      CommCounter counter;
      const Tensor loss = model(batch.tokens, batch.targets);
      expect_calls(counter, "tok", {.all_reduce = 1});
      for (const char* block : {"blocks.0", "blocks.1"}) expect_calls(counter, block, {.all_reduce = 2});
      expect_calls(counter, "head", {.all_reduce = 2});  // the maximum; sums of exponentials and targets' logits
      EXPECT_EQ(counter.total().calls, 1 + 2 * 2 + 2);
      counter.clear();
      backward(loss);
      for (const char* block : {"blocks.0", "blocks.1"}) expect_calls(counter, block, {.all_reduce = 2});
      expect_calls(counter, "head", {.all_reduce = 1});
      EXPECT_EQ(counter.total().calls, 2 * 2 + 1) << counter.describe();
    });
}

TEST(TensorParallel, F152_SequenceParallelBlocksGatherAndScatterTwiceEachWay) {
  run_ranks(2, [](const Group& group) {
    const nn::Llama::Config config = llama_config();
    nn::Llama model(config);
    nn::parallelize(model, DeviceMesh(group, "tp"), nn::llama_plan(config, {.sequence_parallel = true}));
    model.materialize();
    const StrictCommunication strict;
    const Batch batch = batch_of_ids(13, 6, 0);
    CommCounter counter;
    const Tensor loss = model(batch.tokens, batch.targets);
    expect_calls(counter, "tok", {.reduce_scatter = 1});
    for (const char* block : {"blocks.0", "blocks.1"})
      expect_calls(counter, block, {.all_gather = 2, .reduce_scatter = 2});
    expect_calls(counter, "head", {.all_gather = 1, .all_reduce = 2});
    EXPECT_EQ(counter.total().calls, 1 + 2 * 4 + 3);
    counter.clear();
    backward(loss);
    for (const char* block : {"blocks.0", "blocks.1"})
      expect_calls(counter, block, {.all_gather = 2, .reduce_scatter = 2});
    expect_calls(counter, "head", {.reduce_scatter = 1});
    expect_calls(counter, "tok", {.all_gather = 1});
    // And the gradients of the five norms, all at once.
    EXPECT_EQ(counter.of(comm::CommOp::all_reduce), (CommCounter::Item{1, 5 * 16 * 4}));
    EXPECT_EQ(counter.total().calls, 2 * 4 + 1 + 1 + 1) << counter.describe();
  });
}

TEST(TensorParallel, Bf16KeepsItsAccuracy) {
  for (bool sequence : {false, true})
    run_ranks(2, [&](const Group& group) {
      const nn::Llama::Config config = llama_config();
      nn::Llama model(config), reference(config);
      for (nn::Llama* m : {&model, &reference}) {
        m->materialize(nn::Seed{3});
        for (nn::Parameter* p : m->parameters()) p->set(cast(p->value().detach(), DType::bf16));
      }
      nn::parallelize(model, DeviceMesh(group, "tp"), nn::llama_plan(config, {.sequence_parallel = sequence}));
      const StrictCommunication strict;
      const Batch batch = batch_of_ids(13, 6, 0);
      const Tensor loss = model(batch.tokens, batch.targets), expected = reference(batch.tokens, batch.targets);
      EXPECT_TRUE(near(loss, expected, tolerance(DType::bf16)));
      backward(loss);
      backward(expected);
      for (nn::Parameter* p : model.parameters())
        EXPECT_TRUE(near(whole(p->grad()), reference.parameter(p->name()).grad(), 2 * tolerance(DType::bf16)))
            << p->name();
    });
}

// Bits of losses and parameters after some steps, eager or captured.
std::vector<float> train_bits(const Group& group, bool captured) {
  const nn::Llama::Config config = llama_config();
  nn::Llama model(config);
  nn::parallelize(model, DeviceMesh(group, "tp"), nn::llama_plan(config, {.sequence_parallel = true}));
  model.materialize(nn::Seed{3});
  nn::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  const auto step = [&](std::span<const Tensor> in) {
    const Tensor loss = model(in[0], in[1]);
    backward(loss);
    nn::clip_grad_norm(optimizer, 1);
    optimizer.step_and_clear();
    return std::vector<Tensor>{loss.local().detach()};
  };
  CompiledStep compiled(step, CompileOptions{.group = group});
  std::vector<float> bits;
  for (std::size_t i = 0; i < 5; ++i) {
    const Batch batch = batch_of_ids(13, 5, i);
    const Tensor in[] = {batch.tokens, batch.targets};
    bits.push_back((captured ? compiled(in) : step(in))[0].item<float>());
  }
  for (const nn::Parameter* p : model.parameters())
    for (float v : whole(p->value()).to_vector<float>()) bits.push_back(v);
  return bits;
}

TEST(TensorParallel, CapturedStepsAndRepeatedRunsHaveTheSameBits) {
  run_ranks(2, [](const Group& group) {
    const std::vector<float> eager = train_bits(group, false);
    EXPECT_EQ(train_bits(group, true), eager);
    EXPECT_EQ(train_bits(group, false), eager);
  });
}

}  // namespace
}  // namespace sherd::testing
