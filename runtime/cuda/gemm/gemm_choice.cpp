#include "runtime/cuda/gemm/gemm_choice.h"

#include <algorithm>
#include <limits>

#include "runtime/cuda/device/context.h"
#include "runtime/cuda/gemm/blas.h"
#include "runtime/exec/picks.h"
#include "runtime/tensor/fnv1a.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

namespace {

constexpr int kCandidates = 16;
constexpr int kRounds = 2;
constexpr float kRoundMilliseconds = 2;  // of one candidate: long enough for a clock of 0.5 us
constexpr int kMaxLaunches = 20;
constexpr float kGain = 0.98f;  // below this share of the favourite's time another is worth it; less is noise

class Timer : NoCopy {
 public:
  Timer() { check(cudaEventCreate(&event_), "creating an event"); }
  ~Timer() { (void)cudaEventDestroy(event_); }
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "recording an event"); }
  float milliseconds_until(const Timer& later) const {
    float elapsed = 0;
    check(cudaEventSynchronize(later.event_), "timing a product");
    check(cudaEventElapsedTime(&elapsed, event_, later.event_), "timing a product");
    return elapsed;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// One candidate and its times. What cannot be launched takes forever.
struct Trial {
  const GemmAlgorithm* algorithm;
  Timer start[kRounds], stop[kRounds];
  bool runs = true;

  float milliseconds() const {
    float best = std::numeric_limits<float>::infinity();
    for (int r = 0; runs && r < kRounds; ++r) best = std::min(best, start[r].milliseconds_until(stop[r]));
    return best;
  }
};

// Index of the fastest. Rounds go over all candidates, so that a change of clocks meets all; the device is waited for
// once to calibrate and once at the end.
template <class Run>
std::size_t fastest(cudaStream_t stream, const std::vector<GemmAlgorithm>& algorithms, Run run) {
  std::vector<Trial> trials(algorithms.size());
  for (std::size_t i = 0; i < trials.size(); ++i) {
    trials[i].algorithm = &algorithms[i];
    trials[i].runs = run(algorithms[i]);  // loads the kernel
  }
  const auto time = [&](Trial& trial, int round, int launches) {
    trial.start[round].record(stream);
    for (int n = 0; trial.runs && n < launches; ++n) trial.runs = run(*trial.algorithm);
    trial.stop[round].record(stream);
  };
  const auto first = std::find_if(trials.begin(), trials.end(), [](const Trial& t) { return t.runs; });
  if (first == trials.end()) {
    check_device("timing products");
    return 0;
  }
  time(*first, 0, 1);
  const float once = std::max(first->start[0].milliseconds_until(first->stop[0]), 1e-3f);
  const int launches = std::clamp(static_cast<int>(kRoundMilliseconds / once), 1, kMaxLaunches);
  for (int round = 0; round < kRounds; ++round)
    for (Trial& trial : trials) time(trial, round, launches);
  std::size_t best = static_cast<std::size_t>(first - trials.begin());
  float limit = first->milliseconds() * kGain;
  for (std::size_t i = best + 1; i < trials.size(); ++i) {
    const float taken = trials[i].milliseconds();
    if (taken >= limit) continue;
    best = i;
    limit = taken;
  }
  return best;
}

std::int64_t extent_bytes(const GemmProblem& p) {
  return ((p.batch - 1) * p.stride_c + (p.m - 1) * p.ldc + p.n) * byte_size(p.result);
}

}  // namespace

const GemmChoice& GemmChoices::find(Context& context, const GemmProblem& problem, const GemmOperands& operands) {
  std::unique_ptr<GemmChoice>& choice = choices_[problem];
  if (choice) return *choice;
  try {
    auto made = std::make_unique<GemmChoice>(GemmChoice{GemmPlan(problem), std::nullopt});
    made->algorithm = choose(context, problem, made->plan, operands);
    choice = std::move(made);
  } catch (...) {
    choices_.erase(problem);
    throw;
  }
  return *choice;
}

std::optional<GemmAlgorithm> GemmChoices::choose(Context& context, const GemmProblem& problem, const GemmPlan& plan,
                                                 const GemmOperands& operands) {
  Blas& blas = context.blas();
  const std::size_t limit = blas.workspace_bytes();
  const std::string key = problem.text();
  const auto accepted = [&](std::optional<GemmAlgorithm> known) {
    return known && plan.accepts(blas.handle(), *known, limit) ? known : std::nullopt;
  };
  const std::string pick = fmt::format("matmul {:016x} {}", fnv1a(cache_.machine()), key);
  Picks& picks = picks_of_rank();
  if (tune_) {
    if (const auto own = picks.find(pick))
      if (const auto known = accepted(algorithm_from_text(*own))) return known;
    if (const auto kept = accepted(cache_.find(key))) {
      if (context.is_recording()) return kept;
      const auto known = accepted(algorithm_from_text(picks.find_or_make(pick, [&] { return to_text(*kept); })));
      if (known) cache_.keep(key, *known);
      return known ? known : kept;
    }
  }
  const std::vector<GemmAlgorithm> candidates = plan.candidates(blas.handle(), limit, kCandidates, operands.bias);
  if (candidates.empty()) return std::nullopt;
  if (!tune_ || context.is_recording() || candidates.size() == 1) return candidates.front();
  bool is_timed = true;
  const std::string chosen = picks.find_or_make(pick, [&] {  // the favourite too is one that the job's ranks share
    const auto best = fastest_of(context, problem, plan, operands, candidates);
    is_timed = best.has_value();
    return to_text(best.value_or(candidates.front()));
  });
  const std::optional<GemmAlgorithm> known = accepted(algorithm_from_text(chosen));
  if (known && is_timed) cache_.keep(key, *known);
  return known ? known : candidates.front();
}

std::optional<GemmAlgorithm> GemmChoices::fastest_of(Context& context, const GemmProblem& problem, const GemmPlan& plan,
                                                     const GemmOperands& operands,
                                                     const std::vector<GemmAlgorithm>& candidates) {
  Blas& blas = context.blas();
  // Every trial writes C. Where C is added to, trials write elsewhere; without memory for that the favourite must do.
  std::optional<Workspace> elsewhere;
  GemmOperands trial = operands;
  if (problem.accumulate) {
    try {
      elsewhere.emplace(context, extent_bytes(problem));
    } catch (const OutOfMemory&) { return std::nullopt; }
    trial.c = elsewhere->data();
  }
  const cudaStream_t stream = context.stream();
  context.log().add("cuBLASLt products, timed", context.log().row());
  const std::size_t limit = blas.workspace_bytes();
  return candidates[fastest(stream, candidates, [&](const GemmAlgorithm& algorithm) {
    return plan.run(blas.handle(), algorithm, trial, blas.workspace(), limit, stream) == CUBLAS_STATUS_SUCCESS;
  })];
}

}  // namespace sherd::cuda
