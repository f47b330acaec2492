// Launchers differ in the names of their variables and in little else that matters here, so that they are rows of a
// table. Columns that are functions: Slurm's count of ranks per host comes as a list over hosts, "4(x2),3", and Flux
// gives none; PALS may leave out the number of ranks; Hydra has no job id.
//
// Hydra is the mpirun of MPICH and Intel MPI, PALS that of HPE Cray. Slurm, Flux and others set variables of theirs too
// (PMI_RANK, PMI_SIZE, PALS_RANKID), for the MPI libraries of the programs that they start. So these two count only
// where no other launcher is found. Names are those of flux-environment(7), srun(1), Cray's pals.h and Hydra's proxy of
// MPICH 4.
#include "runtime/comm/job/launchers.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "runtime/os/process_status.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/quantity.h"

namespace sherd {
namespace {

struct Launcher {
  const char* source;
  const char *rank, *world_size, *local_rank, *local_world_size;  // variables
  /// Variables that together tell its jobs on one host apart.
  std::vector<const char*> job{};
  /// Whether it has started this process: any of its four variables is set, and then all must be, if this is null.
  bool (*is_there)(const Environment&, const Launcher&) = nullptr;
  /// Numbers that no variable has as it is; null: read from the variable.
  int (*read_world_size)(const Environment&, const Launcher&) = nullptr;
  int (*read_local_size)(const Environment&, const Launcher&) = nullptr;
  /// What tells its jobs apart where no variable does.
  std::string (*find_job)() = nullptr;
};

std::array<const char*, 4> variables_of(const Launcher& l) {
  return {l.rank, l.world_size, l.local_rank, l.local_world_size};
}

int read_number(const Environment& environment, const Launcher& launcher, const char* name) {
  const char* text = environment(name);
  check(text, "{} is not set, but other variables of {} are; set all of {}, {}, {} and {}, or none", name,
        launcher.source, launcher.rank, launcher.world_size, launcher.local_rank, launcher.local_world_size);
  const std::optional<int> value = number_of<int>(text);
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
      const auto times = number_of<int>(item.substr(open + 2, item.size() - open - 3));
      if (!times || *times < 1) return std::nullopt;
      repeat = *times;
      item = item.substr(0, open);
    }
    if (host < repeat) return number_of<int>(item);
    host -= repeat;
  }
  return std::nullopt;
}

int read_slurm_local_size(const Environment& environment, const Launcher& launcher) {
  const char* list = environment(launcher.local_world_size);
  check(list, "{} is not set, but {} is; start the program by srun", launcher.local_world_size, launcher.rank);
  const int host = environment("SLURM_NODEID") ? read_number(environment, launcher, "SLURM_NODEID") : 0;
  const std::optional<int> size = entry_of_host(list, host);
  check(size.has_value(), "{}='{}' has no number of tasks for host {} (SLURM_NODEID)", launcher.local_world_size, list,
        host);
  return *size;
}

/// All tasks if there is one node. Of several Flux does not say how many tasks each has: an even share, or what this
/// task's own number asks for.
int read_flux_local_size(const Environment& environment, const Launcher& launcher) {
  const int nodes = read_number(environment, launcher, launcher.local_world_size);
  const int size = read_number(environment, launcher, launcher.world_size);
  check(nodes >= 1 && nodes <= size, "{}={} is not in 1..{} ({}={})", launcher.local_world_size, nodes, size,
        launcher.world_size, size);
  const int even_share = (size + nodes - 1) / nodes;
  const int own = read_number(environment, launcher, launcher.local_rank);
  return nodes == 1 ? size : std::min(size, std::max(even_share, own + 1));
}

/// The number of ranks in the file by which PALS tells Cray's MPI of them. Its header grows at the end: versions 1 (of
/// Slurm and Flux) and 5 (of pals.h) agree up to this member. Nothing if there is no such file.
std::optional<int> read_pals_file(const std::string& path) {
  constexpr std::size_t kNumRanksAt = 80;
  std::array<char, kNumRanksAt + sizeof(std::int32_t)> head{};
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return std::nullopt;  // a pipe would be waited for
  if (!std::ifstream(path, std::ios::binary).read(head.data(), head.size())) return std::nullopt;
  std::int32_t version = 0, ranks = 0;
  std::memcpy(&version, head.data(), sizeof version);
  std::memcpy(&ranks, head.data() + kNumRanksAt, sizeof ranks);
  return version >= 1 && version <= 5 ? std::optional<int>(ranks) : std::nullopt;
}

int read_pals_size(const Environment& environment, const Launcher& launcher) {
  if (environment(launcher.world_size)) return read_number(environment, launcher, launcher.world_size);
  const std::string path = text_of(environment, "PALS_APINFO");
  const std::optional<int> size = read_pals_file(path);
  check(size.has_value(),
        "{}={}, but neither {} nor a file PALS_APINFO ('{}') says how many ranks there are; start the program by "
        "`mpiexec --pmi=cray` or by `sherd run`",
        launcher.rank, text_of(environment, launcher.rank), launcher.world_size, path);
  return *size;
}

/// Ranks of one mpirun on one host descend from one proxy, whatever lies between (shells, numactl).
std::string find_hydra_job() {
  for (pid_t process = ::getppid(); process > 0;) {
    const std::optional<ProcessStatus> status = process_status(process);
    if (!status) break;
    if (status->name.ends_with("pmi_proxy")) return fmt::format("-{}-{}", process, status->started);
    process = status->parent;
  }
  return {};
}

/// In a batch script SLURM_PROCID is set without a step: nobody started several of us there.
bool is_in_slurm_step(const Environment& environment, const Launcher& launcher) {
  return environment(launcher.rank) && environment("SLURM_STEP_ID");
}

/// Scripts may set the other variables by hand.
bool has_rank(const Environment& environment, const Launcher& launcher) {
  return environment(launcher.rank) != nullptr;
}

bool has_all(const Environment& environment, const Launcher& launcher) {
  return std::ranges::all_of(variables_of(launcher), [&](const char* name) { return environment(name) != nullptr; });
}

/// The inner ones first.
std::vector<Launcher> launchers(const Environment& environment) {
  return {{.source = "sherd run",
           .rank = "SHERD_RANK",
           .world_size = "SHERD_WORLD_SIZE",
           .local_rank = "SHERD_LOCAL_RANK",
           .local_world_size = "SHERD_LOCAL_WORLD_SIZE",
           .job = {"SHERD_JOB"}},
          {.source = "torchrun",
           .rank = "RANK",
           .world_size = "WORLD_SIZE",
           .local_rank = "LOCAL_RANK",
           .local_world_size = "LOCAL_WORLD_SIZE",
           // The count: workers that are started again must not meet those that have just been stopped.
           .job = {"TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT"}},
          {.source = "Open MPI",
           .rank = "OMPI_COMM_WORLD_RANK",
           .world_size = "OMPI_COMM_WORLD_SIZE",
           .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
           .local_world_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
           .job = {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
          {.source = "Flux",
           .rank = "FLUX_TASK_RANK",
           .world_size = "FLUX_JOB_SIZE",
           .local_rank = "FLUX_TASK_LOCAL_ID",
           .local_world_size = "FLUX_JOB_NNODES",
           .job = {"FLUX_JOB_ID", "FLUX_URI"},  // ids are of an instance, which the address tells from others
           .is_there = has_rank,
           .read_local_size = read_flux_local_size},
          {.source = "Slurm",
           .rank = "SLURM_PROCID",
           .world_size = environment("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS",
           .local_rank = "SLURM_LOCALID",
           .local_world_size = "SLURM_STEP_TASKS_PER_NODE",
           .job = {"SLURM_JOB_ID", "SLURM_STEP_ID"},
           .is_there = is_in_slurm_step,
           .read_local_size = read_slurm_local_size}};
}

Launcher pals() {
  return {.source = "PALS",
          .rank = "PALS_RANKID",
          .world_size = "PMI_SIZE",
          .local_rank = "PALS_LOCAL_RANKID",
          .local_world_size = "PALS_LOCAL_SIZE",
          .job = {"PALS_APID"},
          .is_there = has_rank,
          .read_world_size = read_pals_size};
}

Launcher hydra() {
  return {.source = "Hydra",
          .rank = "PMI_RANK",
          .world_size = "PMI_SIZE",
          .local_rank = "MPI_LOCALRANKID",
          .local_world_size = "MPI_LOCALNRANKS",
          .is_there = has_all,
          .find_job = find_hydra_job};
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

/// What no two jobs that run on one host at the same time have in common.
std::string job_id(const Environment& environment, const Launcher& launcher) {
  std::string job = launcher.find_job ? launcher.find_job() : std::string();
  for (const char* name : launcher.job)
    if (const char* value = environment(name)) job += fmt::format("-{}", value);
  return job.empty() ? job : launcher.source + job;
}

std::string describe(const RankInfo& info, const Launcher& launcher) {
  return fmt::format("{} says rank {} of {}, on this host {} of {} ({}, {}, {}, {})", info.source, info.rank,
                     info.world_size, info.local_rank, info.local_world_size, launcher.rank, launcher.world_size,
                     launcher.local_rank, launcher.local_world_size);
}

std::optional<RankInfo> read_launcher(const Environment& environment, const Launcher& launcher) {
  const bool is_there =
      launcher.is_there ? launcher.is_there(environment, launcher)
                        : std::ranges::any_of(variables_of(launcher), [&](const char* v) { return environment(v); });
  if (!is_there) return std::nullopt;
  RankInfo info;
  info.source = launcher.source;
  info.rank = read_number(environment, launcher, launcher.rank);
  info.world_size = launcher.read_world_size ? launcher.read_world_size(environment, launcher)
                                             : read_number(environment, launcher, launcher.world_size);
  info.local_rank = read_number(environment, launcher, launcher.local_rank);
  info.local_world_size = launcher.read_local_size ? launcher.read_local_size(environment, launcher)
                                                   : read_number(environment, launcher, launcher.local_world_size);
  check_ranges(info, launcher);
  info.job = job_id(environment, launcher);
  info.description = describe(info, launcher);
  return info;
}

bool same_place(const RankInfo& a, const RankInfo& b) {
  return a.rank == b.rank && a.world_size == b.world_size && a.local_rank == b.local_rank &&
         a.local_world_size == b.local_world_size;
}

/// The outer launcher has started one task per host, and that task the inner one: the outer numbers count hosts.
bool is_nested_in(const RankInfo& inner, const RankInfo& outer) {
  return outer.local_world_size == 1 && outer.world_size <= inner.world_size && !same_place(inner, outer);
}

/// Reads the launchers that set variables of nobody else.
std::optional<RankInfo> read_known_launchers(const Environment& environment) {
  std::optional<RankInfo> info;
  for (const Launcher& launcher : launchers(environment)) {
    std::optional<RankInfo> found = read_launcher(environment, launcher);
    if (!found) continue;
    check(!info || same_place(*info, *found) || is_nested_in(*info, *found),
          "two launchers disagree: {}, but {}; unset the variables of the one that did not start this program",
          info ? info->description : "", found->description);
    if (!info) info = std::move(found);
  }
  return info;
}

/// Ranks that nobody has numbered would each train alone, and say nothing.
void check_is_alone(const Environment& environment) {
  struct Sign {
    const char* variable;
    int more;  // of ranks than it says: a rank is one less than there are at least
  };
  for (const auto& [variable, more] : {Sign{"PMI_SIZE", 0},
                                       {"MPI_LOCALNRANKS", 0},
                                       {"MV2_COMM_WORLD_SIZE", 0},
                                       {"JSM_NAMESPACE_SIZE", 0},
                                       {"PMI_RANK", 1},
                                       {"PMIX_RANK", 1}}) {
    const std::int64_t value = number_of<int>(text_of(environment, variable)).value_or(0);
    check(value + more <= 1,
          "{}={}: {}{} ranks were started, and no variables that Sherd knows say which of them this is; start them by "
          "`sherd run -n {}`, or unset {} to run alone",
          variable, value, more ? "at least " : "", value + more, value + more, variable);
  }
}

}  // namespace

RankInfo read_launchers(const Environment& environment) {
  std::optional<RankInfo> info = read_known_launchers(environment);
  if (!info) info = read_launcher(environment, pals());
  // Within a launcher that has started one task on each host (Slurm does so for Hydra's proxies), or one in all, Hydra
  // may have started more; `sherd run` is what starts programs last.
  if (!info || (info->local_world_size == 1 && info->source != "sherd run"))
    if (const auto found = read_launcher(environment, hydra()); found && (!info || is_nested_in(*found, *info)))
      info = found;
  if (!info) check_is_alone(environment);
  return info.value_or(RankInfo());
}

}  // namespace sherd
