// Best first: a way stands in the queue with what it takes at least by its passes, then by its passes and the rest, and
// is forecast in full when it comes up again. Rounds have a fixed size, so that what is tried does not depend on
// threads.
#include "tools/plan/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "tools/plan/bounds.h"
#include "tools/plan/on_threads.h"

namespace sherd::plan {

namespace {

constexpr std::size_t kRound = 8;
constexpr double kRounding = 1e-9;       // of sums in another order
constexpr double kSlackOfBytes = 0.999;  // of ghosts with few layers

struct Waiting {
  double seconds;  ///< at least
  std::size_t way;
  bool knows_rest;
  friend bool operator>(const Waiting& a, const Waiting& b) {
    return std::tie(a.seconds, a.way) > std::tie(b.seconds, b.way);
  }
};

/// What makes passes equal: tp, sequences of a micro-batch and recomputation.
using PassKey = std::tuple<int, std::int64_t, int>;
PassKey pass_key(const SearchSpace& space, const Way& way) {
  return {space.sharding(way).tp, space.sequences(way), way.recompute};
}

/// A way with the least to compute beside what it does for its units: of one micro-batch or of two.
Way rest_of(Way way, std::int64_t micro_batches) {
  way.recompute = 0;
  way.micro_batches = micro_batches;
  way.accumulate_shards = way.accumulate_shards && micro_batches > 1;
  return way;
}
using RestKey = std::tuple<std::uint32_t, int, std::int64_t, bool>;
RestKey rest_key(const Way& way) { return {way.sharding, way.units, way.micro_batches, way.accumulate_shards}; }

class Search {
 public:
  Search(const SearchSpace& space, const PlannedFor& planned, const SearchOptions& options)
      : space_(space), planned_(planned), options_(options) {}

  Found run() {
    found_.ways = space_.ways().size();
    found_.least_bytes = std::numeric_limits<std::int64_t>::max();
    bound_passes();
    while (round()) {}
    found_.too_slow = queue_.size();
    if (!queue_.empty()) found_.untried_seconds = queue_.top().seconds;
    if (found_.least_bytes == std::numeric_limits<std::int64_t>::max()) found_.least_bytes = 0;
    if (!queue_.empty() && queue_.top().seconds <= slowest_of_best()) {
      found_.not_searched = found_.too_slow;
      found_.too_slow = 0;
    }
    return std::move(found_);
  }

 private:
  const Way& way(std::size_t index) const { return space_.ways()[index]; }
  double slowest_of_best() const {
    return found_.best.size() < options_.best ? HUGE_VAL : found_.best.back().simulated->seconds;
  }
  /// A way that holds so many bytes at least.
  void leave_out_of(std::int64_t bytes) {
    ++found_.too_large;
    found_.least_bytes = std::min(found_.least_bytes, bytes);
  }
  bool fits(std::int64_t bytes) const { return planned_.memory_limit == 0 || bytes <= planned_.memory_limit; }

  void bound_passes() {
    std::vector<std::pair<PassKey, Way>> all;
    for (const Way& way : space_.ways())
      if (passes_.try_emplace(pass_key(space_, way)).second) all.emplace_back(pass_key(space_, way), way);
    on_threads(all.size(), [&](std::size_t i) {
      passes_.find(all[i].first)->second = pass_bound(space_, all[i].second, planned_);
    });
    found_.ghosts += all.size();
    for (std::size_t i = 0; i < space_.ways().size(); ++i) {
      const PassBound& pass = passes_.at(pass_key(space_, way(i)));
      if (!pass.left_out.empty()) ++found_.left_out[pass.left_out];
      else if (!fits(std::llround(pass.activations))) leave_out_of(std::llround(pass.activations));
      else queue_.push({least_seconds(pass, way(i).micro_batches), i, false});
    }
  }

  /// The next ways in the queue, each a step further; false once none can be among the best.
  bool round() {
    std::vector<Waiting> next;
    while (!queue_.empty() && next.size() < kRound && queue_.top().seconds <= slowest_of_best()) {
      if (queue_.top().knows_rest && found_.tried + next.size() >= options_.tries) break;
      next.push_back(queue_.top());
      queue_.pop();
    }
    std::vector<std::pair<RestKey, Way>> rests;
    std::vector<std::size_t> tried;
    for (const Waiting& waiting : next) {
      if (waiting.knows_rest) tried.push_back(waiting.way);
      else
        for (const std::int64_t micro : {1, 2})
          if (const Way rest = rest_of(way(waiting.way), micro);
              micro <= way(waiting.way).micro_batches && rests_.try_emplace(rest_key(rest)).second)
            rests.emplace_back(rest_key(rest), rest);
    }
    std::vector<Option> options(tried.size());
    on_threads(rests.size() + tried.size(), [&](std::size_t i) {
      if (i < rests.size()) rests_.find(rests[i].first)->second = rest_bound(space_, rests[i].second, planned_);
      else options[i - rests.size()] = option_of_many(space_.config(way(tried[i - rests.size()])), planned_);
    });
    found_.ghosts += rests.size();
    for (const Waiting& waiting : next)
      if (!waiting.knows_rest) add_rest(waiting);
    for (std::size_t i = 0; i < tried.size(); ++i) add(tried[i], std::move(options[i]));
    return !next.empty();
  }

  struct Least {
    double seconds;
    std::int64_t bytes;
  };
  Least least(std::size_t index) const {
    const Way& own = way(index);
    const PassBound& pass = passes_.at(pass_key(space_, own));
    const RestBound &one = rests_.at(rest_key(rest_of(own, 1))),
                    &two = own.micro_batches > 1 ? rests_.at(rest_key(rest_of(own, 2))) : one;
    return {least_seconds(pass, one, two, own.micro_batches),
            std::llround(kSlackOfBytes * (pass.activations + one.state))};
  }

  void add_rest(const Waiting& waiting) {
    for (const std::int64_t micro : {1, 2}) {
      const auto rest = rests_.find(rest_key(rest_of(way(waiting.way), micro)));
      if (micro > way(waiting.way).micro_batches || rest->second.left_out.empty()) continue;
      ++found_.left_out[rest->second.left_out];
      return;
    }
    const Least least = this->least(waiting.way);
    if (!fits(least.bytes)) leave_out_of(least.bytes);
    else queue_.push({std::max(waiting.seconds, least.seconds), waiting.way, true});
  }

  void add(std::size_t index, Option option) {
    if (!option.has_forecast()) {
      ++found_.left_out[option.left_out];
      return;
    }
    ++found_.tried;
    const Least least = this->least(index);
    const double seconds = option.simulated->seconds;
    if (least.seconds > seconds * (1 + kRounding) || least.bytes > option.forecast.memory.bytes) ++found_.broken_bounds;
    if (!fits(option.forecast.memory.bytes)) {
      ++found_.tried_too_large;
      found_.least_bytes = std::min(found_.least_bytes, option.forecast.memory.bytes);
      return;
    }
    option.name = space_.name(way(index));
    const auto before = [](double a, const Option& b) { return a < b.simulated->seconds; };
    found_.best.insert(std::upper_bound(found_.best.begin(), found_.best.end(), seconds, before), std::move(option));
    if (found_.best.size() > options_.best) found_.best.pop_back();
  }

  const SearchSpace& space_;
  const PlannedFor& planned_;
  const SearchOptions& options_;
  std::map<PassKey, PassBound> passes_;
  std::map<RestKey, RestBound> rests_;
  std::priority_queue<Waiting, std::vector<Waiting>, std::greater<>> queue_;
  Found found_;
};

std::string tenths_of_ms(double seconds) { return fmt::format("{:.1f} ms", seconds * 1e3); }

}  // namespace

std::vector<std::string> Found::text() const {
  std::vector<std::string> lines{
      fmt::format("{} ways: {} forecast in full, of which {} do not fit; {} ghosts for bounds", ways, tried,
                  tried_too_large, ghosts)};
  if (too_large > 0) lines.push_back(fmt::format("{} left out: their state and activations do not fit", too_large));
  if (too_slow > 0)
    lines.push_back(fmt::format("{} left out: they take {} at least, the last one here {}", too_slow,
                                tenths_of_ms(untried_seconds), tenths_of_ms(best.back().simulated->seconds)));
  if (not_searched > 0)
    lines.push_back(fmt::format("{} not searched, as --tries says: they take {} at least", not_searched,
                                tenths_of_ms(untried_seconds)));
  for (const auto& [why, count] : left_out) lines.push_back(fmt::format("{} left out: {}", count, why));
  if (broken_bounds > 0)
    lines.push_back(
        fmt::format("{} of the forecasts are below their bounds, which may have left out better ways", broken_bounds));
  return lines;
}

std::string Found::why_none(std::int64_t memory_limit) const {
  if (tried + too_large + not_searched == 0 && !left_out.empty()) {
    const auto most = std::ranges::max_element(left_out, {}, [](const auto& why) { return why.second; });
    return fmt::format("No way can be run: {}.", most->first);
  }
  const std::string none = not_searched > 0 ? "None of those tried fits" : "No way fits";
  return fmt::format(
      "{} into {}: a rank holds {} at least. {}.", none, format_bytes(memory_limit), format_bytes(least_bytes),
      not_searched > 0 ? "Give more --tries, more ranks or fewer tokens" : "Take more ranks or fewer tokens");
}

Found search(const SearchSpace& space, const PlannedFor& planned, const SearchOptions& options) {
  return Search(space, planned, options).run();
}

}  // namespace sherd::plan
