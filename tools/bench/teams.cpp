#include "tools/bench/teams.h"

#include <utility>

#include "runtime/tensor/error.h"

namespace sherd::bench {

namespace {

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

}  // namespace sherd::bench
