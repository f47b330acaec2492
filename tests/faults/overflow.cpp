// Seeded fault: a write past the end of a heap block. AddressSanitizer must report it.
#include <vector>

int main(int argc, char**) {
  std::vector<int> values(8);
  int* volatile data = values.data();
  data[7 + argc] = 1;
  return 0;
}
