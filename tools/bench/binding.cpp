// binding.*: settings that bind threads to CPUs are for other libraries' threads. A training step under them, beside
// the same step without any.
#include <fmt/format.h>

#include "runtime/os/allowed_cpus.h"
#include "tools/bench/bench.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

struct BindingCase {
  std::string_view name, summary;
  std::vector<std::string> environment;
  bool on_two_cpus;
};

// The program, run on the first two CPUs that it may use.
std::vector<std::string> on_two_cpus(std::vector<std::string> words) {
  const std::vector<int> cpus = allowed_cpus().cpus;
  std::vector<std::string> bound = {"taskset", "-c", fmt::format("{},{}", cpus.front(), cpus[cpus.size() > 1])};
  bound.insert(bound.end(), words.begin(), words.end());
  return bound;
}

Benchmark binding_benchmark(const BindingCase& c) {
  Benchmark row;
  row.name = fmt::format("binding.{}", c.name);
  row.summary = fmt::format("training step of mini, 2 threads, {}, beside the same without", c.summary);
  row.unit = {"ms"};
  row.target = {Rule::ratio_at_least, 0.97};
  row.measure = [c](Figure& figure, BenchRun& run) {
    const SideCommand plain = child("step", {"--model", run.sized("mini", "tiny"), "--threads", "2"});
    SideCommand bound = plain;
    bound.environment.insert(bound.environment.end(), c.environment.begin(), c.environment.end());
    if (c.on_two_cpus) bound.words = on_two_cpus(bound.words);
    const std::string steps = run.sized("8", "1");
    const Outcome outcome = run.hold({.ours = {bound, steps},
                                      .peers = {{.command = plain, .request = steps, .name = "unbound"}},
                                      .rounds = run.sized(15, 1)});
    fill(figure, outcome, [](double seconds) { return seconds * 1e3; });
  };
  return row;
}

}  // namespace

std::vector<Benchmark> binding_benchmarks() {
  return {
      binding_benchmark({"omp", "OMP_PROC_BIND and OMP_PLACES set", {"OMP_PROC_BIND=true", "OMP_PLACES=cores"}, false}),
      binding_benchmark({"taskset", "by taskset on 2 CPUs", {}, true}),
      binding_benchmark({"both", "OMP_PROC_BIND set, by taskset on 2 CPUs", {"OMP_PROC_BIND=true"}, true})};
}

}  // namespace sherd::bench
