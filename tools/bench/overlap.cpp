// overlap.*: exposed transfers of a fully sharded model, when the link between the ranks takes half of the compute
// time. No schedule can hide the first gather and the last reduction: of the 3 L - 1 transfers of L equal units (L
// gathers forward, L - 1 backward, L reductions) 2 are exposed. Waiting for a rank that is late is no transfer.
//
// hsdp.overlap: 2 x 2 ranks, of which the outer link is ten times slower. hybrid_shard sends gradient shards over it,
// full_shard over all four everything.
#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "runtime/exec/price.h"
#include "runtime/tensor/error.h"
#include "tools/bench/bench.h"
#include "tools/bench/models.h"

namespace sherd::bench {

namespace {

constexpr const char* kModel = "blocks16";
constexpr int kRanks = 2;

// A step's computing is what that step does not wait. The link takes half as long.
struct Pace {
  double compute_seconds;
  double received_bytes;  ///< per step and rank
  explicit Pace(const Answers& side)
      : compute_seconds(side.median("/computing_seconds")),
        received_bytes(wire_bytes(Movement::gather, kRanks, side.median("/comm_bytes"))) {}
  double comm_seconds() const { return compute_seconds / 2; }
  double bytes_per_second() const { return received_bytes / comm_seconds(); }
};

// Steps with communication of half their computing. How long that is, steps without a link tell first. Where the
// machine has become faster or slower since, the steps themselves do.
std::pair<Outcome, Pace> at_half_of_compute(BenchRun& run, bool captured, bool prefetch) {
  constexpr int kTries = 4;
  constexpr double kAlike = 0.05;
  const std::string words = fmt::format("step --model {{blocks16|tiny}} --captured {}", captured);
  const Outcome free = held(words, {.ours = words, .request = "4", .ranks = kRanks, .rounds = 2})(run);
  Pace pace(free.ours);
  for (int tries = run.smoke() ? 1 : kTries;; --tries) {
    const std::string link = fmt::format(" --link {},0 --prefetch {}", pace.bytes_per_second(), prefetch);
    Outcome outcome = held({.ours = words + link, .request = "4", .ranks = kRanks, .rounds = 5})(run);
    const Pace now(outcome.ours);
    const double change = now.compute_seconds / pace.compute_seconds - 1;
    if (tries == 1 || std::abs(change) <= kAlike) return {std::move(outcome), pace};
    pace = now;
  }
}

double exposed_transfer(const Answers& side) { return side.median("/exposed_seconds") - side.median("/skew_seconds"); }

void add_times(Figure& figure, const Answers& ours) {
  figure.detail["exposed_skew_ms"] = ours.median("/skew_seconds") * 1e3;
  figure.detail["exposed_transfer_ms"] = exposed_transfer(ours) * 1e3;
  figure.detail["step_ms"] = ours.median() * 1e3;
}

Benchmark overlap_benchmark(const std::string& name, bool captured, bool prefetch, bool smoke, Target target) {
  const double units = static_cast<double>(sized_model(kModel, smoke).layers);
  return {.name = "overlap." + name,
          .summary =
              "exposed share of transfers, 16 blocks on 2 ranks, a link that takes half of the compute time; "
              "limit: floor",
          .unit = lower("% exposed", 1),
          .target = target,
          .more = [=](Figure& figure, const Outcome&, BenchRun& run) {
            const auto [outcome, pace] = at_half_of_compute(run, captured, prefetch);
            const double comm_seconds = pace.comm_seconds();
            fill(figure, outcome, [&](const Answers& side) { return 100 * exposed_transfer(side) / comm_seconds; });
            figure.limit = 100 * 2 / (3 * units - 1);
            add_times(figure, outcome.ours);
            figure.detail["compute_ms"] = 1e3 * pace.compute_seconds;
            figure.detail["communication_ms"] = 1e3 * comm_seconds;
            figure.detail["link_megabytes_per_second"] = pace.bytes_per_second() / 1e6;
          }};
}

// ---- two links ----

constexpr int kShards = 2, kReplicas = 2, kAll = kShards * kReplicas;
constexpr double kInnerIsFaster = 10;

/// Both strategies on links of which the outer one takes half of the compute time for hybrid_shard's all-reduces.
struct TwoLinks {
  Outcome outcome{};                       ///< hybrid_shard; its peer is full_shard
  double compute = 0;                      ///< seconds of a step without links to wait for
  double hybrid = 0, flat = 0, outer = 0;  ///< seconds of each step's busiest link; of the all-reduces alone
  double bytes_per_second = 0;             ///< of the outer link
  double speedup() const { return std::max(compute, flat) / std::max(compute, hybrid); }
};

// Links without latency work at the same time; a flat axis over both is as slow as the outer one. Compute is what a
// whole step takes without links: ranks may share cores.
TwoLinks two_links(BenchRun& run) {
  const std::string hybrid = "step --model {blocks16|tiny} --strategy hybrid_shard --mesh replicate=2,dp=2";
  const Outcome free = held("hsdp pace", {.ours = hybrid, .request = "4", .ranks = kAll, .rounds = 2})(run);
  const double gathered = free.ours.median("/comm_bytes"),
               summed = wire_bytes(Movement::reduce_all, kReplicas, free.ours.median("/sum_bytes"));
  const auto gather_seconds = [&](double bytes_per_second, int ranks) {
    return LinkPrice{0, 0, bytes_per_second}.seconds(Movement::gather, ranks, gathered);
  };
  TwoLinks links{.compute = free.ours.median()};
  links.outer = links.compute / 2;
  links.bytes_per_second = summed / links.outer;
  links.hybrid = std::max(links.outer, gather_seconds(kInnerIsFaster * links.bytes_per_second, kShards));
  links.flat = gather_seconds(links.bytes_per_second, kAll);
  const std::string outer = fmt::format("{},0", links.bytes_per_second);
  const std::string flat = "step --model {blocks16|tiny} --strategy full_shard --mesh dp=4 --link " + outer;
  const std::string apart = fmt::format(" --link dp={},0;replicate={}", kInnerIsFaster * links.bytes_per_second, outer);
  links.outcome = held("hsdp overlap", {.ours = hybrid + apart,
                                        .request = "4",
                                        .ranks = kAll,
                                        .others = {{"sherd full_shard over all four", flat, "4", kAll}},
                                        .rounds = 4})(run);
  return links;
}

void fill_hsdp(Figure& figure, BenchRun& run, double tokens) {
  const TwoLinks links = two_links(run);
  fill(figure, links.outcome, rate(tokens));
  if (!figure.peers.empty() && !run.is_against()) figure.limit = figure.peers[0].value * links.speedup();
  add_times(figure, links.outcome.ours);
  figure.detail["compute_ms"] = links.compute * 1e3;
  figure.detail["all_reduce_ms"] = links.outer * 1e3;
  figure.detail["full_shard_communication_ms"] = links.flat * 1e3;
  figure.detail["link_speedup"] = links.speedup();
  figure.detail["outer_megabytes_per_second"] = links.bytes_per_second / 1e6;
}

void fill_hsdp_share(Figure& figure, const Outcome&, BenchRun& run) {
  check(!run.is_against(), "{} compares two strategies of one build", figure.name);
  const TwoLinks links = two_links(run);
  const Answers& flat = links.outcome.peers.at(0);
  check(flat.ok(), "no full_shard: {}", flat.error);
  const double ratio = flat.median() / links.outcome.ours.median();
  figure.value = ratio / links.speedup();
  figure.detail["speedup"] = ratio;
  figure.detail["link_speedup"] = links.speedup();
  add_times(figure, links.outcome.ours);
}

}  // namespace

std::vector<Benchmark> overlap_benchmarks(bool smoke) {
  const auto tokens = static_cast<double>(kAll * sized_model(kModel, smoke).tokens_per_step());
  return {overlap_benchmark("prefetch_on", true, true, smoke, at_most(100 * 2.0 / 47 + 3)),
          overlap_benchmark("prefetch_off", true, false, smoke, {}),
          overlap_benchmark("eager", false, true, smoke, {}),
          {.name = "hsdp.overlap",
           .summary = "hybrid_shard on 2 x 2 ranks, the outer link 10 times slower, beside full_shard over all four; "
                      "limit: the links' speed-up",
           .unit = higher("tokens/s", 0),
           .target = ratio_at_least(2),
           .more = [tokens](Figure& figure, const Outcome&, BenchRun& run) { fill_hsdp(figure, run, tokens); }},
          {.name = "hsdp.overlap.share",
           .summary = "its speed-up as a share of what the link formula gives",
           .unit = higher("of the links' speed-up", 3),
           .target = at_least(0.9),
           .more = fill_hsdp_share}};
}

}  // namespace sherd::bench
