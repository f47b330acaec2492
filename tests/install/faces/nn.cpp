#include <sherd/nn.h>

using namespace sherd;

int main() {
  nn::Gpt model({.vocabulary = 7, .tokens = 4, .layers = 1, .heads = 1, .width = 4});
  model.materialize(nn::Seed{1});
  nn::Sgd optimizer(model.parameters(), {.lr = 0.1});
  const Tensor ids = Tensor::from<std::int32_t>({0, 1, 2, 3}, {1, 4});
  const float first = model(ids, ids).item<float>();
  for (int i = 0; i < 5; ++i) {
    backward(model(ids, ids));
    optimizer.step_and_clear();
  }
  return model(ids, ids).item<float>() < first ? 0 : 1;
}
