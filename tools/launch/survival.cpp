#include "tools/launch/survival.h"

#include <algorithm>
#include <optional>
#include <ranges>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"
#include "tools/train/generations.h"

namespace sherd {

using namespace train;

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLook{100};          // for replicas that are ready
constexpr milliseconds kLookForWaits{500};  // of members
constexpr int kMostRepeats = 3;             // without a loss or a return in between

}  // namespace

Survival::Survival(std::unique_ptr<Store> store, int ranks, milliseconds backoff)
    : store_(std::move(store)), num_ranks_(ranks), backoff_(backoff), start_(Clock::now()), looked_at_(start_) {}

bool Survival::has(const std::string& key) {
  try {
    store_->get(key, milliseconds(0));
    return true;
  } catch (const KeyNotSet&) { return false; }
}

bool Survival::is_known() {
  if (!replicas_.empty()) return true;
  if (!has(survival_key::kReplicas)) return false;
  const std::string text = store_->get(survival_key::kReplicas, milliseconds(0));
  for (const auto part : std::views::split(text, ';')) {
    Replica replica{.ranks = ranks_from_text({part.begin(), part.end()}), .since = start_, .backoff = {backoff_}};
    for (const int rank : replica.ranks)
      check(rank < num_ranks_, "the job says that rank {} of {} is of a replica", rank, num_ranks_);
    replicas_.push_back(std::move(replica));
  }
  patience_ = milliseconds(std::stoll(store_->get(survival_key::kPatience, milliseconds(0))));
  deadline_ = milliseconds(std::stoll(store_->get(survival_key::kDeadline, milliseconds(0))));
  return true;
}

int Survival::replica_of(int rank) const {
  for (const std::size_t i : indices(replicas_))
    if (std::ranges::find(replicas_[i].ranks, rank) != replicas_[i].ranks.end()) return static_cast<int>(i);
  return -1;
}

bool Survival::is_member(int rank) const {
  const int replica = replica_of(rank);
  return replica >= 0 && replicas_[static_cast<std::size_t>(replica)].state == State::member;
}

std::vector<int> Survival::members() const {
  std::vector<int> ranks;
  for (const Replica& replica : replicas_)
    if (replica.state == State::member) ranks.insert(ranks.end(), replica.ranks.begin(), replica.ranks.end());
  std::ranges::sort(ranks);
  return ranks;
}

int Survival::num_members() const {
  return static_cast<int>(
      std::ranges::count_if(replicas_, [](const Replica& replica) { return replica.state == State::member; }));
}

void Survival::publish() {
  store_->set(survival_key::generation(++generation_), ranks_to_text(members()));
  waited_since_ = Clock::time_point::max();
  have_all_voted_ = false;
}

void Survival::tell() {
  if (std::exchange(is_to_tell_, false)) publish();
}

void Survival::end() {
  if (std::exchange(is_over_, true) || replicas_.empty()) return;
  store_->set(survival_key::generation(++generation_), survival_key::kOver);
}

Survival::Fate Survival::lose(int rank, Clock::time_point now, Loss* loss) {
  const int index = is_known() ? replica_of(rank) : -1;
  if (index < 0) return Fate::ends;
  Replica& replica = replicas_[static_cast<std::size_t>(index)];
  if (replica.state == State::down) return Fate::is_down;
  const bool was_member = std::exchange(replica.state, State::down) == State::member;
  repeats_ = 0;
  if (num_members() == 0) {
    replica.state = was_member ? State::member : State::down;
    return Fate::ends;
  }
  replica.start_at = now + replica.backoff.after(now - replica.since);
  if (was_member) { is_to_tell_ = true; }
  *loss = {
      index, replica.ranks,
      fmt::format("replica {} (rank{} {}) is lost, {} of {} {} on; it starts again in {:.3g} s", index,
                  replica.ranks.size() == 1 ? "" : "s", fmt::join(replica.ranks, ", "), num_members(), replicas_.size(),
                  num_members() == 1 ? "goes" : "go", std::chrono::duration<double>(replica.start_at - now).count())};
  return Fate::goes_on;
}

std::vector<std::vector<int>> Survival::to_start(Clock::time_point now, const std::vector<bool>& has_ended) {
  std::vector<std::vector<int>> due;
  for (Replica& replica : replicas_) {
    const bool can_start =
        replica.state == State::down && now >= replica.start_at &&
        std::ranges::all_of(replica.ranks, [&](int r) { return has_ended[static_cast<std::size_t>(r)]; });
    if (!can_start || is_over_) continue;
    replica.state = State::starting;
    replica.since = now;
    ++replica.life;
    due.push_back(replica.ranks);
  }
  return due;
}

bool Survival::is_ready(const Replica& replica) {
  return std::ranges::all_of(replica.ranks, [&](int rank) { return has(survival_key::ready(replica.life, rank)); });
}

std::vector<std::string> Survival::admit(Clock::time_point now) {
  std::vector<std::string> lines;
  if (is_over_) return lines;
  for (const std::size_t i : indices(replicas_)) {
    Replica& replica = replicas_[i];
    if (replica.state != State::starting || !is_ready(replica)) continue;
    replica.state = State::member;
    repeats_ = 0;
    lines.push_back(fmt::format("replica {} is ready after {:.1f} s: {} of {}", i,
                                std::chrono::duration<double>(now - replica.since).count(), num_members(),
                                replicas_.size()));
  }
  if (!lines.empty()) publish();
  return lines;
}

int Survival::life_of(int rank) const {
  const int replica = replica_of(rank);
  return replica < 0 ? 1 : replicas_[static_cast<std::size_t>(replica)].life;
}

/// Ranks that others wait for: for their votes, or for them to find that the group has failed. A group that all have
/// left is named again.
std::vector<int> Survival::late_ranks() {
  const std::vector<int> ranks = members();
  const auto without = [&](auto&& key) {
    std::vector<int> found;
    for (const int rank : ranks)
      if (!has(key(generation_, rank))) found.push_back(rank);
    return found;
  };
  if (!have_all_voted_) {
    std::vector<int> late = without(survival_key::vote);
    have_all_voted_ = late.empty();
    // Newcomers wait for members to end their step, an evaluation or a save.
    const bool waits_one_with_state = std::ranges::any_of(ranks, [&](int rank) {
      const std::string key = survival_key::vote(generation_, rank);
      return has(key) && vote_from_text(store_->get(key, milliseconds(0))).has_state;
    });
    return waits_one_with_state ? late : std::vector<int>();
  }
  if (store_->add(survival_key::num_waiting(generation_), 0) == 0) return {};
  std::vector<int> late = without(survival_key::waiting);
  // None of them has died: one was given up and went on, or their calls differ.
  if (late.empty() && ++repeats_ <= kMostRepeats) publish();
  return late;
}

std::vector<int> Survival::stragglers(Clock::time_point now, const std::function<bool(int rank)>& is_stopped) {
  if (is_over_ || now - looked_at_ < kLookForWaits || !is_known()) return {};
  looked_at_ = now;
  std::vector<int> late = late_ranks();
  if (late.empty()) {
    waited_since_ = Clock::time_point::max();
    return {};
  }
  waited_since_ = std::min(waited_since_, now);
  if (now - waited_since_ < patience_) return {};
  if (now - waited_since_ < deadline_) std::erase_if(late, [&](int rank) { return !is_stopped(rank); });
  return late;
}

Survival::Clock::time_point Survival::next_look(Clock::time_point now) const {
  Clock::time_point next = replicas_.empty() ? Clock::time_point::max() : now + kLookForWaits;
  for (const Replica& replica : replicas_) {
    if (replica.state == State::down) next = std::min(next, std::max(replica.start_at, now + milliseconds(1)));
    if (replica.state == State::starting) next = std::min(next, now + kLook);
  }
  return next;
}

}  // namespace sherd
