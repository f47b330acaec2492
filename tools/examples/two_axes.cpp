// Tensor parallelism, fully_shard, a captured step, alone or on a mesh of dp x tp ranks:
//   build/release/bin/two_axes            sherd run -n 4 -- build/release/bin/two_axes 2 2
#include <cstdlib>

#include <sherd/sherd.h>

using namespace sherd;

// Sequences in which each token follows from the last. Rows `first` to `first + rows` of a step's global batch.
std::pair<Tensor, Tensor> batch_of(int step, std::int64_t first, std::int64_t rows, const nn::Llama::Config& config) {
  std::vector<std::int32_t> tokens, targets;
  for (std::int64_t row = first; row < first + rows; ++row) {
    std::int64_t token = (13 * step + 29 * row) % config.vocabulary;
    for (std::int64_t t = 0; t < config.tokens; ++t) {
      tokens.push_back(static_cast<std::int32_t>(token));
      token = (5 * token + 7) % config.vocabulary;
      targets.push_back(static_cast<std::int32_t>(token));
    }
  }
  return {Tensor::from<std::int32_t>(tokens, {rows, config.tokens}),
          Tensor::from<std::int32_t>(targets, {rows, config.tokens})};
}

int main(int argc, char** argv) {
  const int dp_ranks = argc > 1 ? std::atoi(argv[1]) : 1, tp_ranks = argc > 2 ? std::atoi(argv[2]) : 1;
  const DeviceMesh mesh = DeviceMesh::from_launcher({{"dp", dp_ranks}, {"tp", tp_ranks}});
  const DeviceMesh dp = mesh["dp"], tp = mesh["tp"];

  const nn::Llama::Config config{
      .vocabulary = 61, .tokens = 16, .layers = 2, .heads = 4, .kv_heads = 2, .width = 32, .hidden = 88};
  nn::Llama model(config);  // shapes only
  nn::parallelize(model, tp, nn::llama_plan(config, {.sequence_parallel = true}));
  for (nn::Module* block : model.blocks()) nn::fully_shard(*block, dp);
  nn::fully_shard(model, dp);
  model.materialize(nn::Seed{42});  // each rank draws its own elements: the bits of one rank
  nn::AdamW optimizer(model.parameters(), {.lr = 1e-2});

  auto step = compile([&](const Tensor& tokens, const Tensor& targets) {
    const StrictCommunication strict;  // nothing moves but what the plan and fully_shard say
    const Tensor loss = model(tokens, targets);
    backward(loss);
    nn::clip_grad_norm(optimizer, 1.0);
    optimizer.step_and_clear();
    return mean_over(loss, dp);
  });

  const bool speaks = world_group()->rank() == 0;
  if (speaks) fmt::print("{}\n{}\n", nn::to_string(model), draw(model.parameter("blocks.0.attn.wq.weight")));
  constexpr std::int64_t kBatch = 8;
  const std::int64_t rows = kBatch / dp.size();
  for (int i = 0; i < 60; ++i) {
    const CommCounter counter;
    const auto [tokens, targets] = batch_of(i, dp.coordinate() * rows, rows, config);
    const double loss = step(tokens, targets).item<double>();
    if (speaks && i % 20 == 19) fmt::print("step {}  loss {:.4f}\n", i + 1, loss);
    if (speaks && i == 59) fmt::print("communication of a step:\n{}\n", counter.describe());
  }
}
