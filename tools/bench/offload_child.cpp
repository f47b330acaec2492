// `--child offload`: a step whose optimizer state is in a file, beside the same step in memory, in one process. A
// request is how fast the file is, as a multiple of the rate that moves in one step what a step moves: "2". The answer
// holds seconds of steps; compute_seconds, the median of steps in memory; bytes that a step moves, and
// transfer_seconds, what they take alone at that rate.
#include <algorithm>
#include <chrono>
#include <filesystem>

#include "dtensor/api.h"
#include "runtime/cpu/parallel.h"
#include "tools/bench/child.h"
#include "tools/bench/contest.h"
#include "tools/bench/training.h"
#include "tools/train/flags.h"

namespace sherd::bench {

namespace {

struct OffloadFlags {
  std::string model = "tiny";
  std::int64_t steps = 8;
  bool captured = true, clips = false;
};

/// A step of its own, and batches for it.
class OffloadSide {
 public:
  OffloadSide(const OffloadFlags& flags, const std::string& offload) : model_(bench_model(flags.model)) {
    const std::shared_ptr<ProcessGroup> group = make_single_group();
    TrainConfig config = train_config(model_, {.compiled = flags.captured}, 1);
    config.plan.offload = offload;
    if (flags.clips) config.optimizer.clip = 1e9;
    step_.emplace(config, nn::JobMesh(config.plan.mesh, group), model_.vocabulary,
                  TrainStepOptions{.metrics = flags.clips});
  }
  double seconds() {
    const auto start = std::chrono::steady_clock::now();
    const std::int64_t count = model_.tokens_per_step();
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i)
      ids[static_cast<std::size_t>(i)] = static_cast<std::int32_t>((i * i + 7 * i + num_++) % model_.vocabulary);
    const Tensor tokens = Tensor::from<std::int32_t>(ids, {model_.batch, model_.tokens});
    step_->update(tokens, tokens).loss.item<float>();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const nn::OffloadedState* state() { return step_->optimizer().offloaded(); }

 private:
  BenchModel model_;
  std::optional<TrainStep> step_;
  std::int64_t num_ = 0;
};

nlohmann::json answer_of(OffloadSide& held, OffloadSide& offloaded, std::int64_t steps, double speed) {
  OffloadFile& file = *offloaded.state()->store().file();
  std::vector<double> compute, seconds;
  for (std::int64_t i = 0; i < steps; ++i) compute.push_back(held.seconds());
  const double of_compute = median(compute);
  const double bytes = 2.0 * static_cast<double>(offloaded.state()->store().bytes()), rate = speed * bytes / of_compute;
  file.set_rate(rate);
  for (std::int64_t i = 0; i < steps; ++i) seconds.push_back(offloaded.seconds());
  seconds.erase(seconds.begin());  // the rate was another one when it began
  file.set_rate(0);
  return {{"seconds", seconds}, {"compute_seconds", of_compute}, {"bytes", bytes}, {"transfer_seconds", bytes / rate}};
}

}  // namespace

int run_offload_child(std::span<const std::string_view> args) {
  OffloadFlags flags;
  ConfigTable table;
  table.add("model", &flags.model, "one of models.cpp");
  table.add("steps", &flags.steps, "of each side, after three");
  table.add("captured", &flags.captured, "replay a recording");
  table.add("clips", &flags.clips, "clip the gradient norm, so that updates come after backward");
  apply_flags(table, parse_command_line(table, args));
  set_threads(1);
  OffloadSide held(flags, "none"), offloaded(flags, "optimizer:" + std::filesystem::temp_directory_path().string());
  for (int i = 0; i < 3; ++i) held.seconds(), offloaded.seconds();
  serve({{"peer", "sherd"}},
        [&](const std::string& request) { return answer_of(held, offloaded, flags.steps, std::stod(request)); });
  return 0;
}

}  // namespace sherd::bench
