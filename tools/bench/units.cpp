// units.*: host overhead of sharding: 32 small sharded units, forward and backward, and AdamW over their 128
// parameters. Nothing is captured, as in PyTorch's usual loop. On two ranks the peer's messages go over loopback TCP,
// ours through shared memory; on one rank ours has nothing to copy.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/teams.h"

namespace sherd::bench {

namespace {

struct UnitsCase {
  const char* name;
  int ranks;
  bool sharded;
};
constexpr UnitsCase kCases[] = {{"plain", 1, false}, {"r1", 1, true}, {"r2", 2, true}};

Benchmark units_benchmark(const UnitsCase& c, bool optimizer) {
  Benchmark row;
  row.name = fmt::format("units.{}{}", optimizer ? "adamw." : "", c.name);
  row.summary =
      fmt::format("{}, {}, eager",
                  optimizer ? "AdamW over 128 small parameters" : "32 units of two 16x16 linears, forward and backward",
                  c.sharded ? fmt::format("fully_shard on {} rank{}", c.ranks, c.ranks > 1 ? "s" : "") : "not sharded");
  row.unit = {"ms", Better::lower, 3};
  row.measure = [c, optimizer](Figure& figure, BenchRun& run) {
    const std::string request = fmt::format("{} {}", optimizer ? "adamw" : "step", run.sized(20, 2));
    const std::vector<std::string> words = {c.sharded ? "fsdp2" : "plain", std::to_string(c.ranks)};
    std::vector<Contestant> torches = run.torch_contestants("units.py", words, request);
    if (optimizer) torches = in_variants(torches, {{"foreach", {"foreach"}}, {"fused", {"fused"}}});
    const Outcome outcome =
        run.hold({.ours = {child("units", {"--sharded", c.sharded ? "true" : "false"}, c.ranks), request},
                  .peers = torches,
                  .rounds = run.sized(5, 1)});
    fill(figure, outcome, [](double seconds) { return seconds * 1e3; });
  };
  return row;
}

}  // namespace

std::vector<Benchmark> units_benchmarks() {
  std::vector<Benchmark> rows;
  for (const bool optimizer : {false, true})
    for (const UnitsCase& c : kCases) rows.push_back(units_benchmark(c, optimizer));
  return rows;
}

}  // namespace sherd::bench
