// Usage: checkpoint FOLDER
#include <sherd/checkpoint.h>

using namespace sherd;

int main(int, char** argv) {
  nn::Linear saved(3, 2), loaded(3, 2);
  saved.materialize(nn::Seed{1});
  loaded.materialize(nn::Seed{2});
  nn::AdamW optimizer(saved.parameters()), other(loaded.parameters());
  nn::save(argv[1], saved, optimizer, {.step = 5});
  if (nn::load(argv[1], loaded, other).step != 5) return 1;
  return loaded.weight.value().to_vector<float>() == saved.weight.value().to_vector<float>() ? 0 : 1;
}
