// fsdp.*, ddp.*, tp.*: tokens per second of a model on several ranks: fully sharded, replicated, tensor parallel;
// memory.*: bytes of state of one of them.
#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/models.h"

namespace sherd::bench {

namespace {

/// A strategy beside what does the same in PyTorch, or beside another of ours.
struct StrategyCase {
  std::string name, strategy, dtype, peer;  ///< `peer`: a kind of peers/sharded_step.py, or a strategy of ours
  double least;                             ///< how many times the peer's tokens per second
};
constexpr std::string_view kOurs = "no_shard";
using Readings = std::vector<Benchmark::Reading>;

double sum_of(const nlohmann::json& bytes, std::initializer_list<const char*> categories) {
  double sum = 0;
  for (const char* category : categories) sum += bytes.at(category).get<double>();
  return sum;
}
double state_megabytes(const Answers& side) {
  return sum_of(side.answers.back().at("held_bytes"), {"parameters", "optimizer"}) / 1e6;
}

// bf16 is FSDP2's mixed precision and DDP's autocast.
Benchmark strategy_benchmark(const StrategyCase& c, double tokens) {
  const auto words = [&](std::string_view strategy) {
    return fmt::format("step --model {{bigger|tiny}} --dtype {} --strategy {}", c.dtype, strategy);
  };
  const bool is_ours = c.peer == kOurs, is_autocast = c.dtype == "bf16" && c.peer == "ddp";
  ContestRow row{.ours = words(c.strategy), .request = "2", .ranks = 2, .rounds = 4};
  if (is_ours) {
    row.others = {{"sherd no_shard", words(kOurs), "2", 2}};
  } else {
    row.torch = fmt::format("sharded_step.py {} {{bigger|tiny}} 2 {}", c.peer, is_autocast ? "autocast" : c.dtype);
    row.variants = {{"eager", {"eager"}}, {"torch.compile", {"compile"}}};
  }
  return {.name = c.name,
          .summary = fmt::format("{} in {} on 2 ranks of one thread beside {}, 8 sequences per rank", c.strategy,
                                 c.dtype, is_ours ? "our no_shard" : c.peer + " over gloo"),
          .unit = higher("tokens/s", 0),
          .target = ratio_at_least(c.least),
          .outcome = held(row),
          .value = rate(2 * tokens),
          .detail = {{"step_ms", times(1e3)}, "loss", {"state_megabytes", state_megabytes}},
          .peer_detail = is_ours ? Readings{{"state_megabytes", state_megabytes}} : Readings()};
}

// The same batch on the same cores: two ranks that shard every matrix, beside one whose threads divide every product.
Benchmark tensor_parallel_benchmark(double tokens) {
  return {
      .name = "tp.bigger.r2",
      .summary = "tensor parallel on 2 ranks of one thread beside one process of two threads",
      .unit = higher("tokens/s", 0),
      .target = ratio_at_least(0.93),
      .outcome = held({.ours = "step --model {bigger|tiny} --tensor_parallel true",
                       .request = "2",
                       .ranks = 2,
                       .others = {{"sherd, one process of 2 threads", "step --model {bigger|tiny} --threads 2", "2"}},
                       .rounds = 4}),
      .value = rate(tokens),
      .detail = {{"step_ms", times(1e3)}, "loss"},
      .peer_detail = {"loss"}};
}

// The most that the accounting may show by the rules of fully_shard: own shards, their gradients and moments; of
// unsharded parameters the root's and two neighbouring blocks'; of full gradients one block's that backward computes
// and one's in reduction. On one rank shards and unsharded parameters are one buffer.
double expected_peak_bytes(const BenchModel& of, int ranks) {
  const auto model = make_bench_model(of);
  const auto all = static_cast<double>(model->num_parameters());
  const auto block = static_cast<double>(model->blocks().at(0)->num_parameters());
  const double root = all - block * static_cast<double>(of.layers);
  const double own = 16 * all / ranks;
  return ranks == 1 ? own : own + 4 * (root + 2 * block) + 8 * block;
}

// Bytes of state per rank do not depend on the batch, so one token per rank is enough; then the moment of the total's
// peak is that of the state's. The peer replicates its state, so that one rank of it tells that of any number.
Benchmark state_benchmark(int ranks, bool peak, Target target, const BenchModel& model) {
  const char* field = peak ? "bytes_at_peak" : "held_bytes";
  return {
      .name = fmt::format("memory.bigger.r{}{}", ranks, peak ? "" : ".persistent"),
      .summary =
          peak ? "peak of parameters, gradients and optimizer state per rank beside DDP's; limit: fully_shard's rule"
               : "parameters and optimizer state per rank beside DDP's",
      .unit = lower("MB"),
      .target = target,
      .outcome = held(fmt::format("state {}", ranks), {.ours = "step --model {bigger|tiny} --batch 1 --tokens 1",
                                                       .request = "2",
                                                       .ranks = ranks,
                                                       .torch = "sharded_step.py ddp {bigger|tiny} 1 f32 eager",
                                                       .torch_request = "1",
                                                       .rounds = 1}),
      .value =
          [peak, field](const Answers& side) {
            const nlohmann::json& answer = side.answers.back();
            if (answer.contains("state_bytes"))
              return side.median(peak ? "/state_bytes/peak" : "/state_bytes/persistent") / 1e6;
            return sum_of(answer.at(field), {"parameters", "unsharded", "gradients", "optimizer", "communication"}) /
                   1e6;
          },
      .more =
          [=](Figure& figure, const Outcome& outcome, BenchRun&) {
            if (peak) figure.limit = expected_peak_bytes(model, ranks) / 1e6;
            figure.detail = outcome.ours.answers.back().at(field);
          }};
}

}  // namespace

std::vector<Benchmark> ranks_benchmarks(bool smoke) {
  const BenchModel model = sized_model("bigger", smoke);
  const auto tokens = static_cast<double>(model.tokens_per_step());
  std::vector<Benchmark> rows;
  for (const StrategyCase& c : {StrategyCase{"fsdp.bigger.r2", "full_shard", "f32", "fsdp2", 1.38},
                                {"fsdp.bigger.bf16.r2", "full_shard", "bf16", "fsdp2", 1.75},
                                {"fsdp.bigger.r2.no_shard", "full_shard", "f32", "no_shard", 0.95},
                                {"ddp.bigger.r2", "no_shard", "f32", "ddp", 1.25},
                                {"ddp.bigger.bf16.r2", "no_shard", "bf16", "ddp", 1.5}})
    rows.push_back(strategy_benchmark(c, tokens));
  rows.push_back(tensor_parallel_benchmark(tokens));
  rows.push_back(state_benchmark(1, true, limit_factor_at_most(1.0), model));
  rows.push_back(state_benchmark(2, true, ratio_at_least(1 / 0.65), model));
  rows.push_back(state_benchmark(2, false, ratio_at_least(1 / 0.50), model));
  rows.push_back(state_benchmark(4, true, limit_factor_at_most(1.0), model));
  return rows;
}

}  // namespace sherd::bench
