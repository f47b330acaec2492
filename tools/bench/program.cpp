// program.*: what passes pay for being checked, how much a captured step computes, and what a replay's guards take.
#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"

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

// Beside 1: what the formula leaves out is small, and a product whose row does not count it shows.
Benchmark counted_flops() {
  Benchmark row;
  row.name = "program.flops";
  row.summary = "operations of a captured step of mini, counted node by node, over those of the formula";
  row.unit = {"of the formula", Better::lower, 3};
  row.measure = [](Figure& figure, BenchRun& run) {
    const BenchModel& mini = bench_model("mini");
    const std::vector<std::string> flags = {"--layers", std::to_string(run.sized<std::int64_t>(mini.layers, 2)),
                                            "--batch", std::to_string(run.sized<std::int64_t>(mini.batch, 2))};
    const Outcome outcome = run.hold({.ours = {child("program", flags), "1"}, .rounds = 1});
    fill_by(figure, outcome, [](const Answers& side) { return side.median("/flops") / side.median("/formula_flops"); });
    for (const char* count : {"flops", "formula_flops"}) figure.detail[count] = outcome.ours.answers.back().at(count);
  };
  return row;
}

// A call finds that the recording fits, when nothing that the step reads has changed.
Benchmark guards() {
  Benchmark row;
  row.name = "program.guards";
  row.summary = "what a call of a captured step of 32 sharded blocks takes to find that nothing has changed";
  row.unit = {"us", Better::lower, 2};
  row.target = {Rule::value_at_most, 3};
  row.measure = [](Figure& figure, BenchRun& run) {
    const std::string layers = std::to_string(run.sized(32, 2));
    const Outcome outcome =
        run.hold({.ours = {child("guards", {"--layers", layers}), std::to_string(run.sized(101, 3))},
                  .rounds = run.sized(3, 1)});
    fill(figure, outcome, [](double seconds) { return seconds * 1e6; });
    const nlohmann::json& answer = outcome.ours.answers.back();
    for (const char* what : {"slots", "looks"}) figure.detail[what] = answer.at(what);
    figure.detail["us_to_look_at_all"] = outcome.ours.median("/seconds_to_look_at_all") * 1e6;
  };
  return row;
}

}  // namespace

std::vector<Benchmark> program_benchmarks() {
  return {counted_flops(), guards(),
          timed("program.verify", "verify() and the meaning of a training step of 32 blocks, about 1,300 nodes",
                "verify", 10),
          timed("program.passes", "all passes of compile() over that step, each verified and compared in meaning",
                "passes", 30)};
}

}  // namespace sherd::bench
