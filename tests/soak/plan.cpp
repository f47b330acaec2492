#include "tests/soak/plan.h"

#include "runtime/tensor/error.h"

namespace sherd::testing {

namespace {

template <class Plan>
struct Chance {
  bool Plan::* what;
  int percent;
  const char* text;
};
constexpr Chance<PhasePlan> kOfPhases[] = {{&PhasePlan::accumulates_shards, 30, "adding up shards"},
                                           {&PhasePlan::is_lazy, 20, "without prefetch"},
                                           {&PhasePlan::keeps_gathered, 25, "gathered after backward"},
                                           {&PhasePlan::replicates_small, 25, "biases whole"},
                                           {&PhasePlan::has_slices, 40, "resharded to 2 ranks"},
                                           {&PhasePlan::in_8_bits, 25, "in 8 bits"},
                                           {&PhasePlan::is_captured, 30, "captured"},
                                           {&PhasePlan::has_budget, 50, "planned where captured"},
                                           {&PhasePlan::is_offloaded, 35, "offloaded"},
                                           {&PhasePlan::offloads_gradients, 50, "with gradients"}};
constexpr Chance<StepWork> kOfWork[] = {{&StepWork::reduces_unused, 40, "reduces what is unused"},
                                        {&StepWork::ends_by_hand, 25, "ends by hand"},
                                        {&StepWork::clips, 50, "clips"}};
constexpr Chance<StepPlan> kOfSteps[] = {{&StepPlan::evaluates, 10, "evaluates before"},
                                         {&StepPlan::is_dropped, 10, "is dropped before"},
                                         {&StepPlan::is_left, 25, "is left before"},
                                         {&StepPlan::in_replay, 40, "in a replay, if there is one"}};
constexpr Chance<PassPlan> kOfPasses[] = {{&PassPlan::syncs, 40, "reduces"},
                                          {&PassPlan::all_reduces, 50, "adds up replicas"},
                                          {&PassPlan::skips_last, 20, "skips the last block"}};
constexpr std::uint64_t kMostPasses = 4;
constexpr int kFreezes = 35;              // percent of works
constexpr std::int64_t kSmallBytes = 32;  // biases
constexpr double kLimitOf8Bits = 1e-1;    // what rounding adds to a limit

/// ", clips, ...": what has been drawn.
template <class Plan, class Chances>
std::string texts(const Plan& plan, const Chances& chances) {
  std::string text;
  for (const auto& chance : chances)
    if (plan.*chance.what) text += fmt::format(", {}", chance.text);
  return text;
}

/// "; uses 5/5/5/5, reduces": the bits of each rank.
std::string text_of(const PassPlan& pass) {
  std::string uses;
  for (const std::uint32_t bits : pass.uses) uses += fmt::format("{}{:x}", uses.empty() ? "" : "/", bits);
  return fmt::format("; uses {}{}", uses, texts(pass, kOfPasses));
}

/// Both linears of each of these blocks. Where ranks use different linears a unit trains on all ranks or on none: it is
/// reduced when a parameter of it is reached.
std::uint32_t both_linears(std::uint32_t blocks) {
  std::uint32_t linears = 0;
  for (int b = 0; b < kBlocks; ++b) linears |= (blocks >> b & 1U) * 3U << (2 * b);
  return linears;
}

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
    {"f16", {.param_dtype = DType::f16, .reduce_dtype = DType::f32, .output_dtype = DType::f32}, 5e-2},
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
                       .limit = precision.limit,
                       .scales_loss = policy.mp_policy.param_dtype == DType::f16});
      }
  return all;
}

}  // namespace

std::string PhasePlan::name() const {
  return fmt::format("{} over {} in {}{}", strategy, is_grid ? "2x2" : "4", precision, texts(*this, kOfPhases));
}

std::string StepPlan::text() const {
  std::string text = fmt::format("{} passes{}{}", work.passes.size(), texts(work, kOfWork), texts(*this, kOfSteps));
  if (work.frozen != 0) text += fmt::format(", frozen {:x}", work.frozen);
  if (is_left) text += fmt::format(", victims {:x} at {:.3f}", victims, at);
  for (const PassPlan& pass : work.passes) text += text_of(pass);
  return text;
}

const std::vector<PhasePlan>& phases() {
  static const std::vector<PhasePlan> all = make_phases();
  return all;
}

PhaseDraws::PhaseDraws(std::uint64_t seed, std::uint64_t phase) : phase_(phase), random_(seed * 1'000'003 + phase) {}

PhasePlan PhaseDraws::phase() {
  PhasePlan plan = phases()[phase_ % phases().size()];
  draw(plan, kOfPhases);
  const bool is_sharded = plan.policy.optimizer != nn::ShardedOver::none;
  plan.accumulates_shards = plan.accumulates_shards && is_sharded;
  plan.has_slices = plan.has_slices && !plan.is_grid && plan.policy.parameters != nn::ShardedOver::none;
  plan.in_8_bits = plan.in_8_bits && is_sharded && !plan.has_slices;  // such a gather is one of all ranks
  plan.is_offloaded = plan.is_offloaded && !plan.in_8_bits && plan.strategy != "hybrid_shard_state";
  plan.offloads_gradients = plan.offloads_gradients && plan.is_offloaded;
  if (plan.accumulates_shards) plan.policy.gradients = nn::ShardedOver::shards;
  plan.policy.prefetch = !plan.is_lazy;
  if (plan.replicates_small) plan.policy.replicate_below_bytes = kSmallBytes;
  if (plan.has_slices) plan.policy.reshard_after_forward = 2;
  if (plan.in_8_bits) plan.limit += kLimitOf8Bits;
  plan.seed = random_();
  repeats_ = plan.is_captured;
  return plan;
}

PassPlan PhaseDraws::pass(bool ranks_agree) {
  PassPlan plan;
  draw(plan, kOfPasses);
  plan.uses.fill(bits(kBlocks));
  if (ranks_agree) return plan;
  for (std::uint32_t& uses : plan.uses) uses = bits(kBlocks);
  return plan;
}

StepWork PhaseDraws::work() {
  StepWork work;
  draw(work, kOfWork);
  const std::uint64_t count = 1 + random_() % kMostPasses;
  for (std::uint64_t i = 0; i < count; ++i) work.passes.push_back(pass(!work.reduces_unused));
  if (!work.ends_by_hand) work.passes.back().syncs = work.passes.back().all_reduces = true;
  if (happens(kFreezes)) work.frozen = work.reduces_unused ? both_linears(bits(kBlocks)) : bits(2 * kBlocks);
  return work;
}

StepPlan PhaseDraws::step() {
  StepPlan plan;
  if (!work_ || !repeats_) work_ = work();
  plan.work = *work_;
  draw(plan, kOfSteps);
  const auto one = std::uint32_t{1} << random_() % kRanks;
  plan.victims = happens(60) ? one : one | bits(kRanks);
  plan.at = static_cast<double>(random_() % 1050) / 1000;  // sometimes behind the last op
  return plan;
}

}  // namespace sherd::testing
