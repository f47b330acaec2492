// Seeded fault: two threads write one variable. ThreadSanitizer must report it.
#include <thread>

int main() {
  int shared = 0;
  std::thread other([&shared] { ++shared; });
  ++shared;
  other.join();
  return shared == 0;
}
