#include "tools/calibrate/traced_run.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "compile/run/time_collective.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/trace.h"
#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"
#include "tools/train/ghost_step.h"
#include "tools/train/train_step.h"

namespace sherd::calibrate {

namespace {

constexpr std::int64_t kVocabulary = 256;
constexpr int kSettlingSteps = 4, kMostSteps = 12;
constexpr std::int64_t kRowsOfRank = 2;

struct Size {
  std::int64_t layers, width, sequence;
};
constexpr Size kSizes[] = {{2, 128, 64}, {2, 256, 128}, {2, 512, 256}};

TrainConfig run_of(const std::string& style, const Size& size, DType dtype, int ranks) {
  TrainConfig config;
  config.model = {.style = style,
                  .layers = size.layers,
                  .heads = size.width / 64,
                  .width = size.width,
                  .sequence = size.sequence,
                  .vocabulary = kVocabulary,
                  .tied_head = style == "gpt2"};
  config.batch = kRowsOfRank * ranks;
  config.plan.param_dtype = dtype;
  config.plan.fully_shard = ranks > 1 || dtype != DType::f32;
  config.group = "shm";
  resolve(config);
  return config;
}

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string key_of(std::string_view row, std::string_view shapes) { return fmt::format("{} {}", row, shapes); }

double seconds_of(const Span& span) { return 1e-9 * static_cast<double>(span.end - span.start); }

/// The model in training, a step at a time.
class Training {
 public:
  Training(const TrainConfig& config, const std::shared_ptr<ProcessGroup>& group)
      : group_(*group), step_(config, nn::JobMesh(config.plan.mesh, group), kVocabulary) {
    const std::int64_t length = config.model.sequence;
    const std::uint64_t key = random_key(2, "tokens", "data", static_cast<std::uint64_t>(group->rank()));
    const Tensor text = cast(random_uniform({kRowsOfRank, length + 1}, key, 0, kVocabulary), DType::i32);
    tokens_ = contiguous(narrow(text, 1, 0, length));
    targets_ = contiguous(narrow(text, 1, 1, length));
  }

  /// Returns what it takes, until its loss is there.
  double make() {
    group_.host().barrier();
    const double start = seconds_now();
    step_.set_step(next_++);
    step_.update(tokens_, targets_).loss.item<double>();
    return seconds_now() - start;
  }

 private:
  ProcessGroup& group_;
  TrainStep step_;
  Tensor tokens_, targets_;
  std::int64_t next_ = 0;
};

/// Adds what the calls of a step have taken to those that the timeline knows; returns seconds in which its thread has
/// computed or waited.
double add_calls(const Trace& trace, std::map<std::string, CallTimes>& calls) {
  double known = 0;
  std::vector<const Span*> waits;  // since the call before, as spans come by their ends
  for (const Span& span : trace.spans()) {
    if (span.track != 0) continue;
    double seconds = seconds_of(span);
    if (span.kind == SpanKind::wait) waits.push_back(&span);
    if (span.kind != SpanKind::op) continue;
    for (const Span* const wait : waits) {
      known += seconds_of(*wait);
      if (wait->start >= span.start) seconds -= seconds_of(*wait);
    }
    waits.clear();
    const auto call = calls.find(key_of(span.name, span.detail ? *span.detail : ""));
    if (call == calls.end()) continue;
    call->second.seconds.push_back(std::max(seconds, 1e-9));
    known += seconds;
  }
  for (const Span* const wait : waits) known += seconds_of(*wait);
  return known;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

std::vector<TrainConfig> calibrated_runs(int ranks) {
  std::vector<TrainConfig> runs;
  for (const Size& size : kSizes)
    for (const char* style : {"gpt2", "llama"})
      for (const DType dtype : {DType::f32, DType::bf16}) runs.push_back(run_of(style, size, dtype, ranks));
  return runs;
}

TracedRun traced_run(const TrainConfig& config, const std::shared_ptr<ProcessGroup>& group, double seconds) {
  TracedRun run{
      .name = fmt::format("{} of width {}, {}", config.model.style, config.model.width, name(config.plan.param_dtype)),
      .timeline = ghost_step(config, 0, group->size(), kVocabulary).timeline};
  for (const Timeline::Call& call : run.timeline.calls)
    if (call.work.kind != WorkKind::issue)
      run.calls.try_emplace(key_of(run.timeline.text(call.op), run.timeline.text(call.shapes)),
                            CallTimes{std::string(run.timeline.text(call.op)), call.work});
  run.num_calls = static_cast<double>(run.timeline.calls.size());
  Training training(config, group);
  double last = 0;
  for (int i = 0; i < kSettlingSteps; ++i) last = training.make();
  const double slowest = largest_of_ranks(*group, std::vector{last})[0];
  const int steps = std::clamp(static_cast<int>(seconds / slowest) - kSettlingSteps, 4, 2 * kMostSteps) / 2;
  Trace trace(std::size_t{1} << 14);
  std::vector<double> untraced, beside;
  for (int i = 0; i < steps; ++i) {  // in turns, so that both see the same machine
    untraced.push_back(training.make());
    trace.clear();
    const Trace::Recording recording(trace);
    const double all = training.make();
    beside.push_back(std::max(0.0, all - add_calls(trace, run.calls)));
  }
  run.step_seconds = median(untraced);
  run.beside = median(beside);
  return run;
}

}  // namespace sherd::calibrate
