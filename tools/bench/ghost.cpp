// ghost.*: how long this program takes, and how much memory, to tell what one rank of a large job holds: a Llama of
// 8 B parameters on 512 ranks, one sequence for each of the 64 that have data of their own. Ranks at both ends of the
// mesh and within it; the slowest counts.
#include <fmt/format.h>

#include "runtime/memory/accounting.h"
#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/ghost_rank.h"

namespace sherd::bench {

namespace {

constexpr const char *kModel = "llama8b", *kMesh = "dp=64,tp=8";

// Once in a fresh process: ranks that come later find interned layouts.
const Outcome& ghost_outcome(BenchRun& run) {
  return run.shared("ghost", [&] {
    const int last = ranks_of_mesh(kMesh) - 1;
    const std::vector<std::string> flags = {"--model",  kModel,
                                            "--mesh",   kMesh,
                                            "--steps",  run.sized<std::string>("10", "2"),
                                            "--layers", run.sized<std::string>("0", "2")};
    return Contest{.ours = {child("ghost", flags), fmt::format("0 {} {}", last / 4, last)}, .rounds = 1};
  });
}

Benchmark ghost_benchmark(std::string_view kind, std::string summary, Unit unit, double target,
                          const std::function<double(const Answers&)>& value_of) {
  Benchmark row;
  row.name = fmt::format("ghost.{}.{}", kModel, kind);
  row.summary = std::move(summary);
  row.unit = unit;
  row.target = {Rule::value_at_most, target};
  row.measure = [value_of](Figure& figure, BenchRun& run) {
    const Outcome& outcome = ghost_outcome(run);
    fill_by(figure, outcome, value_of);
    const nlohmann::json& answer = outcome.ours.answers.back();
    figure.detail["predicted_peak_bytes"] = answer.at("total_peak_bytes");
    figure.detail["predicted_bytes_at_peak"] = answer.at("bytes_at_peak");
  };
  return row;
}

}  // namespace

std::vector<Benchmark> ghost_benchmarks() {
  return {
      ghost_benchmark("first", "one of 512 ranks of an 8 B Llama as a ghost: building it, and its first step", {"ms"},
                      1000, [](const Answers& side) { return side.median("/first_seconds") * 1e3; }),
      ghost_benchmark("step", "a further step of such a rank", {"ms"}, 100,
                      [](const Answers& side) { return side.median() * 1e3; }),
      ghost_benchmark("rss", "growth of resident memory by three such ranks, one after the other", {"MB"}, 50,
                      [](const Answers& side) { return side.median("/growth_bytes") / 1e6; }),
  };
}

}  // namespace sherd::bench
