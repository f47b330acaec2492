// fsdp.*, ddp.*, tp.*: tokens per second of a model on several ranks: fully sharded, replicated, tensor parallel;
// memory.*: bytes of state of one of them.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/models.h"
#include "tools/bench/teams.h"

namespace sherd::bench {

namespace {

/// A strategy beside what does the same in PyTorch, or beside another of ours.
struct StrategyCase {
  std::string_view name, strategy, dtype, peer;  ///< `peer`: a kind of peers/sharded_step.py, or a strategy of ours
  double least;                                  ///< how many times the peer's tokens per second
};
constexpr std::string_view kOurs = "no_shard";
constexpr StrategyCase kStrategies[] = {
    {"fsdp.bigger.r2", "full_shard", "f32", "fsdp2", 1.38},
    {"fsdp.bigger.bf16.r2", "full_shard", "bf16", "fsdp2", 1.75},
    {"fsdp.bigger.r2.no_shard", "full_shard", "f32", kOurs, 0.95},
    {"ddp.bigger.r2", "no_shard", "f32", "ddp", 1.25},
    {"ddp.bigger.bf16.r2", "no_shard", "bf16", "ddp", 1.5},
};

Contestant side_of(std::string_view strategy, std::string_view dtype, const std::string& model) {
  return {child("step", {"--model", model, "--dtype", std::string(dtype), "--strategy", std::string(strategy)}, 2),
          "2"};
}

// bf16 is FSDP2's mixed precision and DDP's autocast.
std::vector<Contestant> peers_of(const StrategyCase& c, const std::string& model, BenchRun& run) {
  if (c.peer == kOurs) {
    Contestant other = side_of(c.peer, c.dtype, model);
    other.name = "sherd no_shard";
    return {other};
  }
  const std::string dtype(c.dtype == "bf16" && c.peer == "ddp" ? "autocast" : c.dtype);
  const auto peers = run.torch_contestants("sharded_step.py", {std::string(c.peer), model, "2", dtype}, "2");
  return in_variants(peers, {{"eager", {"eager"}}, {"torch.compile", {"compile"}}});
}

double sum_of(const nlohmann::json& bytes, std::initializer_list<const char*> categories) {
  double sum = 0;
  for (const char* category : categories) sum += bytes.at(category).get<double>();
  return sum;
}

Benchmark strategy_benchmark(const StrategyCase& c) {
  Benchmark row;
  row.name = c.name;
  row.summary = fmt::format("{} in {} on 2 ranks of one thread beside {}, 8 sequences per rank", c.strategy, c.dtype,
                            c.peer == kOurs ? "our no_shard" : fmt::format("{} over gloo", c.peer));
  row.unit = {"tokens/s", Better::higher, 0};
  row.target = {Rule::ratio_at_least, c.least};
  row.measure = [c](Figure& figure, BenchRun& run) {
    const std::string model = run.sized<std::string>("bigger", "tiny");
    const Outcome outcome = run.hold(
        {.ours = side_of(c.strategy, c.dtype, model), .peers = peers_of(c, model, run), .rounds = run.sized(4, 1)});
    const auto tokens = static_cast<double>(2 * bench_model(model).tokens_per_step());
    fill(figure, outcome, [&](double seconds) { return tokens / seconds; });
    figure.detail["step_ms"] = outcome.ours.median() * 1e3;
    figure.detail["loss"] = outcome.ours.answers.back().at("loss");
    const auto state = [](const Answers& side) {
      return sum_of(side.answers.back().at("held_bytes"), {"parameters", "optimizer"}) / 1e6;
    };
    figure.detail["state_megabytes"] = state(outcome.ours);
    for (const Answers& peer : outcome.peers)
      if (c.peer == kOurs && peer.ok()) figure.detail["peer_state_megabytes"] = state(peer);
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
  std::vector<Benchmark> rows;
  for (const StrategyCase& c : kStrategies) rows.push_back(strategy_benchmark(c));
  rows.push_back(tensor_parallel_benchmark());
  rows.push_back(state_benchmark(1, true, {Rule::limit_factor_at_most, 1.0}));
  rows.push_back(state_benchmark(2, true, {Rule::ratio_at_least, 1 / 0.65}));
  rows.push_back(state_benchmark(2, false, {Rule::ratio_at_least, 1 / 0.50}));
  rows.push_back(state_benchmark(4, true, {Rule::limit_factor_at_most, 1.0}));
  return rows;
}

}  // namespace sherd::bench
