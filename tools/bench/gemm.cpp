// gemm.*: the matrix products of `bigger` on one thread, forward and backward, beside PyTorch's, oneDNN's and the
// multiply-add peak.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

struct Shape {
  const char* name;
  const char* kind;  ///< N stored as used, T stored transposed, for A and B
  int m, n, k;
};
// Rows are tokens (8 x 256), width 384: y = x W^T, dx = dy W, dW = dy^T x.
constexpr Shape kShapes[] = {
    {"projection", "NT", 2048, 384, 384}, {"up", "NT", 2048, 1536, 384},        {"down", "NT", 2048, 384, 1536},
    {"head", "NT", 2048, 256, 384},       {"up_grad_x", "NN", 2048, 384, 1536}, {"up_grad_w", "TN", 1536, 384, 2048},
};

Benchmark gemm_benchmark(const Shape& s, const std::string& dtype) {
  Benchmark row;
  row.name = fmt::format("gemm.{}.{}", s.name, dtype);
  row.summary = fmt::format("{} {}x{}x{}, one thread; limit: FMA peak", s.kind, s.m, s.n, s.k);
  row.unit = {"GF/s", Better::higher};
  row.measure = [s, dtype](Figure& figure, BenchRun& run) {
    const int m = run.sized(s.m, 32), n = run.sized(s.n, 16), k = run.sized(s.k, 16);
    const std::string request = fmt::format("{} {} {} {} {} {}", s.kind, m, n, k, dtype, run.sized(15, 1));
    Contest contest{.ours = {child("gemm", {}), request},
                    .peers = run.torch_contestants("matmul.py", {}, request),
                    .limit = Contestant{child("fma", {}), dtype + " 1"},
                    .rounds = run.sized(5, 1)};
    contest.peers.push_back({child("gemm", {"--engine", "onednn"}), request});
    const Outcome outcome = run.hold(contest);
    const double gigaflops = 2e-9 * m * n * k;
    fill(
        figure, outcome, [&](double seconds) { return gigaflops / seconds; },
        [](double seconds_per_gigaflop) { return 1 / seconds_per_gigaflop; });
  };
  return row;
}

}  // namespace

std::vector<Benchmark> gemm_benchmarks() {
  std::vector<Benchmark> rows;
  for (const char* dtype : {"f32", "bf16"})
    for (const Shape& shape : kShapes) rows.push_back(gemm_benchmark(shape, dtype));
  return rows;
}

}  // namespace sherd::bench
