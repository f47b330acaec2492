// `--child ghost`: ranks of a large job, one after the other, each a ghost on this thread. A request names them:
// "0 63 511". The answer holds first_seconds, of building a rank with its first step, the slowest's; seconds of each
// further step of all of them; growth_bytes, the peak of resident memory over the program's start; and what the last
// rank is predicted to hold: held_bytes between steps, bytes_at_peak of a settled step.
#include <algorithm>
#include <chrono>
#include <sstream>

#include "tools/bench/child.h"
#include "tools/bench/ghost_rank.h"
#include "tools/table/table.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

struct GhostFlags {
  std::string model = "tiny_llama", mesh = "dp=2";
  std::int64_t steps = 5, layers = 0;
};

nlohmann::json answer_of(const GhostFlags& flags, const std::string& request, std::int64_t start_bytes) {
  BenchModel model = bench_model(flags.model);
  if (flags.layers > 0) model.layers = flags.layers;
  std::vector<double> seconds;
  double first = 0;
  nlohmann::json result;
  std::istringstream words(request);
  for (int rank = 0; words >> rank;) {
    std::optional<GhostRank> ghost;
    first = std::max(first, seconds_of([&] {
                       ghost.emplace(model, flags.mesh, rank);
                       ghost->step();
                     }));
    Accounting& memory = RankContext::current().allocator().accounting();
    for (std::int64_t i = 0; i < flags.steps; ++i) {
      memory.reset_peaks();
      seconds.push_back(seconds_of([&] { ghost->step(); }));
    }
    result["held_bytes"] = table::by_category(memory.current());
    result["bytes_at_peak"] = table::by_category(memory.at_peak());
    result["total_peak_bytes"] = memory.total_peak();
  }
  check(!seconds.empty(), "ghost: \"{}\" names no rank", request);
  result["seconds"] = seconds;
  result["first_seconds"] = first;
  result["growth_bytes"] = process_memory_bytes("VmHWM") - start_bytes;
  return result;
}

}  // namespace

int run_ghost_child(std::span<const std::string_view> args) {
  GhostFlags flags;
  ConfigTable table;
  table.add("model", &flags.model, "one of models.cpp");
  table.add("mesh", &flags.mesh, "the ranks of the job: dp=64,tp=8");
  table.add("steps", &flags.steps, "after the first, of each rank");
  table.add("layers", &flags.layers, "of the model; 0: its own");
  apply_flags(table, parse_command_line(table, args));
  const std::int64_t start_bytes = process_memory_bytes("VmRSS");
  serve({{"peer", "sherd"}}, [&](const std::string& request) { return answer_of(flags, request, start_bytes); });
  return 0;
}

}  // namespace sherd::bench
