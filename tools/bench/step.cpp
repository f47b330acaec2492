// step.*: time of one training step, captured or, with .eager, not; flops.*: its share of the machine's multiply-adds;
// rss.*: how much memory it takes.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"
#include "tools/bench/teams.h"

namespace sherd::bench {

namespace {

struct StepCase {
  std::string model, dtype;
  int threads;
  bool captured = true;
};

// PyTorch as its user would have it: compiled or not, and in bf16 by casting at each product or throughout.
std::vector<Contestant> torches(const StepCase& c, const std::string& model, const std::string& steps, BenchRun& run) {
  std::vector<Variant> variants;
  for (const char* dtype : {"f32", "autocast", "bf16"}) {
    if ((c.dtype == "f32") != (std::string_view(dtype) == "f32")) continue;
    const std::string threads = std::to_string(c.threads), suffix = c.dtype == "f32" ? "" : fmt::format(" {}", dtype);
    variants.push_back({"eager" + suffix, {model, dtype, threads, "eager"}});
    if (c.captured) variants.push_back({"torch.compile" + suffix, {model, dtype, threads, "compile"}});
  }
  return in_variants(run.torch_contestants("step.py", {}, steps, c.threads), variants);
}

// Steps per turn: some hundred milliseconds at least.
const Outcome& step_outcome(const StepCase& c, BenchRun& run) {
  const std::string model = run.sized<std::string>(c.model, "tiny"), threads = std::to_string(c.threads);
  return run.shared(fmt::format("step {} {} {} {}", model, c.dtype, threads, c.captured), [&] {
    const std::string steps = model == "mini" ? "8" : "2";
    std::vector<std::string> flags = {"--model", model, "--dtype", c.dtype, "--threads", threads};
    if (!c.captured) flags.insert(flags.end(), {"--captured", "false"});
    return Contest{.ours = {child("step", flags), steps},
                   .peers = torches(c, model, steps, run),
                   .limit = Contestant{child("fma", {}), fmt::format("{} {}", c.dtype, threads)},
                   .rounds = run.sized(model == "mini" ? 9 : 4, 1)};
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
  row.name = fmt::format("step.{}.{}.t{}{}", c.model, c.dtype, c.threads, c.captured ? "" : ".eager");
  row.summary = fmt::format("training step of {}, {} thread{}{}", c.model, c.threads, c.threads > 1 ? "s" : "",
                            c.captured ? "" : ", nothing captured or compiled");
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
    // The peer is not compiled: what the compiler itself takes would count too.
    const std::string model = run.sized<std::string>(c.model, "tiny"), threads = std::to_string(c.threads);
    const Contestant ours{child("step", {"--model", model, "--dtype", c.dtype, "--threads", threads}), "2"};
    const StepCase eager{c.model, c.dtype, c.threads, false};
    const Outcome outcome =
        run.hold({.ours = ours, .peers = torches(eager, model, "2", run), .rounds = run.sized(4, 1)});
    fill_by(figure, outcome, [](const Answers& side) { return side.median("/growth_bytes") / 1e6; });
  };
  return row;
}

}  // namespace

std::vector<Benchmark> step_benchmarks() {
  std::vector<Benchmark> rows = {
      step_benchmark({"mini", "f32", 1}, 1.4),    step_benchmark({"mini", "f32", 2}, 1.7),
      step_benchmark({"bigger", "f32", 1}, 1.15), step_benchmark({"bigger", "f32", 2}, 1.25),
      step_benchmark({"mini", "bf16", 1}),        step_benchmark({"mini", "bf16", 2}),
      step_benchmark({"bigger", "bf16", 1}, 1.6), step_benchmark({"bigger", "bf16", 2}, 1.6),
  };
  for (const char* model : {"mini", "bigger"})
    for (const char* dtype : {"f32", "bf16"})
      for (const int threads : {1, 2}) rows.push_back(step_benchmark({model, dtype, threads, false}));
  rows.push_back(flops_benchmark({"bigger", "f32", 1}, 0.80));
  rows.push_back(flops_benchmark({"bigger", "f32", 2}, 0.76));
  rows.push_back(memory_growth_benchmark({"bigger", "f32", 1}, 2.0));
  return rows;
}

}  // namespace sherd::bench
