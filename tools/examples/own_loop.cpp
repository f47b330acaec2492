// A loop and batches of one's own around the step of sherd::train, with the metrics of `sherd train`, which `sherd
// diagnose` reads. The batches come from a store that takes its time, and have as many lengths as are asked for:
//   build/release/bin/own_loop metrics.jsonl 40 0 1       steps are replayed, and wait for nothing
//   build/release/bin/own_loop metrics.jsonl 40 20 1      the loader takes 20 ms
//   build/release/bin/own_loop metrics.jsonl 40 0 12      too many lengths: steps are recorded again and again
#include <chrono>
#include <cstdlib>
#include <thread>

#include <sherd/sherd.h>

#include <sherd/train.h>

#include "tools/train/mfu.h"
#include "tools/train/step_log.h"

using namespace sherd;

namespace {

/// Tokens and targets, i32 [4, length]: each token names the next one.
std::pair<Tensor, Tensor> load(std::int64_t step, std::int64_t length, std::chrono::milliseconds takes) {
  const StepClock::Scope part(step_clock(), StepPart::data);
  std::this_thread::sleep_for(takes);
  Tensor tokens = Tensor::empty({4, length}, DType::i32), targets = Tensor::empty({4, length}, DType::i32);
  for (std::int64_t i = 0; i < 4 * length; ++i) {
    tokens.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>((step + 3 * i) % 61);
    targets.mutable_data<std::int32_t>()[i] = static_cast<std::int32_t>((step + 3 * i + 3) % 61);
  }
  return {tokens, targets};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    fmt::print(stderr, "usage: own_loop METRICS.jsonl STEPS MILLISECONDS LENGTHS\n");
    return 2;
  }
  const std::int64_t lengths = std::atoll(argv[4]);
  train::TrainConfig config;
  config.steps = std::atoll(argv[2]);
  config.batch = 4;
  config.plan.compiled = true;
  config.model = {.style = "llama", .layers = 2, .heads = 4, .width = 64, .sequence = 128, .vocabulary = 61};
  train::resolve(config);

  const auto group = world_group();
  const nn::JobMesh mesh(config.plan.mesh, group);
  train::TrainStep step(config, mesh, config.model.vocabulary);
  train::MetricsFile file(argv[1], train::header_line(config, group->size()), 0);
  const train::StepLog::Observer observe = [&](const train::StepMetrics& m) { file.write(train::step_line(m)); };
  const double peak = train::peak_flops(config, *group);
  const double at_peak = peak > 0 ? train::step_flops(config, step.model().num_parameters()) / peak : 0;
  train::StepLog log(*group, RankContext::current().allocator().accounting(), 0, {}, at_peak, observe);
  for (std::int64_t s = 0; s < config.steps; ++s) {
    log.begin();
    step.set_step(s);
    const std::int64_t length = config.model.sequence - s % lengths;
    const auto [tokens, targets] = load(s, length, std::chrono::milliseconds(std::atoll(argv[3])));
    const train::TrainStep::Result out = step.update(tokens, targets);
    train::StepMetrics known;
    known.step = s + 1;
    known.lr = step.learning_rate(s);
    known.tokens = 4 * length;
    known.captured = {step.is_captured(), step.how()};
    log.end(known, out);
    if (s + 1 < config.steps) log.poll();
  }
  train::StepMetrics last = log.finish_but_last();
  last.times = log.clock().times();
  log.report(last);
  fmt::print("loss {:.4f} after {} steps\n", last.loss, last.step);
}
