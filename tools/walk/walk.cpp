// `sherd walk [CONFIG.toml | --model gpt|llama] [flags]`: runs one small transformer under every strategy and with
// every other lever of memory, one setting at a time, and prints what each holds, moves and takes beside what ghosts
// and the formula of links predict.
#include <csignal>
#include <cstdio>
#include <optional>
#include <ranges>
#include <thread>
#include <utility>

#include <unistd.h>

#include "runtime/exec/simulate.h"
#include "runtime/os/machine.h"
#include "runtime/tensor/nearest.h"
#include "tools/cli/command.h"
#include "tools/plan/forecast.h"
#include "tools/table/chart.h"
#include "tools/table/sentences.h"
#include "tools/train/exit_status.h"
#include "tools/train/output_file.h"
#include "tools/train/run_text.h"
#include "tools/train/saved_mesh.h"
#include "tools/train/version.h"
#include "tools/walk/measure.h"
#include "tools/walk/recommendation.h"

namespace sherd {

namespace {

using namespace walk;
using plan::plan_rows;
using plan::set_link;
using table::Table;

constexpr std::string_view kUsageText =
    "usage: sherd walk [CONFIG.toml | --model gpt|llama] [--ranks N | --mesh ...] [--link ...] [--dry] [--all] "
    "[--json] "
    "[--svg FILE]\n\n"
    "Runs one model under every strategy and with recomputation, offload, prefetch, units, capture, micro-batches and\n"
    "bf16 changed one at a time, and prints what each run holds, moves and takes beside what is predicted: memory and\n"
    "bytes by ghosts, times by what `sherd calibrate` has measured, or by one run. Text is made up where `data` is "
    "empty.\nFlags are those of `sherd train`, which say what the default run is, and:\n\n";

struct WalkFlags {
  std::string model, svg, only;
  std::int64_t ranks = 0, measured = 4, rounds = 2;
  bool json = false, all = false, dry = false, check = false;
};

// A walk's own keys, and short names for sizes of the model.
void bind_walk(ConfigTable& table, WalkFlags& flags, TrainConfig& config) {
  table.add("model", &flags.model, "gpt or llama: a small transformer, where there is no config file");
  table.add("layers", &config.model.layers, "of that model, as --model.layers");
  table.add("width", &config.model.width, "as --model.width");
  table.add("heads", &config.model.heads, "as --model.heads");
  table.add("sequence", &config.model.sequence, "as --model.sequence");
  table.add("ranks", &flags.ranks, "processes of each run; 0: those of --mesh, else 4");
  table.add("measured", &flags.measured, "steps of each run after a few to settle; times are those of the fastest");
  table.add("rounds", &flags.rounds, "times that each run is made, in turns with the others; times are of the fastest");
  table.add("all", &flags.all, "every combination of settings instead of one change at a time");
  table.add("dry", &flags.dry, "only predict; times are predicted once sherd calibrate has run");
  table.add("check", &flags.check, "say in the end whether ghosts have predicted bytes and calls");
  table.add("only", &flags.only, "rows whose names begin so, joined by commas, beside the default one; empty: all");
  table.add("json", &flags.json, "one JSON object per row");
  table.add("svg", &flags.svg, "file for a picture of the table");
}

constexpr int kMostRanks = 64;

// About 4.8 million parameters: enough for units of megabytes, little enough for about a minute on two cores.
void take_small_model(const std::string& name, TrainConfig& config) {
  const std::vector<std::string> names{"gpt", "llama"};
  check_usage(std::ranges::find(names, name) != names.end(), "there is no model \"{}\" to walk{}; there are {}", name,
              did_you_mean(name, names), fmt::join(names, " and "));
  config.model = {.style = name == "llama" ? "llama" : "gpt2",
                  .layers = 6,
                  .heads = 4,
                  .width = 256,
                  .sequence = 128,
                  .tied_head = name != "llama"};
  config.batch = 8;
}

void check_flags(const TrainConfig& c) {
  check_usage(c.init_from.empty() && c.resume.empty(), "sherd walk starts from fresh weights; leave out {}",
              c.init_from.empty() ? "resume" : "init_from");
  if (c.plan.device == Device::cpu()) as_usage([&] { chosen_group(make_single_group(), c.plan.device, c.group); });
  else
    check_usage(c.group != "shm",
                "group = shm moves memory of the host, and the ranks compute on {}: leave it out, or "
                "give nccl or staged",
                to_string(c.plan.device));
}

/// Nothing but the steps: no files, no evaluations.
void leave_steps_only(TrainConfig& c) {
  c.metrics.clear(), c.trace.clear(), c.save.clear(), c.dump_graph.clear();
  c.save_async = false;
  c.print_units = false;
  c.plan.fully_shard = true;
  c.steps = std::int64_t{1} << 20;
}

std::int64_t vocabulary_size(const TrainConfig& config) {
  const TokenData data = open_run_text(config);
  data.check_sequence(config.model.sequence);
  return data.vocabulary().size();
}

int ranks_of(const WalkFlags& flags, const nn::MeshAxes& mesh) {
  check_usage(flags.ranks >= 0 && flags.ranks <= kMostRanks, "--ranks must be from 1 to {}, got {}", kMostRanks,
              flags.ranks);
  if (flags.ranks > 0) return static_cast<int>(flags.ranks);
  return static_cast<int>(mesh.count(4));
}

// The default row, and those whose names begin as one of `prefixes`.
std::vector<RowPlan> chosen(std::vector<RowPlan> plans, const std::string& prefixes) {
  if (prefixes.empty()) return plans;
  std::vector<std::string> names;
  for (const RowPlan& plan : plans) names.push_back(plan.row.name);
  std::vector<RowPlan> result{plans[0]};
  for (const auto part : std::views::split(prefixes, ',')) {
    const std::string prefix(part.begin(), part.end());
    const auto matches = [&prefix](const RowPlan& plan) { return plan.row.name.starts_with(prefix); };
    check_usage(std::ranges::any_of(plans, matches),
                "--only: no row's name starts with \"{}\"{}; without --only all are shown", prefix,
                did_you_mean(prefix, names));
    for (std::size_t i = 1; i < plans.size(); ++i) {
      const auto is_same = [&](const RowPlan& plan) { return plan.row.name == plans[i].row.name; };
      if (matches(plans[i]) && std::ranges::none_of(result, is_same)) result.push_back(plans[i]);
    }
  }
  return result;
}

/// What is asked for, and the file for the picture, which is opened before anything runs.
class Walk {
 public:
  /// `link` is the flag: a TrainConfig's, "none", or empty for one that walk chooses, on CPUs: it shapes host memory.
  Walk(TrainConfig config, const WalkFlags& flags, std::string link)
      : config_(std::move(config)),
        flags_(flags),
        link_(link.empty() && !is_on_host() ? "none" : std::move(link)),
        ranks_(ranks_of(flags, config_.plan.mesh)),
        prices_(ranks_, config_.plan.device) {
    if (config_.data.empty()) config_.data = text_.emplace(made_up_text(config_.model.sequence)).path();
    as_usage([&] {
      local_batch(config_, nn::count_data_ranks(config_.plan.mesh.of(ranks_)));
      plans_ = chosen(plan_rows(config_, ranks_, {.combined = flags_.all}), flags_.only);
      set_link(plans_, config_, ranks_, is_chosen() || link_ == "none" ? "" : link_);
    });
    if (!flags_.svg.empty()) {
      check_replaceable(flags_.svg, "picture", "<svg");
      svg_ = open_output(flags_.svg, "picture");
    }
    vocabulary_ = vocabulary_size(config_);
    for (RowPlan& plan : plans_) steps_.push_back(predicted(plan, vocabulary_));
  }

  /// Returns the exit status.
  int run() {
    const bool is_default_known = plans_[0].row.left_out.empty();
    fit_prices();
    if (is_chosen() && is_default_known) choose_link();
    for (RowPlan& plan : plans_)
      if (plan.row.left_out.empty() && is_on_host()) plan.row.left_out = too_large(plan.row);
    for (int round = 0; round < flags_.rounds && !flags_.dry; ++round) {
      if (round > 0) fit_prices();
      for (std::size_t i = 0; i < plans_.size(); ++i)
        if (plans_[i].row.left_out.empty() && plans_[i].row.failure.empty()) {
          show(i);
          measure(plans_[i], ranks_, static_cast<int>(flags_.measured));
        }
    }
    show(plans_.size());
    Table table{.about = about()};
    for (std::size_t i = 0; i < plans_.size(); ++i) {
      complete(i);
      table.rows.push_back(plans_[i].row);
    }
    for (Row& row : table.rows) row.sentence = sentence_of(row, table.rows[0]);
    print(table);
    return status(table);
  }

 private:
  // What these ranks cannot do in one setting is no reason to leave out the others.
  Timeline predicted(RowPlan& plan, std::int64_t vocabulary) const {
    try {
      if (plan.row.left_out.empty()) return predict(plan, ranks_, vocabulary);
    } catch (const Error& error) {
      if (plan.row.knob == "default") throw;
      plan.row.left_out = error.message().substr(0, error.message().find('\n'));  // what it says, without where
    }
    return {};
  }

  bool is_chosen() const { return link_.empty(); }
  bool is_on_host() const { return config_.plan.device == Device::cpu(); }

  /// Without a calibration, how fast this machine computes: by the fastest of some runs without a link.
  void fit_prices() {
    if (prices_.is_calibrated() || flags_.dry || (is_on_host() && !too_large(plans_[0].row).empty())) return;
    const double seconds = seconds_without_link();
    if (seconds > 0 && (compute_ == 0 || seconds < compute_)) compute_ = seconds;
    if (compute_ > 0) prices_.fit(steps_[0], compute_);
  }
  bool has_times() const { return prices_.is_calibrated() || compute_ > 0; }

  // How long the default run's step takes where nothing is slower than this machine.
  double seconds_without_link() {
    RowPlan plan = plans_[0];
    plan.config.link = {};
    plan.row = {.name = plan.row.name};
    show(0);
    measure(plan, ranks_, static_cast<int>(flags_.measured));
    return plan.row.at("step_seconds").measured.value_or(0);
  }

  // Two hosts: between them a link on which the default run's collectives take as long as its step does without one,
  // and inside of them one that is eight times as fast.
  void choose_link() {
    constexpr double kFaster = 8;
    if (!has_times()) return;
    std::vector<RowPlan> on_unit_link{plans_[0]};
    set_link(on_unit_link, config_, ranks_, fmt::format("dp={},0;replicate=1,0", kFaster));
    const Simulation slow = simulate(steps_[0], prices_.cluster(on_unit_link[0].config.link));
    double busiest = 0;
    for (const Simulation::Part& axis : slow.axes)
      if (axis.fabric == "link") busiest = std::max(busiest, axis.seconds);
    if (busiest == 0) return;
    alone_ = simulate(steps_[0], prices_.cluster({})).seconds;
    const double outer = busiest / alone_;
    set_link(plans_, config_, ranks_, fmt::format("dp={:.3g},0;replicate={:.3g},0", kFaster * outer, outer));
  }

  void complete(std::size_t i) {
    RowPlan& plan = plans_[i];
    const bool is_known = !steps_[i].entries.empty() && !plan.config.plan.memory_budget.is_set();
    if (is_known) predict_times(plan, steps_[i], prices_.cluster(plan.config.link), has_times());
  }

  void show(std::size_t i) const {
    if (::isatty(STDERR_FILENO) == 0) return;
    if (i == plans_.size()) fmt::print(stderr, "\r\033[K");
    else fmt::print(stderr, "\r\033[K[{}/{}] {} ...", i + 1, plans_.size(), plans_[i].row.name);
  }

  /// The link that was chosen, as rows with replicas have it, if there are any.
  std::string chosen_link() const {
    const auto has_replicas = [](const RowPlan& plan) {
      return plan.row.left_out.empty() && plan.config.link.text().find("replicate") != std::string::npos;
    };
    const auto with = std::ranges::find_if(plans_, has_replicas);
    return fmt::format(
        "{} (BYTES_PER_S,SECONDS): the default run's collectives take as long as its step without, {:.0f} ms{}",
        (with == plans_.end() ? plans_[0] : *with).config.link.text(), alone_ * 1e3,
        with == plans_.end() ? "" : "; one axis over both is as fast as the slower one");
  }

  std::string place() const {
    if (is_on_host()) return "";
    return fmt::format(", from {} on, group {}", to_string(config_.plan.device), config_.group.text());
  }

  std::vector<std::pair<std::string, std::string>> about() const {
    const TrainConfig::Model& m = config_.model;
    const Links& link = plans_[0].config.link;
    return {
        {"version", std::string(kVersion)},
        {"model", fmt::format("{}, {} layers, width {}, {} heads, {} parameters, {} sequences of {} tokens per step",
                              m.style, m.layers, m.width, m.heads, plan::model_size(config_, vocabulary_).parameters,
                              config_.batch, m.sequence)},
        {"ranks", fmt::format("{} {}, mesh {}, {}{}", ranks_, config_.group == "thread" ? "threads" : "processes",
                              plans_[0].config.plan.mesh.text(), name(config_.plan.param_dtype), place())},
        {"link", !link.any() ? fmt::format("none: what {} gives", is_on_host() ? "this machine's memory" : "the group")
                 : is_chosen() ? chosen_link()
                               : link_},
        {"prices", prices_.text()},
        {"machine", fmt::format("{}, {} threads", cpu_model(), std::thread::hardware_concurrency())}};
  }

  void print(Table& table) {
    const std::string verdict = recommendation_of(table.rows);
    if (flags_.json) {
      table.about.emplace_back("verdict", verdict);
      if (flags_.check) table.about.emplace_back("check", verdict_of(table));
      fmt::print("{}", to_json(table));
    } else {
      fmt::print("{}\n{}\n{}", to_text(table), verdict, flags_.check ? verdict_of(table) + "\n" : "");
    }
    if (svg_) write_all(svg_, to_svg(table), "picture", flags_.svg);
  }

  // A run that does not fit is a result; one that fails in another way is not.
  static int status(const Table& table) {
    for (const Row& row : table.rows)
      if (!row.failure.empty() && !row.failure.starts_with("out of memory") && !row.failure.starts_with("a budget of"))
        return kFailed;
    return kDone;
  }

  TrainConfig config_;
  const WalkFlags flags_;
  const std::string link_;
  const int ranks_;
  OutputFile svg_;
  std::optional<NamelessText> text_;
  std::vector<RowPlan> plans_;
  std::vector<Timeline> steps_;  ///< of each plan
  std::int64_t vocabulary_ = 0;
  WalkPrices prices_;
  double compute_ = 0;  ///< seconds of the default run's step without a link, as it was measured
  double alone_ = 0;    ///< the same as it is predicted
};

}  // namespace

int run_walk(std::span<const std::string_view> args) {
  TrainConfig config;
  WalkFlags flags;
  take_small_model("gpt", config);
  ConfigTable table = bind(config);
  bind_walk(table, flags, config);
  const CommandLine line = parse_command_line(table, args);
  if (line.help) {
    fmt::print("{}{}", kUsageText, table.help());
    return 0;
  }
  check_usage(line.words.size() <= 1, "sherd walk takes one config file, got \"{}\"",
              fmt::join(line.words, "\" and \""));
  for (const CommandLine::Flag& flag : line.flags)
    if (flag.key == "model") take_small_model(flag.text, config);
  if (!line.words.empty()) {
    check_usage(std::ranges::find(line.flags, "model", &CommandLine::Flag::key) == line.flags.end(),
                "--model names a model, and {} has one; leave out one of them", line.words[0]);
    config = TrainConfig();
    ConfigTable of_file = bind(config);
    load_toml_file(of_file, line.words[0]);
  }
  apply_flags(table, line);
  check_flags(config);
  leave_steps_only(config);
  const std::string link = std::exchange(config.link, {}).text();
  as_usage([&] { resolve(config); });
  check_usage(flags.rounds >= 1, "--rounds must be at least 1, got {}", flags.rounds);
  check_usage(flags.measured >= 1, "--measured must be at least 1, got {}", flags.measured);
  std::signal(SIGPIPE, SIG_IGN);  // a run that has ended is an Error with its last words
  return Walk(std::move(config), flags, link).run();
}

}  // namespace sherd
