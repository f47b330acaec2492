// A table of settings that may be the wrong ones. The simulator says what the other value gives; a gain in transfers is
// at most what the run has seen exposed.
#include <algorithm>

#include "tools/diagnose/findings.h"

namespace sherd::diagnose {

namespace {

constexpr double kManyTokens = 0.25;  // share of a step that twice the batch must gain: it changes the recipe

struct Setting {
  std::string_view id;
  plan::Changes changes;
  double tokens = 1;        ///< times those of a step now
  double weight = kWeight;  ///< share of a step from which it is worth saying
  double most = 1;          ///< share of a step that it can gain at most
  std::string said{};       ///< what the run was told
};

double share_of(const RunCase& facts, double seconds) { return seconds / std::max(facts.step(), 1e-12); }

std::size_t num_units(const RunCase& facts) {
  const auto& times = facts.last().metrics.times;
  return times ? times->units.size() : 0;
}

std::vector<Setting> settings_of(const RunCase& facts) {
  const TrainConfig& c = facts.run.config;
  const nn::TrainingPlan& plan = c.plan;
  const double gathers = share_of(facts, facts.shares.at(Share::gathers)),
               reductions = share_of(facts, facts.shares.at(Share::reductions)),
               compute = share_of(facts, facts.shares.at(Share::compute));
  const auto layers = static_cast<std::size_t>(c.model.layers);
  const std::size_t units = num_units(facts);
  std::vector<Setting> settings;
  const std::string units_text = fmt::format("units = {}: {} of them for {} blocks", plan.units.text(), units, layers);
  const bool is_sharded = units > 0;
  if (is_sharded && units < layers)
    settings.push_back({"units_coarse", {{"units", "block"}}, 1, kWeight, gathers + reductions, units_text});
  if (is_sharded && units > layers + 3)
    settings.push_back({"units_fine", {{"units", "block"}}, 1, kWeight, gathers + reductions + compute, units_text});
  if (is_sharded && !plan.prefetch)
    settings.push_back({"prefetch_off", {{"prefetch", "true"}}, 1, kWeight, gathers, "prefetch = false"});
  if (is_sharded && plan.param_dtype != DType::f32 && plan.reduce_dtype == DType::f32)
    settings.push_back({"wide_reduction",
                        {{"reduce_dtype", std::string(name(plan.param_dtype))}},
                        1,
                        kWeight,
                        reductions,
                        fmt::format("param_dtype = {}, reduce_dtype = f32", name(plan.param_dtype))});
  if (is_sharded && plan.strategy.text() == "full_shard" && plan.reshard_after_forward.text() == "true" &&
      plan.prefetch)
    settings.push_back({"needless_reshard",
                        {{"reshard_after_forward", "false"}},
                        1,
                        kWeight,
                        gathers,
                        "reshard_after_forward = true: blocks are gathered twice"});
  if (plan.recompute.text() != "none")
    settings.push_back({"needless_recompute",
                        {{"recompute", "none"}},
                        1,
                        kWeight,
                        compute,
                        fmt::format("recompute = {}", plan.recompute.text())});
  const double tokens = facts.run.tokens() / static_cast<double>(std::max(1, facts.run.ranks));
  settings.push_back({"small_batch",
                      {{"batch", std::to_string(2 * c.batch)}},
                      2,
                      kManyTokens,
                      1,
                      fmt::format("{:.0f} tokens of a step for each rank", tokens)});
  return settings;
}

std::string exposed_text(const RunCase& facts) {
  const std::string gathers = most_exposed(facts.run, &UnitTime::gather),
                    reductions = most_exposed(facts.run, &UnitTime::reduce);
  if (gathers.empty()) return "";
  return fmt::format("exposed: gathers {:.2f} ms, of {} most; reductions {:.2f} ms, of {} most",
                     1e3 * facts.shares.at(Share::gathers), gathers, 1e3 * facts.shares.at(Share::reductions),
                     reductions);
}

}  // namespace

void find_in_settings(const RunCase& facts, std::vector<Finding>& findings) {
  for (const Setting& setting : settings_of(facts)) {
    // More tokens for each transfer is no reason for more tokens: transfers have findings of their own.
    const std::optional<double> simulated = setting.tokens > 1
                                                ? facts.priced.gain_of_compute(setting.changes, setting.tokens)
                                                : facts.priced.gain(setting.changes);
    if (!simulated) continue;
    const double gain = std::min(*simulated, setting.most * facts.step());
    if (gain < setting.weight * facts.step()) continue;
    Finding finding{.id = setting.id,
                    .seconds = gain,
                    .evidence = {{setting.said, 1}},
                    .command = plan::as_flags(setting.changes),
                    .gain = gain,
                    .is_simulated = true};
    if (const std::string exposed = exposed_text(facts); !exposed.empty())
      finding.evidence.push_back({exposed, facts.last().line});
    findings.push_back(std::move(finding));
  }
}

}  // namespace sherd::diagnose
