// Launchers differ in the names of their variables and in nothing else that matters here, so that they are rows of a
// table. Only Slurm's count of ranks per host needs code: it comes as a list over hosts, "4(x2),3".
#include "runtime/comm/job/launchers.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/tensor/error.h"

namespace sherd {
namespace {

/// Any of `marks` set: this launcher started us, and all of rank... must be there.
struct Launcher {
  const char* source;
  const char *rank, *world_size, *local_rank, *local_world_size;
  std::vector<const char*> marks;
};

const char* const kSlurmPerHost = "SLURM_STEP_TASKS_PER_NODE";

std::array<Launcher, 4> launchers(const Environment& environment) {
  // In a batch script SLURM_PROCID is set without a step: nobody started several of us there.
  const bool in_step = environment("SLURM_PROCID") && environment("SLURM_STEP_ID");
  const char* slurm_size = environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  const auto row = [](const char* source, const char* rank, const char* size, const char* local_rank,
                      const char* local_size) {
    return Launcher{source, rank, size, local_rank, local_size, {rank, size, local_rank, local_size}};
  };
  std::array<Launcher, 4> rows = {
      row("sherd run", "SHERD_RANK", "SHERD_WORLD_SIZE", "SHERD_LOCAL_RANK", "SHERD_LOCAL_WORLD_SIZE"),
      row("torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
      row("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "OMPI_COMM_WORLD_LOCAL_SIZE"),
      row("Slurm", "SLURM_PROCID", slurm_size, "SLURM_LOCALID", kSlurmPerHost)};
  rows[3].marks = in_step ? std::vector<const char*>{"SLURM_PROCID"} : std::vector<const char*>{};
  return rows;
}

int read_number(const Environment& environment, const Launcher& launcher, const char* name) {
  const char* text = environment(name);
  check(text, "{} is not set, but other variables of {} are; set all of {}, {}, {} and {}, or none", name,
        launcher.source, launcher.rank, launcher.world_size, launcher.local_rank, launcher.local_world_size);
  const std::optional<int> value = integer_of(text);
  check(value.has_value(), "{}='{}' is no integer", name, text);
  return *value;
}

/// The entry for host `host` of "4(x2),3", which stands for 4, 4, 3.
std::optional<int> entry_of_host(std::string_view list, int host) {
  while (!list.empty() && host >= 0) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view item = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    int repeat = 1;
    if (const std::size_t open = item.find("(x"); open != item.npos) {
      if (item.back() != ')') return std::nullopt;
      const auto times = integer_of(item.substr(open + 2, item.size() - open - 3));
      if (!times || *times < 1) return std::nullopt;
      repeat = *times;
      item = item.substr(0, open);
    }
    if (host < repeat) return integer_of(item);
    host -= repeat;
  }
  return std::nullopt;
}

int read_slurm_local_size(const Environment& environment, const Launcher& launcher) {
  const char* list = environment(kSlurmPerHost);
  check(list, "{} is not set, but {} is; start the program by srun", kSlurmPerHost, launcher.rank);
  const int host = environment("SLURM_NODEID") ? read_number(environment, launcher, "SLURM_NODEID") : 0;
  const std::optional<int> size = entry_of_host(list, host);
  check(size.has_value(), "{}='{}' has no number of tasks for host {} (SLURM_NODEID)", kSlurmPerHost, list, host);
  return *size;
}

void check_ranges(const RankInfo& info, const Launcher& launcher) {
  check(info.world_size >= 1, "{}={}: there must be at least 1 rank", launcher.world_size, info.world_size);
  check(info.rank >= 0 && info.rank < info.world_size, "{}={} is not in 0..{} ({}={})", launcher.rank, info.rank,
        info.world_size - 1, launcher.world_size, info.world_size);
  check(info.local_world_size >= 1 && info.local_world_size <= info.world_size, "{}={} is not in 1..{} ({}={})",
        launcher.local_world_size, info.local_world_size, info.world_size, launcher.world_size, info.world_size);
  check(info.local_rank >= 0 && info.local_rank < info.local_world_size, "{}={} is not in 0..{} ({}={})",
        launcher.local_rank, info.local_rank, info.local_world_size - 1, launcher.local_world_size,
        info.local_world_size);
}

std::optional<RankInfo> read_launcher(const Environment& environment, const Launcher& launcher) {
  bool found = false;
  for (const char* mark : launcher.marks) found = found || environment(mark);
  if (!found) return std::nullopt;
  RankInfo info;
  info.source = launcher.source;
  info.rank = read_number(environment, launcher, launcher.rank);
  info.world_size = read_number(environment, launcher, launcher.world_size);
  info.local_rank = read_number(environment, launcher, launcher.local_rank);
  info.local_world_size = launcher.local_world_size == kSlurmPerHost
                              ? read_slurm_local_size(environment, launcher)
                              : read_number(environment, launcher, launcher.local_world_size);
  check_ranges(info, launcher);
  return info;
}

bool same_place(const RankInfo& a, const RankInfo& b) {
  return a.rank == b.rank && a.world_size == b.world_size && a.local_rank == b.local_rank &&
         a.local_world_size == b.local_world_size;
}

/// srun started one task per host, and that task started us: its numbers count hosts.
bool is_nested_in(const RankInfo& inner, const RankInfo& outer) {
  return outer.source == "Slurm" && outer.local_world_size == 1 && outer.world_size <= inner.world_size;
}

std::string describe(const RankInfo& info, const Launcher& launcher) {
  return fmt::format("{} says rank {} of {}, on this host {} of {} ({}, {}, {}, {})", info.source, info.rank,
                     info.world_size, info.local_rank, info.local_world_size, launcher.rank, launcher.world_size,
                     launcher.local_rank, launcher.local_world_size);
}

/// What no two jobs that run on one host at the same time have in common.
std::string job_id(const Environment& environment, const RankInfo& info) {
  std::vector<const char*> names;
  // The restart count: workers that torchrun starts again must not meet those that it has just stopped.
  if (info.source == "sherd run") names = {"SHERD_JOB"};
  if (info.source == "torchrun")
    names = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"};
  if (info.source == "Open MPI") names = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"};
  if (info.source == "Slurm") names = {"SLURM_JOB_ID", "SLURM_STEP_ID"};
  std::string job;
  for (const char* name : names)
    if (const char* value = environment(name)) job += fmt::format("-{}", value);
  return job.empty() ? job : info.source + job;
}

}  // namespace

RankInfo read_launchers(const Environment& environment) {
  RankInfo info;
  const Launcher* chosen = nullptr;
  const auto rows = launchers(environment);
  for (const Launcher& launcher : rows) {
    const std::optional<RankInfo> found = read_launcher(environment, launcher);
    if (!found) continue;
    if (!chosen) {
      info = *found;
      chosen = &launcher;
      continue;
    }
    check(same_place(info, *found) || is_nested_in(info, *found),
          "two launchers disagree: {}, but {}; unset the variables of the one that did not start this program",
          describe(info, *chosen), describe(*found, launcher));
  }
  info.job = job_id(environment, info);
  return info;
}

}  // namespace sherd
