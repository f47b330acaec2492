#include "tools/bench/contest.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include "runtime/tensor/error.h"

namespace sherd::bench {

namespace {

// Before each turn: idle workers of the side before (OpenMP's, oneTBB's) look for work for a while until they sleep.
constexpr std::chrono::milliseconds kSettling{50};

void take(Answers& to, nlohmann::json answer) {
  const auto seconds = answer.find("seconds");
  check(seconds != answer.end() && seconds->is_array() && !seconds->empty(), "{} answered without \"seconds\": {}",
        to.name, answer.dump().substr(0, 100));
  for (const nlohmann::json& sample : *seconds) {
    check(sample.is_number() && std::isfinite(sample.get<double>()) && sample.get<double>() > 0,
          "{} answered {} where seconds were expected", to.name, sample.dump());
    to.seconds.push_back(sample.get<double>());
  }
  to.answers.push_back(std::move(answer));
}

// One side and what it has answered so far; its program is stopped as soon as it fails.
struct Player {
  const Contestant* contestant;
  Answers* answers;
  std::unique_ptr<Side> side{};

  template <class Action>
  void attempt(const Action& action) {
    try {
      action();
    } catch (const std::exception& error) {
      answers->error = error.what();
      side.reset();
    }
  }
  void start() {
    answers->settings = contestant->settings;
    answers->error = contestant->error;
    if (!answers->ok()) return;
    attempt([this] {
      side = std::make_unique<Side>(contestant->command);
      const nlohmann::json& greeting = side->greeting();
      check(greeting.contains("peer") && greeting["peer"].is_string(), "{} did not say its name: {}",
            contestant->command.words[0], greeting.dump().substr(0, 100));
      answers->name = greeting["peer"];
    });
  }
  void ask() {
    if (!side) return;
    std::this_thread::sleep_for(kSettling);
    attempt([this] { take(*answers, side->ask(contestant->request)); });
  }
};

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double Answers::median() const { return bench::median(seconds); }

double Answers::median(const char* pointer) const {
  std::vector<double> values;
  for (const nlohmann::json& answer : answers) {
    const nlohmann::json& found = answer.at(nlohmann::json::json_pointer(pointer));
    if (found.is_array())
      for (const nlohmann::json& value : found) values.push_back(value);
    else values.push_back(found);
  }
  return bench::median(std::move(values));
}

Outcome hold(const Contest& contest) {
  Outcome outcome;
  outcome.peers.resize(contest.peers.size());
  if (contest.limit) outcome.limit.emplace();
  std::vector<Player> players;
  players.push_back({&contest.ours, &outcome.ours});
  for (std::size_t i = 0; i < contest.peers.size(); ++i) players.push_back({&contest.peers[i], &outcome.peers[i]});
  if (contest.limit) players.push_back({&*contest.limit, &*outcome.limit});

  const auto each = [&](void (Player::*action)()) {
    for (Player& player : players) {
      (player.*action)();
      check(outcome.ours.ok(), "{}", outcome.ours.error);  // without ours the others are of no use
    }
  };
  each(&Player::start);
  for (int round = 0; round < contest.rounds; ++round) each(&Player::ask);
  return outcome;
}

void add_note(Figure& figure, const std::string& text) { figure.note += (figure.note.empty() ? "" : "; ") + text; }

void note_missing(Figure& figure, const Outcome& outcome) {
  for (const Answers& peer : outcome.peers)
    if (!peer.ok()) add_note(figure, "no peer: " + peer.error);
  if (outcome.limit && !outcome.limit->ok()) add_note(figure, "no limit: " + outcome.limit->error);
}

void fill(Figure& figure, const Outcome& outcome, const Seconds& to_value, const Seconds& to_limit) {
  figure.value = to_value(outcome.ours.median());
  for (const Answers& peer : outcome.peers)
    if (peer.ok()) figure.peers.push_back({peer.name, to_value(peer.median()), peer.settings});
  if (to_limit && outcome.limit && outcome.limit->ok()) figure.limit = to_limit(outcome.limit->median());
  note_missing(figure, outcome);
}

}  // namespace sherd::bench
