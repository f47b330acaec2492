// `--child step`: training steps of a benchmark model on one rank or, under `sherd run`, on several: sharded by a
// strategy, each with its batch, or tensor parallel, on one batch. A request is a number of steps. The answer holds of
// each step its seconds, exposed_seconds of them that it waited for communication, skew_seconds of those until the last
// rank had come, and computing_seconds that it did not wait; comm_bytes per step of gathers and reductions, sum_bytes
// of all-reduces; the last loss; growth_bytes (peak of resident memory over the program's start); and, per category of
// the accounting, what is held between steps, the peak of each, and what was held at the moment of the total's peak. On
// a GPU steps are queued together and waited for once, so the sample is their mean; device_peak_bytes is the peak of
// its memory, and a request may be "eager N" for steps that are not replayed, or "ops" for one eager step that waits
// for each op: "ops" of the answer holds [name, inputs, calls, seconds of all calls], the longest first.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <tuple>

#include "runtime/comm/board/exposed.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/job/world.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec/context.h"
#include "runtime/exec/trace.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"
#include "tools/bench/profiler_range.h"
#include "tools/bench/training.h"
#include "tools/table/table.h"
#include "tools/train/config.h"
#include "tools/train/device_flag.h"

namespace sherd::bench {

namespace {

struct StepFlags {
  std::string model = "tiny", dtype = "f32";
  std::int64_t threads = 1;
  std::int64_t batch = 0, tokens = 0, layers = 0;  ///< of each rank; 0: the model's
  bool captured = true, prefetch = true, tensor_parallel = false, profile = false;
  std::string strategy = "full_shard", mesh, link, device = "cpu", recompute = "none";
};

BenchModel model_of(const StepFlags& flags) {
  BenchModel model = bench_model(flags.model);
  if (flags.layers > 0) model.layers = flags.layers;
  return model;
}

// One batch of random tokens, i32 [B, T], other ones on every rank.
std::pair<Tensor, Tensor> random_batch(const BenchModel& m, const StepFlags& flags, int rank) {
  const std::int64_t batch = flags.batch ? flags.batch : m.batch, tokens = flags.tokens ? flags.tokens : m.tokens;
  const std::uint64_t key = random_key(2, "tokens", "data", static_cast<std::uint64_t>(rank));
  const Tensor text = cast(random_uniform({batch, tokens + 1}, key, 0, static_cast<double>(m.vocabulary)), DType::i32);
  return {contiguous(narrow(text, 1, 0, tokens)), contiguous(narrow(text, 1, 1, tokens))};
}

nn::TrainingPlan plan_of(const StepFlags& flags, int ranks) {
  return {.mesh = flags.tensor_parallel ? fmt::format("tp={}", ranks) : flags.mesh,
          .device = parse_device(flags.device),
          .strategy = flags.strategy,
          .prefetch = flags.prefetch,
          .param_dtype = dtype_from_name(flags.dtype),
          .recompute = flags.recompute,
          .compiled = flags.captured};
}

class StepRun {
 public:
  StepRun(const StepFlags& flags, std::shared_ptr<ProcessGroup> group)
      : device_(parse_device(flags.device)),
        profile_(flags.profile),
        start_bytes_(process_memory_bytes("VmRSS")),
        group_(std::move(group)),
        step_(train_step(model_of(flags), plan_of(flags, group_->size()), group_, flags.link)) {
    std::tie(tokens_, targets_) =
        random_batch(bench_model(flags.model), flags, flags.tensor_parallel ? 0 : group_->rank());
    tokens_ = to(tokens_, device_);
    targets_ = to(targets_, device_);
    for (int i = 0; i < 4; ++i) (void)run_step().item<double>();  // eager, recording, replays: pools and caches fill
  }

  nlohmann::json answer(const std::string& request) {
    if (request == "ops" && device_ != Device::cpu()) return answer_of_ops();
    const bool eager = request.starts_with(kEager) && device_ != Device::cpu();
    const int steps = std::atoi(request.c_str() + (eager ? kEager.size() : 0));
    check(steps >= 1, "step: \"{}\" is no number of steps", request);
    Accounting& memory = RankContext::current().allocator(device_).accounting();
    memory.reset_peaks();
    if (device_ != Device::cpu()) return answer_of_device(steps, eager, memory);
    std::vector<double> seconds, exposed, skew, computing;
    double loss = 0;
    const CommCounts before = counts_with_subgroups(*group_);
    for (int i = 0; i < steps; ++i) {
      group_->host().barrier();
      const CommTimes times_before = comm_times(*group_);
      const auto start = std::chrono::steady_clock::now();
      loss = run_step().item<double>();
      seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
      const CommTimes times = comm_times(*group_) - times_before;
      exposed.push_back(times.exposed);
      skew.push_back(times.skew);
      computing.push_back(seconds.back() - exposed.back());
    }
    CommCounts moved = counts_with_subgroups(*group_);
    moved -= before;
    return {{"seconds", seconds},
            {"exposed_seconds", exposed},
            {"skew_seconds", skew},
            {"computing_seconds", computing},
            {"comm_bytes", static_cast<double>(moved.all_gather.bytes + moved.reduce_scatter.bytes) / steps},
            {"sum_bytes", static_cast<double>(moved.all_reduce.bytes) / steps},
            {"loss", loss},
            {"growth_bytes", process_memory_bytes("VmHWM") - start_bytes_},
            {"held_bytes", table::by_category(memory.current())},
            {"peak_bytes", table::by_category(memory.peak())},
            {"bytes_at_peak", table::by_category(memory.at_peak())}};
  }

 private:
  Tensor run_step() { return step_.update(tokens_, targets_).loss; }
  Tensor run_eager_step() { return step_.update_eagerly(tokens_, targets_).loss; }
  nlohmann::json answer_of_device(int steps, bool eager, Accounting& memory) {
    DeviceContext& device = RankContext::current().device(device_);
    std::optional<ProfilerRange> profiled;
    if (profile_) profiled.emplace();
    const auto start = std::chrono::steady_clock::now();
    Tensor loss;
    for (int i = 0; i < steps; ++i) loss = eager ? run_eager_step() : run_step();
    device.synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    nlohmann::json answer = {{"seconds", {seconds / steps}},
                             {"loss", loss.item<double>()},
                             {"how", eager ? "eager" : step_.how()},
                             {"device_peak_bytes", memory.total_peak()},
                             {"peak_bytes", table::by_category(memory.peak())},
                             {"bytes_at_peak", table::by_category(memory.at_peak())}};
    if (profiled && !profiled->why_not().empty()) answer["not_profiled"] = profiled->why_not();
    return answer;
  }

  // What each op takes on the device: the kernels of one call at a time.
  nlohmann::json answer_of_ops() {
    Trace trace;
    trace.waits_for_devices = true;
    (void)run_eager_step().item<double>();  // no eager step may have filled the pools yet
    const auto start = std::chrono::steady_clock::now();
    {
      const TraceRecording recording(trace);
      (void)run_eager_step().item<double>();
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    struct Sum {
      std::int64_t calls = 0;
      double seconds = 0;
    };
    std::map<std::pair<std::string, std::string>, Sum> sums;
    for (const Span& span : trace.spans()) {
      if (span.kind != SpanKind::op) continue;
      Sum& sum = sums[{std::string(span.name), span.detail ? *span.detail : ""}];
      ++sum.calls;
      sum.seconds += static_cast<double>(span.end - span.start) * 1e-9;
    }
    std::vector<nlohmann::json> ops;
    for (const auto& [op, sum] : sums) ops.push_back({op.first, op.second, sum.calls, sum.seconds});
    std::ranges::sort(ops, std::greater(), [](const nlohmann::json& op) { return op[3].get<double>(); });
    return {{"seconds", {seconds}}, {"how", "eager, waiting for each op"}, {"ops", ops}};
  }

  static constexpr std::string_view kEager = "eager ";
  const Device device_;
  const bool profile_;
  std::int64_t start_bytes_;
  std::shared_ptr<ProcessGroup> group_;
  TrainStep step_;
  Tensor tokens_, targets_;
};

}  // namespace

int run_step_child(std::span<const std::string_view> args) {
  StepFlags flags;
  ConfigTable table;
  table.add("model", &flags.model, "one of models.cpp");
  table.add("dtype", &flags.dtype, "f32, or bf16 by mixed precision");
  table.add("device", &flags.device, "cpu, or cuda for the first GPU");
  table.add("threads", &flags.threads, "of each rank");
  table.add("batch", &flags.batch, "sequences of each rank; 0: the model's");
  table.add("layers", &flags.layers, "of the model; 0: its own");
  table.add("profile", &flags.profile, "a profiler that waits records the steps that are asked for, and only those");
  table.add("tokens", &flags.tokens, "of each sequence; 0: the model's");
  table.add("strategy", &flags.strategy, "what is sharded over dp");
  table.add("mesh", &flags.mesh, "ranks as axes: replicate=2,dp=2; empty: dp over all");
  table.add("link", &flags.link, "BYTES_PER_S,SECONDS: shapes the links between the ranks; dp=...;replicate=... apart");
  table.add("recompute", &flags.recompute, "what blocks compute again in backward: none, selective, full");
  table.add("prefetch", &flags.prefetch, "gather the next group while one computes");
  table.add("tensor_parallel", &flags.tensor_parallel, "ranks share one batch and shard the model's matrices");
  table.add("captured", &flags.captured, "replay a recording");
  apply_flags(table, parse_command_line(table, args));
  const std::shared_ptr<ProcessGroup> group = world_group();
  if (group->size() > 1) pin_to_cpu(group->rank());
  set_threads(static_cast<int>(flags.threads));
  StepRun run(flags, group);
  nlohmann::json greeting = {{"peer", "sherd"}};
  if (flags.device != "cpu") greeting["device"] = RankContext::current().device(parse_device(flags.device)).describe();
  serve_ranks(*group, greeting, [&](const std::string& request) { return run.answer(request); });
  return 0;
}

}  // namespace sherd::bench
