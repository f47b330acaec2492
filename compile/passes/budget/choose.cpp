#include "compile/passes/budget/choose.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>
#include <vector>

namespace sherd::ir {

namespace {

using Load = StepModel::Load;

constexpr std::size_t kMostExact = 14;

/// One gap done otherwise.
struct Move {
  int gap = -1;
  Over over = Over::held;
};

class Chooser {
 public:
  Chooser(const StepModel& model, std::int64_t limit, const Start& start)
      : model_(model), limit_(limit), start_(start), choice_(start.choice) {}

  std::optional<Choice> run(const Choice* from) {
    const std::vector<int> few = gaps_that_matter();
    if (few.size() <= kMostExact) {
      const std::optional<Choice> best = best_of_all(few);
      if (!best) return best;
      choice_ = *best;
      load_ = weigh();
      hold_again();
      return choice_;
    }
    if (from) choice_ = *from;
    if (!reach()) return std::nullopt;
    hold_again();
    return choice_;
  }

  std::vector<Choice> fall() {
    std::vector<Choice> choices;
    load_ = weigh(true);
    do {
      choices.push_back(choice_);
      limit_ = load_.peak - std::max<std::int64_t>(1, load_.peak / 100);
    } while (reach());
    return choices;
  }

 private:
  Load weigh(bool finds_gaps = false) const { return model_.weigh(choice_, limit_, finds_gaps); }
  Load weigh(const Move& move) {
    const Over before = std::exchange(choice_[at(move.gap)], move.over);
    const Load load = weigh();
    choice_[at(move.gap)] = before;
    return load;
  }
  bool is_unit(std::size_t gap) const { return model_.gaps()[gap].is_unit; }
  bool is_fixed(std::size_t gap) const { return start_.is_fixed[gap]; }

  // Lets go of one thing after the other until the peak is within the limit. False: nothing takes more off.
  bool reach() {
    load_ = weigh(true);
    while (load_.peak > limit_) {
      Move best = best_of(moves_at_peak());
      if (best.gap < 0) best = best_of(moves_back());
      if (best.gap < 0) return false;
      choice_[at(best.gap)] = best.over;
      load_ = weigh(true);
    }
    return true;
  }

  // Equal gaps in equal blocks stand for each other: the first is tried, which is the longest.
  std::vector<Move> moves_at_peak() const {
    std::map<std::pair<int, Over>, int> first_of_kind;
    for (const int gap : load_.at_peak) {
      if (choice_[at(gap)] == Over::brief || is_unit(at(gap)) || is_fixed(at(gap))) continue;
      const auto [found, is_new] = first_of_kind.try_emplace({model_.gaps()[at(gap)].kind, choice_[at(gap)]}, gap);
      if (!is_new && model_.gaps()[at(gap)].first < model_.gaps()[at(found->second)].first) found->second = gap;
    }
    std::vector<Move> moves;
    for (const auto& [kind, gap] : first_of_kind)
      moves.push_back({gap, kind.second == Over::held ? Over::gone : Over::brief});
    return moves;
  }

  // What was let go may come back at the peak, with all that this needs.
  std::vector<Move> moves_back() const {
    std::vector<Move> moves;
    for (std::size_t g = 0; g < choice_.size(); ++g)
      if (choice_[g] != start_.choice[g]) moves.push_back({static_cast<int>(g), start_.choice[g]});
    return moves;
  }

  Move best_of(const std::vector<Move>& moves) {
    Move best;
    double best_price = 0;
    for (const Move& move : moves) {
      const Load load = weigh(move);
      const double gain = load_.excess - load.excess;
      if (!std::isfinite(load.seconds) || gain <= 0) continue;
      const double price = (load.seconds - load_.seconds) / gain;
      if (best.gap >= 0 && price >= best_price) continue;
      best = move;
      best_price = price;
    }
    return best;
  }

  // What later ones have made needless, the dearest first; then what was recorded to be gathered twice.
  void hold_again() {
    std::vector<std::pair<double, int>> gone;
    for (std::size_t g = 0; g < choice_.size(); ++g)
      if (choice_[g] != start_.choice[g])
        gone.emplace_back(weigh({static_cast<int>(g), start_.choice[g]}).seconds, static_cast<int>(g));
    std::ranges::sort(gone);
    for (const auto& [seconds, gap] : gone) keep_if_it_fits({gap, start_.choice[at(gap)]});
    for (std::size_t g = 0; g < choice_.size(); ++g)
      if (is_unit(g) && !is_fixed(g) && choice_[g] != Over::held) keep_if_it_fits({static_cast<int>(g), Over::held});
  }
  void keep_if_it_fits(const Move& move) {
    const Load load = weigh(move);
    if (load.peak > limit_ || load.seconds > load_.seconds) return;
    choice_[at(move.gap)] = move.over;
    load_ = load;
  }

  std::vector<int> gaps_that_matter() const {
    std::vector<int> gaps;
    for (std::size_t g = 0; g < model_.gaps().size(); ++g)
      if (choice_[g] == Over::held && !is_fixed(g)) gaps.push_back(static_cast<int>(g));
    return gaps;
  }

  std::optional<Choice> best_of_all(const std::vector<int>& gaps) {
    std::optional<Choice> best;
    double seconds = 0;
    for (std::size_t set = 0; set < std::size_t{1} << gaps.size(); ++set) {
      for (std::size_t i = 0; i < gaps.size(); ++i)
        choice_[at(gaps[i])] = (set >> i & 1) != 0 ? Over::gone : Over::held;
      const Load load = weigh();
      if (load.peak > limit_ || (best && load.seconds >= seconds)) continue;
      best = choice_;
      seconds = load.seconds;
    }
    return best;
  }

  const StepModel& model_;
  std::int64_t limit_;
  const Start& start_;
  Choice choice_;
  Load load_;
};

}  // namespace

std::optional<Choice> choose_gaps(const StepModel& model, std::int64_t limit, const Start& start, const Choice* from) {
  return Chooser(model, limit, start).run(from);
}

std::vector<Choice> falling_choices(const StepModel& model, const Start& start) {
  return Chooser(model, 0, start).fall();
}

// Limits fall by a hundredth of what is held until one is not reached.
Choice least_choice(const StepModel& model, const Start& start) {
  Choice least = start.choice;
  for (;;) {
    const std::int64_t peak = model.weigh(least).peak;
    const std::optional<Choice> lower = choose_gaps(model, peak - std::max<std::int64_t>(1, peak / 100), start);
    if (!lower) return least;
    least = *lower;
  }
}

}  // namespace sherd::ir
