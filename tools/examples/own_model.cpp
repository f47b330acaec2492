// A first model of one's own on a mesh: a plan of two lines, plain ids and plain targets. Alone, or on dp x tp ranks:
//   build/release/bin/own_model           sherd run -n 4 -- build/release/bin/own_model 2 2
#include <cstdlib>

#include <sherd/sherd.h>

using namespace sherd;

constexpr std::int64_t kTokens = 61, kRows = 8, kLength = 16;

struct NextToken : nn::Layer<NextToken> {
  nn::Embedding& tok = add<nn::Embedding>("tok", kTokens, 32);
  nn::Linear& up = add<nn::Linear>("up", 32, 128);
  nn::Linear& down = add<nn::Linear>("down", 128, kTokens);
  Tensor forward(const Tensor& ids) { return down(gelu(up(tok(ids)))); }  // [B, T] -> [B, T, kTokens]
};

// Rows `first` to `first + rows` of a step's batch; the token after t is 5 t + 7.
std::pair<Tensor, Tensor> batch_of(int step, std::int64_t first, std::int64_t rows) {
  std::vector<std::int32_t> ids, targets;
  for (std::int64_t i = first * kLength; i < (first + rows) * kLength; ++i) {
    ids.push_back(static_cast<std::int32_t>((13 * step + 29 * i) % kTokens));
    targets.push_back(static_cast<std::int32_t>((5 * ids.back() + 7) % kTokens));
  }
  return {Tensor::from<std::int32_t>(ids, {rows, kLength}), Tensor::from<std::int32_t>(targets, {rows, kLength})};
}

int main(int argc, char** argv) {
  const int dp_ranks = argc > 1 ? std::atoi(argv[1]) : 1, tp_ranks = argc > 2 ? std::atoi(argv[2]) : 1;
  const DeviceMesh mesh = DeviceMesh::from_launcher({{"dp", dp_ranks}, {"tp", tp_ranks}});
  const DeviceMesh dp = mesh["dp"];

  NextToken model;
  nn::parallelize(model, mesh["tp"], {{"up", nn::colwise()}, {"down", nn::rowwise()}});
  nn::fully_shard(model, dp);
  model.materialize(nn::Seed{42});
  nn::AdamW optimizer(model.parameters(), {.lr = 1e-2});

  const std::int64_t rows = kRows / dp.size();
  for (int step = 0; step < 60; ++step) {
    const auto [ids, targets] = batch_of(step, dp.coordinate() * rows, rows);
    const Tensor loss = cross_entropy(model(ids), targets);  // distributed logits, plain targets
    backward(loss);
    optimizer.step_and_clear();
    const double mean = mean_over(loss, dp).item<double>();
    if (world_group()->rank() == 0 && step % 20 == 19) fmt::print("step {}  loss {:.4f}\n", step + 1, mean);
  }
}
