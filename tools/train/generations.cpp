#include "tools/train/generations.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/tensor/error.h"
#include "tools/train/skipped_batches.h"

namespace sherd::train {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPatience{100};  // with one key, before another is looked for

/// Nothing if nobody sets it in time. Other errors of the store end the rank, as the launcher is gone.
std::optional<std::string> value_of(Store& store, const std::string& key, milliseconds wait) {
  try {
    return store.get(key, wait);
  } catch (const KeyNotSet&) { return std::nullopt; }
}

/// One that has a deadline, and gives notice when it is long.
class Wait {
 public:
  Wait(int rank, milliseconds deadline, const WaitNotice& notice)
      : rank_(rank), deadline_(deadline), notice_(notice), clock_(start_, notice.after) {}
  bool is_over() const { return Clock::now() >= start_ + deadline_; }
  void say_if_due(std::string_view what) {
    if (!notice_.say || !clock_.is_due(Clock::now())) return;
    notice_.say(fmt::format("rank {} has waited {:.1f} s for {} (deadline {:.3g} s)", rank_,
                            seconds(Clock::now() - start_), what, seconds(deadline_)));
  }

 private:
  static double seconds(std::chrono::duration<double> time) { return time.count(); }
  const Clock::time_point start_ = Clock::now();
  const int rank_;
  const milliseconds deadline_;
  const WaitNotice& notice_;
  NoticeClock clock_;
};

Agreement agreement_of(const Generation& generation, const std::vector<UpdateVote>& votes) {
  Agreement agreement{.generation = generation, .updates = 0, .has_state = {}};
  std::optional<std::int64_t> possible;
  std::int64_t made = 0;
  for (const UpdateVote& vote : votes) {
    agreement.has_state.push_back(vote.has_state);
    if (!vote.has_state) continue;
    made = std::max(made, vote.updates);
    const std::int64_t can_make = vote.updates + (vote.can_update ? 1 : 0);
    possible = std::min(possible.value_or(can_make), can_make);
  }
  check(!possible || made <= *possible,
        "a rank has made {} updates, and another can make only {}: they cannot go on together", made,
        possible.value_or(0));
  agreement.updates = possible.value_or(0);
  return agreement;
}

}  // namespace

std::string survival_key::generation(int number) { return fmt::format("survive/generation/{}", number); }
std::string survival_key::ready(int life, int rank) { return fmt::format("survive/ready/{}/{}", life, rank); }
std::string survival_key::vote(int number, int rank) { return fmt::format("survive/vote/{}/{}", number, rank); }
std::string survival_key::num_waiting(int number) { return fmt::format("survive/waiting/{}", number); }
std::string survival_key::waiting(int number, int rank) { return fmt::format("survive/waiting/{}/{}", number, rank); }

std::string ranks_to_text(const std::vector<int>& ranks) { return fmt::format("{}", fmt::join(ranks, ",")); }

std::vector<int> ranks_from_text(const std::string& text) {
  const auto ranks = numbers_from_text(text);
  check(ranks && !ranks->empty(), "ranks are numbers with commas between them, not \"{}\"", text);
  return {ranks->begin(), ranks->end()};
}

UpdateVote vote_from_text(const std::string& text) {
  try {
    return parse_attrs(attr_kind<UpdateVote>, text).as<UpdateVote>();
  } catch (const Error&) { fail("\"{}\" is no vote of a rank; do all ranks run the same program?", text); }
}

Generations::Generations(Store& store, int rank, int last, milliseconds deadline, WaitNotice notice)
    : store_(store), rank_(rank), last_(last), deadline_(deadline), notice_(std::move(notice)) {}

std::optional<Generation> Generations::published(int number, milliseconds wait) {
  const std::optional<std::string> text = value_of(store_, survival_key::generation(number), wait);
  if (!text) return std::nullopt;
  if (*text == survival_key::kOver) return Generation{.number = number, .ranks = {}, .is_over = true};
  return Generation{.number = number, .ranks = ranks_from_text(*text)};
}

std::optional<Generation> Generations::newest_after(int number, milliseconds wait) {
  std::optional<Generation> newest;
  while (std::optional<Generation> next = published(number + 1, newest ? milliseconds(0) : wait)) {
    newest = std::move(next);
    ++number;
  }
  return newest;
}

bool Generations::has_newer() { return published(last_ + 1, milliseconds(0)).has_value(); }

std::string Generations::why_to_give_up() {
  return has_newer() ? "the launcher has named another group meanwhile" : "";
}

// A rank that has the state and is left out was given up; one that was started again is not in those before it is
// ready.
Generation Generations::await_after(int number, const UpdateVote& own) {
  if (own.has_state) {
    store_.set(survival_key::waiting(number, rank_), "1");
    store_.add(survival_key::num_waiting(number), 1);
  }
  for (Wait wait(rank_, deadline_, notice_);;) {
    std::optional<Generation> newest = newest_after(number, kPatience);
    if (newest && newest->is_over) return *newest;
    if (newest && std::ranges::find(newest->ranks, rank_) != newest->ranks.end()) return *std::move(newest);
    if (newest && own.has_state)
      throw CommError(fmt::format("the launcher has given up the replica of rank {}", rank_));
    wait.say_if_due("the launcher to name the next group of ranks, with this one");
    if (wait.is_over())
      throw CommError(fmt::format("the launcher has not named a group with rank {} within {:.3g} s", rank_,
                                  std::chrono::duration<double>(deadline_).count()));
  }
}

/// Nothing once there is a newer generation.
std::optional<Agreement> Generations::count_votes(const Generation& generation) {
  std::vector<UpdateVote> votes;
  Wait wait(rank_, deadline_, notice_);
  for (const int rank : generation.ranks) {
    const int speaker = generation.ranks[rank == generation.ranks[0] && generation.ranks.size() > 1 ? 1 : 0];
    std::optional<std::string> text;
    while (!(text = value_of(store_, survival_key::vote(generation.number, rank), kPatience))) {
      if (published(generation.number + 1, milliseconds(0))) return std::nullopt;
      if (rank_ == speaker) wait.say_if_due(fmt::format("rank {} to say how many updates it has made", rank));
      if (wait.is_over())
        throw CommError(fmt::format("rank {} has not said within {:.3g} s how many updates it has made", rank,
                                    std::chrono::duration<double>(deadline_).count()));
    }
    votes.push_back(vote_from_text(*text));
  }
  return agreement_of(generation, votes);
}

Agreement Generations::agree(const UpdateVote& own) {
  Generation generation = await_after(last_, own);
  for (;;) {
    if (generation.is_over) return {.generation = generation, .updates = 0, .has_state = {}};
    store_.set(survival_key::vote(generation.number, rank_), AttrsView(own).print());
    if (std::optional<Agreement> agreement = count_votes(generation)) {
      last_ = generation.number;
      return *std::move(agreement);
    }
    generation = await_after(generation.number, own);
  }
}

}  // namespace sherd::train
