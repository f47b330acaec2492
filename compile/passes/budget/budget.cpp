#include "compile/passes/budget/budget.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "compile/ir/rewrite.h"
#include "compile/passes/budget/choose.h"

namespace sherd::ir {

namespace {

constexpr int kMostTries = 8;

// What is held at each node of `program` by what later passes have made of it: waits and copies that they have put
// between count for the node before. Empty if they have done more.
std::vector<std::int64_t> bytes_at_nodes(const Program& program, const Program& finished, const Footprint& footprint) {
  std::vector<std::int64_t> held(program.nodes.size(), 0);
  std::size_t next = 0;
  for (std::size_t i = 0; i < finished.nodes.size(); ++i) {
    const GraphNode& node = finished.nodes[i];
    if (next < held.size() && node.op == program.nodes[next].op && node.attrs == program.nodes[next].attrs) ++next;
    if (next == 0) continue;
    const CategoryBytes& bytes = footprint.by_node[i];
    held[next - 1] = std::max(held[next - 1], std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
  }
  if (next < held.size()) held.clear();
  return held;
}

class Fitter {
 public:
  Fitter(const Program& program, PassContext& context)
      : program_(program),
        context_(context),
        model_(program, context.seconds ? context.seconds(program) : std::vector<double>(program.nodes.size(), 0.0),
               context.elsewhere),
        start_{model_.recorded(), std::vector<bool>(model_.gaps().size(), false)} {
    Program finished = rewritten(model_.recorded());
    context_.finish(finished);
    recorded_ = context_.footprint(finished);
    model_.learn(bytes_at_nodes(program_, finished, recorded_));
    limit_ = context_.budget ? *context_.budget - context_.beside : recorded_.peak;
  }

  Program run() {
    const Found found = context_.on_all ? choose_with_all() : choose_alone();
    if (found.choice == model_.recorded()) return program_;
    note(found);
    return rewritten(found.choice);
  }

  std::vector<Program> within(int points) {
    fix_units(model_.recorded());
    const std::vector<Choice> falling = falling_choices(model_, start_);
    const Found lowest = least();
    std::size_t from = 0;
    std::vector<Program> programs(at(points));
    for (int i = points - 1; i >= 0; --i) {
      const std::int64_t limit =
          lowest.footprint.peak + (recorded_.peak - lowest.footprint.peak) * i / std::max(1, points - 1);
      while (from + 1 < falling.size() && model_.weigh(falling[from]).peak > limit) ++from;
      std::optional<Found> found = find(limit, &falling[from]);
      if (!found) found = find(limit, &lowest.choice);
      programs[at(i)] = rewritten(found ? found->choice : lowest.choice);
    }
    return programs;
  }

 private:
  struct Found {
    Choice choice;
    Footprint footprint;
  };

  Program rewritten(const Choice& choice) const {
    Program program = model_.apply(choice);
    settle(program);
    return program;
  }
  Found found(Choice choice) const {
    Footprint footprint = context_.outcome(rewritten(choice));
    return {std::move(choice), std::move(footprint)};
  }

  Found choose_alone() {
    fix_units(model_.recorded());
    if (std::optional<Found> cheap = find(limit_, nullptr)) return std::move(*cheap);
    return choose_above_least();
  }

  // Ranks take the same way, for their answers are of all. What all can come to at the least does not follow from what
  // any of them is given, so a refusal names the same for every budget.
  Found choose_with_all() {
    const Start free = start_;
    std::optional<Found> found = find(limit_, nullptr);
    if (on_all(found.has_value())) {
      fix_units(held_on_all(found->choice));
      found = find(limit_, nullptr);
      if (on_all(found.has_value())) return std::move(*found);
      start_ = free;
    }
    fix_units(held_on_all(least().choice));
    return choose_above_least();  // and nobody asks after this
  }

  // Error if that is over the limit.
  Found choose_above_least() const {
    Found lowest = least();
    if (lowest.footprint.peak > limit_) refuse(lowest);
    if (std::optional<Found> near = find(limit_, &lowest.choice)) return std::move(*near);
    return lowest;
  }

  bool on_all(bool own) const { return context_.on_all({own})[0]; }

  // The same, but that units which some rank lets go are gone, and come back as late as some rank needs.
  Choice held_on_all(Choice choice) const {
    std::vector<bool> says;
    for (std::size_t g = 0; g < choice.size(); ++g)
      if (model_.gaps()[g].is_unit) says.insert(says.end(), {choice[g] == Over::held, choice[g] != Over::brief});
    says = context_.on_all(says);
    std::size_t next = 0;
    for (std::size_t g = 0; g < choice.size(); ++g) {
      if (!model_.gaps()[g].is_unit) continue;
      choice[g] = says[next] ? Over::held : says[next + 1] ? Over::gone : Over::brief;
      next += 2;
    }
    return choice;
  }

  // Units stay, or are gathered again, as in the choice.
  void fix_units(const Choice& choice) {
    for (std::size_t g = 0; g < choice.size(); ++g) {
      if (!model_.gaps()[g].is_unit) continue;
      start_.is_fixed[g] = true;
      start_.choice[g] = choice[g];
    }
  }

  Found least() const { return found(least_choice(model_, start_)); }

  // The model does not know all that a replay holds: its limit follows that.
  std::optional<Found> find(std::int64_t most, const Choice* from) const {
    std::int64_t limit = most;
    for (int i = 0; i < kMostTries; ++i) {
      std::optional<Choice> choice = choose_gaps(model_, limit, start_, from);
      if (!choice) break;
      Found outcome = found(std::move(*choice));
      const std::int64_t over = outcome.footprint.peak - most;
      if (over <= 0) return outcome;
      limit = std::min(limit, model_.weigh(outcome.choice).peak) - over;
    }
    return std::nullopt;
  }

  [[noreturn]] void refuse(const Found& least) const {
    const std::int64_t bytes = least.footprint.peak + context_.beside;
    Error error(fmt::format("a budget of {} is below the least that the step can hold, {} ({} bytes)",
                            format_bytes(limit_ + context_.beside), format_bytes(bytes), bytes));
    error.add("held",
              describe(least.footprint.at_peak) +
                  (context_.beside > 0 ? fmt::format(", and {} beside the step", format_bytes(context_.beside)) : ""));
    if (least.footprint.node >= 0) error.add("at", description(least.choice, at(least.footprint.node)));
    throw error;
  }

  // The node of the peak, as it stands in the program that runs.
  std::string description(const Choice& choice, std::size_t node) const {
    Program program = rewritten(choice);
    context_.finish(program);
    const GraphNode& there = program.nodes[node];
    const std::string module =
        there.module == kNoModule ? "" : fmt::format(" of {}", program.modules[at(there.module)]);
    return fmt::format("{}{}, {}", there.op->name, module, name(there.phase));
  }

  void note(const Found& found) {
    const auto& [choice, outcome] = found;
    int repeated = 0, moved = 0, left_out = 0, added = 0;
    for (std::size_t g = 0; g < choice.size(); ++g) {
      if (choice[g] == model_.recorded()[g]) continue;
      if (is_copied(choice[g])) ++moved;
      else if (!model_.gaps()[g].is_unit) ++repeated;
      else ++(choice[g] == Over::held ? left_out : added);
    }
    const double seconds = model_.weigh(choice).seconds - model_.weigh(model_.recorded()).seconds;
    std::vector<std::string> done;
    if (repeated > 0) done.push_back(fmt::format("{} values computed again", repeated));
    if (moved > 0) done.push_back(fmt::format("{} values moved out and back", moved));
    if (left_out > 0) done.push_back(fmt::format("{} gather{} left out", left_out, left_out > 1 ? "s" : ""));
    if (added > 0) done.push_back(fmt::format("{} gather{} added", added, added > 1 ? "s" : ""));
    const std::int64_t bytes = outcome.peak - recorded_.peak;
    if (bytes != 0) done.push_back(fmt::format("{}{}", bytes < 0 ? "-" : "+", format_bytes(std::abs(bytes))));
    if (context_.seconds) done.push_back(fmt::format("{:+.3g} ms", seconds * 1e3));
    std::string text = fmt::format("{}{}", context_.budget ? "budget: " : "", fmt::join(done, ", "));
    context_.notes.push_back(std::move(text));
  }

  const Program& program_;
  PassContext& context_;
  StepModel model_;
  Start start_;
  Footprint recorded_;
  std::int64_t limit_ = 0;
};

}  // namespace

void fit_budget(Program& program, PassContext& context) {
  if (context.footprint) program = Fitter(program, context).run();
}

std::vector<Program> within_budgets(const Program& program, PassContext& context, int points) {
  return Fitter(program, context).within(points);
}

}  // namespace sherd::ir
