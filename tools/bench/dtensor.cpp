// dtensor.*: overhead of an op on distributed tensors, over the same op on plain ones.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

Benchmark dtensor_benchmark(const std::string& kind, std::string summary, double target_ns, int samples) {
  Benchmark row;
  row.name = "dtensor." + kind;
  row.summary = std::move(summary);
  row.unit = {"ns", Better::lower, 0};
  row.target = {Rule::value_at_most, target_ns};
  row.measure = [kind, samples](Figure& figure, BenchRun& run) {
    const std::string request = fmt::format("{} {}", kind, run.sized(samples, 3));
    const Outcome outcome = run.hold({.ours = {child("dtensor", {}), request},
                                      .peers = run.torch_contestants("dtensor.py", {}, request),
                                      .rounds = run.sized(3, 1)});
    fill(figure, outcome, [](double seconds) { return seconds * 1e9; });
    for (const auto& [name, of] : outcome.ours.answers.back().at("rows").items())
      figure.detail[name] = {{"extra_ns", of.at("extra").get<double>() * 1e9},
                             {"plain_ns", of.at("plain").get<double>() * 1e9}};
  };
  return row;
}

}  // namespace

std::vector<Benchmark> dtensor_benchmarks() {
  return {
      dtensor_benchmark("hit", "overhead of a distributed add, mul or linear, cached plan", 500, 101),
      dtensor_benchmark("miss", "the same with a new plan for new sizes", 20'000, 201),
  };
}

}  // namespace sherd::bench
