#include "compile/passes/budget/choose.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace sherd::ir {

namespace {

using Load = StepModel::Load;

constexpr std::size_t kMostExact = 1 << 14;
constexpr std::size_t kMostWork = 400'000;  // of exchanges: choices that are weighed, times gaps

/// One gap done otherwise.
struct Move {
  int gap = -1;
  Over over = Over::held;
};

/// The cheapest of some moves, and what the next one costs for a byte.
struct Cheapest {
  Move move{};
  double next = std::numeric_limits<double>::infinity();
};

/// What it costs to let go of something: seconds, or the bytes that all nodes read and write.
enum class Cost : std::uint8_t { seconds, moved };

class Chooser {
 public:
  Chooser(const StepModel& model, std::int64_t limit, const Start& start, Cost cost = Cost::seconds)
      : model_(model), limit_(limit), start_(start), cost_(cost), choice_(start.choice) {}

  std::optional<Choice> run(const Choice* from) {
    const std::vector<int> few = gaps_that_matter();
    if (num_choices(few) <= kMostExact) {
      if (const std::optional<Choice> best = best_of_all(few)) {
        choice_ = *best;
        load_ = weigh();
        hold_again();
        return choice_;
      }
      choice_ = start_.choice;  // what is let go of for less than a gap is not among all
    }
    if (from) choice_ = *from;
    if (!reach() && (from || !reach_by_bytes())) return std::nullopt;
    hold_again();
    exchange();
    return choice_;
  }

  // The first is within the limit, the peak of each other one lower than that before by a hundredth or more. `from`:
  // all that it need not let go of is held again before.
  std::vector<Choice> fall(const Choice* from = nullptr) {
    if (from) {
      choice_ = *from;
      load_ = weigh();
      const std::int64_t limit = std::exchange(limit_, load_.peak);
      hold_again();
      limit_ = limit;
    }
    std::vector<Choice> choices;
    while (reach()) {
      choices.push_back(choice_);
      limit_ = load_.peak - std::max<std::int64_t>(1, load_.peak / 100);
    }
    return choices;
  }

 private:
  Load weigh(bool is_asked = false) const { return model_.weigh(choice_, limit_, is_asked); }
  Load weigh(const Move& move) {
    ++num_weighed_;
    const Over before = std::exchange(choice_[at(move.gap)], move.over);
    const Load load = weigh();
    choice_[at(move.gap)] = before;
    return load;
  }
  // Beside what is chosen.
  double cost_of(const Load& load) const {
    return cost_ == Cost::seconds ? load.seconds - load_.seconds : load.moved - load_.moved;
  }
  bool is_unit(std::size_t gap) const { return model_.gaps()[gap].is_unit; }

  // What may become of a gap but to be held. What is decided by bytes alone is what no price shifts.
  std::vector<Over> others(std::size_t gap) const {
    const StepModel::Gap& of = model_.gaps()[gap];
    std::vector<Over> others;
    if (is_unit(gap) || of.can_repeat) others.push_back(Over::gone);
    if (of.can_leave) others.push_back(Over::apart);
    if (of.out_by >= 0 && cost_ == Cost::seconds) others.push_back(Over::away);
    return others;
  }
  // What takes less room than this.
  std::vector<Over> after(std::size_t gap) const {
    switch (choice_[gap]) {
      case Over::held: return others(gap);
      case Over::gone: {
        const bool is_recorded = is_unit(gap) && model_.gaps()[gap].gather < 0;
        return is_recorded ? std::vector<Over>() : std::vector{Over::brief};
      }
      case Over::away: return {Over::apart};
      default: return {};
    }
  }
  bool is_fixed(std::size_t gap) const { return start_.is_fixed[gap]; }

  // Lets go of one thing after the other until the peak is within the limit. False: nothing takes more off.
  bool reach() {
    load_ = weigh(true);
    while (load_.peak > limit_) {
      const Cheapest best = cheapest_of(moves_at_peak());
      if (best.move.gap < 0) {
        const Cheapest back = cheapest_of(moves_back());
        if (back.move.gap < 0) return false;
        do_move(back.move);
        continue;
      }
      const Over before = choice_[at(best.move.gap)];
      do_move(best.move);
      while (load_.peak > limit_ && do_alike(best, before)) {}
    }
    return true;
  }
  void do_move(const Move& move) {
    choice_[at(move.gap)] = move.over;
    load_ = weigh(true);
  }
  // The same with the next gap of the kind, as long as that costs less than what was second: nothing else is weighed.
  bool do_alike(const Cheapest& best, Over before) {
    const int kind = model_.gaps()[at(best.move.gap)].kind;
    Move next{.over = best.move.over};
    for (const int gap : load_.at_peak)
      if (choice_[at(gap)] == before && model_.gaps()[at(gap)].kind == kind && may_move(gap) &&
          may_be(gap, next.over) && (next.gap < 0 || model_.gaps()[at(gap)].first < model_.gaps()[at(next.gap)].first))
        next.gap = gap;
    if (next.gap < 0) return false;
    const double price = price_of(next);
    if (!std::isfinite(price) || price > best.next) return false;
    do_move(next);
    return true;
  }
  // Gaps of a kind differ in what may become of them: the last block has no time for copies.
  bool may_be(int gap, Over over) const {
    const std::vector<Over> all = after(at(gap));
    return std::ranges::find(all, over) != all.end();
  }
  bool may_move(int gap) const { return !is_fixed(at(gap)) && gap != stays_; }

  bool reach_by_bytes() {
    choice_ = start_.choice;
    const Cost cost = std::exchange(cost_, Cost::moved);
    const bool is_within = reach();
    cost_ = cost;
    return is_within;
  }

  // Equal gaps in equal blocks stand for each other: the first is tried, which is the longest.
  std::vector<Move> moves_at_peak() const {
    std::map<std::pair<int, Over>, int> first_of_kind;
    for (const int gap : load_.at_peak) {
      if (!may_move(gap)) continue;
      const auto [found, is_new] = first_of_kind.try_emplace({model_.gaps()[at(gap)].kind, choice_[at(gap)]}, gap);
      if (!is_new && model_.gaps()[at(gap)].first < model_.gaps()[at(found->second)].first) found->second = gap;
    }
    std::vector<Move> moves;
    for (const auto& [kind, gap] : first_of_kind)
      for (const Over over : after(at(gap))) moves.push_back({gap, over});
    return moves;
  }

  // What was let go may come back at the peak, with all that this needs.
  std::vector<Move> moves_back() const {
    std::vector<Move> moves;
    for (std::size_t g = 0; g < choice_.size(); ++g)
      if (choice_[g] != start_.choice[g]) moves.push_back({static_cast<int>(g), start_.choice[g]});
    return moves;
  }

  // What a byte costs that the move takes off; infinite where it takes none.
  double price_of(const Move& move) {
    const Load load = weigh(move);
    const double gain = load_.excess - load.excess;
    return std::isfinite(load.seconds) && gain > 0 ? cost_of(load) / gain : std::numeric_limits<double>::infinity();
  }
  Cheapest cheapest_of(const std::vector<Move>& moves) {
    Cheapest best;
    double least = std::numeric_limits<double>::infinity();
    for (const Move& move : moves) {
      const double price = price_of(move);
      if (price < least) {
        best = {move, least};
        least = price;
      } else {
        best.next = std::min(best.next, price);
      }
    }
    return best;
  }

  // What costs most is held again first, or what costs most for its bytes, whichever comes out cheaper; then what was
  // recorded to be gathered twice.
  void hold_again() {
    std::vector<std::pair<double, int>> dearest, best;
    std::vector<Load> alone(choice_.size());
    for (std::size_t g = 0; g < choice_.size(); ++g) {
      const auto gap = static_cast<int>(g);
      if (choice_[g] == start_.choice[g] || gap == stays_) continue;
      alone[g] = weigh({gap, start_.choice[g]});
      const double cost = cost_of(alone[g]);
      dearest.emplace_back(cost, gap);
      best.emplace_back(cost / static_cast<double>(model_.gaps()[g].bytes), gap);
    }
    const std::pair before(choice_, load_);
    keep_all_that_fit(dearest, alone);
    const std::pair first(std::exchange(choice_, before.first), std::exchange(load_, before.second));
    keep_all_that_fit(best, alone);
    if (cost_of(first.second) < 0) std::tie(choice_, load_) = first;
    for (std::size_t g = 0; g < choice_.size(); ++g)
      if (is_unit(g) && !is_fixed(g) && choice_[g] != Over::held) keep_if_it_fits({static_cast<int>(g), Over::held});
      else if (choice_[g] == Over::apart && model_.gaps()[g].out_by >= 0)
        keep_if_it_fits({static_cast<int>(g), Over::away});
  }
  // `alone`: what each of them comes to by itself, which it does until one is kept.
  void keep_all_that_fit(std::vector<std::pair<double, int>>& gaps, const std::vector<Load>& alone) {
    std::ranges::sort(gaps);
    bool is_first = true;
    for (const auto& [cost, gap] : gaps) {
      const Move move{gap, start_.choice[at(gap)]};
      if (is_first) ++num_weighed_;  // as if it were, by which the work of exchanges is bounded
      is_first = !keep_if_it_fits(move, is_first ? alone[at(gap)] : weigh(move)) && is_first;
    }
  }
  bool keep_if_it_fits(const Move& move, const Load& load) {
    if (load.peak > limit_ || cost_of(load) > 0) return false;
    choice_[at(move.gap)] = move.over;
    load_ = load;
    return true;
  }
  void keep_if_it_fits(const Move& move) { keep_if_it_fits(move, weigh(move)); }

  // Does otherwise with one of each kind, and lets others go, or holds others, for it, where that is cheaper.
  void exchange() {
    num_weighed_ = 0;
    std::size_t num_let_go = 0;
    for (std::size_t g = 0; g < choice_.size(); ++g) num_let_go += choice_[g] != start_.choice[g];
    if (3 * num_let_go * choice_.size() > kMostWork) return;  // what hold_again() weighs for one alone
    for (bool is_cheaper = true; std::exchange(is_cheaper, false);) {
      std::set<std::pair<int, Over>> kinds;
      for (std::size_t g = 0; g < choice_.size() && num_weighed_ * choice_.size() < kMostWork; ++g)
        if (!is_unit(g) && !is_fixed(g) && kinds.emplace(model_.gaps()[g].kind, choice_[g]).second)
          is_cheaper = does_otherwise(static_cast<int>(g)) || is_cheaper;
    }
  }
  bool does_otherwise(int gap) {
    const Over now = choice_[at(gap)];
    if (now != start_.choice[at(gap)]) return does_otherwise({gap, start_.choice[at(gap)]});
    if (now != Over::held) return false;
    const std::vector<Over> all = others(at(gap));
    return std::ranges::any_of(all, [&](Over over) { return does_otherwise({gap, over}); });
  }
  bool does_otherwise(const Move& move) {
    const std::pair before(choice_, load_);
    choice_[at(move.gap)] = move.over;
    stays_ = move.gap;
    const bool is_within = reach();
    if (is_within) hold_again();
    stays_ = -1;
    if (is_within && cost_of(before.second) > 0) return true;
    std::tie(choice_, load_) = before;
    return false;
  }

  std::vector<int> gaps_that_matter() const {
    std::vector<int> gaps;
    for (std::size_t g = 0; g < model_.gaps().size(); ++g)
      if (choice_[g] == Over::held && !is_fixed(g)) gaps.push_back(static_cast<int>(g));
    return gaps;
  }

  // How many there are of these gaps together, or more than are tried.
  std::size_t num_choices(const std::vector<int>& gaps) const {
    std::size_t count = 1;
    for (const int gap : gaps)
      if (count <= kMostExact) count *= others(at(gap)).size() + 1;
    return count;
  }

  std::optional<Choice> best_of_all(const std::vector<int>& gaps) {
    std::optional<Choice> best;
    double seconds = 0;
    const std::size_t count = num_choices(gaps);
    for (std::size_t number = 0; number < count; ++number) {
      std::size_t rest = number;
      for (const int gap : gaps) {
        const std::vector<Over> all = others(at(gap));
        const std::size_t which = rest % (all.size() + 1);
        choice_[at(gap)] = which == 0 ? Over::held : all[which - 1];
        rest /= all.size() + 1;
      }
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
  Cost cost_;
  Choice choice_;
  Load load_;
  int stays_ = -1;  // a gap that is left as it is
  std::size_t num_weighed_ = 0;
};

}  // namespace

std::optional<Choice> choose_gaps(const StepModel& model, std::int64_t limit, const Start& start, const Choice* from) {
  return Chooser(model, limit, start).run(from);
}

std::vector<Choice> falling_choices(const StepModel& model, const Start& start) {
  return Chooser(model, model.weigh(start.choice).peak, start).fall();
}

// What was let go at first may be in the way later, so where it ends it begins once more, with a lower limit.
Choice least_choice(const StepModel& model, const Start& start) {
  Choice least = start.choice;
  for (std::int64_t limit = model.weigh(least).peak;;) {
    std::vector<Choice> lower = Chooser(model, limit, start, Cost::moved).fall();
    if (lower.empty()) lower = Chooser(model, limit, start, Cost::moved).fall(&least);
    if (lower.empty()) return least;
    least = std::move(lower.back());
    const std::int64_t peak = model.weigh(least).peak;
    limit = peak - std::max<std::int64_t>(1, peak / 500);
  }
}

}  // namespace sherd::ir
