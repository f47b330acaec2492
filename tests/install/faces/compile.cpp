#include <sherd/compile.h>

using namespace sherd;

int main() {
  auto step = compile([](const Tensor& x) { return mul(x, 2.0); });
  for (int i = 0; i < 4; ++i)
    if (step(full({2}, i)).to_vector<float>() != std::vector<float>(2, 2.0F * static_cast<float>(i))) return 1;
  return step.why().starts_with("replayed") ? 0 : 1;
}
