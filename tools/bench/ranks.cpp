// fsdp.*: tokens per second of a fully sharded model on several ranks; memory.*: bytes of state of one of them.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"

namespace sherd::bench {

namespace {

Benchmark fully_shard_benchmark() {
  Benchmark row;
  row.name = "fsdp.bigger.r2";
  row.summary = "fully_shard on 2 ranks of one thread beside DDP over gloo, 8 sequences per rank";
  row.unit = {"tokens/s", Better::higher, 0};
  row.target = {Rule::ratio_at_least, 1.2};
  row.measure = [](Figure& figure, BenchRun& run) {
    const std::string model = run.sized<std::string>("bigger", "tiny");
    const Outcome outcome = hold({.ours = {child("step", {"--model", model}, 2), "2"},
                                  .peers = run.torch_contestants("ddp.py", {model, "2"}, "2"),
                                  .rounds = run.sized(4, 1)});
    const auto tokens = static_cast<double>(2 * bench_model(model).tokens_per_step());
    fill(figure, outcome, [&](double seconds) { return tokens / seconds; });
    figure.detail["step_ms"] = outcome.ours.median() * 1e3;
    figure.detail["loss"] = outcome.ours.last.at("loss");
  };
  return row;
}

}  // namespace

std::vector<Benchmark> ranks_benchmarks() { return {fully_shard_benchmark()}; }

}  // namespace sherd::bench
