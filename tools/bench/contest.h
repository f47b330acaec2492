#pragma once
// Sides that take turns: ours, the peers', the machine's limit; as many rounds as asked, so that what else happens on
// the machine hits all of them alike.
#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/figure.h"
#include "tools/bench/side.h"

namespace sherd::bench {

struct Contestant {
  SideCommand command;
  std::string request;
  std::string settings{};  ///< of the peer's libraries, for people
  std::string error{};     ///< why it cannot be started; else empty
  std::string name{};      ///< what figures call it; empty: as it says itself
  std::string team{};      ///< of the neighbours of one team only the fastest counts
  std::string variant{};   ///< which of its team it is, for people
};

struct Contest {
  Contestant ours;
  std::vector<Contestant> peers{};
  std::optional<Contestant> limit{};
  int rounds = 3;
  std::chrono::seconds patience{300};  ///< for each answer, and for the start of a program
};

/// What one side answered in all rounds.
struct Answers {
  std::string name;    ///< "peer" of its first line
  std::string device;  ///< "device" of its first line: the card it computes on, if it said one
  std::string settings;
  std::vector<double> seconds;          ///< all samples
  std::vector<nlohmann::json> answers;  ///< one of each round
  std::string error;                    ///< why there is nothing; else empty
  bool ok() const { return error.empty(); }
  /// Median of the samples; of a number or list of numbers in every answer, which may lie deeper:
  /// "/peak_bytes/gradients". Error naming the side where an answer lacks it.
  double median() const;
  double median(const char* pointer) const;
};

struct Outcome {
  Answers ours;
  std::vector<Answers> peers;
  std::optional<Answers> limit;
};

/// Starts all sides one after the other, then asks each once per round. A peer or limit that fails keeps its error and
/// is left out from then on; so does one whose "seconds" are not positive numbers. Error if our side fails.
Outcome hold(const Contest& contest);
/// The same, but programs that are in `sides` already are asked again, and those that this starts stay there.
Outcome hold(const Contest& contest, Sides& sides);
/// For sides that do not fit beside each other, such as two trainings on one GPU: never more than one of them runs.
/// Ours gives its first half of the rounds, then each peer and the limit all of theirs, then ours, started anew, the
/// rest, so that a drift of the machine shows. Sides of the same command that follow each other are one program, which
/// is asked for each of them. Where our side fails its answers keep the error, and that contest ends.
std::vector<Outcome> hold_apart(const std::vector<Contest>& contests);

// ---- several forms of one peer, such as eager and compiled: all take their turns, and the fastest counts ----

struct Variant {
  std::string name;                ///< for people
  std::vector<std::string> words;  ///< after the peer's own
};

/// Each peer once in every variant. Those of one peer are a team.
std::vector<Contestant> in_variants(const std::vector<Contestant>& peers, const std::vector<Variant>& variants);

/// Leaves the fastest of each team in outcome.peers, in the order of their teams; its settings say what it is, and what
/// became of the others. `outcome` is of `contest`.
void keep_fastest(const Contest& contest, Outcome& outcome);

// ---- figures ----

/// A number that is read out of what a side has answered.
using Number = std::function<double(const Answers& side)>;
/// `factor` times the median of a field.
Number times(double factor, const char* field = "/seconds");
/// `work` per median second.
Number rate(double work);

/// The values of an outcome's sides as a figure's value, peers and limit, and its device; why a peer is missing, or its
/// value throws, goes into the note. Error if our side failed.
void fill(Figure& figure, const Outcome& outcome, const Number& value, const Number& limit = {});
/// "no peer: why" for each that failed.
void note_missing(Figure& figure, const Outcome& outcome);
void add_note(Figure& figure, const std::string& text);

/// Middle element; mean of the two middle ones of an even number. Not of nothing.
double median(std::vector<double> values);

}  // namespace sherd::bench
