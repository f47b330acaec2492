// `sherd plan`: rows of settings, each forecast by a ghost and priced by models of devices and fabrics.
#include "tools/plan/plan.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <ranges>
#include <utility>

#include "runtime/tensor/nearest.h"
#include "tools/plan/cluster_flags.h"
#include "tools/plan/explain.h"
#include "tools/plan/on_threads.h"
#include "tools/plan/presets.h"
#include "tools/plan/published.h"
#include "tools/plan/report.h"
#include "tools/plan/search.h"
#include "tools/plan/sweep.h"
#include "tools/table/chart.h"
#include "tools/train/exit_status.h"
#include "tools/train/output_file.h"

namespace sherd {

namespace {

using namespace train;
using namespace plan;

constexpr double kWantedMfu = 0.4;
constexpr std::int64_t kMostMicroBatches = 64;

struct PlanFlags {
  ClusterFlags cluster;
  Sweep sweep = "";
  std::string only, explain, svg, save_timeline, published;
  std::int64_t ranks = 0, tries = static_cast<std::int64_t>(SearchOptions().tries);
  bool json = false, all = false, flips = true, search = false;
};

void bind_plan(ConfigTable& table, PlanFlags& flags) {
  table.add("ranks", &flags.ranks, "ranks of the job; 0: those of --mesh");
  table.add("hosts", &flags.cluster.hosts, "hosts that they are on; 0: as --per-host says, else one");
  table.add("per_host", &flags.cluster.per_host, "ranks of each host; 0: as --hosts says");
  table.add("fabric", &flags.cluster.fabric,
            fmt::format("links between ranks, in=NAME within a host and out=NAME between hosts: a JSON file, or {}",
                        fmt::join(preset_names("fabrics"), ", ")));
  table.add("device_model", &flags.cluster.device_model,
            fmt::format("what prices a call: a JSON file, of a model or of sherd calibrate, or {}; empty: this "
                        "machine, if it is calibrated for these ranks, "
                        "else memory and bytes alone",
                        fmt::join(preset_names("devices"), ", ")));
  table.add("software", &flags.cluster.software, "a factor of the device model, fitted to a program; empty: none");
  table.add("only", &flags.only, "rows whose names begin so, joined by commas; empty: all");
  table.add("all", &flags.all, "rows for units, prefetch and offload too, in every combination");
  table.add("flips", &flags.flips, "search for values of link, memory, batch and sequence at which another row wins");
  table.add("sweep", text_field(flags.sweep),
            "KEY=A:B: the winner for values of a key of the config from A to B, doubling");
  table.add(
      "search", &flags.search,
      "the ten fastest ways to train the batch, over meshes with replicate and tp, strategies, units, recomputation "
      "and micro-batches");
  table.add("tries", &flags.tries, "search: most ways that are forecast in full");
  table.add("explain", &flags.explain, "a row's name: what its step waits for, and what each other setting would gain");
  table.add("json", &flags.json, "one JSON object per line: the answer, then each row");
  table.add("svg", &flags.svg, "file for a picture of the table");
  table.add("save_timeline", &flags.save_timeline, "file for the timeline of the recommended row, or of --explain's");
  table.add("published", &flags.published, "a file of published rows: predicts each, and prints the error");
}

constexpr std::string_view kPlanUsage =
    "usage: sherd plan CONFIG.toml --ranks N [--hosts H] --device-model NAME --fabric in=NAME,out=NAME [flags]\n"
    "       sherd plan CONFIG.toml --search --ranks N [--hosts H] --device-model NAME --fabric in=NAME,out=NAME\n"
    "       sherd plan --published FILE.toml\n\n"
    "Predicts a training under every strategy, with and without recomputation, and recommends one: memory by ghosts, "
    "to\n"
    "the byte, times by prices of devices and links. Nothing is trained, no data and no device is opened.\n"
    "Flags are those of `sherd train`, which say what the first row is, and:\n\n";

/// The rows that are asked for, the first of them the config's own.
std::vector<RowPlan> rows_asked_for(const TrainConfig& config, const PlanFlags& flags, int ranks,
                                    const HostLayout& hosts) {
  RowsOf of{.combined = true};
  if (!flags.all) of.knobs = {"strategy", "recompute"};
  if (hosts.hosts > 1) of.replicas = hosts.hosts, of.slice = hosts.per_host;
  std::vector<RowPlan> rows = as_usage([&] { return plan_rows(config, ranks, of); });
  for (RowPlan& row : rows) row.row.name = full_name(row.config, config);
  return rows;
}

std::vector<RowPlan> only(std::vector<RowPlan> rows, const std::string& prefixes, std::string_view flag) {
  if (prefixes.empty()) return rows;
  std::vector<std::string> names;
  for (const RowPlan& row : rows) names.push_back(row.row.name);
  const auto begins = [](std::string_view name, std::string_view prefix) { return name.starts_with(prefix); };
  std::vector<std::string> asked;
  for (const auto part : std::views::split(prefixes, ',')) {
    std::string prefix(part.begin(), part.end());
    prefix.erase(0, prefix.find_first_not_of(' '));
    check_usage(std::ranges::any_of(names, [&](const std::string& name) { return begins(name, prefix); }),
                "{}: no row's name starts with \"{}\"{}; without it all are shown", flag, prefix,
                did_you_mean(prefix, names));
    asked.push_back(std::move(prefix));
  }
  std::erase_if(rows, [&](const RowPlan& row) {
    return std::ranges::none_of(asked, [&](const std::string& prefix) { return begins(row.row.name, prefix); });
  });
  return rows;
}

/// What is asked for, resolved; forecasts come with run().
class Planning {
 public:
  Planning(TrainConfig config, const PlanFlags& flags) : config_(std::move(config)), flags_(flags) {
    planned_.ranks = ranks_of();
    planned_.vocabulary = planned_vocabulary(config_);
    planned_.cluster = cluster_of(flags.cluster, planned_.ranks, config_.link);
    if (flags.cluster.device_model.empty() && config_.plan.device != Device::cpu()) planned_.cluster.reset();
    planned_.memory_limit = config_.memory_limit;
    if (flags.search) check_search();
    if (planned_.cluster && planned_.memory_limit == 0) planned_.memory_limit = planned_.cluster->device.memory_bytes;
    // Ghosts of a GPU need none; sums between GPUs travel in the type that they are summed in.
    if (is_preset_device(flags.cluster.device_model)) config_.plan.device = Device::cuda(0);
    config_.memory_limit = 0;  // what does not fit is shown as well
    config_.link = {};
    planned_.base = config_;
    as_usage([&] {
      if (flags.search) return;
      const nn::MeshAxes mesh = config_.plan.mesh;
      nn::local_batch(config_.plan, config_.batch, nn::count_data_ranks(mesh.of(planned_.ranks)));
    });
    if (!flags.svg.empty()) {
      check_replaceable(flags.svg, "picture", "<svg");
      svg_ = open_output(flags.svg, "picture");
    }
    if (!flags.save_timeline.empty()) timeline_ = open_output(flags.save_timeline, "timeline");
  }

  int run() {
    const HostLayout hosts = hosts_of(flags_.cluster, planned_.ranks);
    size_ = model_size(config_, planned_.vocabulary);
    if (flags_.search) return search_for(hosts);
    std::vector<RowPlan> rows = rows_asked_for(config_, flags_, planned_.ranks, hosts);
    if (!flags_.explain.empty()) return explain(rows);
    rows = only(std::move(rows), flags_.only, "--only");
    if (flags_.sweep.is_set()) {
      fmt::print("{}", sweep_text(flags_.sweep, rows, planned_));
      return kDone;
    }
    options_.resize(rows.size());
    on_threads(rows.size(), [&](std::size_t i) { options_[i] = option(rows[i]); });
    print();
    return kDone;
  }

 private:
  /// Then micro-batches are leaves, which no row has more of.
  bool is_free() const { return config_.plan.numerics.layout_free(); }

  int ranks_of() const {
    check_usage(flags_.ranks >= 0 && flags_.ranks <= kMostPlannedRanks, "--ranks must be from 1 to {}, got {}",
                kMostPlannedRanks, flags_.ranks);
    check_usage(flags_.ranks > 0 || !config_.plan.mesh.is_open(),
                "sherd plan needs to know the ranks: give --ranks N or --mesh");
    const std::int64_t count = config_.plan.mesh.count(static_cast<int>(flags_.ranks));
    check_usage(count >= 1 && count <= kMostPlannedRanks, "--mesh {} has {} ranks; at most {} can be planned",
                config_.plan.mesh.text(), count, kMostPlannedRanks);
    const int ranks = flags_.ranks > 0 ? static_cast<int>(flags_.ranks) : static_cast<int>(count);
    as_usage([&] { config_.plan.mesh.of(ranks); });
    return ranks;
  }

  void check_search() const {
    check_usage(planned_.cluster.has_value(), "--search compares times; give --device-model");
    check_usage(config_.plan.mesh.is_open(), "--search chooses the mesh; leave out --mesh {}",
                config_.plan.mesh.text());
    check_usage(flags_.tries > 0, "--tries must be positive, got {}", flags_.tries);
    const std::pair<const char*, bool> others[] = {{"--only", !flags_.only.empty()},
                                                   {"--explain", !flags_.explain.empty()},
                                                   {"--sweep", flags_.sweep.is_set()},
                                                   {"--all", flags_.all},
                                                   {"--save-timeline", !flags_.save_timeline.empty()}};
    for (const auto& [flag, is_given] : others)
      check_usage(!is_given, "{} is about the rows of one mesh, and --search looks at all; leave one of them out",
                  flag);
  }

  int search_for(const HostLayout& hosts) {
    const SearchSpace space = as_usage([&] { return SearchSpace(config_, hosts); });
    Found found = search(space, planned_, {.tries = static_cast<std::size_t>(flags_.tries)});
    Report report{.searched = found.text()};
    options_ = std::move(found.best);
    Answer answer = answer_of(options_, planned_, size_);
    if (options_.empty()) answer.sentences = {found.why_none(planned_.memory_limit)};
    print(answer, std::move(report));
    return kDone;
  }

  Option option(const RowPlan& row) const {
    Option option;
    if (row.row.left_out.empty()) option = option_of(row.config, planned_);
    else option.left_out = row.row.left_out;
    option.config = row.config;
    option.name = row.row.name;
    option.why = row.row.why;
    return option;
  }

  int explain(const std::vector<RowPlan>& rows) {
    std::vector<std::string> names;
    for (const RowPlan& row : rows) names.push_back(row.row.name);
    const auto found = std::ranges::find(names, flags_.explain);
    check_usage(found != names.end(), "--explain: no row is called \"{}\"{}; rows are {}", flags_.explain,
                did_you_mean(flags_.explain, names), fmt::join(names, "; "));
    check_usage(planned_.cluster.has_value(), "--explain {} is about times; give --device-model", flags_.explain);
    const Option explained = option(rows[static_cast<std::size_t>(found - names.begin())]);
    check_usage(explained.has_forecast(), "--explain {}: {}", flags_.explain, explained.left_out);
    fmt::print("{}", explanation_of(explained, planned_, size_));
    save_timeline(explained);
    return kDone;
  }

  std::vector<std::pair<std::string, std::string>> about() const {
    const TrainConfig::Model& m = config_.model;
    std::vector<std::pair<std::string, std::string>> about{
        {"model", fmt::format("{}, {} layers, width {}, {} heads, {} parameters, in {}", m.style, m.layers, m.width,
                              m.heads, size_.parameters, name(config_.plan.param_dtype))},
        {"step", fmt::format("{} sequences of {} tokens, {}", config_.batch, m.sequence,
                             is_free() ? fmt::format("{} leaves (layout_free)", config_.plan.leaves)
                                       : fmt::format("{} micro-batches", config_.plan.micro_batches))},
        {"ranks", fmt::format("{}, {}", planned_.ranks, hosts_of(flags_.cluster, planned_.ranks).text())}};
    if (!planned_.cluster) return about;
    about.emplace_back("device", fmt::format("{}, {}", planned_.cluster->device.name,
                                             format_bytes(planned_.cluster->device.memory_bytes)));
    if (planned_.ranks > 1)
      about.emplace_back("links", !planned_.cluster->axes.empty() ? "as --link shapes them"
                                  : planned_.cluster->out
                                      ? fmt::format("{} in a host, {} between hosts", planned_.cluster->in.name,
                                                    planned_.cluster->out->name)
                                      : planned_.cluster->in.name);
    return about;
  }

  void print() {
    const Answer answer = answer_of(options_, planned_, size_);
    Report report;
    if (flags_.flips && planned_.cluster) {
      const Rivals rivals(options_, planned_);
      const auto more = is_free() ? std::nullopt : accumulate_for(kWantedMfu, kMostMicroBatches, rivals, size_);
      if (more)
        report.answer.push_back(fmt::format(
            "MFU {:.0f} % takes {} micro-batches of this size: --batch {} --accumulate {} with {}, {:.1f} %.",
            100 * kWantedMfu, more->micro_batches, config_.batch / config_.plan.micro_batches * more->micro_batches,
            more->micro_batches, more->name, 100 * more->mfu));
      for (const FlipOf& flip : flips_of(rivals, answer)) report.flips.push_back(flip.text());
    }
    print(answer, std::move(report));
  }

  /// With what the report has already, which follows the answer.
  void print(const Answer& answer, Report report) {
    report.about = about();
    report.answer.insert(report.answer.begin(), answer.sentences.begin(), answer.sentences.end());
    report.assumed = assumptions(options_, planned_);
    for (const Option& option : options_) {
      report.table.rows.push_back(row_of(option, planned_, size_));
      report.peaks.push_back(option.has_forecast() ? moment_text(option.forecast.memory.moment) : "");
    }
    report.table.about = report.about;
    fmt::print("{}", flags_.json ? to_json(report) : to_text(report, planned_));
    if (svg_) write_all(svg_, table::to_svg(report.table), "picture", flags_.svg);
    if (timeline_) save_timeline(options_[answer.choice.best.value_or(0)]);
  }

  void save_timeline(const Option& option) const {
    if (timeline_) write_all(timeline_, option.forecast.step.print(), "timeline", flags_.save_timeline);
  }

  TrainConfig config_;
  const PlanFlags& flags_;
  PlannedFor planned_;
  ModelSize size_;
  OutputFile svg_, timeline_;
  std::vector<Option> options_;
};

}  // namespace

int run_plan(std::span<const std::string_view> args) {
  TrainConfig config;
  PlanFlags flags;
  ConfigTable table = bind(config);
  bind_plan(table, flags);
  const CommandLine line = parse_command_line(table, args);
  if (line.help) {
    fmt::print("{}{}", kPlanUsage, table.help());
    return kDone;
  }
  check_usage(line.words.size() <= 1, "sherd plan takes one config file, got \"{}\"",
              fmt::join(line.words, "\" and \""));
  if (!line.words.empty()) {
    ConfigTable of_file = bind(config);
    load_toml_file(of_file, line.words[0]);
  }
  apply_flags(table, line);
  if (!flags.published.empty()) {
    check_usage(line.words.empty(), "--published {} names its configs; leave out {}", flags.published, line.words[0]);
    fmt::print("{}", published_text(flags.published));
    return kDone;
  }
  check_usage(!line.words.empty(), "sherd plan needs a config: sherd plan CONFIG.toml --ranks N");
  check_usage(config.resume.empty() && config.init_from.empty(),
              "sherd plan predicts a run from its start; leave out {}", config.resume.empty() ? "init_from" : "resume");
  check_usage(!table.is_given("memory_limit") || config.memory_limit > 0, "--memory-limit must be positive, got {}",
              config.memory_limit);
  as_usage([&] { resolve(config); });
  return Planning(std::move(config), flags).run();
}

}  // namespace sherd
