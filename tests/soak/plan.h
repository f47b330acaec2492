#pragma once
// What a soak of training steps does, drawn from its seed: the same on every rank, and each phase from the seed and its
// number alone, so that one can be repeated.
#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "nn/parallel/shard/unit/policy.h"

namespace sherd::testing {

inline constexpr int kRanks = 4, kBlocks = 3;

/// One forward and backward of a step.
struct PassPlan {
  bool syncs = true, all_reduces = true;     // set_requires_gradient_sync(), set_requires_all_reduce()
  bool skips_last = false;                   // the last block, on all ranks: nothing of its unit is used
  std::array<std::uint32_t, kRanks> uses{};  // by rank: bit b says which of its two linears block b uses
};

/// What a step computes.
struct StepWork {
  std::vector<PassPlan> passes;
  bool reduces_unused = false;  // then ranks may use different linears, else they agree
  bool ends_by_hand = false;    // finalize_backward() after the passes, else the last of them synchronises
  bool clips = false;
  std::uint32_t frozen = 0;  // during the step: bit 2 b + i says whether linear i of block b is
};

struct StepPlan {
  StepWork work;
  bool evaluates = false;     // before it, without gradients
  bool is_dropped = false;    // before it some passes run, and their gradients are cleared
  bool is_left = false;       // before it, the step is left by an exception
  bool in_replay = false;     // of a replay, if there is one
  std::uint32_t victims = 1;  // bits of the ranks that throw
  double at = 0;              // where: which part of the step's ops has run
  std::string text() const;
};

/// Steps of one model under one policy.
struct PhasePlan {
  std::string strategy, precision;
  bool is_grid = false;  // replicas x shards, else one axis
  nn::UnitPolicy policy;
  double limit = 0;          // of the difference to the model on one rank: near()
  bool scales_loss = false;  // LossScaler
  bool accumulates_shards = false, is_lazy = false, keeps_gathered = false, replicates_small = false;
  bool has_slices = false;                                // reshard_after_forward = 2
  bool in_8_bits = false;                                 // gathers and reductions
  bool is_offloaded = false, offloads_gradients = false;  // the subject's shards and state; the twin's are in memory
  bool is_captured = false;                               // the subject's steps, which all do the same work then
  bool has_budget = false;                                // and are planned within what they hold
  std::uint64_t seed = 0;
  std::string name() const;
};

/// Every strategy on every mesh that it is for, in every precision: phase i is plan i, after the last the first.
const std::vector<PhasePlan>& phases();

/// The draws of one phase.
class PhaseDraws {
 public:
  PhaseDraws(std::uint64_t seed, std::uint64_t phase);
  PhasePlan phase();
  StepPlan step();

 private:
  bool happens(int percent) { return static_cast<int>(random_() % 100) < percent; }
  std::uint32_t bits(int count) { return static_cast<std::uint32_t>(random_() % (1U << count)); }
  template <class Plan, class Chances>
  void draw(Plan& plan, const Chances& chances) {
    for (const auto& chance : chances) plan.*chance.what = happens(chance.percent);
  }
  PassPlan pass(bool ranks_agree);
  StepWork work();

  std::uint64_t phase_;
  std::mt19937_64 random_;
  bool repeats_ = false;  // one work in all steps
  std::optional<StepWork> work_;
};

}  // namespace sherd::testing
