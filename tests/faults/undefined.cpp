// Seeded fault: a signed integer overflows. UndefinedBehaviorSanitizer must report it.
#include <limits>

int main(int argc, char**) {
  volatile int large = std::numeric_limits<int>::max();
  large = large + argc;
  return 0;
}
