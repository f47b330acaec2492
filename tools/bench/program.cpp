// program.*: what passes pay for being checked.
#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

std::vector<Benchmark> program_benchmarks() {
  Benchmark row;
  row.name = "program.verify";
  row.summary = "verify() and the meaning of a training step of 32 blocks, about 1,300 nodes";
  row.unit = {"ms", Better::lower, 2};
  row.target = {Rule::value_at_most, 10};
  row.measure = [](Figure& figure, BenchRun& run) {
    const std::string layers = std::to_string(run.sized(32, 2));
    const Outcome outcome =
        run.hold({.ours = {child("program", {"--layers", layers}), std::to_string(run.sized(101, 3))},
                  .rounds = run.sized(3, 1)});
    fill(figure, outcome, [](double seconds) { return seconds * 1e3; });
    figure.detail["nodes"] = outcome.ours.answers.back().at("nodes");
  };
  return {row};
}

}  // namespace sherd::bench
