// save.*: a gibibyte of state of one rank, on the disk of the temporary folder (TMPDIR). The limit of a save is the
// same bytes written to one file, with the same checksums, and synced; the peer is torch.distributed.checkpoint, which
// computes none. Disks of shared machines are what they are: figures of one run belong together.
// offload.*: what a step pays for optimizer state in a file, by the file's rate. At twice the rate that moves a step's
// bytes in a step's compute, transfers are to hide behind it; at half of it, compute behind the transfers. With
// clipping updates begin when the last gradient is there, so transfers are exposed but for what updates hide. ghost.*:
// how long this program takes, and how much memory, to tell what one rank of a large job holds: a Llama of 8 B
// parameters on 512 ranks, one sequence for each of the 64 that have data of their own. Ranks at both ends of the mesh
// and within it; the slowest counts.
#include <fmt/format.h>

#include <algorithm>

#include "tools/bench/bench.h"

namespace sherd::bench {

namespace {

constexpr const char* kSave = "save --tensors {16|1}";

// The torches' program is a peer of what goes to the disk, a save of ours that is waited for of all others.
std::function<Outcome(BenchRun&)> saved(const std::string& request, const std::string& peer, const std::string& named) {
  return held("save " + request + " " + peer,
              {.ours = kSave, .request = request, .others = {{named, kSave, peer}}, .rounds = 5});
}

Benchmark disk_benchmark(const std::string& request, std::string summary, Target target, const char* limit) {
  return {.name = "save." + request,
          .summary = std::move(summary),
          .unit = lower("ms", 0),
          .target = target,
          .outcome = held({.ours = kSave,
                           .request = request,
                           .torch = "save.py {16|1}",
                           .limit = *limit ? kSave : "",
                           .limit_request = limit,
                           .rounds = 5}),
          .value = times(1e3),
          .limit = times(1e3)};
}

// The three others are ratios of our own sides, so another build stands nowhere beside them.
std::vector<Benchmark> async_benchmarks(bool smoke) {
  const auto async = saved("async", "sync", "sherd, waited for");
  const double all_bytes = (smoke ? 1.0 : 16.0) * (64 << 20);
  return {
      // What the rank's thread waits when a step changes all of the state at once, which is the worst of cases.
      {.name = "save.async.stall",
       .summary = "until a step may change all of a state that is being saved, beside a save that is waited for",
       .unit = lower("ms", 0),
       .outcome = async,
       .value = times(1e3),
       .detail = {"start_seconds", "copy_seconds", "copied_bytes", "all_seconds"}},
      // The part of the stall that is no copy.
      {.name = "save.async.start",
       .summary = "what the rank's thread waits beside the copies, over a save that is waited for",
       .unit = lower("x", 3),
       .target = at_most(0.02),
       .outcome = async,
       .more = [](Figure& figure, const Outcome& outcome,
                  BenchRun&) { figure.value = outcome.ours.median("/start_seconds") / outcome.peers.at(0).median(); }},
      {.name = "save.async.copy",
       .summary = "speed of the copies of what changes, while the disk is busy, over that of one thread that copies",
       .unit = higher("x", 2),
       .target = at_least(0.7),
       .outcome = saved("async", "copy", "one thread that copies"),
       .more =
           [all_bytes](Figure& figure, const Outcome& outcome, BenchRun&) {
             const double copies = outcome.ours.median("/copied_bytes") / outcome.ours.median("/copy_seconds");
             const double memory = all_bytes / outcome.peers.at(0).median();
             figure.value = copies / memory;
             figure.detail["gb_per_second"] = copies * 1e-9;
             figure.detail["memory_gb_per_second"] = memory * 1e-9;
           }},
      // Steps that change all of the state, and so copy all that is not written yet.
      {.name = "save.async.beside",
       .summary = "what steps beside a save take more than alone, all together, over a save that is waited for",
       .unit = lower("x", 2),
       .target = at_most(0.5),
       .outcome = saved("beside", "sync", "sherd, waited for"),
       .detail = {{"extra_seconds", times(1, "/extra_seconds")}, {"step_seconds", times(1, "/alone_seconds")}},
       .more = [](Figure& figure, const Outcome& outcome, BenchRun&) {
         figure.value = outcome.ours.median("/extra_seconds") / outcome.peers.at(0).median();
       }}};
}

// Percentage of a step's transfers that hides behind its compute.
double hidden_share(const Answers& side) {
  const double exposed = side.median() - side.median("/compute_seconds");
  return 100 * (1 - std::max(exposed, 0.0) / side.median("/transfer_seconds"));
}
double of_transfers(const Answers& side) { return side.median() / side.median("/transfer_seconds"); }

// `speed` of the file is a multiple of that rate.
Benchmark offload_benchmark(const std::string& name, std::string summary, const char* speed, bool clips, Unit unit,
                            Target target, const Number& value) {
  return {.name = "offload." + name,
          .summary = std::move(summary),
          .unit = unit,
          .target = target,
          .outcome = held({.ours = fmt::format("offload --model {{blocks16|tiny}} --steps {{8|2}} --clips {}", clips),
                           .request = speed}),
          .value = value,
          .detail = {"bytes", "compute_seconds", "transfer_seconds", {"step_seconds", times(1)}},
          .more = [](Figure& figure, const Outcome& outcome, BenchRun&) {
            // Nothing can be faster than the longer of the two; nothing hidden is their sum.
            const nlohmann::json& answer = outcome.ours.answers.back();
            const double compute = answer.at("compute_seconds"), transfer = answer.at("transfer_seconds");
            figure.detail["formula_seconds"] = {std::max(compute, transfer), compute + transfer};
          }};
}

// Once in a fresh process: ranks that come later find interned layouts.
Benchmark ghost_benchmark(const std::string& what, std::string summary, Unit unit, double most, const Number& value) {
  return {.name = "ghost.llama8b." + what,
          .summary = std::move(summary),
          .unit = unit,
          .target = at_most(most),
          .outcome = held("ghost", {.ours = "ghost --model llama8b --mesh dp=64,tp=8 --steps {10|2} --layers {0|2}",
                                    .request = "0 127 511",
                                    .rounds = 1}),
          .value = value,
          .more = [](Figure& figure, const Outcome& outcome, BenchRun&) {
            const nlohmann::json& answer = outcome.ours.answers.back();
            figure.detail["predicted_peak_bytes"] = answer.at("total_peak_bytes");
            figure.detail["predicted_bytes_at_peak"] = answer.at("bytes_at_peak");
          }};
}

}  // namespace

std::vector<Benchmark> state_benchmarks(bool smoke) {
  std::vector<Benchmark> rows = {
      ghost_benchmark("first", "one of 512 ranks of an 8 B Llama as a ghost: building it, and its first step",
                      lower("ms"), 1000, times(1e3, "/first_seconds")),
      ghost_benchmark("step", "a further step of such a rank", lower("ms"), 100, times(1e3)),
      ghost_benchmark("rss", "growth of resident memory by three such ranks, one after the other", lower("MB"), 50,
                      times(1e-6, "/growth_bytes")),
      offload_benchmark("fast.hidden", "transfers of optimizer state hidden, file at twice the needed rate", "2", false,
                        higher("%"), at_least(80), hidden_share),
      offload_benchmark("slow.step", "step beside its transfers alone, file at half of the needed rate", "0.5", false,
                        lower("x", 2), at_most(1.1), of_transfers),
      offload_benchmark("clipped.hidden", "transfers hidden where gradients are clipped, file at twice the needed rate",
                        "2", true, higher("%"), {}, hidden_share),
      disk_benchmark("sync", "a save of 1 GiB; limit: the same bytes written and summed", limit_factor_at_most(1 / 0.9),
                     "plain"),
      disk_benchmark("load", "1 GiB loaded from the system's cache, each block checked", {}, "")};
  std::ranges::move(async_benchmarks(smoke), std::back_inserter(rows));
  return rows;
}

}  // namespace sherd::bench
