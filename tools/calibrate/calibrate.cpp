// `sherd calibrate [--ranks N] [--out FILE]`: trains small models on as many ranks as a run will have, and keeps what
// their calls and collectives take for `sherd plan`, `sherd walk` and `sherd train`.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <thread>

#include "compile/run/agree_prices.h"
#include "compile/run/time_collective.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/calibration.h"
#include "runtime/exec/simulate.h"
#include "runtime/os/machine.h"
#include "runtime/tensor/indices.h"
#include "tools/calibrate/fit.h"
#include "tools/cli/command.h"
#include "tools/cli/cpu_share.h"
#include "tools/cli/program.h"
#include "tools/launch/launch.h"
#include "tools/train/calibration.h"
#include "tools/train/output_file.h"

namespace sherd {

namespace {

using namespace calibrate;

constexpr int kMostRanks = 64;
constexpr std::size_t kLeastRuns = 4;  // those of the smallest size
constexpr std::string_view kCalibrationBeginning = R"({"build": )";
constexpr std::string_view kUsageText =
    "usage: sherd calibrate [--ranks N] [--out FILE]\n\nMeasures this machine for predictions: trains small models on "
    "as "
    "many ranks as a run will have, in f32 and bf16,\nand keeps what calls and collectives take in the cache folder "
    "(SHERD_CACHE). `sherd plan`, `sherd walk` and\n`sherd train` find it there. Leave the machine to it "
    "meanwhile.\n\n";

struct CalibrateFlags {
  std::int64_t ranks = 0, threads = 0;
  double seconds = 40;
  std::string out;
};

void bind_calibrate(ConfigTable& table, CalibrateFlags& flags) {
  table.add("ranks", &flags.ranks, "ranks that run at the same time, processes of this host; 0: one for each CPU");
  table.add("threads", &flags.threads, "threads of each rank; 0: its share of the CPUs, as of sherd train");
  table.add("seconds", &flags.seconds, "about how long it may take");
  table.add("out", &flags.out, "file for the calibration; empty: in the cache folder, where others find it");
}

// ---- collectives ----

/// What lies between ranks of this host, and how much of their own cores it takes.
struct Between {
  FabricModel fabric{.name = "ranks", .link = {}, .source = "measured"};
  double own = 0, wall = 0;

  /// Times each movement in the group at six sizes of the full tensor. Collective.
  void add(ProcessGroup& group) {
    constexpr int kRuns = 9;
    constexpr Movement kMovements[] = {Movement::gather, Movement::scatter, Movement::reduce_all, Movement::all_to_all};
    for (const Movement movement : kMovements) {
      std::vector<FabricModel::Point>& curve = fabric.curves[static_cast<std::size_t>(movement)];
      double least = 0;
      for (const double bytes : {4.0, 4096.0, 65536.0, 1048576.0, 8388608.0, 67108864.0}) {
        const CollectiveTime time = time_collective(group, movement, bytes, kRuns);
        least = std::max(least, time.wall);  // a curve does not fall
        curve.push_back({group.size(), bytes, least});
        own += time.own;
        wall += time.wall;
      }
    }
  }
  /// Where queues have no core of their own.
  double core_share() const { return wall > 0 && queues_share_core() ? std::min(1.0, own / wall) : 0; }
};

/// Among all ranks, and among half of them.
Between measured_between(ProcessGroup& group) {
  Between between;
  if (group.size() == 1) return between;
  const int half = group.size() / 2;
  if (group.size() % 2 == 0 && half > 1) {
    std::vector<int> ranks;
    for (const int r : up_to(half)) ranks.push_back((group.rank() / half) * half + r);
    between.add(*group.subgroup(ranks, "half"));
  }
  between.add(group);
  const auto& gathers = between.fabric.curves[static_cast<std::size_t>(Movement::gather)];
  const FabricModel::Point &small = gathers[gathers.size() - 6], &large = gathers.back();
  between.fabric.link = {.call_seconds = small.seconds,
                         .peer_seconds = 0,
                         .bytes_per_second = wire_bytes(Movement::gather, group.size(), large.bytes - small.bytes) /
                                             std::max(large.seconds - small.seconds, 1e-9)};
  return between;
}

// ---- the command ----

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

double seconds_of(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// How far the model is off on the steps that it was made of: "predicts steps of 12 runs within 3.1 % (median), ...".
std::string check_text(std::span<const TracedRun> runs, const Cluster& cluster) {
  std::string text;
  std::vector<double> errors;
  for (const TracedRun& run : runs) {
    const double predicted = simulate(run.timeline, cluster).seconds;
    errors.push_back(std::abs(predicted / run.step_seconds - 1));
    text += fmt::format("  {:<28} {:>8.2f} ms a step, {:>8.2f} predicted ({:+.1f} %)\n", run.name,
                        1e3 * run.step_seconds, 1e3 * predicted, 100 * (predicted / run.step_seconds - 1));
  }
  std::ranges::sort(errors);
  return text + fmt::format("steps of {} runs are predicted within {:.1f} % in the median, {:.1f} % at most\n",
                            runs.size(), 100 * errors[errors.size() / 2], 100 * errors.back());
}

/// Other processes find all of it or none. Returns what became of it, a line.
std::string keep(const Calibration& calibration, const std::string& folder) {
  if (folder.empty()) return "not kept: SHERD_CACHE is set to nothing, or there is no home; --out FILE keeps it\n";
  const std::string path = calibration_file(folder, calibration.ranks);
  const std::string partial = fmt::format("{}.{}", path, ::getpid());
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  try {
    write_all(open_output(partial, "calibration"), print(calibration), "calibration", partial);
    std::filesystem::rename(partial, path);
    return fmt::format("kept in {}\n", path);
  } catch (const std::exception& wrong) {
    std::filesystem::remove(partial, error);
    return fmt::format("not kept: {}; --out FILE keeps it\n", wrong.what());
  }
}

std::int64_t host_memory() {
  return static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::int64_t>(::sysconf(_SC_PAGE_SIZE));
}

/// The file of --out, before anything is measured; none without.
OutputFile open_out(const CalibrateFlags& flags) {
  if (flags.out.empty()) return nullptr;
  check_replaceable(flags.out, "calibration", kCalibrationBeginning);
  return open_output(flags.out, "calibration");
}

int measure(const CalibrateFlags& flags, const std::shared_ptr<ProcessGroup>& group) {
  const auto start = std::chrono::steady_clock::now();
  set_world_group(group);
  const CpuShare share = share_cpus(*group, flags.threads);
  set_threads(share.threads);
  const bool tells = group->rank() == 0;
  const OutputFile out = tells ? open_out(flags) : nullptr;
  if (tells) fmt::print("{}, {}\n{}", machine_name(), share.text, share.warning.empty() ? "" : share.warning + "\n");
  const Between between = measured_between(*group);
  const std::vector<TrainConfig> configs = calibrated_runs(group->size());
  std::vector<TracedRun> runs;
  const double room = largest_of_ranks(*group, std::vector{flags.seconds - seconds_of(start)})[0];
  for (const TrainConfig& config : configs) {  // the smallest first
    if (runs.size() >= kLeastRuns && largest_of_ranks(*group, std::vector{seconds_of(start)})[0] > flags.seconds) break;
    runs.push_back(traced_run(config, group, std::max(0.1, room / static_cast<double>(configs.size()))));
  }
  const bool shares_cpus = group->size() * share.threads > allowed_cpus().count();
  Calibration made{.device = device_of(runs),
                   .calls = measured_calls(runs, shares_cpus, *group),
                   .core_share = between.core_share(),
                   .build = build_id(),
                   .ranks = group->size(),
                   .threads = share.threads,
                   .time = std::floor(seconds_since_1970())};
  if (!tells) return kDone;
  made.device.name = machine_name();
  made.device.cores = share.threads;
  made.device.memory_bytes = host_memory() / group->size();
  made.device.source = fmt::format("sherd calibrate --ranks {}", group->size());
  made.device.links["ranks"] = between.fabric;
  fmt::print("{}", check_text(runs, calibrated_cluster(made, group->size(), {})));
  if (runs.size() < configs.size())
    fmt::print("there was no time for {} of {} runs, the largest: what is larger is extrapolated\n",
               configs.size() - runs.size(), configs.size());
  fmt::print("{:.1f} us a call beside its work; {} rows in their types, {:.0f} s\n", 1e6 * made.device.call_seconds,
             made.calls.rows.size(), seconds_of(start));
  if (!out) fmt::print("{}", keep(made, cache_folder()));
  else write_all(out, print(made), "calibration", flags.out);
  std::fflush(stdout);
  return kDone;
}

/// Starts this program as each of the ranks.
int start_ranks(std::span<const std::string_view> args, int ranks) {
  const std::string number = std::to_string(ranks), program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string_view> words{"-n", number, "--", program, "calibrate"};
  words.insert(words.end(), args.begin(), args.end());
  return run_launch(words);
}

}  // namespace

int run_calibrate(std::span<const std::string_view> args) {
  ConfigTable table;
  CalibrateFlags flags;
  bind_calibrate(table, flags);
  const CommandLine line = parse_command_line(table, args);
  if (line.help) {
    fmt::print("{}{}", kUsageText, table.help());
    return kDone;
  }
  check_usage(line.words.empty(), "sherd calibrate takes flags alone, got \"{}\"", fmt::join(line.words, "\" and \""));
  apply_flags(table, line);
  check_usage(flags.ranks >= 0 && flags.ranks <= kMostRanks, "--ranks must be from 1 to {}, got {}", kMostRanks,
              flags.ranks);
  check_usage(flags.seconds > 0 && flags.seconds <= 3600, "--seconds must be from 0 to 3600, got {}", flags.seconds);
  const RankInfo rank = discover_rank();
  const int ranks = rank.world_size > 1 ? rank.world_size
                    : flags.ranks > 0   ? static_cast<int>(flags.ranks)
                                        : std::min(allowed_cpus().count(), kMostRanks);
  check_usage(flags.ranks == 0 || flags.ranks == ranks, "--ranks {}, and {} has started {}", flags.ranks, rank.source,
              rank.world_size);
  if (ranks > 1 && rank.world_size == 1) {
    open_out(flags);  // wrong is said once
    return start_ranks(args, ranks);
  }
  return measure(flags, ranks > 1 ? world_group() : make_single_group());
}

}  // namespace sherd
