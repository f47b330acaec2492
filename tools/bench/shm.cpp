// shm.*: collectives of two pinned processes beside gloo's, MPI's, and the smallest program that moves the bytes.
#include <fmt/format.h>

#include <unistd.h>

#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

// MPI's own program, if it was built: needs mpicxx at configure time.
Contestant mpi_contestant(const std::string& request) {
  Contestant result{{}, request, "--bind-to core"};
  try {
    result.command.words = {
        "mpirun", "--allow-run-as-root", "--bind-to", "core", "-n", "2", program_beside("bench_mpi_collectives")};
  } catch (const std::exception& error) { result.error = error.what(); }
  return result;
}

Benchmark shm_benchmark(const std::string& collective, const std::string& size, std::int64_t bytes, Target target) {
  Benchmark row;
  row.name = fmt::format("shm.{}.{}", collective, size);
  row.summary = fmt::format("f32 of {} between 2 processes; limit: hand-written shared memory", size);
  const bool small = bytes < 1 << 20;
  row.unit = small ? Unit{"us"} : Unit{"ms", Better::lower, 2};
  row.target = target;
  row.measure = [=](Figure& figure, BenchRun& run) {
    const std::int64_t used = run.sized(bytes, std::int64_t{1} << 16);
    const std::string request = fmt::format("{} {} {}", collective, used, run.sized(small ? 500 : 6, 2));
    const std::string few = fmt::format("{} {} {}", collective, used, run.sized(small ? 50 : 2, 2));
    Contest contest{.ours = {child("collectives", {}, 2), request},
                    .peers = run.torch_contestants("collectives.py", {"2"}, few),
                    .limit = Contestant{{{program_beside("bench_shm_limit")}, {}}, request},
                    .rounds = run.sized(5, 1)};
    contest.peers.push_back(mpi_contestant(request));
    const Outcome outcome = run.hold(contest);
    const auto to_value = [&](double seconds) { return seconds * (small ? 1e6 : 1e3); };
    fill(figure, outcome, to_value, to_value);
    figure.detail["gigabytes_per_second"] = static_cast<double>(used) / outcome.ours.median() / 1e9;
  };
  return row;
}

}  // namespace

std::vector<Benchmark> shm_benchmarks() {
  constexpr std::int64_t kKiB = 1 << 10, kMiB = 1 << 20;
  return {
      shm_benchmark("all_gather", "64MB", 64 * kMiB, {Rule::limit_factor_at_most, 1.25}),
      shm_benchmark("reduce_scatter", "64MB", 64 * kMiB, {Rule::limit_factor_at_most, 1.25}),
      shm_benchmark("all_gather", "64KB", 64 * kKiB, {Rule::value_at_most, 10}),
  };
}

}  // namespace sherd::bench
