// `sherd simulate`: the step of `sherd plan` on all ranks, some of which, or of whose links, are slow. What a cause
// costs is the difference between steps with and without it, so that causes that hide each other do not add up.
#include "tools/plan/simulate.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/exec/trace_json.h"
#include "tools/plan/cluster_flags.h"
#include "tools/plan/forecast.h"
#include "tools/plan/presets.h"
#include "tools/plan/slowness.h"
#include "tools/train/exit_status.h"
#include "tools/train/output_file.h"
#include "tools/train/step_trace.h"

namespace sherd {

namespace {

using namespace train;
using namespace plan;

constexpr std::size_t kMostShown = 5;  // ranks that others wait for
constexpr std::size_t kMostTraced = 64;

struct SimulateFlags {
  ClusterFlags cluster;
  std::string slow, slow_link, trace_ranks = "0";
  std::int64_t ranks = 0;
  double jitter = 0;
  bool json = false;
};

/// Keys that say something of a timeline, too; others are of configs.
void bind_simulate(ConfigTable& table, SimulateFlags& flags) {
  table.add("ranks", &flags.ranks, "ranks of the job; 0: those of --mesh");
  table.add("hosts", &flags.cluster.hosts, "hosts that they are on; 0: as --per-host says, else one");
  table.add("per_host", &flags.cluster.per_host, "ranks of each host; 0: as --hosts says");
  table.add("fabric", &flags.cluster.fabric, "links between ranks, as of sherd plan");
  table.add("device_model", &flags.cluster.device_model, "what prices a call, as of sherd plan");
  table.add("software", &flags.cluster.software, "a factor of the device model; empty: none");
  table.add(
      "slow", &flags.slow,
      "ranks that compute for so many times as long, as 3=1.3,7=2; 1%=1.5: one of a hundred, drawn by --seed, each "
      "by a factor between 1 and 1.5");
  table.add("jitter", &flags.jitter, "standard deviation of a factor around 1 of each stretch of compute of a rank");
  table.add("slow_link", &flags.slow_link,
            "links between neighbours in a ring, and a factor of their bandwidth: 0-1=0.1");
  table.add("trace_ranks", &flags.trace_ranks, "ranks whose spans --trace writes");
  table.add("json", &flags.json, "one JSON object");
}

constexpr std::string_view kUsageText =
    "usage: sherd simulate CONFIG.toml --mesh dp=8,tp=2 --device-model NAME --fabric in=NAME [flags]\n"
    "       sherd simulate TIMELINE --device-model NAME --fabric in=NAME [flags]\n\n"
    "Plays a step on all ranks, by prices of devices and links: who waits for whom, and what is lost to slow ranks "
    "and\n"
    "links. Nothing is trained. A TIMELINE is a file of `sherd plan --save-timeline`; it takes --seed, which draws, "
    "and\n"
    "--trace, which here is of simulated ranks. Flags are those of `sherd train`, and:\n\n";

std::string milliseconds_of(double seconds) { return fmt::format("{:.2f}", seconds * 1e3); }

/// What slows a step down.
struct Cause {
  std::string name;
  SimulateOptions options;
};
std::vector<Cause> causes_of(const SimulateOptions& all) {
  std::vector<Cause> causes;
  if (!all.compute.empty()) causes.push_back({"slow ranks", {.compute = all.compute}});
  if (!all.slow_links.empty()) causes.push_back({"slow links", {.slow_links = all.slow_links}});
  if (all.jitter > 0) causes.push_back({"jitter", {.jitter = all.jitter, .seed = all.seed}});
  return causes;
}

/// A rank that others wait for.
struct WaitedFor {
  int rank = 0;
  double seconds = 0;  ///< of all who wait
  int waiting = 0;     ///< how many
  int worst = 0;       ///< who waits longest
  double most = 0;     ///< and how long
};
/// Ranks that are late by themselves, the worst first; one that comes late as it waits itself is left out.
std::vector<WaitedFor> waited_for(const Simulation& simulated) {
  std::vector<WaitedFor> all(simulated.ranks.size());
  std::vector<double> waits(simulated.ranks.size());  // by the one that waits
  for (const Simulation::Wait& wait : simulated.waits) {
    WaitedFor& on = all[static_cast<std::size_t>(wait.on)];
    on.rank = wait.on;
    on.seconds += wait.seconds;
    ++on.waiting;
    waits[static_cast<std::size_t>(wait.rank)] += wait.seconds;
    if (wait.seconds > on.most) on.most = wait.seconds, on.worst = wait.rank;
  }
  const auto own = [&waits](const WaitedFor& on) {
    return on.seconds - on.waiting * waits[static_cast<std::size_t>(on.rank)];
  };
  std::erase_if(all, [&](const WaitedFor& on) { return own(on) <= 0; });
  std::ranges::stable_sort(all, std::greater{}, own);
  if (all.size() > kMostShown) all.resize(kMostShown);
  return all;
}

/// How the ranks share a kind of time.
struct Share {
  const char* name;
  double mean = 0, most = 0;
  int rank = 0;
};
std::vector<Share> shares_of(const Simulation& simulated) {
  using Times = Simulation::RankTimes;
  const std::pair<const char*, double Times::*> kinds[] = {{"computes", &Times::compute},
                                                           {"waits for ranks", &Times::skew},
                                                           {"waits for transfers", &Times::transfer},
                                                           {"waits, queue full", &Times::throttle}};
  std::vector<Share> shares;
  for (const auto& [name, of] : kinds) {
    Share& share = shares.emplace_back(Share{name});
    for (std::size_t r = 0; r < simulated.ranks.size(); ++r) {
      const double seconds = simulated.ranks[r].*of;
      share.mean += seconds / static_cast<double>(simulated.ranks.size());
      if (seconds > share.most) share.most = seconds, share.rank = static_cast<int>(r);
    }
  }
  return shares;
}

/// What is played, and on what.
struct Played {
  Timeline step;
  Cluster cluster;
  std::vector<DeviceMesh::Axis> axes{};  ///< of the mesh; none for a timeline of a file

  /// "rank 3 (dp 1, tp 1)"
  std::string rank_text(int rank) const {
    std::string text;
    int rest = rank;
    for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
      if (axis->size > 1)
        text = fmt::format("{} {}{}{}", axis->name, rest % axis->size, text.empty() ? "" : ", ", text);
      rest /= axis->size;
    }
    return text.empty() ? fmt::format("rank {}", rank) : fmt::format("rank {} ({})", rank, text);
  }
};

struct Comparison {
  Simulation all;
  double without = 0;  ///< seconds of a step where nothing is slow
  std::vector<std::pair<std::string, double>> lost{};
};

Comparison compare(const Played& played, const SimulateOptions& options) {
  Comparison result{.all = simulate(played.step, played.cluster, options)};
  result.without = simulate(played.step, played.cluster).seconds;
  const std::vector<Cause> causes = causes_of(options);
  for (const Cause& cause : causes) {
    const double seconds =
        causes.size() == 1 ? result.all.seconds : simulate(played.step, played.cluster, cause.options).seconds;
    result.lost.emplace_back(cause.name, seconds - result.without);
  }
  return result;
}

std::string simulation_text(const Comparison& result, const Played& played) {
  const Simulation& all = result.all;
  std::string text =
      fmt::format("A step of {} ranks takes {} ms, where nothing is slow {} ms: {} ms lost ({:.1f} %).\n",
                  played.step.ranks, milliseconds_of(all.seconds), milliseconds_of(result.without),
                  milliseconds_of(all.seconds - result.without), 100 * (all.seconds / result.without - 1));
  if (!result.lost.empty()) text += "\nLost to, each alone       ms\n";
  for (const auto& [cause, seconds] : result.lost)
    text += fmt::format("  {:<17} {:>9}\n", cause, milliseconds_of(seconds));
  text += "\nA rank               mean ms    most ms\n";
  for (const Share& share : shares_of(all))
    text += fmt::format("  {:<20} {:>9}  {:>9}{}\n", share.name, milliseconds_of(share.mean),
                        milliseconds_of(share.most), all.ranks.size() > 1 ? "  " + played.rank_text(share.rank) : "");
  const std::vector<WaitedFor> waits = waited_for(all);
  text +=
      waits.empty() ? "\nNo rank waits for another one.\n" : "\nWaited for           by ranks    mean ms    most ms\n";
  for (const WaitedFor& on : waits)
    text += fmt::format("  {:<20} {:>7}  {:>9}  {:>9}  {}\n", played.rank_text(on.rank), on.waiting,
                        milliseconds_of(on.seconds / std::max(1, on.waiting)), milliseconds_of(on.most),
                        played.rank_text(on.worst));
  return text;
}

std::string simulation_json(const Comparison& result, const std::string& prices) {
  nlohmann::ordered_json json{{"prices", prices}, {"seconds", result.all.seconds}, {"seconds_without", result.without}};
  json["lost"] = nlohmann::ordered_json::object();
  for (const auto& [cause, seconds] : result.lost) json["lost"][cause] = seconds;
  for (const Share& share : shares_of(result.all))
    json["ranks"].push_back({{"what", share.name}, {"mean", share.mean}, {"most", share.most}, {"rank", share.rank}});
  json["waited_for"] = nlohmann::ordered_json::array();
  for (const WaitedFor& on : waited_for(result.all))
    json["waited_for"].push_back(
        {{"rank", on.rank}, {"by", on.waiting}, {"seconds", on.seconds}, {"most", on.most}, {"worst", on.worst}});
  return json.dump() + "\n";
}

/// The timeline of a file, or nothing if its first bytes are another thing's.
std::optional<Timeline> read_timeline(const std::string& path) {
  constexpr std::string_view kBeginning = "sherd timeline";
  std::ifstream file(path, std::ios::binary);
  check_usage(file.good(), "sherd simulate: {} cannot be read", path);
  std::string text(kBeginning.size(), '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (text != kBeginning) return std::nullopt;
  text.append(std::istreambuf_iterator<char>(file), {});
  return as_usage([&] { return Timeline::parse(text, path); });
}

void check_is_of_timelines(const ConfigTable& of_timelines, const CommandLine& line) {
  for (const CommandLine::Flag& flag : line.flags)
    check_usage(of_timelines.contains(flag.key) || flag.key == "seed" || flag.key == "trace",
                "{} is of a config, and {} is a timeline, which has been recorded", flag.spelled, line.words[0]);
}

Played of_timeline(Timeline step, const SimulateFlags& flags) {
  check_usage(flags.ranks == 0 || flags.ranks == step.ranks, "--ranks {}: the timeline is of {} ranks", flags.ranks,
              step.ranks);
  check_usage(step.ranks <= kMostPlannedRanks, "the timeline is of {} ranks; at most {} can be simulated", step.ranks,
              kMostPlannedRanks);
  check_usage(!flags.cluster.device_model.empty(),
              "a timeline does not say what device it is of, and is priced by none of itself; give --device-model");
  auto cluster = cluster_of(flags.cluster, step.ranks, {});
  return {std::move(step), std::move(*cluster)};
}

Played of_config(TrainConfig config, const SimulateFlags& flags) {
  check_usage(flags.ranks > 0 || !config.plan.mesh.is_open(),
              "sherd simulate needs to know the ranks: give --ranks N or --mesh");
  const std::int64_t ranks = flags.ranks > 0 ? flags.ranks : config.plan.mesh.count(0);
  check_usage(ranks >= 1 && ranks <= kMostPlannedRanks, "{} ranks: at most {} can be simulated", ranks,
              kMostPlannedRanks);
  auto cluster = cluster_of(flags.cluster, static_cast<int>(ranks), config.link);
  if (flags.cluster.device_model.empty() && config.plan.device != Device::cpu()) cluster.reset();
  check_usage(cluster.has_value(),
              "sherd simulate is about times, and this machine's calibration prices CPUs of one host: give "
              "--device-model{}",
              flags.cluster.device_model.empty() && config.plan.device == Device::cpu()
                  ? fmt::format(", or sherd calibrate --ranks {}", ranks)
                  : "");
  if (is_preset_device(flags.cluster.device_model)) config.plan.device = Device::cuda(0);
  config.memory_limit = 0;
  config.link = {};
  return as_usage([&] {
    std::vector<DeviceMesh::Axis> axes = config.plan.mesh.of(static_cast<int>(ranks));
    return Played{forecast(config, static_cast<int>(ranks), planned_vocabulary(config)).step, std::move(*cluster),
                  std::move(axes)};
  });
}

int simulate_and_print(const Played& played, const SimulateFlags& flags, const TrainConfig& config) {
  SimulateOptions options{.jitter = flags.jitter, .seed = static_cast<std::uint64_t>(config.seed), .waits = true};
  as_usage([&] {
    options.compute = slow_ranks(flags.slow, played.step.ranks, options.seed);
    options.slow_links = slow_links(flags.slow_link, played.step);
    if (!config.trace.empty()) options.spans_of = ranks_by_text(flags.trace_ranks, played.step.ranks);
  });
  check_usage(options.spans_of.size() <= kMostTraced, "--trace-ranks names {} ranks; at most {} are traced",
              options.spans_of.size(), kMostTraced);
  OutputFile trace;
  if (!config.trace.empty()) {
    check_replaceable(config.trace, "trace", kTraceBeginning);
    trace = open_output(config.trace, "trace");
  }
  const Comparison result = as_usage([&] { return compare(played, options); });
  const std::string prices = fmt::format("{}: {}", played.cluster.device.name, played.cluster.device.source);
  fmt::print("{}", flags.json ? simulation_json(result, prices) : simulation_text(result, played));
  if (!flags.json && flags.cluster.device_model.empty()) fmt::print("\nPriced by {}\n", prices);
  if (!trace) return kDone;
  std::vector<std::string> events;
  for (const Simulation::RankSpans& spans : result.all.spans) events.push_back(simulated_events(spans));
  write_all(trace, trace_file(events, {{"program", "sherd simulate"}, {"ranks", flags.trace_ranks}}), "trace",
            config.trace);
  return kDone;
}

}  // namespace

int run_simulate(std::span<const std::string_view> args) {
  TrainConfig config;
  SimulateFlags flags;
  ConfigTable table = bind(config), of_timelines;
  bind_simulate(table, flags);
  bind_simulate(of_timelines, flags);
  const CommandLine line = parse_command_line(table, args);
  if (line.help) {
    fmt::print("{}{}", kUsageText, table.help());
    return kDone;
  }
  check_usage(line.words.size() == 1, "sherd simulate takes one config or timeline, got {}", line.words.size());
  if (std::optional<Timeline> step = read_timeline(line.words[0])) {
    check_is_of_timelines(of_timelines, line);
    apply_flags(table, line);
    return simulate_and_print(of_timeline(std::move(*step), flags), flags, config);
  }
  ConfigTable of_file = bind(config);
  load_toml_file(of_file, line.words[0]);
  apply_flags(table, line);
  as_usage([&] { resolve(config); });
  return simulate_and_print(of_config(config, flags), flags, config);
}

}  // namespace sherd
