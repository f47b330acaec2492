// fsdp.*, tp.*: tokens per second of a fully sharded or tensor parallel model on several ranks; memory.*: bytes of
// state of one of them.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"
#include "tools/bench/teams.h"

namespace sherd::bench {

namespace {

// DDP first, which is the faster of the two on CPUs; bf16 is FSDP2's mixed precision and DDP's autocast.
std::vector<Contestant> torches(const std::string& model, const std::string& dtype, BenchRun& run) {
  std::vector<Contestant> all;
  for (const char* kind : {"ddp", "fsdp2"}) {
    const bool casts = dtype == "bf16" && std::string_view(kind) == "ddp";
    const auto peers = run.torch_contestants("sharded_step.py", {kind, model, "2", casts ? "autocast" : dtype}, "2");
    for (Contestant& one : in_variants(peers, {{"eager", {"eager"}}, {"torch.compile", {"compile"}}}))
      all.push_back(std::move(one));
  }
  return all;
}

Benchmark fully_shard_benchmark(const std::string& dtype, Target target) {
  Benchmark row;
  row.name = dtype == "f32" ? "fsdp.bigger.r2" : fmt::format("fsdp.bigger.{}.r2", dtype);
  row.summary = "fully_shard on 2 ranks of one thread beside DDP and FSDP2 over gloo, 8 sequences per rank";
  row.unit = {"tokens/s", Better::higher, 0};
  row.target = target;
  row.measure = [dtype](Figure& figure, BenchRun& run) {
    const std::string model = run.sized<std::string>("bigger", "tiny");
    const Outcome outcome = run.hold({.ours = {child("step", {"--model", model, "--dtype", dtype}, 2), "2"},
                                      .peers = torches(model, dtype, run),
                                      .rounds = run.sized(4, 1)});
    const auto tokens = static_cast<double>(2 * bench_model(model).tokens_per_step());
    fill(figure, outcome, [&](double seconds) { return tokens / seconds; });
    figure.detail["step_ms"] = outcome.ours.median() * 1e3;
    figure.detail["loss"] = outcome.ours.answers.back().at("loss");
  };
  return row;
}

// The same batch on the same cores: two ranks that shard every matrix, beside one whose threads divide every product.
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
    const Outcome outcome = run.hold({.ours = {child("step", {"--model", model, "--tensor_parallel", "true"}, 2), "2"},
                                      .peers = {alone},
                                      .rounds = run.sized(4, 1)});
    const auto tokens = static_cast<double>(bench_model(model).tokens_per_step());
    fill(figure, outcome, [&](double seconds) { return tokens / seconds; });
    figure.detail["step_ms"] = outcome.ours.median() * 1e3;
    figure.detail["loss"] = outcome.ours.answers.back().at("loss");
    for (const Answers& peer : outcome.peers)
      if (peer.ok()) figure.detail["peer_loss"] = peer.answers.back().at("loss");
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
                   .peers = run.torch_contestants("sharded_step.py", {"ddp", model, "1", "f32", "eager"}, "1"),
                   .rounds = 1};
  });
}

// The most that the accounting may show by the rules of fully_shard: own shards, their gradients and moments; of
// unsharded parameters the root's and two neighbouring blocks'; of full gradients one block's that backward computes
// and one's in reduction. On one rank shards and unsharded parameters are one buffer.
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
    const char* field = peak ? "bytes_at_peak" : "held_bytes";
    fill_by(figure, outcome, [&](const Answers& side) {
      const nlohmann::json& answer = side.answers.back();
      if (answer.contains("state_bytes"))
        return side.median(peak ? "/state_bytes/peak" : "/state_bytes/persistent") / 1e6;
      return sum_of(answer.at(field), {"parameters", "unsharded", "gradients", "optimizer", "communication"}) / 1e6;
    });
    if (peak) figure.limit = expected_peak_bytes(bench_model(run.sized<std::string>("bigger", "tiny")), ranks) / 1e6;
    figure.detail = outcome.ours.answers.back().at(field);
  };
  return row;
}

}  // namespace

std::vector<Benchmark> ranks_benchmarks() {
  return {
      fully_shard_benchmark("f32", {Rule::ratio_at_least, 1.2}),
      fully_shard_benchmark("bf16", {}),
      tensor_parallel_benchmark(),
      state_benchmark(1, true, {Rule::limit_factor_at_most, 1.0}),
      state_benchmark(2, true, {Rule::ratio_at_least, 1 / 0.65}),
      state_benchmark(2, false, {Rule::ratio_at_least, 1 / 0.50}),
      state_benchmark(4, true, {Rule::limit_factor_at_most, 1.0}),
  };
}

}  // namespace sherd::bench
