// `--child gemm`: matrix products on one thread. A request is "NN|NT|TN M N K f32|bf16 CALLS" as in peers/matmul.py.
// With --engine onednn that library is called directly, without our cutting into pieces.
#include <chrono>
#include <sstream>

#include "runtime/cpu/gemm/gemm.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

struct Product {
  cpu::Gemm gemm;
  int calls = 0;
};

Product parse(const std::string& request) {
  std::istringstream words(request);
  std::string kind, dtype;
  Product p;
  cpu::Gemm& g = p.gemm;
  words >> kind >> g.m >> g.n >> g.k >> dtype >> p.calls;
  check((kind == "NN" || kind == "NT" || kind == "TN") && (dtype == "f32" || dtype == "bf16") && g.m > 0 && g.n > 0 &&
            g.k > 0 && p.calls > 0,
        "gemm: \"{}\" is not NN|NT|TN M N K f32|bf16 CALLS", request);
  g.dtype = g.result = dtype == "bf16" ? DType::bf16 : DType::f32;
  g.transpose_a = kind[0] == 'T';
  g.transpose_b = kind[1] == 'T';
  g.lda = g.transpose_a ? g.m : g.k;
  g.ldb = g.transpose_b ? g.k : g.n;
  g.ldc = g.n;
  return p;
}

nlohmann::json run(const Product& p, bool library_alone) {
  using Clock = std::chrono::steady_clock;
  const cpu::Gemm& g = p.gemm;
  const Tensor a = ones({g.m * g.k}, g.dtype), b = ones({g.k * g.n}, g.dtype), c = ones({g.m * g.n}, g.result);
  const auto multiply = [&] {
    if (!library_alone) cpu::gemm(g, a.raw(), b.raw(), c.raw());
    else check(cpu::detail::gemm_onednn(g, a.raw(), b.raw(), c.raw()), "oneDNN does not know this product");
  };
  multiply();
  std::vector<double> seconds;
  for (int i = 0; i < p.calls; ++i) {
    const Clock::time_point start = Clock::now();
    multiply();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return {{"seconds", seconds}};
}

}  // namespace

int run_gemm_child(std::span<const std::string_view> args) {
  std::string engine = "sherd";
  ConfigTable table;
  table.add("engine", &engine, "sherd, or onednn alone");
  apply_flags(table, parse_command_line(table, args));
  check(engine == "sherd" || engine == "onednn", "--engine is sherd or onednn, not {}", engine);
  check(engine == "sherd" || cpu::detail::onednn_is_built_in(), "this build has no oneDNN");
  serve({{"peer", engine == "onednn" ? "oneDNN" : "sherd"}},
        [&](const std::string& request) { return run(parse(request), engine == "onednn"); });
  return 0;
}

}  // namespace sherd::bench
