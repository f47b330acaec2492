#include "tools/bench/contest.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "runtime/tensor/error.h"
#include "runtime/tensor/indices.h"

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

// One side of a contest and what it has answered so far.
class Player {
 public:
  Player(std::string role, const Contestant& contestant, Answers& answers, const Contest& contest)
      : key_{std::move(role), contestant.command}, contestant_(contestant), answers_(answers), contest_(contest) {
    answers_.settings = contestant.settings;
    answers_.error = contestant.error;
  }

  const SideKey& key() const { return key_; }
  void start(Sides& sides) {
    attempt(sides, [&](Side& side) {
      const nlohmann::json& greeting = side.greeting();
      check(greeting.contains("peer") && greeting["peer"].is_string(), "{} did not say its name: {}",
            key_.second.words[0], greeting.dump().substr(0, 100));
      answers_.name = contestant_.name.empty() ? greeting["peer"].get<std::string>() : contestant_.name;
      answers_.device = greeting.value("device", "");
    });
  }
  void ask(Sides& sides) {
    std::this_thread::sleep_for(kSettling);
    attempt(sides, [&](Side& side) { take(answers_, side.ask(contestant_.request)); });
  }

 private:
  // The program of a side that fails is stopped: what is wrong with it may stay wrong, as a lost device does.
  template <class Action>
  void attempt(Sides& sides, const Action& action) {
    if (!answers_.ok()) return;
    try {
      action(sides.get(key_, contest_.patience));
    } catch (const std::exception& error) {
      answers_.error = error.what();
      sides.stop(key_);
    }
  }

  SideKey key_;
  const Contestant& contestant_;
  Answers& answers_;
  const Contest& contest_;
};

// Ours, the peers, the limit, in the order of their turns. Those that run at the same time share no program.
std::vector<Player> players_of(const Contest& contest, Outcome& outcome, bool at_the_same_time) {
  outcome.peers.resize(contest.peers.size());
  if (contest.limit) outcome.limit.emplace();
  std::vector<Player> players;
  const auto add = [&](const std::string& role, const Contestant& contestant, Answers& answers) {
    players.emplace_back(at_the_same_time ? role : std::string(), contestant, answers, contest);
  };
  add("ours", contest.ours, outcome.ours);
  for (const std::size_t i : indices(contest.peers)) add(fmt::format("peer {}", i), contest.peers[i], outcome.peers[i]);
  if (contest.limit) add("limit", *contest.limit, *outcome.limit);
  return players;
}

// "eager, OMP_PROC_BIND=true; compiled takes 1.04 times as long"
void describe(Answers& fastest, const Contest& contest, const Outcome& outcome, std::size_t place,
              const std::vector<std::size_t>& team) {
  const std::string& variant = contest.peers[place].variant;
  fastest.settings = fastest.settings.empty() ? variant : fmt::format("{}, {}", variant, fastest.settings);
  for (const std::size_t other : team) {
    if (other == place) continue;
    const Answers& slower = outcome.peers[other];
    fastest.settings += slower.ok() ? fmt::format("; {} takes {:.2f} times as long", contest.peers[other].variant,
                                                  slower.median() / outcome.peers[place].median())
                                    : fmt::format("; {} failed: {}", contest.peers[other].variant, slower.error);
  }
}

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
    const nlohmann::json::json_pointer at(pointer);
    check(answer.contains(at), "{} answered without {}", name, pointer);
    const nlohmann::json& found = answer[at];
    if (found.is_array())
      for (const nlohmann::json& value : found) values.push_back(value);
    else values.push_back(found);
  }
  return bench::median(std::move(values));
}

Outcome hold(const Contest& contest) {
  Sides sides;
  return hold(contest, sides);
}

Outcome hold(const Contest& contest, Sides& sides) {
  Outcome outcome;
  std::vector<Player> players = players_of(contest, outcome, true);
  const auto each = [&](void (Player::*action)(Sides&)) {
    for (Player& player : players) {
      (player.*action)(sides);
      check(outcome.ours.ok(), "{}", outcome.ours.error);  // without ours the others are of no use
    }
  };
  each(&Player::start);
  for (int round = 0; round < contest.rounds; ++round) each(&Player::ask);
  return outcome;
}

std::vector<Outcome> hold_apart(const std::vector<Contest>& contests) {
  std::vector<Outcome> outcomes(contests.size());
  std::vector<std::vector<Player>> players;
  std::size_t turns = 0;
  for (const std::size_t i : indices(contests)) {
    players.push_back(players_of(contests[i], outcomes[i], false));
    turns = std::max(turns, players.back().size());
  }
  Sides sides;
  const auto turn = [&](std::size_t place, const auto& rounds_of) {
    for (const std::size_t i : indices(contests)) {
      if (place >= players[i].size() || !outcomes[i].ours.ok() || rounds_of(contests[i]) == 0) continue;
      Player& player = players[i][place];
      sides.stop_all_but(player.key());
      player.start(sides);
      for (int round = 0; round < rounds_of(contests[i]); ++round) player.ask(sides);
    }
  };
  turn(0, [](const Contest& contest) { return (contest.rounds + 1) / 2; });
  for (const std::size_t place : Numbers<std::size_t>(1, turns))
    turn(place, [](const Contest& contest) { return contest.rounds; });
  sides.stop_all();
  turn(0, [](const Contest& contest) { return contest.rounds / 2; });
  return outcomes;
}

std::vector<Contestant> in_variants(const std::vector<Contestant>& peers, const std::vector<Variant>& variants) {
  std::vector<Contestant> result;
  for (const Contestant& peer : peers)
    for (const Variant& variant : variants) {
      Contestant& one = result.emplace_back(peer);
      one.team = fmt::format("{}", fmt::join(peer.command.words, " "));
      one.variant = variant.name;
      one.command.words.insert(one.command.words.end(), variant.words.begin(), variant.words.end());
    }
  return result;
}

void keep_fastest(const Contest& contest, Outcome& outcome) {
  std::vector<Answers> kept;
  for (std::size_t i = 0; i < contest.peers.size();) {
    std::vector<std::size_t> team{i};  // its members follow each other
    while (++i < contest.peers.size() && !contest.peers[i].team.empty() &&
           contest.peers[i].team == contest.peers[team[0]].team)
      team.push_back(i);
    std::size_t best = team[0];
    for (const std::size_t place : team) {
      const Answers &one = outcome.peers[place], &other = outcome.peers[best];
      if (one.ok() && (!other.ok() || one.median() < other.median())) best = place;
    }
    Answers fastest = outcome.peers[best];
    if (fastest.ok() && !contest.peers[best].variant.empty()) describe(fastest, contest, outcome, best, team);
    kept.push_back(std::move(fastest));
  }
  outcome.peers = std::move(kept);
}

void add_note(Figure& figure, const std::string& text) { figure.note += (figure.note.empty() ? "" : "; ") + text; }

void note_missing(Figure& figure, const Outcome& outcome) {
  for (const Answers& peer : outcome.peers)
    if (!peer.ok()) add_note(figure, "no peer: " + peer.error);
  if (outcome.limit && !outcome.limit->ok()) add_note(figure, "no limit: " + outcome.limit->error);
}

Number times(double factor, const char* field) {
  return [=](const Answers& side) { return factor * side.median(field); };
}

Number rate(double work) {
  return [=](const Answers& side) { return work / side.median(); };
}

void fill(Figure& figure, const Outcome& outcome, const Number& value, const Number& limit) {
  check(outcome.ours.ok(), "{}", outcome.ours.error);
  figure.value = value(outcome.ours);
  figure.device = outcome.ours.device;
  for (const Answers& peer : outcome.peers) {
    if (!peer.ok()) continue;
    try {
      figure.peers.push_back({peer.name, value(peer), peer.settings});
    } catch (const std::exception& error) { add_note(figure, fmt::format("no peer: {}", error.what())); }
  }
  note_missing(figure, outcome);
  if (limit && outcome.limit && outcome.limit->ok()) figure.limit = limit(*outcome.limit);
}

}  // namespace sherd::bench
