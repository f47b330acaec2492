// The README's example: a model, sharded, trained. `sherd run -n 2 -- build/release/bin/tiny`
#include <sherd/sherd.h>

using namespace sherd;

struct Mlp : nn::Layer<Mlp> {
  nn::Linear& up = add<nn::Linear>("up", 8, 64);
  nn::Linear& down = add<nn::Linear>("down", 64, 1);
  Tensor forward(const Tensor& x) { return down(gelu(up(x))); }  // [B, 8] -> [B, 1]
};

int main() {
  Mlp model;
  nn::fully_shard(model);  // over all ranks of the job
  model.materialize(nn::Seed{42});
  nn::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  for (std::uint64_t step = 0; step < 100; ++step) {
    Tensor x = random_normal({256, 8}, random_key(1, "x", "data", step));
    Tensor loss = mean(square(model(x) - sum(sin(x), {1}, true)));
    backward(loss);
    optimizer.step_and_clear();
    if (step % 20 == 19) fmt::print("step {}  loss {:.4f}\n", step + 1, loss.item<float>());
  }
}
