// A setting is a key of the config's table and a value, so that a row is the same config that a user would write. What
// a setting does is said beside it.
#include "tools/plan/rows.h"

#include <algorithm>
#include <array>
#include <map>

#include "runtime/tensor/error.h"
#include "tools/train/sharding.h"

namespace sherd::plan {

namespace {

struct Setting {
  std::string_view key, value, why;
  std::string_view also_key{}, also_value{};  ///< of a setting that is one of another key's too
};

// "K" is a number of ranks that divides the shards.
constexpr std::array kSettings{
    Setting{"strategy", "full_shard",
            "a unit's parameters are gathered for its forward and again for its backward, all else is sharded"},
    Setting{"strategy", "no_shard", "every rank holds all state, nothing is gathered, gradients are all-reduced"},
    Setting{"strategy", "shard_optimizer", "what is gathered stays until the optimizer has written the shards"},
    Setting{"strategy", "shard_grad_op",
            "what is gathered stays until backward is over, so backward gathers nothing again"},
    Setting{"strategy", "full_shard",
            "after forward each of K neighbouring ranks keeps 1/K of a unit, and backward gathers among these",
            "reshard_after_forward", "K"},
    Setting{"strategy", "hybrid_shard",
            "shards are copied over replicas, so that gathers stay within dp and shards of gradients alone cross"},
    Setting{"strategy", "hybrid_shard_grad_op", "the same, and what is gathered stays until backward is over"},
    Setting{"strategy", "hybrid_shard_state",
            "as hybrid_shard, but each replica updates its own part of a shard, for one more gather over replicas"},
    Setting{"recompute", "none", "the tape keeps what backward reads"},
    Setting{"recompute", "selective",
            "of a block its input, q, k, v and attention's result stay, what follows attention runs again"},
    Setting{"recompute", "full", "of a block its input alone stays, and its forward runs again in backward"},
    Setting{"offload", "none", "all state stays in memory"},
    Setting{"offload", "optimizer", "optimizer state leaves memory between updates"},
    Setting{"prefetch", "true", "the next unit is gathered while one computes"},
    Setting{"prefetch", "false",
            "a unit is gathered when it is needed: one less is there at a time, and nothing hides the transfer"},
    Setting{"units", "coarse",
            "the model is one unit: fewest calls, all of it is gathered at a time, nothing is left to overlap with"},
    Setting{"units", "block", "a block is a unit"},
    Setting{"units", "fine",
            "attention and MLP are units of their own: less is gathered at a time, in more and smaller calls"},
    Setting{"compile", "false", "every step calls op after op"},
    Setting{"compile", "true", "one step is recorded and replayed, bit for bit the same"},
    Setting{"compile", "true", "what does not fit in 75 % of a captured step's bytes is let go and computed again",
            "memory_budget", "75%"},
    Setting{"compile", "true", "what does not fit in 60 % of them is let go and computed again", "memory_budget",
            "60%"},
    Setting{"accumulate", "1", "the batch is one forward and one backward"},
    Setting{"accumulate", "2",
            "half of the batch at a time, as much less is saved for backward; whole gradients wait for the other half"},
    Setting{"accumulate", "2", "half of the batch at a time, and shards of gradients wait for the other half",
            "accumulate_shards", "true"},
    Setting{"param_dtype", "f32", "parameters are gathered, and computed with, in f32"},
    Setting{
        "param_dtype", "bf16",
        "shards and sums of gradients are f32, what is gathered and computed with is bf16: half the bytes, and other "
        "roundings"},
};
constexpr std::array<std::string_view, 8> kKnobs{"strategy", "recompute", "offload",    "prefetch",
                                                 "units",    "compile",   "accumulate", "param_dtype"};
/// Each is tried alone: combinations are not about it.
constexpr std::array<std::string_view, 3> kAlone{"compile", "accumulate", "param_dtype"};
/// What names of rows leave out, as tables of a search have it in columns.
constexpr std::array<std::string_view, 4> kNotNamed{"strategy", "recompute", "accumulate", "param_dtype"};

template <class Names>
bool is_among(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != std::ranges::end(names);
}

std::string text_of(const ConfigValue& value) {
  return std::visit([](const auto& v) { return fmt::format("{}", v); }, value);
}

std::map<std::string, std::string> values_of(TrainConfig config) {
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : bind(config).values()) values[key] = text_of(value);
  return values;
}

/// How many ranks each keep a part of what was gathered: as many as asked for, or the least that divide the shards.
int slice_of(int shards, int asked) {
  if (asked > 1 && asked < shards && shards % asked == 0) return asked;
  for (int k = 2; k < shards; ++k)
    if (shards % k == 0) return k;
  return 0;
}

struct Axes {
  int replicate = 1, dp = 1;
  std::string rest{};  ///< ",tp=2": what no strategy changes
  int replicas = 2;    ///< where strategies have them and the mesh none
  int slice = 0;       ///< ranks to reshard to
  int data() const { return replicate * dp; }
};

Axes axes_of(const nn::MeshAxes& mesh, int ranks, const RowsOf& of = {}) {
  Axes axes{.replicas = of.replicas};
  for (const DeviceMesh::Axis& axis : mesh.of(ranks)) {
    if (axis.name == "replicate") axes.replicate = axis.size;
    else if (axis.name == "dp") axes.dp = axis.size;
    else axes.rest += fmt::format(",{}={}", axis.name, axis.size);
  }
  axes.slice = slice_of(axes.data(), of.slice);
  return axes;
}

/// With replicas where strategies have them: those of the mesh, or as many as were asked for.
Axes with_replicas(Axes axes) {
  if (axes.replicate > 1 || axes.dp % axes.replicas != 0 || axes.dp < 2 * axes.replicas) return axes;
  axes.replicate = axes.replicas;
  axes.dp /= axes.replicas;
  return axes;
}

std::string replaced(std::string text, const std::string& k) {
  for (std::size_t at; (at = text.find('K')) != std::string::npos;) text.replace(at, 1, k);
  return text;
}

void put_on_mesh(RowPlan& run, const Axes& axes) {
  if (!run.config.plan.strategy.value().needs_replicas) {
    run.config.plan.mesh = fmt::format("dp={}{}", axes.data(), axes.rest);
    return;
  }
  const Axes grid = with_replicas(axes);
  if (grid.replicate == 1)
    run.row.left_out =
        fmt::format("replicas of shards take four ranks with data of their own, there are {}", axes.data());
  run.config.plan.mesh = fmt::format("replicate={},dp={}{}", grid.replicate, grid.dp, grid.rest);
}

/// One way to set the knobs: a setting of each.
using Combination = std::vector<const Setting*>;

std::vector<const Setting*> settings_of(std::string_view knob) {
  std::vector<const Setting*> settings;
  for (const Setting& setting : kSettings)
    if (setting.key == knob) settings.push_back(&setting);
  return settings;
}

bool is_of(const Setting& setting, const std::map<std::string, std::string>& base) {
  if (base.at(std::string(setting.key)) != setting.value) return false;
  if (!setting.also_key.empty()) return base.at(std::string(setting.also_key)) == setting.also_value;
  if (setting.key == "accumulate" && setting.value != "1") return base.at("accumulate_shards") == "false";
  return (setting.key != "strategy" || base.at("reshard_after_forward") == "true") &&
         (setting.key != "compile" || base.at("memory_budget") == "none");
}

void apply(RowPlan& run, const Setting& setting, const Axes& axes) {
  ConfigTable table = bind(run.config);
  table.set_text(setting.key, setting.value, "a row");
  if (setting.key == "strategy") run.config.plan.reshard_after_forward = true;
  if (!run.config.plan.offload.any()) run.config.plan.offload_keep = 0;
  if (setting.key == "compile") run.config.plan.memory_budget = "none";
  if (setting.key == "accumulate") run.config.plan.accumulate_shards = false;
  if (!run.config.plan.compiled) run.config.passes.clear();
  if (setting.also_key.empty()) return;
  if (setting.also_value != "K") return table.set_text(setting.also_key, setting.also_value, "a row");
  if (axes.slice > 0) table.set_text(setting.also_key, std::to_string(axes.slice), "a row");
  else run.row.left_out = fmt::format("{} shards have no smaller number of ranks to reshard to", axes.data());
}

std::string name_of(const Setting& setting, const Axes& axes) {
  if (setting.also_key == "reshard_after_forward")
    return fmt::format("full_shard, reshard to {}", axes.slice > 0 ? std::to_string(axes.slice) : "fewer");
  if (setting.key == "param_dtype") return std::string(setting.value);
  if (setting.key == "accumulate" && !setting.also_key.empty())
    return fmt::format("accumulate {} shards", setting.value);
  if (setting.key == "compile" && setting.value == "true")
    return setting.also_key.empty() ? "captured" : fmt::format("captured within {}", setting.also_value);
  return setting.key == "strategy" ? std::string(setting.value) : fmt::format("{} {}", setting.key, setting.value);
}

RowPlan row_of(const TrainConfig& base, const Combination& changes, const Axes& axes) {
  RowPlan run{.config = base};
  for (const Setting* setting : changes) {
    run.row.knob = setting->key;
    run.row.name += (run.row.name.empty() ? "" : ", ") + name_of(*setting, axes);
    run.row.why += (run.row.why.empty() ? "" : "; ") + replaced(std::string(setting->why), std::to_string(axes.slice));
    apply(run, *setting, axes);
  }
  put_on_mesh(run, axes);
  const auto values = values_of(run.config);
  for (const std::string_view key : kKnobs) run.row.settings.emplace_back(key, values.at(std::string(key)));
  for (const char* key : {"memory_budget", "reshard_after_forward", "accumulate_shards"})
    run.row.settings.emplace_back(key, values.at(key));
  run.row.settings.emplace_back("mesh", run.config.plan.mesh.text());
  return run;
}

std::vector<Combination> combinations(const std::vector<std::vector<const Setting*>>& knobs) {
  std::vector<Combination> all{{}};
  for (const auto& settings : knobs) {
    std::vector<Combination> longer;
    for (const Combination& one : all)
      for (const Setting* setting : settings) {
        longer.push_back(one);
        longer.back().push_back(setting);
      }
    all = std::move(longer);
  }
  return all;
}

// "full_shard, recompute full (default)"
RowPlan default_row(const TrainConfig& base, const Axes& axes, const std::map<std::string, std::string>& values) {
  RowPlan run = row_of(base, {}, axes);
  run.row.name = sharding_text(run.config.plan, axes.data()) + " (default)";
  if (run.row.name.starts_with("strategy ")) run.row.name.erase(0, std::string_view("strategy ").size());
  run.row.knob = "default";
  for (const Setting& setting : kSettings)
    if (setting.key == "strategy" && is_of(setting, values)) run.row.why = setting.why;
  return run;
}

}  // namespace

std::vector<RowPlan> plan_rows(const TrainConfig& base, int ranks, const RowsOf& of) {
  const Axes axes = axes_of(base.plan.mesh, ranks, of);
  check(axes.data() > 1,
        "rows compare how ranks share a model, and {} has data of its own; give --ranks 2 or more, or --mesh",
        ranks == 1 ? "one rank" : fmt::format("of the mesh \"{}\" one rank", base.plan.mesh.text()));
  const auto values = values_of(base);
  const auto is_own = [&values](const Setting* setting) { return is_of(*setting, values); };
  const auto is_asked = [&](std::string_view knob) {
    if (knob == "accumulate" && base.plan.numerics.layout_free()) return false;  // micro-batches are leaves
    return of.knobs.empty() ? !of.combined || !is_among(kAlone, knob) : is_among(of.knobs, knob);
  };
  std::vector<std::vector<const Setting*>> knobs;
  for (const std::string_view knob : kKnobs)
    if (is_asked(knob)) knobs.push_back(settings_of(knob));
  std::vector<RowPlan> rows{default_row(base, axes, values)};
  if (of.combined) {
    for (Combination changes : combinations(knobs))
      if (std::erase_if(changes, is_own); !changes.empty()) {
        rows.push_back(row_of(base, changes, axes));
        rows.back().row.knob = "all";
      }
    return rows;
  }
  for (const auto& settings : knobs)
    for (const Setting* setting : settings)
      if (!is_own(setting)) rows.push_back(row_of(base, {setting}, axes));
  return rows;
}

std::string full_name(const TrainConfig& config, const TrainConfig& base) {
  std::string name = config.plan.strategy.text();
  if (const auto ranks = config.plan.reshard_after_forward.ranks()) name += fmt::format(", reshard to {}", *ranks);
  if (config.plan.recompute.text() != "none") name += fmt::format(", recompute {}", config.plan.recompute.text());
  const auto values = values_of(config), before = values_of(base);
  for (const std::string_view knob : kKnobs)
    if (!is_among(kNotNamed, knob) && values.at(std::string(knob)) != before.at(std::string(knob)))
      name += fmt::format(", {} {}", knob, values.at(std::string(knob)));
  return name;
}

std::string more_flags(const TrainConfig& config, const TrainConfig& base) {
  constexpr std::array keys{"units",         "prefetch",   "offload",           "compile",
                            "memory_budget", "accumulate", "accumulate_shards", "parallel.sequence"};
  const auto values = values_of(config), before = values_of(base);
  std::string text;
  for (const std::string key : keys) {
    if (values.at(key) == before.at(key)) continue;
    std::string flag = key;
    std::ranges::replace(flag, '_', '-');
    text += fmt::format(" --{} {}", flag, values.at(key));
  }
  return text;
}

void set_link(std::vector<RowPlan>& rows, const TrainConfig& base, int ranks, const std::string& link) {
  const Links links(link);
  const Axes grid = with_replicas(axes_of(base.plan.mesh, ranks));
  const std::vector<DeviceMesh::Axis> data{{"replicate", grid.replicate}, {"dp", grid.dp}};
  for (RowPlan& run : rows) {
    run.config.link = links;
    if (links.names_axes() && !run.config.plan.strategy.value().needs_replicas) {  // one axis over both
      std::string text;
      const auto add = [&text](std::string_view axis, const LinkShape& shape) {
        text += fmt::format("{}{}={},{}", text.empty() ? "" : ";", axis, shape.bytes_per_second, shape.seconds);
      };
      if (const auto slowest = links.over(data)) add("dp", *slowest);
      for (const AxisLink& own : links.each())
        if (own.axis == "tp") add("tp", own.shape);
      run.config.link = text;
    }
    std::erase_if(run.row.settings, [](const auto& setting) { return setting.first == "link"; });
    run.row.settings.emplace_back("link", run.config.link.text());
  }
}

}  // namespace sherd::plan
