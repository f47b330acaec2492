// Seeded fault: memory that nothing points to at exit. LeakSanitizer must report it.
#include <cstdlib>

int main() {
  void* volatile block = std::malloc(1000);
  block = nullptr;
  return block != nullptr;
}
