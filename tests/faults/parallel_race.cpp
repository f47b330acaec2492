// Seeded fault: the bodies of one parallel loop write one variable. ThreadSanitizer must report it, which it can only
// if the pool behind parallel_for is one it sees into.
#include "runtime/cpu/parallel.h"

int main() {
  sherd::set_threads(2);
  std::int64_t shared = 0;
  sherd::parallel_for(2, 1, [&shared](std::int64_t begin, std::int64_t end) { shared += end - begin; });
  return shared == 0;
}
