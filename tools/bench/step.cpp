// step.*: time of one training step; flops.*: its share of the machine's multiply-adds; rss.*: how much memory it
// takes.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"

namespace sherd::bench {

namespace {

struct StepCase {
  std::string model, dtype;
  int threads;
};

// Steps per turn: some hundred milliseconds at least.
const Outcome& step_outcome(const StepCase& c, BenchRun& run) {
  const std::string model = run.sized<std::string>(c.model, "tiny"), threads = std::to_string(c.threads);
  return run.shared(fmt::format("step {} {} {}", model, c.dtype, threads), [&] {
    const std::string steps = model == "mini" ? "8" : "2";
    Contest contest{.ours = {child("step", {"--model", model, "--dtype", c.dtype, "--threads", threads}), steps},
                    .peers = run.torch_contestants("step.py", {model, c.dtype, threads}, steps, c.threads),
                    .limit = Contestant{child("fma", {}), fmt::format("{} {}", c.dtype, threads)},
                    .rounds = run.sized(model == "mini" ? 9 : 4, 1)};
    return contest;
  });
}

void describe_outcome(Figure& figure, const Outcome& outcome, const StepCase& c, BenchRun& run) {
  const BenchModel& model = bench_model(run.sized<std::string>(c.model, "tiny"));
  figure.detail["tokens_per_second"] = static_cast<double>(model.tokens_per_step()) / outcome.ours.median();
  figure.detail["samples"] = outcome.ours.seconds.size();
  figure.detail["loss"] = outcome.ours.answers.back().at("loss");
}

Benchmark step_benchmark(const StepCase& c, std::optional<double> times_peer = {}) {
  Benchmark row;
  row.name = fmt::format("step.{}.{}.t{}", c.model, c.dtype, c.threads);
  row.summary = fmt::format("training step of {}, {} thread{}", c.model, c.threads, c.threads > 1 ? "s" : "");
  row.unit = {"ms"};
  if (times_peer) row.target = {Rule::ratio_at_least, *times_peer};
  row.measure = [c](Figure& figure, BenchRun& run) {
    const Outcome& outcome = step_outcome(c, run);
    fill(figure, outcome, [](double seconds) { return seconds * 1e3; });
    describe_outcome(figure, outcome, c, run);
  };
  return row;
}

Benchmark flops_benchmark(const StepCase& c, double share) {
  Benchmark row;
  row.name = fmt::format("flops.{}.{}.t{}", c.model, c.dtype, c.threads);
  row.summary = "share of the cores' measured multiply-add peak in a whole step";
  row.unit = {"of the FMA peak", Better::higher, 3};
  row.target = {Rule::value_at_least, share};
  row.measure = [c](Figure& figure, BenchRun& run) {
    const Outcome& outcome = step_outcome(c, run);
    if (!outcome.limit->ok()) throw Error(outcome.limit->error);
    const double peak = 1e9 / outcome.limit->median();
    const double flops = bench_model(run.sized<std::string>(c.model, "tiny")).step_flops();
    fill(figure, outcome, [&](double seconds) { return flops / seconds / peak; });
    figure.limit = 1.0;
    figure.detail["gflops"] = flops / outcome.ours.median() / 1e9;
    figure.detail["peak_gflops"] = peak / 1e9;
  };
  return row;
}

// Ours over the program's start, the peer's over its import of torch.
Benchmark memory_growth_benchmark(const StepCase& c, double times_peer) {
  Benchmark row;
  row.name = "rss." + c.model;
  row.summary = "growth of resident memory by training, one thread";
  row.unit = {"MB", Better::lower, 0};
  row.target = {Rule::ratio_at_least, times_peer};
  row.measure = [c](Figure& figure, BenchRun& run) {
    const Outcome& outcome = step_outcome(c, run);
    const auto growth = [](const Answers& side) { return side.median("/growth_bytes") / 1e6; };
    figure.value = growth(outcome.ours);
    for (const Answers& peer : outcome.peers)
      if (peer.ok()) figure.peers.push_back({peer.name, growth(peer), peer.settings});
    note_missing(figure, outcome);
  };
  return row;
}

}  // namespace

std::vector<Benchmark> step_benchmarks() {
  return {
      step_benchmark({"mini", "f32", 1}, 1.4),
      step_benchmark({"mini", "f32", 2}, 1.7),
      step_benchmark({"bigger", "f32", 1}, 1.15),
      step_benchmark({"bigger", "f32", 2}, 1.25),
      step_benchmark({"mini", "bf16", 1}),
      step_benchmark({"mini", "bf16", 2}),
      step_benchmark({"bigger", "bf16", 1}, 1.6),
      step_benchmark({"bigger", "bf16", 2}, 1.6),
      flops_benchmark({"bigger", "f32", 1}, 0.80),
      flops_benchmark({"bigger", "f32", 2}, 0.76),
      memory_growth_benchmark({"bigger", "f32", 1}, 2.0),
  };
}

}  // namespace sherd::bench
