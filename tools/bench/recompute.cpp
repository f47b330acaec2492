// step.bigger8.*: what recomputation costs in time and saves in activations, on one thread, beside the same step
// without.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

struct RecomputeCase {
  std::string policy;
  double most_time, most_bytes;  ///< of those without
  bool captured = true;
};

Contestant side_with(const std::string& policy, bool captured, BenchRun& run) {
  Contestant side{child("step", {"--model", run.sized<std::string>("bigger8", "tiny"), "--recompute", policy,
                                 "--captured", captured ? "true" : "false"}),
                  "2"};
  side.name = "sherd, recompute " + policy;
  return side;
}

// Both figures read it.
const Outcome& recompute_outcome(const RecomputeCase& c, BenchRun& run) {
  return run.shared(fmt::format("recompute {} {}", c.policy, c.captured), [&] {
    return Contest{.ours = side_with(c.policy, c.captured, run),
                   .peers = {side_with("none", c.captured, run)},
                   .rounds = run.sized(4, 1)};
  });
}

Benchmark time_benchmark(const RecomputeCase& c) {
  Benchmark row;
  row.name = fmt::format("step.bigger8.{}{}", c.policy, c.captured ? "" : ".eager");
  row.summary = fmt::format("training step of bigger with 8 blocks, recompute {}, beside none{}", c.policy,
                            c.captured ? "" : ", nothing captured");
  row.unit = {"ms"};
  row.target = {Rule::ratio_at_least, 1 / c.most_time};
  row.measure = [c](Figure& figure, BenchRun& run) {
    const Outcome& outcome = recompute_outcome(c, run);
    fill(figure, outcome, [](double seconds) { return seconds * 1e3; });
    figure.detail["loss"] = outcome.ours.answers.back().at("loss");
  };
  return row;
}

Benchmark bytes_benchmark(const RecomputeCase& c) {
  Benchmark row;
  row.name = fmt::format("step.bigger8.{}.activations{}", c.policy, c.captured ? "" : ".eager");
  row.summary = fmt::format("its peak of activations, recompute {}, beside none{}", c.policy,
                            c.captured ? "" : ", nothing captured");
  row.unit = {"MB"};
  row.target = {Rule::ratio_at_least, 1 / c.most_bytes};
  row.measure = [c](Figure& figure, BenchRun& run) {
    fill_by(figure, recompute_outcome(c, run),
            [](const Answers& side) { return side.median("/peak_bytes/activations") / 1e6; });
  };
  return row;
}

}  // namespace

std::vector<Benchmark> recompute_benchmarks() {
  std::vector<Benchmark> rows;
  for (const bool captured : {true, false})
    for (const RecomputeCase& c :
         {RecomputeCase{"selective", 1.13, 0.6, captured}, RecomputeCase{"full", 1.36, 1.0 / 3, captured}}) {
      rows.push_back(time_benchmark(c));
      rows.push_back(bytes_benchmark(c));
    }
  return rows;
}

}  // namespace sherd::bench
