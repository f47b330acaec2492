// gemm.*: the matrix products of `bigger` on one thread, beside PyTorch's, oneDNN's and the multiply-add peak.
// dispatch.*: what one op call costs; dtensor.*: what it costs more on distributed tensors. shm.*: collectives of two
// pinned processes beside gloo's, MPI's, and the smallest program that moves the bytes; reduce.*: their sums.
// program.*: what passes pay for being checked, how much a captured step computes, and what a replay's guards take.
#include <fmt/format.h>

#include "tools/bench/bench.h"

namespace sherd::bench {

namespace {

// Rows are tokens (8 x 256), width 384: y = x W^T, dx = dy W, dW = dy^T x.
constexpr Benchmark::Product kProducts[] = {
    {"projection", "NT", 2048, 384, 384}, {"up", "NT", 2048, 1536, 384},        {"down", "NT", 2048, 384, 1536},
    {"head", "NT", 2048, 256, 384},       {"up_grad_x", "NN", 2048, 384, 1536}, {"up_grad_w", "TN", 1536, 384, 2048},
};

Benchmark gemm_benchmark(const Benchmark::Product& p, const std::string& dtype, bool smoke) {
  return {.name = fmt::format("gemm.{}.{}", p.name, dtype),
          .summary = fmt::format("{} {}x{}x{}, one thread; limit: FMA peak", p.kind, p.m, p.n, p.k),
          .unit = higher("GF/s"),
          .outcome = held({.ours = "gemm",
                           .request = fmt::format("{} {} {{15|1}}", p.sizes(), dtype),
                           .torch = "matmul.py",
                           .others = {{"", "gemm --engine onednn", ""}},
                           .limit = "fma",
                           .limit_request = dtype + " 1",
                           .rounds = 5}),
          .value = rate(p.flops(smoke) / 1e9),
          .limit = rate(1)};
}

Benchmark dispatch_benchmark(const std::string& kind, std::string summary, double most_ns) {
  return {.name = "dispatch." + kind,
          .summary = std::move(summary),
          .unit = lower("ns"),
          .target = at_most(most_ns),
          .outcome = held({.ours = "dispatch", .request = kind + " {301|3}", .torch = "dispatch.py"}),
          .value = times(1e9)};
}

Benchmark dtensor_benchmark(const std::string& request, std::string summary, double most_ns) {
  return {.name = "dtensor." + request.substr(0, request.find(' ')),
          .summary = std::move(summary),
          .unit = lower("ns", 0),
          .target = at_most(most_ns),
          .outcome = held({.ours = "dtensor", .request = request, .torch = "dtensor.py"}),
          .value = times(1e9),
          .more = [](Figure& figure, const Outcome& outcome, BenchRun&) {
            for (const auto& [name, of] : outcome.ours.answers.back().at("rows").items())
              figure.detail[name] = {{"extra_ns", of.at("extra").get<double>() * 1e9},
                                     {"plain_ns", of.at("plain").get<double>() * 1e9}};
          }};
}

// MPI's own program, if it was built, needs mpicxx at configure time.
Benchmark shm_benchmark(const std::string& collective, const std::string& size, std::int64_t bytes, Target target,
                        bool smoke) {
  const bool small = bytes < 1 << 20;
  const std::string request = fmt::format("{} {{{}|65536}} {{{}|2}}", collective, bytes, small ? 500 : 6);
  const double scale = small ? 1e6 : 1e3, used = smoke ? 65536 : static_cast<double>(bytes);
  return {.name = fmt::format("shm.{}.{}", collective, size),
          .summary = fmt::format("f32 of {} between 2 processes; limit: hand-written shared memory", size),
          .unit = small ? lower("us") : lower("ms", 2),
          .target = target,
          .outcome =
              [=](BenchRun& run) {
                Contest contest = run.contest_of(
                    {.ours = "collectives",
                     .request = request,
                     .ranks = 2,
                     .torch = "collectives.py 2",
                     .torch_request = fmt::format("{} {{{}|65536}} {{{}|2}}", collective, bytes, small ? 50 : 2),
                     .limit = "shm_limit",
                     .rounds = 5});
                contest.peers.push_back(
                    contestant_beside("bench_mpi_collectives", contest.ours.request,
                                      {"mpirun", "--allow-run-as-root", "--bind-to", "core", "-n", "2"}));
                contest.peers.back().settings = "--bind-to core";
                return run.hold(contest);
              },
          .value = times(scale),
          .limit = times(scale),
          .detail = {{"gigabytes_per_second", rate(used / 1e9)}}};
}

Benchmark reduce_benchmark(int inputs, Target target) {
  return {.name = fmt::format("reduce.{}", inputs),
          .summary =
              fmt::format("f32 sums of {} ranks in 256 KB, one thread; peer: one rank at a time, same kernel", inputs),
          .unit = lower("us", 2),
          .target = target,
          .outcome = held({.ours = "reduce",
                           .request = fmt::format("{} {{262144|4096}} {{200|2}} {{25|1}}", inputs),
                           .others = {{"", "reduce --order ranks", ""}},
                           .rounds = 5}),
          .value = times(1e6)};
}

Benchmark program_benchmark(std::string what, std::string summary, const std::string& request, double most_ms) {
  return {.name = "program." + what,
          .summary = std::move(summary),
          .unit = lower("ms", 2),
          .target = at_most(most_ms),
          .outcome = held({.ours = "program --layers {32|2} --times " + what, .request = request}),
          .value = times(1e3),
          .detail = {"nodes"}};
}

}  // namespace

std::vector<Benchmark> call_benchmarks(bool smoke) {
  std::vector<Benchmark> rows;
  for (const char* dtype : {"f32", "bf16"})
    for (const Benchmark::Product& product : kProducts) rows.push_back(gemm_benchmark(product, dtype, smoke));
  std::vector<Benchmark> others = {
      dispatch_benchmark("plain", "1-element f32 add, recording off", 150),
      dispatch_benchmark("recording", "1-element f32 add, recorded on the tape", 300),
      dtensor_benchmark("hit {101|3}", "overhead of a distributed add, mul or linear, cached plan", 500),
      dtensor_benchmark("miss {201|3}", "the same with a new plan for new sizes", 20'000),
      shm_benchmark("all_gather", "64MB", 64 << 20, limit_factor_at_most(1.25), smoke),
      shm_benchmark("reduce_scatter", "64MB", 64 << 20, limit_factor_at_most(1.25), smoke),
      shm_benchmark("all_gather", "64KB", 64 << 10, at_most(10), smoke),
      reduce_benchmark(2, {}),
      reduce_benchmark(4, ratio_at_least(1.3)),
      reduce_benchmark(8, ratio_at_least(1.3)),
      // Beside 1: what the formula leaves out is small, and a product whose row does not count it shows.
      {.name = "program.flops",
       .summary = "operations of a captured step of mini, counted node by node, over those of the formula",
       .unit = lower("of the formula", 3),
       .outcome = held({.ours = "program --layers {4|2} --batch {12|2}", .request = "1", .rounds = 1}),
       .value = [](const Answers& side) { return side.median("/flops") / side.median("/formula_flops"); },
       .detail = {"flops", "formula_flops"}},
      // A call finds that the recording fits, when nothing that the step reads has changed.
      {.name = "program.guards",
       .summary = "what a call of a captured step of 32 sharded blocks takes to find that nothing has changed",
       .unit = lower("us", 2),
       .target = at_most(3),
       .outcome = held({.ours = "guards --layers {32|2}", .request = "{101|3}"}),
       .value = times(1e6),
       .detail = {"slots", "looks", {"us_to_look_at_all", times(1e6, "/seconds_to_look_at_all")}}},
      program_benchmark("verify", "verify() and the meaning of a training step of 32 blocks, about 1,300 nodes",
                        "{101|3}", 10),
      program_benchmark("passes", "all passes of compile() over that step, each verified and compared in meaning",
                        "{31|3}", 30)};
  // What is before the first update of `sherd train` within a budget, in seconds of CPU.
  const auto of_budget = [](const char* what, const char* summary, double most_ms, const char* seconds) {
    return Benchmark{.name = fmt::format("program.budget.{}", what),
                     .summary = summary,
                     .unit = lower("ms", 1),
                     .target = at_most(most_ms),
                     .outcome = held("capture", {.ours = "capture --layers {32|2}", .request = "{5|1}", .rounds = 1}),
                     .value = times(1e3, seconds),
                     .detail = {"nodes"}};
  };
  others.push_back(
      of_budget("capture", "a captured call of 32 blocks on one of 2 sharded ranks, as a ghost", 30, "/seconds"));
  others.push_back(
      of_budget("recording", "the same with the model, its state and three calls before", 200, "/recording_seconds"));
  others.push_back(of_budget("passes", "all passes over that step with a budget of 75 %", 1000, "/passes_seconds"));
  others.push_back(of_budget("curve", "its times within ten budgets", 2000, "/curve_seconds"));
  std::ranges::move(others, std::back_inserter(rows));
  return rows;
}

}  // namespace sherd::bench
