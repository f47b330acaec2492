#include <sherd/tensor.h>

int main() {
  const sherd::Tensor x = sherd::full({2, 3}, 2.0);
  return sherd::sum(sherd::mul(x, x)).item<float>() == 24 ? 0 : 1;
}
