// Bisections over what may be otherwise than it was said. Where steps do the same, as on another link or with more
// memory, forecasts are priced again; else rivals are forecast anew.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "runtime/tensor/indices.h"
#include "tools/plan/answer.h"
#include "tools/plan/on_threads.h"

namespace sherd::plan {

namespace {

constexpr double kWidest = 64;                        // a link, each way
constexpr double kMostTimes = 16;                     // sequences, tokens and micro-batches
constexpr double kResolution = 0.01, kCoarse = 0.06;  // of what is priced again, of what is forecast again

/// What is said of a number of a thing: bytes in powers of 1000.
std::string quantity_text(const std::string& what, double value) {
  if (what.find("bytes") != what.npos) return format_bytes(std::llround(value));
  return fmt::format("{:.0f}", value);
}

/// The winner where the link between hosts is otherwise, or within them if there is one host.
std::string winner_on_link(const std::vector<Option>& options, const PlannedFor& planned, double bytes_per_second) {
  PlannedFor other = planned;
  FabricModel& fabric = other.cluster->out ? *other.cluster->out : other.cluster->in;
  fabric = fabric.with_rate(bytes_per_second);
  std::vector<Candidate> candidates = candidates_of(options, planned);
  for (std::size_t i = 0; i < options.size(); ++i)
    if (options[i].has_forecast()) candidates[i].seconds = simulate(options[i].forecast.step, *other.cluster).seconds;
  const Choice choice = choose(candidates, planned.memory_limit, kTie);
  return choice.best ? options[*choice.best].name : "";
}

std::string winner_within(const std::vector<Option>& options, PlannedFor planned, double bytes) {
  planned.memory_limit = std::llround(bytes);
  const Choice choice = choose(options, planned);
  return choice.best ? options[*choice.best].name : "";
}

std::string winner_name(const std::optional<Option>& option) { return option ? option->name : ""; }

/// A flip that is looked for.
struct Sought {
  FlipOf flip;
  bool is_whole = false;
  std::function<std::string(double)> winner_at;
};

/// Looks for all, in both directions, on all CPUs. A search in one direction goes step by step.
std::vector<FlipOf> find_all(const std::vector<Sought>& sought, const std::string& now) {
  std::vector<std::pair<std::size_t, double>> directions;
  for (const std::size_t i : indices(sought))
    for (const double to : {sought[i].flip.from, sought[i].flip.to})
      if (to != sought[i].flip.now) directions.emplace_back(i, to);
  std::vector<std::optional<Flip>> each(directions.size());
  on_threads(directions.size(), [&](std::size_t d) {
    const auto& [i, to] = directions[d];
    const Sought& one = sought[i];
    each[d] = find_flip(one.flip.now, to, one.is_whole ? kCoarse : kResolution, one.is_whole, now, one.winner_at);
  });
  std::vector<FlipOf> flips;
  for (const Sought& one : sought) flips.push_back(one.flip);
  for (const std::size_t d : indices(directions))
    if (each[d]) flips[directions[d].first].flips.push_back(*each[d]);
  return flips;
}

}  // namespace

std::string FlipOf::text() const {
  std::string line = fmt::format("{}, now {}: ", what, quantity_text(what, now));
  if (flips.empty())
    return line + fmt::format("the same from {} to {}", quantity_text(what, from), quantity_text(what, to));
  for (std::size_t i = 0; i < flips.size(); ++i)
    line += fmt::format("{}{} {} {}", i > 0 ? "; " : "", flips[i].at < now ? "up to" : "from",
                        quantity_text(what, flips[i].at), flips[i].name.empty() ? "nothing fits" : flips[i].name);
  return line;
}

namespace {

/// What prices and limits alone decide.
void seek_priced_again(std::vector<Sought>& sought, const std::vector<Option>& options, const PlannedFor& planned) {
  const Cluster& cluster = *planned.cluster;
  if (planned.ranks > 1 && cluster.axes.empty()) {
    const FabricModel& fabric = cluster.out ? *cluster.out : cluster.in;
    const double now = fabric.link.bytes_per_second;
    sought.push_back(
        {{.what = fmt::format("bytes/s of {}", fabric.name), .now = now, .from = now / kWidest, .to = now * kWidest},
         false,
         [&](double rate) { return winner_on_link(options, planned, rate); }});
  }
  if (planned.memory_limit > 0) {
    const auto now = static_cast<double>(planned.memory_limit);
    sought.push_back(
        {{.what = "bytes of memory of a rank", .now = now, .from = now / kMostTimes, .to = now * kMostTimes},
         false,
         [&](double bytes) { return winner_within(options, planned, bytes); }});
  }
}

}  // namespace

std::vector<FlipOf> flips_of(const Rivals& rivals, const Answer& answer) {
  const std::vector<Option>& options = rivals.options();
  const PlannedFor& planned = rivals.planned();
  std::vector<Sought> sought;
  if (!answer.choice.best || !planned.cluster) return {};
  const Option& best = options[*answer.choice.best];
  seek_priced_again(sought, options, planned);
  const TrainConfig& config = best.config;
  const bool is_free = config.plan.numerics.layout_free();  // then a batch has whole leaves, and no other micro-batches
  const auto data_ranks = static_cast<double>(nn::count_data_ranks(config.plan.mesh.of(planned.ranks)));
  const double micro =
      is_free ? static_cast<double>(config.plan.leaves) / data_ranks : static_cast<double>(config.plan.micro_batches);
  const double sequences = static_cast<double>(config.batch) / data_ranks / micro;
  sought.push_back({{.what = is_free ? "sequences of a leaf" : "sequences of a rank at a time",
                     .now = sequences,
                     .from = 1,
                     .to = sequences * kMostTimes},
                    true,
                    [=, &rivals](double n) {
                      return winner_name(
                          rivals.winning({{"batch", fmt::format("{:.0f}", n * micro * data_ranks)}}, n / sequences));
                    }});
  const auto tokens = static_cast<double>(config.model.sequence);
  sought.push_back({{.what = "tokens of a sequence",
                     .now = tokens,
                     .from = std::ceil(tokens / kMostTimes),
                     .to = tokens * kMostTimes},
                    true,
                    [=, &rivals, &config](double n) {
                      const std::string text = fmt::format("{:.0f}", n);
                      Changes changes{{"model.sequence", text}};
                      if (config.model.positions > 0) changes.emplace_back("model.positions", text);
                      return winner_name(rivals.winning(changes, n / tokens));
                    }});
  if (is_free) return find_all(sought, best.name);
  sought.push_back({{.what = "micro-batches of a step", .now = micro, .from = micro, .to = micro * kMostTimes},
                    true,
                    [&rivals](double n) { return winner_name(rivals.of_micro_batches(std::llround(n))); }});
  return find_all(sought, best.name);
}

std::optional<Accumulated> accumulate_for(double mfu, std::int64_t most, const Rivals& rivals, const ModelSize& size) {
  const std::vector<Option>& options = rivals.options();
  const PlannedFor& planned = rivals.planned();
  const Choice choice = choose(options, planned);
  if (!choice.best) return std::nullopt;
  const auto now = mfu_of(size.flops, options[*choice.best].simulated->seconds, planned);
  if (!now || *now >= mfu) return std::nullopt;
  const TrainConfig& config = options[*choice.best].config;
  const auto tried = [&](std::int64_t micro_batches) -> std::optional<Accumulated> {
    const auto option = rivals.of_micro_batches(micro_batches);
    if (!option) return std::nullopt;
    const double times = static_cast<double>(micro_batches) / static_cast<double>(config.plan.micro_batches);
    const double seconds = option->simulated->seconds;
    return Accumulated{micro_batches, option->name, *mfu_of(size.flops * times, seconds, planned), seconds};
  };
  std::int64_t below = config.plan.micro_batches;
  std::optional<Accumulated> found;
  for (std::int64_t next = below * 2; next <= most && !found; next *= 2) {
    found = tried(next);
    if (!found) return std::nullopt;
    if (found->mfu < mfu) below = next, found.reset();
  }
  while (found && found->micro_batches > below + 1) {
    const std::int64_t middle = (below + found->micro_batches) / 2;
    const auto at = tried(middle);
    if (at && at->mfu >= mfu) found = at;
    else below = middle;
  }
  return found;
}

}  // namespace sherd::plan
