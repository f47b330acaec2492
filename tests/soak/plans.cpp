// No wrong plan runs: planned steps are made wrong at random, and each is refused before it runs, or runs to the same
// bits. Whether it does is tried in a process of its own, in memory that is filled when it is released, at once and
// with queues that are as late as they may be; so it is known too which refusals would have been in vain.
// soak_plans --seed S --only PLAN:I repeats one.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <span>
#include <string>

#include <fmt/format.h>

#include "compile/ir/analysis/meaning.h"
#include "compile/ir/text/line_diff.h"
#include "compile/ir/text/print.h"
#include "compile/ir/verify.h"
#include "runtime/exec/context.h"
#include "tests/compile/plan_corruptions.h"
#include "tests/compile/recorded_step.h"
#include "tests/support/ranks.h"

namespace sherd::testing {

namespace {

struct PlanBudget {
  int percent;  ///< the least that is reached, from there on
  bool moves_out;
};
constexpr PlanBudget kBudgets[] = {{50, false}, {85, false}, {100, false}, {60, true}};
constexpr int kMost = 20'000, kSeconds = 30, kDraws = 3000;

std::vector<StepCase> all_cases() {
  std::vector<StepCase> all = step_cases();
  std::ranges::move(step_cases_of_plans(), std::back_inserter(all));
  return all;
}

struct Options {
  int corruptions = 1000;
  std::uint64_t seed = 1;
  int only_plan = -1, only = -1;
};

/// What has become of a corruption, which processes share.
struct Item {
  std::atomic<bool> is_drawn, is_refused, is_equal;
  std::atomic<int> kind;
};

struct Progress {
  std::atomic<int> next;  ///< the item that is tried, or comes next
  std::array<Item, kMost> items;
};

struct Batch {
  int plan = 0, first = 0, last = 0;
  const StepCase step() const { return all_cases()[static_cast<std::size_t>(plan) / std::size(kBudgets)]; }
  const PlanBudget& budget() const { return kBudgets[static_cast<std::size_t>(plan) % std::size(kBudgets)]; }
};

std::string refusal(const Program& sound, const Program& wrong) {
  try {
    verify(wrong);
    check_same_meaning(sound, wrong);
  } catch (const Error& error) { return error.what(); }
  return "";
}

// Ranks draw alike, and none goes on with a draw that does not hit something on all of them. An Error of a draw is that
// of a text with such attributes.
class Corrupter {
 public:
  Corrupter(const Options& options, const Batch& batch, const RecordedStep& step, Item* items)
      : options_(options),
        batch_(batch),
        step_(step),
        items_(items),
        sound_(planned(step, batch.budget().percent, batch.budget().moves_out)) {
    RankContext::current().allocator().set_poison(true);
    for (int i = 0; i < 2; ++i) expected_ = step_.run(sound_);
    check(step_.run(with_late_queues(sound_)).same_bits_as(expected_), "a sound program differs where queues are late");
  }

  /// Whether the next one can be tried in this process.
  bool meet(int index) {
    Item& item = items_[index];
    Program wrong;
    const bool is_drawn = draw(index, item, wrong);
    if (!is_drawn) return true;
    const std::string reason = refusal(sound_, wrong);
    const bool is_refused = !step_.on_all(reason.empty());
    if (is_first()) {
      item.is_refused = is_refused;
      item.is_drawn = true;
      if (options_.only >= 0)
        fmt::print("{}\n{}\n", is_refused ? "refused: " + reason : "accepted",
                   line_diff(to_string(sound_), to_string(wrong)));
    }
    const auto is_same = [&](const Program& program) {
      const Outcome outcome = step_.run(program);
      const bool holds = !is_refused || (outcome.peaks == expected_.peaks && outcome.left == expected_.left);
      return outcome.same_bits_as(expected_) && holds;
    };
    const bool is_equal =
        step_.on_all(is_same(wrong)) && step_.on_all(step_.run(with_late_queues(wrong)).same_bits_as(expected_));
    if (is_first()) item.is_equal = is_equal;
    return is_equal;
  }

 private:
  bool is_first() const { return step_.group().rank() == 0; }

  bool draw(int index, Item& item, Program& wrong) {
    const std::size_t kinds = plan_corruptions().size();
    for (int attempt = 0; attempt < kDraws; ++attempt) {
      // What one kind does not find in this plan, another does.
      const std::size_t kind =
          (static_cast<std::size_t>(batch_.plan + index) + static_cast<std::size_t>(attempt) * kinds / kDraws) % kinds;
      Dice dice(options_.seed * 1'000'003 +
                static_cast<std::uint64_t>((batch_.plan * kMost + index) * kDraws + attempt));
      if (attempt == 0) wrong = sound_;
      bool hits = false;
      try {
        hits = plan_corruptions()[kind].apply(wrong, dice);
      } catch (const Error&) {}
      if (step_.on_all(hits) && (wrong != sound_)) {
        item.kind = static_cast<int>(kind);
        return true;
      }
      if (hits) wrong = sound_;
    }
    return false;
  }

  const Options& options_;
  const Batch& batch_;
  const RecordedStep& step_;
  Item* const items_;
  const Program sound_;
  Outcome expected_;
};

void meet_batch(const Options& options, const Batch& batch, Progress& progress, Item* items) {
  const StepCase step = batch.step();
  run_ranks(step.ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    const std::unique_ptr<RecordedStep> recorded = step.record(group);
    Corrupter corrupter(options, batch, *recorded, items);
    for (int i = batch.first; i < batch.last; ++i) {
      if (group->rank() == 0) {
        progress.next = i;
        ::alarm(kSeconds);
      }
      bool goes_on = false;
      try {
        goes_on = corrupter.meet(i);
      } catch (const std::exception& error) {
        if (options.only >= 0) fmt::print("rank {}: {}\n", group->rank(), error.what());
      }
      if (goes_on) continue;
      std::fflush(nullptr);
      std::_Exit(0);
    }
  });
  progress.next = batch.last;
}

/// A process meets them until one has spoilt it by running; then another goes on.
void corrupt(const Options& options, Batch batch, Progress& progress, Item* items) {
  while (batch.first < batch.last) {
    progress.next = -1;
    std::fflush(nullptr);
    const pid_t child = ::fork();
    check(child >= 0, "cannot fork: {}", std::strerror(errno));
    if (child == 0) {
      try {
        meet_batch(options, batch, progress, items);
      } catch (const std::exception& error) { fmt::print(stderr, "soak_plans: {}\n", error.what()); }
      std::fflush(nullptr);
      std::_Exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    check(progress.next >= 0, "plan {} runs no item", batch.plan);
    batch.first = progress.next + (progress.next < batch.last);
  }
}

struct Tally {
  int differ = 0, equal = 0, accepted = 0, accepted_differ = 0;
};

int soak(const Options& options) {
  void* const shared = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check(shared != MAP_FAILED, "cannot map memory: {}", std::strerror(errno));
  Progress& progress = *new (shared) Progress;
  const int plans = static_cast<int>(all_cases().size() * std::size(kBudgets));
  // A few of each, so a small number is of some plans.
  const int each = std::max(3, (options.corruptions + plans - 1) / plans);
  const int num_met = std::clamp((options.corruptions + each - 1) / each, 1, plans);
  std::vector<int> met;
  for (int i = 0; i < num_met; ++i) met.push_back(i * plans / num_met);
  if (options.only_plan >= 0) met = {options.only_plan};
  check(each * plans <= kMost, "at most {} corruptions", kMost);
  std::vector<Tally> tallies(plan_corruptions().size());
  Tally all;
  for (const int plan : met) {
    Item* const items = &progress.items[static_cast<std::size_t>(plan * each)];
    const int first = options.only < 0 ? 0 : options.only, last = options.only < 0 ? each : options.only + 1;
    corrupt(options, {plan, first, last}, progress, items);
    for (int i = first; i < last; ++i) {
      const Item& item = items[i];
      if (!item.is_drawn) continue;
      for (Tally* const tally : {&tallies[static_cast<std::size_t>(item.kind)], &all}) {
        tally->differ += item.is_refused && !item.is_equal;
        tally->equal += item.is_refused && item.is_equal;
        tally->accepted += !item.is_refused;
        tally->accepted_differ += !item.is_refused && !item.is_equal;
      }
      if (!item.is_refused && !item.is_equal)
        fmt::print("seed {}, {}:{}: runs, and differs: {}\n", options.seed, plan, i,
                   plan_corruptions()[static_cast<std::size_t>(item.kind)].name);
      else if (item.is_equal && item.is_refused)
        fmt::print("seed {}, {}:{}: refused, and equal: {}\n", options.seed, plan, i,
                   plan_corruptions()[static_cast<std::size_t>(item.kind)].name);
    }
  }
  const auto line = [](std::string_view name, const Tally& tally) {
    fmt::print("  {:44} {:5} {:9} {:5} {:9}\n", name, tally.differ, tally.equal, tally.accepted - tally.accepted_differ,
               tally.accepted_differ);
  };
  fmt::print("  {:44} {:>15} {:>15}\n  {:44} {:>5} {:>9} {:>5} {:>9}\n", "", "refused", "runs", "", "wrong", "in vain",
             "equal", "differs");
  for (std::size_t k = 0; k < tallies.size(); ++k) line(plan_corruptions()[k].name, tallies[k]);
  line("all", all);
  const int refused = all.differ + all.equal;
  fmt::print("soak: {} corruptions, {} refused, {} of them in vain, {} run and differ; seed {}\n",
             refused + all.accepted, refused, all.equal, all.accepted_differ, options.seed);
  return all.accepted_differ == 0 && all.equal * 20 < refused ? 0 : 1;
}

Options parse_options(std::span<char*> arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const std::string_view flag = arguments[i];
    check(i + 1 < arguments.size(), "{} needs a value", flag);
    const std::string value = arguments[i + 1];
    if (flag == "--corruptions") options.corruptions = std::stoi(value);
    else if (flag == "--seed") options.seed = std::stoull(value);
    else if (flag == "--only") {
      const std::size_t colon = value.find(':');
      options.only_plan = std::stoi(value);
      if (colon != value.npos) options.only = std::stoi(value.substr(colon + 1));
    } else fail("unknown flag '{}'; there are --corruptions N, --seed S and --only PLAN[:I]", flag);
  }
  return options;
}

}  // namespace

}  // namespace sherd::testing

int main(int argc, char** argv) {
  using namespace sherd::testing;
  try {
    return soak(parse_options({argv + 1, static_cast<std::size_t>(argc - 1)}));
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak_plans: {}\n", error.what());
    return 2;
  }
}
