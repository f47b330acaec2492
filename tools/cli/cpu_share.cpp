#include "tools/cli/cpu_share.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

#include "runtime/exec/purpose.h"
#include "runtime/os/host_name.h"
#include "runtime/tensor/indices.h"
#include "tools/train/exit_status.h"
#include "tools/train/gather_attrs.h"

namespace sherd {

using namespace train;

namespace {

// What a rank says of itself.
struct CpuFacts {
  int asked = 0, online = 0;
  double quota = 0;
  std::vector<int> cpus{};
  std::string host{};
  static constexpr AttrField fields[] = {attr<&CpuFacts::asked>("asked"), attr<&CpuFacts::online>("online"),
                                         attr<&CpuFacts::quota>("quota"), attr<&CpuFacts::cpus>("cpus"),
                                         attr<&CpuFacts::host>("host")};
};

// Its constructor binds the main thread, which may have been before the mask was read.
bool has_openmp() {
  for (const char* name : {"libgomp.so.1", "libomp.so.5", "libiomp5.so"})
    if (void* handle = ::dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
      ::dlclose(handle);
      return true;
    }
  return false;
}

std::string mask_reason() {
  for (const char* variable : {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"})
    if (std::getenv(variable) && has_openmp())
      return fmt::format(
          "affinity mask; {} is set and an OpenMP library is loaded, which may have bound the main thread", variable);
  return "affinity mask: taskset, a launcher, a batch system or a cpuset";
}

std::string number(int count, const char* what) { return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s"); }

}  // namespace

std::string CpuShare::lines() const {
  return fmt::format("cpus: {}\n{}", text, warning.empty() ? "" : fmt::format("warning: {}\n", warning));
}

std::string describe(const AllowedCpus& allowed) {
  std::string why = "all of this host";
  if (std::cmp_less(allowed.count(), allowed.cpus.size()))
    why = fmt::format("control group quota of {:.3g}", allowed.quota);
  else if (std::cmp_less(allowed.cpus.size(), allowed.online)) why = mask_reason();
  return fmt::format("{} of {} allowed ({})", allowed.count(), allowed.online, why);
}

CpuShare share_cpus(std::span<const RankCpus> ranks, int rank) {
  const auto num_ranks = static_cast<int>(ranks.size());
  std::map<int, int> users;  // of each CPU
  AllowedCpus together = ranks[static_cast<std::size_t>(rank)].allowed;
  for (const RankCpus& r : ranks)
    for (const int cpu : r.allowed.cpus) ++users[cpu];
  together.cpus.clear();
  for (const auto& [cpu, count] : users) together.cpus.push_back(cpu);

  const auto threads_of = [&](const RankCpus& r) {
    if (r.asked > 0) return r.asked;
    double share = 0;
    for (const int cpu : r.allowed.cpus) share += 1.0 / users[cpu];
    share = std::min(share, std::ceil(together.quota) / num_ranks);
    return std::max(1, static_cast<int>(share + 1e-9));  // three thirds are one
  };
  CpuShare result;
  int total = 0, least = kMaxThreads, most = 0;
  for (const std::size_t r : indices(ranks)) {
    const int threads = threads_of(ranks[r]), own = ranks[r].allowed.count();
    if (std::cmp_equal(r, rank)) result.threads = threads;
    if (threads > own)
      result.warning = fmt::format("rank {} has {} on {}", r, number(threads, "thread"), number(own, "allowed CPU"));
    total += threads;
    least = std::min(least, threads);
    most = std::max(most, threads);
  }
  const std::string per_rank = least == most ? number(most, "thread") : fmt::format("{} to {} threads", least, most);
  result.text = fmt::format("{}, {} of {}", describe(together), number(num_ranks, "rank"), per_rank);
  if (total > together.count())
    result.warning =
        fmt::format("{} of {} on {}", number(num_ranks, "rank"), per_rank, number(together.count(), "allowed CPU"));
  if (!result.warning.empty())
    result.warning += ": more threads than CPUs make a step slower. Start fewer ranks or threads, or allow more CPUs";
  return result;
}

CpuShare share_cpus(ProcessGroup& group, std::int64_t asked) {
  const PurposeScope purpose("share_cpus");
  check_usage(asked >= 0 && asked <= kMaxThreads, "--threads {}; give 1 to {}, or 0 for a share of the CPUs", asked,
              kMaxThreads);
  const AllowedCpus& own = allowed_cpus();
  const CpuFacts said{static_cast<int>(asked), own.online, own.quota, own.cpus, host_name()};
  std::vector<RankCpus> here;
  int rank = 0;  // of this host's
  for (int r = 0; const CpuFacts& facts : gather_attrs(group, said)) {
    if (r++ == group.rank()) rank = static_cast<int>(here.size());
    if (facts.host == said.host) here.push_back({{facts.online, facts.cpus, facts.quota}, facts.asked});
  }
  return share_cpus(here, rank);
}

}  // namespace sherd
