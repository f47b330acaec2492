#include "compile/passes/budget/budget.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "compile/ir/rewrite.h"
#include "compile/passes/budget/choose.h"

namespace sherd::ir {

namespace {

constexpr int kMostTries = 8;

class Fitter {
 public:
  Fitter(const Program& program, PassContext& context)
      : program_(program),
        context_(context),
        model_(program, context.seconds ? context.seconds(program) : std::vector<double>(program.nodes.size(), 0.0)),
        recorded_(footprint_of(model_.recorded())),
        limit_(context.budget ? *context.budget - context.beside : recorded_.peak),
        start_{model_.recorded(), std::vector<bool>(model_.gaps().size(), false)} {}

  Program run() {
    if (!context_.on_all) fix_gathers({});
    Choice choice = choose();
    if (context_.on_all) {
      fix_gathers(context_.on_all(gathers_left_out(choice)));
      choice = choose();
      if (!context_.on_all({footprint_of(choice).peak <= limit_})[0]) {  // and nobody asks after this
        fix_gathers({});
        choice = choose();
      }
    }
    const Footprint outcome = footprint_of(choice);
    if (outcome.peak > limit_) refuse(choice, outcome);
    if (choice != model_.recorded()) note(choice, outcome);
    return choice == model_.recorded() ? program_ : rewritten(choice);
  }

  std::vector<Program> within(int points) {
    fix_gathers({});
    const std::vector<Choice> falling = falling_choices(model_, start_);
    const std::int64_t lowest = footprint_of(falling.back()).peak;
    std::int64_t unseen = recorded_.peak - model_.weigh(model_.recorded()).peak;
    std::size_t from = 0;
    std::vector<Program> programs(at(points));
    for (int i = points - 1; i >= 0; --i) {
      const std::int64_t limit = lowest + (recorded_.peak - lowest) * i / (points - 1);
      Choice within = falling.back();
      for (int tries = 0; tries < kMostTries; ++tries) {
        while (from + 1 < falling.size() && model_.weigh(falling[from]).peak > limit - unseen) ++from;
        within = choose_gaps(model_, limit - unseen, start_, &falling[from]).value_or(falling.back());
        const std::int64_t over = footprint_of(within).peak - limit;
        if (over <= 0) break;
        unseen += over;
      }
      programs[at(i)] = rewritten(within);
    }
    return programs;
  }

 private:
  Program rewritten(const Choice& choice) const {
    Program program = model_.apply(choice);
    settle(program);
    return program;
  }
  Footprint footprint_of(const Choice& choice) const { return context_.outcome(rewritten(choice)); }

  // By gap of a unit: whether this rank would hold what was recorded to be gathered again.
  std::vector<bool> gathers_left_out(const Choice& choice) const {
    std::vector<bool> left_out;
    for (std::size_t g = 0; g < choice.size(); ++g)
      if (model_.gaps()[g].is_unit) left_out.push_back(choice[g] == Over::held);
    return left_out;
  }

  // Fixes the gathers that are left out to be these; without a list none is.
  void fix_gathers(const std::vector<bool>& left_out) {
    std::size_t next = 0;
    for (std::size_t g = 0; g < start_.choice.size(); ++g) {
      if (!model_.gaps()[g].is_unit) continue;
      start_.is_fixed[g] = true;
      start_.choice[g] = !left_out.empty() && left_out[next++] ? Over::held : Over::gone;
    }
  }

  // The model knows nothing of what queues hold: its limit follows what a replay would hold. The one with the least
  // peak if none fits.
  Choice choose() {
    std::int64_t limit = limit_ - (recorded_.peak - model_.weigh(model_.recorded()).peak);
    for (int i = 0; i < kMostTries; ++i) {
      const std::optional<Choice> choice = choose_gaps(model_, limit, start_);
      if (!choice) break;
      const std::int64_t over = footprint_of(*choice).peak - limit_;
      if (over <= 0) return *choice;
      limit -= over;
    }
    return least();
  }

  Choice least() const {
    const Choice chosen = least_choice(model_, start_), fallen = falling_choices(model_, start_).back();
    return model_.weigh(fallen).peak < model_.weigh(chosen).peak ? fallen : chosen;
  }

  [[noreturn]] void refuse(const Choice& choice, const Footprint& least) const {
    const std::int64_t bytes = least.peak + context_.beside;
    Error error(fmt::format("a budget of {} is below the least that the step can hold, {} ({} bytes)",
                            format_bytes(limit_ + context_.beside), format_bytes(bytes), bytes));
    error.add("held",
              describe(least.at_peak) +
                  (context_.beside > 0 ? fmt::format(", and {} beside the step", format_bytes(context_.beside)) : ""));
    if (least.node >= 0) error.add("at", description(choice, at(least.node)));
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

  void note(const Choice& choice, const Footprint& outcome) {
    int repeated = 0, gathered = 0;
    for (std::size_t g = 0; g < choice.size(); ++g) {
      if (choice[g] == model_.recorded()[g]) continue;
      if (model_.gaps()[g].is_unit) ++gathered;
      else ++repeated;
    }
    const double seconds = model_.weigh(choice).seconds - model_.weigh(model_.recorded()).seconds;
    std::vector<std::string> done;
    if (repeated > 0) done.push_back(fmt::format("{} values computed again", repeated));
    if (gathered > 0) done.push_back(fmt::format("{} gather{} left out", gathered, gathered > 1 ? "s" : ""));
    const std::int64_t bytes = outcome.peak - recorded_.peak;
    if (bytes != 0) done.push_back(fmt::format("{}{}", bytes < 0 ? "-" : "+", format_bytes(std::abs(bytes))));
    if (context_.seconds) done.push_back(fmt::format("{:+.3g} ms", seconds * 1e3));
    std::string text = fmt::format("{}{}", context_.budget ? "budget: " : "", fmt::join(done, ", "));
    context_.notes.push_back(std::move(text));
  }

  const Program& program_;
  PassContext& context_;
  const StepModel model_;
  const Footprint recorded_;
  const std::int64_t limit_;
  Start start_;
};

}  // namespace

void fit_budget(Program& program, PassContext& context) {
  if (context.footprint) program = Fitter(program, context).run();
}

std::vector<Program> within_budgets(const Program& program, PassContext& context, int points) {
  return Fitter(program, context).within(points);
}

}  // namespace sherd::ir
