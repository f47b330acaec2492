#pragma once
// Which of cuBLASLt's algorithms solves a problem. The library's favourite is often not the fastest, so the first call
// of a problem times a few candidates on the device, with the call's own operands. A choice stays for the life of the
// context, so that equal calls give equal bits, is the whole job's (exec/picks.h), and stays on disk for later jobs:
//
//   memory -> the job -> disk -> candidates, timed | in a recording, or untimed by request: the library's favourite
#include <memory>
#include <optional>
#include <unordered_map>

#include "runtime/cuda/gemm/algorithm_cache.h"
#include "runtime/cuda/gemm/gemm_plan.h"

namespace sherd::cuda {

class Context;

/// A problem's plan and its algorithm; none where the library cannot solve it.
struct GemmChoice {
  GemmPlan plan;
  std::optional<GemmAlgorithm> algorithm;
};

class GemmChoices {
 public:
  /// `tune`: time candidates. Without it nothing on disk is read either.
  GemmChoices(bool tune, AlgorithmCache cache) : tune_(tune), cache_(std::move(cache)) {}
  /// The reference stays valid. May wait for the device, but not in a recording.
  const GemmChoice& find(Context& context, const GemmProblem& problem, const GemmOperands& operands);
  /// Why choices are not read from disk or not kept there; empty: they are.
  const std::string& cache_trouble() const { return cache_.trouble(); }

 private:
  std::optional<GemmAlgorithm> choose(Context& context, const GemmProblem& problem, const GemmPlan& plan,
                                      const GemmOperands& operands);
  std::optional<GemmAlgorithm> fastest_of(Context& context, const GemmProblem& problem, const GemmPlan& plan,
                                          const GemmOperands& operands, const std::vector<GemmAlgorithm>& candidates);

  const bool tune_;
  AlgorithmCache cache_;
  std::unordered_map<GemmProblem, std::unique_ptr<GemmChoice>, GemmProblemHash> choices_;
};

}  // namespace sherd::cuda
