// program.*: what passes pay for being checked.
#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

Benchmark timed(std::string name, std::string summary, std::string_view what, double most_ms) {
  Benchmark row;
  row.name = std::move(name);
  row.summary = std::move(summary);
  row.unit = {"ms", Better::lower, 2};
  row.target = {Rule::value_at_most, most_ms};
  row.measure = [what = std::string(what)](Figure& figure, BenchRun& run) {
    const std::string layers = std::to_string(run.sized(32, 2));
    const Outcome outcome = run.hold({.ours = {child("program", {"--layers", layers, "--times", what}),
                                               std::to_string(run.sized(what == "verify" ? 101 : 31, 3))},
                                      .rounds = run.sized(3, 1)});
    fill(figure, outcome, [](double seconds) { return seconds * 1e3; });
    figure.detail["nodes"] = outcome.ours.answers.back().at("nodes");
  };
  return row;
}

}  // namespace

std::vector<Benchmark> program_benchmarks() {
  return {timed("program.verify", "verify() and the meaning of a training step of 32 blocks, about 1,300 nodes",
                "verify", 10),
          timed("program.passes", "all passes of compile() over that step, each verified and compared in meaning",
                "passes", 30)};
}

}  // namespace sherd::bench
