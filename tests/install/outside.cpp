// Ten lines against the installed library: an MLP learns the sum of its inputs.
#include <sherd/sherd.h>

using namespace sherd;

struct Mlp : nn::Layer<Mlp> {
  nn::Linear& up = add<nn::Linear>("up", 4, 16);
  nn::Linear& down = add<nn::Linear>("down", 16, 1);
  Tensor forward(const Tensor& x) { return down(gelu(up(x))); }
};

int main() {
  Mlp model;
  model.materialize(nn::Seed{1});
  nn::AdamW optimizer(model.parameters(), {.lr = 1e-2});
  double first = 0, last = 0;
  for (std::uint64_t step = 0; step < 100; ++step) {
    const Tensor x = random_normal({64, 4}, random_key(1, "x", "data", step));
    Tensor loss = mean(square(model(x) - sum(x, {1}, true)));
    last = loss.item<double>();
    if (step == 0) first = last;
    backward(loss);
    optimizer.step_and_clear();
  }
  fmt::print("loss {:.3f} -> {:.3f}\n", first, last);
  return last < 0.1 * first ? 0 : 1;
}
