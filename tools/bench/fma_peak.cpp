#include "tools/bench/fma_peak.h"

#include <algorithm>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

#include "runtime/tensor/error.h"
#include "tools/bench/child.h"
#include "tools/train/fma_peak.h"

namespace sherd::bench {

double seconds_per_gigaflop(DType kind, int threads) {
  constexpr std::int64_t kLoops = 2'000'000;
  std::barrier start(threads);
  std::vector<double> rates(static_cast<std::size_t>(threads));
  {
    std::vector<std::jthread> workers;
    for (int t = 0; t < threads; ++t)
      workers.emplace_back([&, t] {
        pin_to_cpu(t);  // or a scheduler that is slow to move them lets two share a core
        start.arrive_and_wait();
        rates[static_cast<std::size_t>(t)] = train::flops_per_second(kind, kLoops);
      });
  }
  const double slowest = std::ranges::min(rates);
  check(slowest > 0, "this CPU has neither AVX2 with FMA nor AVX-512");
  return 1e9 / (slowest * threads);
}

}  // namespace sherd::bench
