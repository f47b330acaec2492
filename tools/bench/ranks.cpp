// fsdp.*, tp.*: tokens per second of a fully sharded or tensor parallel model on several ranks; memory.*: bytes of
// state of one of them.
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
    figure.detail["loss"] = outcome.ours.answers.back().at("loss");
  };
  return row;
}

// The same batch on the same cores: two ranks that cut every matrix beside one whose threads cut every product.
Benchmark tensor_parallel_benchmark() {
  Benchmark row;
  row.name = "tp.bigger.r2";
  row.summary = "tensor parallel on 2 ranks of one thread beside one process of two threads";
  row.unit = {"tokens/s", Better::higher, 0};
  row.target = {Rule::ratio_at_least, 0.93};
  row.measure = [](Figure& figure, BenchRun& run) {
    const std::string model = run.sized<std::string>("bigger", "tiny");
    Contestant alone{child("step", {"--model", model, "--threads", "2"}), "2"};
    alone.settings = "one process, 2 threads";
    const Outcome outcome = hold({.ours = {child("step", {"--model", model, "--tensor_parallel", "true"}, 2), "2"},
                                  .peers = {alone},
                                  .rounds = run.sized(4, 1)});
    const auto tokens = static_cast<double>(bench_model(model).tokens_per_step());
    fill(figure, outcome, [&](double seconds) { return tokens / seconds; });
    figure.detail["step_ms"] = outcome.ours.median() * 1e3;
    figure.detail["loss"] = outcome.ours.answers.back().at("loss");
    if (outcome.peers[0].ok()) figure.detail["loss_of_one"] = outcome.peers[0].answers.back().at("loss");
  };
  return row;
}

double sum_of(const nlohmann::json& bytes, std::initializer_list<const char*> categories) {
  double sum = 0;
  for (const char* category : categories) sum += bytes.at(category).get<double>();
  return sum;
}

// Bytes of state per rank do not depend on the batch, so one token per rank is enough; then the moment of the total's
// peak is that of the state's. The peer replicates its state, so that one rank of it tells that of any number.
const Outcome& state_outcome(int ranks, BenchRun& run) {
  const std::string model = run.sized<std::string>("bigger", "tiny");
  return run.shared(fmt::format("state {} {}", model, ranks), [&] {
    return Contest{.ours = {child("step", {"--model", model, "--batch", "1", "--tokens", "1"}, ranks), "2"},
                   .peers = run.torch_contestants("ddp.py", {model, "1"}, "1"),
                   .rounds = 1};
  });
}

// What the accounting may say at most by the rules of fully_shard: own shards, their gradients and moments; of whole
// parameters the root and two neighbouring blocks; of whole gradients one block's that backward makes and one's that is
// being reduced. On one rank a shard is the parameter.
double expected_peak_bytes(const BenchModel& model, int ranks) {
  const auto all = static_cast<double>(model.num_parameters());
  const double block = (all - static_cast<double>(model.num_root_parameters())) / static_cast<double>(model.layers);
  const double own = 16 * all / ranks;
  return ranks == 1 ? own : own + 4 * (static_cast<double>(model.num_root_parameters()) + 2 * block) + 8 * block;
}

Benchmark state_benchmark(int ranks, bool peak, Target target) {
  Benchmark row;
  row.name = fmt::format("memory.bigger.r{}{}", ranks, peak ? "" : ".persistent");
  row.summary =
      peak ? "peak of parameters, gradients and optimizer state per rank beside DDP's; limit: fully_shard's rule"
           : "parameters and optimizer state per rank beside DDP's";
  row.unit = {"MB"};
  row.target = target;
  row.measure = [ranks, peak](Figure& figure, BenchRun& run) {
    const Outcome& outcome = state_outcome(ranks, run);
    const nlohmann::json& ours = outcome.ours.answers.back().at(peak ? "bytes_at_peak" : "held_bytes");
    figure.value = sum_of(ours, {"parameters", "unsharded", "gradients", "optimizer", "communication"}) / 1e6;
    if (peak) figure.limit = expected_peak_bytes(bench_model(run.sized<std::string>("bigger", "tiny")), ranks) / 1e6;
    for (const Answers& peer : outcome.peers)
      if (peer.ok())
        figure.peers.push_back(
            {peer.name, peer.median(peak ? "/state_bytes/peak" : "/state_bytes/persistent") / 1e6, peer.settings});
    note_missing(figure, outcome);
    figure.detail = ours;
  };
  return row;
}

}  // namespace

std::vector<Benchmark> ranks_benchmarks() {
  return {
      fully_shard_benchmark(),
      tensor_parallel_benchmark(),
      state_benchmark(1, true, {Rule::limit_factor_at_most, 1.0}),
      state_benchmark(2, true, {Rule::ratio_at_least, 1 / 0.65}),
      state_benchmark(2, false, {Rule::ratio_at_least, 1 / 0.50}),
      state_benchmark(4, true, {Rule::limit_factor_at_most, 1.0}),
  };
}

}  // namespace sherd::bench
