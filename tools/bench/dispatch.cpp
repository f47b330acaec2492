// dispatch.*: what one op call costs.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

Benchmark dispatch_benchmark(const std::string& kind, std::string summary, double target) {
  Benchmark row;
  row.name = "dispatch." + kind;
  row.summary = std::move(summary);
  row.unit = {"ns"};
  row.target = {Rule::value_at_most, target};
  row.measure = [kind](Figure& figure, BenchRun& run) {
    const std::string request = fmt::format("{} {}", kind, run.sized(301, 3));
    const Outcome outcome = run.hold({.ours = {child("dispatch", {}), request},
                                      .peers = run.torch_contestants("dispatch.py", {}, request),
                                      .rounds = run.sized(3, 1)});
    fill(figure, outcome, [](double seconds) { return seconds * 1e9; });
  };
  return row;
}

}  // namespace

std::vector<Benchmark> dispatch_benchmarks() {
  return {
      dispatch_benchmark("plain", "1-element f32 add, recording off", 150),
      dispatch_benchmark("recording", "1-element f32 add, recorded on the tape", 300),
  };
}

}  // namespace sherd::bench
