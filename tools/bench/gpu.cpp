// gpu.*: the first CUDA device beside PyTorch on the same one and what the card allows: copy speed, and cuBLASLt's best
// algorithm for the same product.
#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"
#include "tools/bench/bench.h"
#include "tools/bench/gpu_ops.h"
#include "tools/bench/models.h"

namespace sherd::bench {

namespace {

constexpr int kOnGpu = 0;                                            // threads of a torch
constexpr std::chrono::seconds kOpPatience{60}, kStepPatience{330};  // torch.compile of a large model takes minutes

// Takes the program that SHERD_GPU_LIMITS names, the same on the emulated GPU, as SHERD_CUDA_LIB names a library.
Contestant limit_of(const std::string& request) {
  if (const char* other = std::getenv("SHERD_GPU_LIMITS")) return {{{other}, {}}, request};
  return contestant_beside("bench_gpu_limits", request);
}

// A call of the child, beside the same of each torch and what the card allows. Sides stay for the calls to come.
std::function<Outcome(BenchRun&)> called(const std::string& request, const std::string& limit) {
  return [=](BenchRun& run) {
    const std::string asked = run.sized(request);
    Contest contest = run.contest_of({.ours = "gpu_op{| --small true}", .request = request, .rounds = 5});
    contest.peers = run.torch_contestants(
        run.smoke() ? std::vector<std::string>{"gpu_ops.py", "small"} : std::vector<std::string>{"gpu_ops.py"}, asked,
        kOnGpu);
    if (!limit.empty()) contest.limit = limit_of(run.sized(limit));
    contest.patience = kOpPatience;
    return run.hold(contest, run.sides());
  };
}

// Bandwidth-bound calls against the copy of as many bytes; attention against PyTorch's own library call.
Benchmark op_benchmark(const GpuOp& o) {
  const bool is_bound = o.bytes > 0;
  Benchmark row{.name = fmt::format("gpu.{}", o.name),
                .summary = fmt::format("{}{}", o.summary, is_bound ? "; limit: a copy of the bytes" : ""),
                .unit = lower("us"),
                .target = is_bound ? limit_factor_at_most(1 / 0.85) : Target{},
                .outcome = called(fmt::format("{} {{50|2}}", o.name),
                                  is_bound ? fmt::format("copy {{{:.0f} 50|4096 2}}", o.bytes) : ""),
                .value = times(1e6),
                .limit = times(1e6),
                .detail = {"how"}};
  if (is_bound) row.detail.push_back({"terabytes_per_second", rate(o.bytes / 1e12)});
  if (o.flops > 0) row.detail.push_back({"teraflops", rate(o.flops / 1e12)});
  return row;
}

// Products of the 1.2 B Llama, one packed product for q, k, v and one for gate and up; forward, dx, dW.
constexpr Benchmark::Product kGpuProducts[] = {
    {"qkv", "NT", 16384, 3072, 2048},       {"out", "NT", 16384, 2048, 2048},
    {"up", "NT", 16384, 8192, 2048},        {"down", "NT", 16384, 2048, 8192},
    {"head", "NT", 4096, 128256, 2048},     {"up_grad_x", "NN", 16384, 2048, 8192},
    {"up_grad_w", "TN", 8192, 2048, 16384}, {"head_grad_w", "TN", 128256, 2048, 4096},
    {"square", "NN", 8192, 8192, 8192},
};

Benchmark product_benchmark(const Benchmark::Product& p, bool smoke) {
  const std::string request = fmt::format("matmul {} {{30|2}}", p.sizes());
  return {.name = fmt::format("gpu.gemm.{}", p.name),
          .summary = fmt::format("bf16 {} {}x{}x{}; limit: cuBLASLt's best of 16 algorithms", p.kind, p.m, p.n, p.k),
          .unit = lower("us"),
          .target = limit_factor_at_most(1 / 0.97),
          .outcome = called(request, request),
          .value = times(1e6),
          .limit = times(1e6),
          .detail = {{"teraflops", rate(p.flops(smoke) / 1e12)}}};
}

// Each side trains one model and is asked for steps in one way, then in another. Sides take turns on an empty card:
// two trainings of llama1b fit beside each other on few.
struct StepModel {
  const char* name;
  const char* compile_mode;  ///< of torch.compile
};
constexpr StepModel kLlama{"llama1b", "default"}, kGpt{"gpt124m", "reduce-overhead"};

enum class How : std::uint8_t { captured, eager };  ///< of the peer: compiled, eager
constexpr std::size_t kHows = 2;

struct Steps {
  const char* figure;
  StepModel model;
  How ours, peer;
  double ratio;
};
constexpr Steps kSteps[] = {
    {"gpu.step.llama1b.compile", kLlama, How::captured, How::captured, 1.05},
    {"gpu.step.llama1b.eager", kLlama, How::captured, How::eager, 1.25},
    {"gpu.step.llama1b.uncaptured", kLlama, How::eager, How::eager, 0},
    {"gpu.step.gpt124m.reduce_overhead", kGpt, How::captured, How::captured, 1.05},
    {"gpu.step.gpt124m.eager", kGpt, How::captured, How::eager, 2.0},
    {"gpu.step.gpt124m.uncaptured", kGpt, How::eager, How::eager, 0},
};

// What all figures of a model read: ours captured beside each torch compiled and eager, then ours eager.
std::vector<Contest> step_contests(const StepModel& m, BenchRun& run) {
  const std::string model = sized_model(m.name, run.smoke()).name, steps = run.sized("{6|1}");
  Contest captured = run.contest_of(
      {.ours = fmt::format("step --model {} --dtype bf16 --device cuda", model), .request = steps, .rounds = 5});
  captured.patience = kStepPatience;
  const auto compiled =
      run.torch_contestants({"gpu_step.py", model}, fmt::format("{} {}", m.compile_mode, steps), kOnGpu);
  const auto eager = run.torch_contestants({"gpu_step.py", model}, fmt::format("eager {}", steps), kOnGpu);
  for (const std::size_t i : indices(compiled)) {
    captured.peers.push_back(compiled[i]);
    captured.peers.push_back(eager[i]);
  }
  Contest uncaptured = captured;
  uncaptured.ours.request = "eager " + steps;
  uncaptured.peers.clear();
  return {captured, uncaptured};
}

// Picks the answers of a figure: ours of one way, the torches' of another.
Outcome step_outcome(const Steps& s, BenchRun& run) {
  const std::vector<Outcome>& all =
      run.shared_apart(fmt::format("gpu step {}", s.model.name), [&] { return step_contests(s.model, run); });
  if (run.is_against()) return all[static_cast<std::size_t>(s.ours)];
  Outcome outcome{.ours = all[static_cast<std::size_t>(s.ours)].ours, .peers = {}, .limit = {}};
  for (std::size_t i = static_cast<std::size_t>(s.peer); i < all[0].peers.size(); i += kHows)
    outcome.peers.push_back(all[0].peers[i]);
  return outcome;
}

Benchmark step_benchmark(const Steps& s, bool smoke) {
  const BenchModel model = sized_model(s.model.name, smoke);
  return {.name = s.figure,
          .summary = fmt::format(
              "training step of {}, {}, all bf16 but f32 masters and reductions on both sides; peer: torch, {}",
              s.model.name, s.ours == How::captured ? "captured" : "eager",
              s.peer == How::captured ? s.model.compile_mode : "eager"),
          .unit = higher("tokens/s", 0),
          .target = s.ratio > 0 ? ratio_at_least(s.ratio) : Target{},
          .outcome = [s](BenchRun& run) { return step_outcome(s, run); },
          .value = rate(static_cast<double>(model.tokens_per_step())),
          .detail = {{"step_ms", times(1e3)},
                     "how",
                     {"teraflops", rate(model.step_flops() / 1e12)},
                     {"peak_bytes", times(1, "/device_peak_bytes")},
                     "loss"},
          .peer_detail = {{"peak_bytes", times(1, "/device_peak_bytes")}}};
}

}  // namespace

std::vector<Benchmark> gpu_benchmarks(bool smoke) {
  const double bytes = smoke ? 4096 : 2e9;
  std::vector<Benchmark> rows{{.name = "gpu.copy",
                               .summary = "copy within the device, 1 GB, read and written",
                               .unit = higher("TB/s", 2),
                               .outcome =
                                   [](BenchRun& run) {
                                     const Contest contest{.ours = limit_of(run.sized("copy {2000000000 20|4096 2}")),
                                                           .rounds = run.smoke() ? 1 : 5};
                                     check(contest.ours.error.empty(), "{}", contest.ours.error);
                                     return run.hold(contest, run.sides());
                                   },
                               .value = rate(bytes / 1e12)}};
  for (const Benchmark::Product& p : kGpuProducts) rows.push_back(product_benchmark(p, smoke));
  for (const GpuOp& o : gpu_ops()) rows.push_back(op_benchmark(o));
  for (const Steps& s : kSteps) rows.push_back(step_benchmark(s, smoke));
  return rows;
}

}  // namespace sherd::bench
