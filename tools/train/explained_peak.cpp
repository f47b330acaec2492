#include "tools/train/explained_peak.h"

#include <algorithm>

#include "runtime/exec/context.h"
#include "runtime/tensor/error.h"
#include "tools/train/flags.h"
#include "tools/train/ghost_training.h"

namespace sherd::train {

namespace {

// Between backward and update, for what parameters have as gradients then.
void leave_gradients(TrainStep& step, const TrainConfig& config, int ranks) {
  const std::int64_t local = config.batch / nn::count_data_ranks(config.plan.mesh.of(ranks));
  const Tensor tokens = Tensor::empty({local, config.model.sequence}, DType::i32, config.plan.device);
  step.forward_backward(tokens, tokens);
  RankContext::current().drain_queues();
}

std::string what_it_is(const MemoryLog::Block& block) {
  if (!block.name.empty()) return block.name;
  std::string text = block.made.op.empty() ? "memory" : block.made.op;
  if (!block.made.module.empty()) text += fmt::format(" of {}", block.made.module);
  return text;
}

}  // namespace

ExplainedPeak explain_peak(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary) {
  ExplainedPeak explained;
  if (config.memory_limit > 0) try {
      predict_peak(config, rank, ranks, data_vocabulary,
                   {.memory_limit = config.memory_limit,
                    .look = [&](const MemoryLog& log, TrainStep*) { explained.refusal = log.refusal(); }});
    } catch (const OutOfMemory&) {}
  const auto look = [&](const MemoryLog& log, TrainStep* step) {
    explained.peak = log.peak();
    leave_gradients(*step, config, ranks);
    explained.modules = module_memory(*step, log.before_backward());
    step->optimizer().clear_gradients();
  };
  explained.predicted = predict_peak(config, rank, ranks, data_vocabulary, {.look = look});
  return explained;
}

std::string print_picture(const MemoryLog::Picture& picture, std::size_t most, std::string_view indent) {
  std::string text = fmt::format("{0}at    {1}\n{0}held  {2}: {3}\n", indent, describe(picture.moment),
                                 format_bytes(picture.total), describe(picture.bytes));
  struct Kind {
    std::string what;
    MemoryCategory category;
    std::int64_t bytes;
    int count;
  };
  std::vector<Kind> kinds;
  for (const MemoryLog::Block& block : picture.blocks) {
    const std::string what = what_it_is(block);
    const auto same = std::ranges::find_if(
        kinds, [&](const Kind& k) { return k.what == what && k.category == block.category && k.bytes == block.bytes; });
    if (same != kinds.end()) ++same->count;
    else if (kinds.size() < most) kinds.push_back({what, block.category, block.bytes, 1});
  }
  for (const Kind& kind : kinds)
    text += fmt::format("{}      {:>9}  {:<13} {}{}\n", indent, format_bytes(kind.bytes), name(kind.category),
                        kind.what, kind.count > 1 ? fmt::format(", {} times", kind.count) : "");
  return text;
}

}  // namespace sherd::train
