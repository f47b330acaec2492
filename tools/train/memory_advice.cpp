// A lever is a key of the config with values from mild to strong. Levers are tried alone, then together: all at their
// strongest, and if that fits each is taken back as far as it may be, the one that costs most first.
#include "tools/train/memory_advice.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <ranges>
#include <utility>

#include "runtime/tensor/indices.h"
#include "tools/train/explained_peak.h"
#include "tools/train/ghost_step.h"
#include "tools/train/ghost_training.h"
#include "tools/train/step_prices.h"
#include "tools/train/stop_signals.h"

namespace sherd::train {

namespace {

using Clock = std::chrono::steady_clock;

const std::string kBudget = "memory_budget";  // of captured steps, tried alone: it is as strong as it needs to be

struct Lever {
  std::string key;
  std::vector<std::string> values;  // mild to strong, all stronger than the config's
};

std::vector<std::string> after(std::initializer_list<std::string_view> ladder, std::string_view now) {
  const auto* const place = std::ranges::find(ladder, now);
  if (place == ladder.end()) return {};
  return {place + 1, ladder.end()};
}

// Multiples of `now` by which `batch` divides, and of the batch that are left of it.
std::vector<std::string> finer_parts(std::int64_t now, std::int64_t whole) {
  std::vector<std::string> parts;
  for (std::int64_t n = now + 1; n <= whole; ++n)
    if (whole % n == 0) parts.push_back(std::to_string(n));
  return parts;
}

std::vector<std::string> smaller_batches(std::int64_t batch, std::int64_t unit) {
  std::vector<std::string> batches;
  for (std::int64_t n = batch / 2 / unit * unit; n >= unit; n = n / 2 / unit * unit)
    batches.push_back(std::to_string(n));
  return batches;
}

// In the order in which they are taken back: what costs most comes first, the batch, another recipe, before all.
std::vector<Lever> levers_of(TrainConfig config, int ranks, std::int64_t limit) {
  const int data_ranks = nn::count_data_ranks(config.plan.mesh.of(ranks));
  const nn::TrainingPlan& plan = config.plan;
  const bool is_free = plan.numerics.layout_free();
  std::vector<Lever> levers{{"batch", smaller_batches(config.batch, is_free ? plan.leaves : data_ranks)}};
  // Where replicas divide the shards they stay in memory, and the strongest strategy of a hybrid one is that.
  const bool may_offload_all =
      plan.fully_shard && !is_free && plan.gather.is_exact() && !plan.strategy.value().needs_replicas;
  levers.push_back({"offload", may_offload_all ? after({"none", "optimizer", "all"}, plan.offload.text())
                                               : after({"none", "optimizer"}, plan.offload.text())});
  levers.push_back({"offload_activations", after({"none", "blocks"}, plan.offload_activations.text())});
  levers.push_back(
      {"units", plan.fully_shard ? after({"coarse", "block", "fine"}, plan.units.text()) : std::vector<std::string>{}});
  if (plan.fully_shard && plan.micro_batches > 1 && data_ranks > 1 && !plan.accumulate_shards)
    levers.push_back({"accumulate_shards", {"true"}});
  if (!is_free) levers.push_back({"accumulate", finer_parts(plan.micro_batches, config.batch / data_ranks)});
  levers.push_back({"recompute", after({"none", "selective", "full"}, plan.recompute.text())});
  levers.push_back({kBudget, {std::to_string(limit)}});
  if (plan.fully_shard && data_ranks > 1) {
    std::vector<std::string> values = after({"no_shard", "shard_optimizer", "shard_grad_op", "full_shard"},
                                            plan.strategy == "replicate" ? "no_shard" : plan.strategy.text());
    if (values.empty())
      values = after({"hybrid_shard_grad_op", "hybrid_shard", "hybrid_shard_state"}, plan.strategy.text());
    levers.push_back({"strategy", values});
  }
  std::erase_if(levers, [](const Lever& lever) { return lever.values.empty(); });
  return levers;
}

class Search {
 public:
  Search(const TrainConfig& config, int ranks, std::int64_t data_vocabulary, std::int64_t limit, Clock::time_point end)
      : config_(config),
        ranks_(ranks),
        data_vocabulary_(data_vocabulary),
        limit_(limit),
        end_(end),
        levers_(levers_of(config, ranks, limit)) {
    config_.memory_limit = 0;
  }

  Advice run() {
    for (auto lever = levers_.rbegin(); lever != levers_.rend(); ++lever)  // what costs least comes first
      if (lever->key != "batch") try_alone(*lever);
    for (const bool changes_batch : {false, true})
      if (advice_.fits.empty()) try_together(changes_batch);
    return std::move(advice_);
  }

 private:
  using Choice = std::map<std::string, std::string>;  // values of levers by key

  void try_alone(const Lever& lever) {
    for (const std::string& value : lever.values)
      if (const auto suggestion = fitting({{lever.key, value}})) return advice_.fits.push_back(*suggestion);
  }

  void try_together(bool changes_batch) {
    Choice choice;
    for (const Lever& lever : levers_)
      if (lever.key != kBudget && (changes_batch || lever.key != "batch")) choice[lever.key] = lever.values.back();
    if (changes_batch && choice.contains("batch")) choice.erase("accumulate");  // a sequence is one part
    std::optional<Suggestion> best = fitting(choice);
    if (!best) return;
    for (const Lever& lever : levers_) {
      Choice milder = choice;
      if (milder.erase(lever.key) == 0) continue;
      std::optional<Suggestion> fits = fitting(milder);
      for (std::size_t i = 0; !fits && i + 1 < lever.values.size(); ++i) {
        milder[lever.key] = lever.values[i];
        fits = fitting(milder);
      }
      if (!fits) continue;
      choice = milder;
      best = fits;
    }
    advice_.fits.push_back(*best);
  }

  // Nothing: it does not fit, or as tried().
  std::optional<Suggestion> fitting(const Choice& choice) {
    std::optional<Suggestion> suggestion = tried(choice);
    return suggestion && suggestion->bytes <= limit_ ? suggestion : std::nullopt;
  }

  // Nothing: it is no valid config, or there is no time.
  std::optional<Suggestion> tried(const Choice& choice) {
    if (Clock::now() >= end_) {
      advice_.is_complete = false;
      return std::nullopt;
    }
    Suggestion suggestion{.config = config_};
    ConfigTable table = bind(suggestion.config);
    if (choice.contains(kBudget) && !std::exchange(suggestion.config.plan.compiled, true))
      suggestion.flags = "--compile";
    for (const auto& [key, value] : choice) {
      table.set_text(key, value, key);
      std::string flag = key;
      std::ranges::replace(flag, '_', '-');
      suggestion.flags +=
          fmt::format("{}--{}{}", suggestion.flags.empty() ? "" : " ", flag, table.is_switch(key) ? "" : " " + value);
    }
    try {
      measure(suggestion);
    } catch (const Error&) { return std::nullopt; }
    if (advice_.smallest.bytes == 0 || suggestion.bytes < advice_.smallest.bytes) advice_.smallest = suggestion;
    return suggestion;
  }

  void measure(Suggestion& suggestion) const {
    std::vector<int> of;
    if (ranks_ <= 8)
      for (const int rank : up_to(ranks_)) of.push_back(rank);
    else of = {0, ranks_ / 2, ranks_ - 1};
    for (const int rank : of) {
      const PredictedPeak peak = predict_peak(suggestion.config, rank, ranks_, data_vocabulary_);
      if (peak.bytes > suggestion.bytes) {
        suggestion.bytes = peak.bytes;
        suggestion.gradients = peak.peak[static_cast<std::size_t>(MemoryCategory::gradients)];
      }
      const std::int64_t least = advice_.smallest.bytes;
      if (suggestion.bytes > limit_ && least > 0 && suggestion.bytes > least) break;  // no use already
    }
  }

  TrainConfig config_;
  const int ranks_;
  const std::int64_t data_vocabulary_, limit_;
  const Clock::time_point end_;
  const std::vector<Lever> levers_;
  Advice advice_;
};

double seconds_per_token(const Suggestion& s) {
  return *s.seconds / static_cast<double>(s.config.batch * s.config.model.sequence);
}

// Memory is advised on for ranks of any device; a step that nothing prices is advised on all the same.
void price(Advice& advice, const TrainConfig& config, int ranks, std::int64_t data_vocabulary, Clock::time_point end) {
  const StepPrices prices(config.plan.device, ranks);
  advice.prices = prices.text();
  if (!prices.are_known()) return;
  bool are_all_priced = true;
  for (Suggestion& fits : advice.fits) {
    try {
      if (Clock::now() < end)
        fits.seconds = prices.of(ghost_step(fits.config, 0, ranks, data_vocabulary).timeline, fits.config.link).seconds;
    } catch (const Error&) {}
    are_all_priced = are_all_priced && fits.seconds;
  }
  if (are_all_priced) std::ranges::stable_sort(advice.fits, {}, seconds_per_token);
}

// Whether `rank` runs out of memory too, by prediction.
bool runs_out(const TrainConfig& config, int rank, int ranks, std::int64_t data_vocabulary) {
  try {
    predict_peak(config, rank, ranks, data_vocabulary, {.memory_limit = config.memory_limit});
    return false;
  } catch (const OutOfMemory&) { return true; }
}

std::string pictured(const MemoryLog::Picture& picture) {
  std::string text = print_picture(picture, 8, "    ");
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string indented(std::string_view text) {
  std::string result;
  if (text.ends_with('\n')) text.remove_suffix(1);
  for (const auto line : std::views::split(text, '\n'))
    result += fmt::format("\n    {}", std::string_view(line.begin(), line.end()));
  return result;
}

std::string text_of(const Advice& advice, std::int64_t limit) {
  if (!advice.fits.empty()) {
    std::string text = advice.prices;
    for (const Suggestion& fits : advice.fits) text += "\n    " + fits.text();
    return text;
  }
  if (advice.smallest.bytes == 0) return "no other setting was tried";
  const std::string so_far = advice.is_complete ? "" : " (of those that there was time to try)";
  return fmt::format("no setting meets a limit of {}: the least{} is {} ({} bytes), by {}, which holds the above",
                     format_bytes(limit), so_far, format_bytes(advice.smallest.bytes), advice.smallest.bytes,
                     advice.smallest.flags);
}

void explain(OutOfMemory& error, TrainConfig config, const ProcessGroup& group, std::int64_t data_vocabulary,
             HeldMemory held) {
  if (held.of_libraries > 0)
    error.add("beside", fmt::format("{} of workspace of the device's libraries: what follows is without it",
                                    format_bytes(held.of_libraries)));
  if (config.memory_limit > 0) config.memory_limit = std::max<std::int64_t>(config.memory_limit - held.of_libraries, 1);
  const int rank = group.rank(), ranks = group.size();
  for (int lower = 0; config.memory_limit > 0 && lower < std::min(rank, 8); ++lower)
    if (runs_out(config, lower, ranks, data_vocabulary))
      return error.add("fits", fmt::format("rank {} runs out of memory too, and says what would fit", lower));
  const std::int64_t limit = config.memory_limit > 0 ? config.memory_limit : held.most - held.of_libraries;
  const ExplainedPeak explained = explain_peak(config, rank, ranks, data_vocabulary);
  if (explained.refusal)
    error.add("when",
              fmt::format("{} for {}, by a prediction of this rank, with\n{}", format_bytes(explained.refusal->bytes),
                          name(explained.refusal->category), pictured(explained.refusal->held)));
  error.add("needs", fmt::format("{} ({} bytes) at the peak, in {}, with\n{}", format_bytes(explained.predicted.bytes),
                                 explained.predicted.bytes, explained.predicted.when, pictured(explained.peak)));
  error.add("modules", indented(print_module_memory(explained.modules)));
  const Advice advice = advise_on_memory(config, ranks, data_vocabulary, limit);
  if (const Suggestion& least = advice.smallest; advice.fits.empty() && least.bytes > 0)
    error.add("least", fmt::format("of memory, by {}, with\n{}", least.flags,
                                   pictured(explain_peak(least.config, 0, ranks, data_vocabulary).peak)));
  error.add("fits", text_of(advice, limit));
}

}  // namespace

std::string Suggestion::text() const {
  std::string text = fmt::format("{:<40} {:>9} ({} bytes) at most per rank", flags, format_bytes(bytes), bytes);
  if (seconds) text += fmt::format(", {:.3g} ms a step", 1e3 * *seconds);
  if (seconds && flags.find("--batch ") != flags.npos) text += fmt::format(" of {} sequences", config.batch);
  if (flags.find("--accumulate ") != flags.npos)
    text += fmt::format("; {} of {}gradients stay from one micro-batch to the next", format_bytes(gradients),
                        config.plan.accumulate_shards ? "shards of " : "whole ");
  return text;
}

Advice advise_on_memory(const TrainConfig& config, int ranks, std::int64_t data_vocabulary, std::int64_t limit,
                        std::chrono::milliseconds time) {
  const Clock::time_point start = Clock::now();
  Advice advice = Search(config, ranks, data_vocabulary, limit, start + time * 3 / 4).run();
  price(advice, config, ranks, data_vocabulary, start + time);
  return advice;
}

void explain_out_of_memory(OutOfMemory& error, const TrainConfig& config, const ProcessGroup& group,
                           std::int64_t data_vocabulary, HeldMemory held) noexcept {
  try {
    const StopSignals held_back;  // a launcher ends the ranks when the first of them has ended
    explain(error, config, group, data_vocabulary, held);
  } catch (const std::exception& failure) {
    try {
      error.add("fits", fmt::format("unknown: {}", failure.what()));
    } catch (const std::exception&) {}  // there is no memory for words
  }
}

}  // namespace sherd::train
