// gpu.*: the first CUDA device beside PyTorch on the same one and what the card allows: copy speed, and cuBLASLt's best
// algorithm for the same product.
#include <chrono>
#include <cstdlib>

#include <fmt/format.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"
#include "tools/bench/gpu_ops.h"
#include "tools/bench/models.h"

namespace sherd::bench {

namespace {

constexpr std::chrono::seconds kOpPatience{60}, kStepPatience{330};  // torch.compile of a large model takes minutes

// Takes the program that SHERD_GPU_LIMITS names, the same on the emulated GPU, as SHERD_CUDA_LIB names a library.
Contestant limit_of(const std::string& request) {
  Contestant result{{}, request};
  try {
    const char* other = std::getenv("SHERD_GPU_LIMITS");
    result.command.words = {other ? other : program_beside("bench_gpu_limits")};
  } catch (const std::exception& error) { result.error = error.what(); }
  return result;
}

std::vector<std::string> small_flag(const BenchRun& run) {
  return run.smoke() ? std::vector<std::string>{"--small", "true"} : std::vector<std::string>{};
}

// Bandwidth-bound calls against the copy of as many bytes; attention against PyTorch's own library call.
Benchmark op_benchmark(const GpuOp& o) {
  Benchmark row;
  row.name = fmt::format("gpu.{}", o.name);
  row.summary = fmt::format("{}{}", o.summary, o.bytes > 0 ? "; limit: a copy of the bytes" : "");
  row.unit = {"us"};
  if (o.bytes > 0) row.target = {Rule::limit_factor_at_most, 1 / 0.85};
  row.measure = [&o](Figure& figure, BenchRun& run) {
    const std::string calls = std::to_string(run.sized(50, 2)), request = fmt::format("{} {}", o.name, calls);
    std::vector<std::string> words;
    if (run.smoke()) words.push_back("small");
    Contest contest{.ours = {child("gpu_op", small_flag(run)), request},
                    .peers = run.gpu_torch_contestants("gpu_ops.py", words, request),
                    .rounds = run.sized(5, 1),
                    .patience = kOpPatience};
    if (o.bytes > 0) contest.limit = limit_of(fmt::format("copy {:.0f} {}", run.sized(o.bytes, 4096.0), calls));
    const Outcome outcome = run.hold(contest, run.sides());
    const auto to_us = [](double seconds) { return seconds * 1e6; };
    fill(figure, outcome, to_us, to_us);
    figure.detail["how"] = outcome.ours.answers.back().at("how");
    if (o.bytes > 0) figure.detail["terabytes_per_second"] = o.bytes / outcome.ours.median() / 1e12;
    if (o.flops > 0) figure.detail["teraflops"] = o.flops / outcome.ours.median() / 1e12;
  };
  return row;
}

struct Product {
  const char *name, *kind;
  int m, n, k;
};
// Products of the 1.2 B Llama, one packed product for q, k, v and one for gate and up; forward, dx, dW.
constexpr Product kProducts[] = {
    {"qkv", "NT", 16384, 3072, 2048},       {"out", "NT", 16384, 2048, 2048},
    {"up", "NT", 16384, 8192, 2048},        {"down", "NT", 16384, 2048, 8192},
    {"head", "NT", 4096, 128256, 2048},     {"up_grad_x", "NN", 16384, 2048, 8192},
    {"up_grad_w", "TN", 8192, 2048, 16384}, {"head_grad_w", "TN", 128256, 2048, 4096},
    {"square", "NN", 8192, 8192, 8192},
};

Benchmark product_benchmark(const Product& p) {
  Benchmark row;
  row.name = fmt::format("gpu.gemm.{}", p.name);
  row.summary = fmt::format("bf16 {} {}x{}x{}; limit: cuBLASLt's best of 16 algorithms", p.kind, p.m, p.n, p.k);
  row.unit = {"us"};
  row.target = {Rule::limit_factor_at_most, 1 / 0.97};
  row.measure = [p](Figure& figure, BenchRun& run) {
    const int m = run.sized(p.m, 32), n = run.sized(p.n, 16), k = run.sized(p.k, 16);
    const std::string request = fmt::format("matmul {} {} {} {} {}", p.kind, m, n, k, run.sized(30, 2));
    const Contest contest{.ours = {child("gpu_op", small_flag(run)), request},
                          .peers = run.gpu_torch_contestants("gpu_ops.py", {}, request),
                          .limit = limit_of(request),
                          .rounds = run.sized(5, 1),
                          .patience = kOpPatience};
    const Outcome outcome = run.hold(contest, run.sides());
    const auto to_us = [](double seconds) { return seconds * 1e6; };
    fill(figure, outcome, to_us, to_us);
    figure.detail["teraflops"] = 2e-12 * m * n * k / outcome.ours.median();
  };
  return row;
}

// Each side trains one model and is asked for steps in one way, then in another. Sides take turns on an empty card:
// two trainings of llama1b fit beside each other on few.
struct StepModel {
  const char *name, *smoke;
  const char* compile_mode;  ///< of torch.compile
};
constexpr StepModel kLlama{"llama1b", "tiny_llama", "default"}, kGpt{"gpt124m", "tiny", "reduce-overhead"};

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
  const std::string model = run.sized<std::string>(m.name, m.smoke), steps = run.sized("6", "1");
  const SideCommand ours = child("step", {"--model", model, "--dtype", "bf16", "--device", "cuda"});
  Contest captured{.ours = {ours, steps}, .rounds = run.sized(5, 1), .patience = kStepPatience};
  const auto compiled = run.gpu_torch_contestants("gpu_step.py", {model}, fmt::format("{} {}", m.compile_mode, steps));
  const auto eager = run.gpu_torch_contestants("gpu_step.py", {model}, fmt::format("eager {}", steps));
  for (std::size_t i = 0; i < compiled.size(); ++i) {
    captured.peers.push_back(compiled[i]);
    captured.peers.push_back(eager[i]);
  }
  return {captured, {.ours = {ours, "eager " + steps}, .rounds = captured.rounds, .patience = kStepPatience}};
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

Benchmark step_benchmark(const Steps& s) {
  Benchmark row;
  row.name = s.figure;
  row.summary = fmt::format(
      "training step of {}, {}, all bf16 but f32 masters and reductions on both sides; peer: torch, {}", s.model.name,
      s.ours == How::captured ? "captured" : "eager", s.peer == How::captured ? s.model.compile_mode : "eager");
  row.unit = {"tokens/s", Better::higher, 0};
  if (s.ratio > 0) row.target = {Rule::ratio_at_least, s.ratio};
  row.measure = [s](Figure& figure, BenchRun& run) {
    const Outcome outcome = step_outcome(s, run);
    const BenchModel& model = bench_model(run.sized<std::string>(s.model.name, s.model.smoke));
    const auto tokens = static_cast<double>(model.tokens_per_step());
    fill(figure, outcome, [&](double seconds) { return tokens / seconds; });
    figure.detail["step_ms"] = outcome.ours.median() * 1e3;
    figure.detail["how"] = outcome.ours.answers.back().at("how");
    figure.detail["teraflops"] = model.step_flops() / outcome.ours.median() / 1e12;
    figure.detail["peak_bytes"] = outcome.ours.median("/device_peak_bytes");
    figure.detail["loss"] = outcome.ours.answers.back().at("loss");
    for (const Answers& peer : outcome.peers)
      if (peer.ok()) figure.detail["peer_peak_bytes"] = peer.median("/device_peak_bytes");
  };
  return row;
}

Benchmark copy_benchmark() {
  Benchmark row;
  row.name = "gpu.copy";
  row.summary = "copy within the device, 1 GB, read and written";
  row.unit = {"TB/s", Better::higher, 2};
  row.measure = [](Figure& figure, BenchRun& run) {
    const double bytes = run.sized(2e9, 4096.0);
    const Contest contest{.ours = limit_of(fmt::format("copy {:.0f} {}", bytes, run.sized(20, 2))),
                          .rounds = run.sized(5, 1)};
    if (!contest.ours.error.empty()) throw Error(contest.ours.error);
    const Outcome outcome = run.hold(contest, run.sides());
    fill(figure, outcome, [&](double seconds) { return bytes / seconds / 1e12; });
  };
  return row;
}

}  // namespace

std::vector<Benchmark> gpu_benchmarks() {
  std::vector<Benchmark> rows{copy_benchmark()};
  for (const Product& p : kProducts) rows.push_back(product_benchmark(p));
  for (const GpuOp& o : gpu_ops()) rows.push_back(op_benchmark(o));
  for (const Steps& s : kSteps) rows.push_back(step_benchmark(s));
  return rows;
}

}  // namespace sherd::bench
