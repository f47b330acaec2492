#include "tests/soak/plan.h"

#include "runtime/tensor/error.h"

namespace sherd::testing {

namespace {

template <class Plan>
struct Chance {
  bool Plan::* what;
  int percent;
};
constexpr Chance<PhasePlan> kOfPhases[] = {{&PhasePlan::accumulates_shards, 30},
                                           {&PhasePlan::prefetches, 80},
                                           {&PhasePlan::keeps_gathered, 25},
                                           {&PhasePlan::replicates_small, 25}};
constexpr Chance<StepPlan> kOfSteps[] = {{&StepPlan::reduces_unused, 40}, {&StepPlan::ends_by_hand, 25},
                                         {&StepPlan::clips, 50},          {&StepPlan::evaluates, 10},
                                         {&StepPlan::is_dropped, 10},     {&StepPlan::is_left, 25}};
constexpr Chance<PassPlan> kOfPasses[] = {{&PassPlan::syncs, 40}, {&PassPlan::all_reduces, 50}};
constexpr std::uint64_t kMostPasses = 4;
constexpr std::int64_t kSmallBytes = 32;  // biases

/// What gathered parameters and gradients are made of, and how far ten steps may lead from one rank in f32.
struct Precision {
  const char* name;
  nn::MixedPrecision policy;
  double limit;
};
const Precision kPrecisions[] = {
    {"f32", {}, 1e-4},
    {"bf16", {.param_dtype = DType::bf16, .output_dtype = DType::f32}, 5e-2},
    {"a bf16 wire", {.param_dtype = DType::bf16, .reduce_dtype = DType::bf16, .output_dtype = DType::f32}, 5e-2},
};

std::vector<PhasePlan> make_phases() {
  std::vector<PhasePlan> all;
  for (const bool is_grid : {false, true})
    for (const std::string& name : nn::strategy_names())
      for (const Precision& precision : kPrecisions) {
        nn::UnitPolicy policy = nn::strategy(name);
        if (policy.needs_replicas && !is_grid) continue;
        policy.mp_policy = precision.policy;
        all.push_back({.strategy = name,
                       .precision = precision.name,
                       .is_grid = is_grid,
                       .policy = policy,
                       .limit = precision.limit});
      }
  return all;
}

}  // namespace

std::string PhasePlan::name() const {
  return fmt::format("{} over {} in {}{}{}{}{}", strategy, is_grid ? "2x2" : "4", precision,
                     accumulates_shards ? ", adding up shards" : "", prefetches ? "" : ", without prefetch",
                     keeps_gathered ? ", gathered after backward" : "", replicates_small ? ", biases whole" : "");
}

const std::vector<PhasePlan>& phases() {
  static const std::vector<PhasePlan> all = make_phases();
  return all;
}

Draw::Draw(std::uint64_t seed, std::uint64_t phase) : phase_(phase), random_(seed * 1'000'003 + phase) {}

PhasePlan Draw::phase() {
  PhasePlan plan = phases()[phase_ % phases().size()];
  draw(plan, kOfPhases);
  plan.accumulates_shards = plan.accumulates_shards && plan.policy.optimizer != nn::ShardedOver::none;
  if (plan.accumulates_shards) plan.policy.gradients = nn::ShardedOver::shards;
  plan.policy.prefetch = plan.prefetches;
  if (plan.replicates_small) plan.policy.replicate_below_bytes = kSmallBytes;
  plan.seed = random_();
  return plan;
}

PassPlan Draw::pass(bool ranks_agree) {
  PassPlan plan;
  draw(plan, kOfPasses);
  plan.uses.fill(static_cast<std::uint32_t>(random_()));
  if (ranks_agree) return plan;
  for (std::uint32_t& uses : plan.uses) uses = static_cast<std::uint32_t>(random_());
  return plan;
}

StepPlan Draw::step() {
  StepPlan plan;
  draw(plan, kOfSteps);
  const std::uint64_t count = 1 + random_() % kMostPasses;
  for (std::uint64_t i = 0; i < count; ++i) plan.passes.push_back(pass(!plan.reduces_unused));
  if (!plan.ends_by_hand) plan.passes.back().syncs = plan.passes.back().all_reduces = true;
  const auto one = std::uint32_t{1} << random_() % kRanks;
  plan.victims = happens(60) ? one : one | static_cast<std::uint32_t>(random_() % (1U << kRanks));
  plan.at = static_cast<double>(random_() % 1050) / 1000;  // sometimes behind the last op
  return plan;
}

}  // namespace sherd::testing
