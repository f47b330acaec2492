#pragma once
// What `sherd bench` is made of. A family of figures is one file of rows: names and targets, who is asked what, and
// what is read out of the answers. Our side of every comparison runs in a process of its own (child.h); the other sides
// are the programs in peers/ and the machine's limits.
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "runtime/comm/job/group_choice.h"
#include "tools/bench/contest.h"
#include "tools/bench/figure.h"

namespace sherd::bench {

struct BenchOptions {
  std::vector<std::string> pythons;  ///< whose torches are peers; targets are judged against the first that works
  std::string against;               ///< another build's program, the only peer; else empty
  GroupChoice group = "auto";        ///< of children of several ranks
  bool smoke = false;                ///< tiny sizes, one round: shows that all sides run; figures mean nothing
};

/// A contest as data: the sides and their requests. In texts {FULL|SMOKE} is another word in a smoke run, which also
/// has one round.
struct ContestRow {
  /// Our program in another way, as a peer of this name.
  struct Other {
    std::string name, words, request;
    int ranks = 1;
  };
  std::string ours, request;  ///< the words of a child (child.h)
  int ranks = 1;
  std::string torch{};          ///< a script of peers/ and its words; empty: none
  std::string torch_request{};  ///< empty: as ours
  int torch_threads = 1;
  std::vector<Variant> variants{};  ///< of each torch
  std::vector<Other> others{};
  std::string limit{};          ///< the words of a child
  std::string limit_request{};  ///< empty: as ours
  int rounds = 3;
};

/// One call of the program: its options, and what several figures share.
class BenchRun {
 public:
  explicit BenchRun(BenchOptions options) : options_(std::move(options)) {}

  bool smoke() const { return options_.smoke; }
  /// Whether the only peer is another build: no target holds then.
  bool is_against() const { return !options_.against.empty(); }
  /// A text without its {FULL|SMOKE}.
  std::string sized(std::string_view text) const;
  Contest contest_of(const ContestRow& row);

  /// The words, of which the first is a script of peers/, under each torch. Torches are asked and their settings
  /// measured on first use, but for a script that computes on a GPU (0 threads), where settings of the CPU's libraries
  /// are nothing to search for.
  std::vector<Contestant> torch_contestants(const std::vector<std::string>& words, const std::string& request,
                                            int threads = 1);

  /// contest.h, with the fastest of each team; and with the other build as the only peer, if there is one.
  Outcome hold(const Contest& contest) const;
  Outcome hold(const Contest& contest, Sides& sides) const;
  /// The same side by the other build; none without one, and for what is no child of this program.
  std::optional<Contestant> other_build(Contestant ours) const;

  /// The outcome under this key; the contest is held on first use, for figures that read different numbers of it.
  const Outcome& shared(const std::string& key, const ContestRow& row);
  /// The same for several contests that are held apart (contest.h). No other side runs meanwhile.
  const std::vector<Outcome>& shared_apart(const std::string& key,
                                           const std::function<std::vector<Contest>()>& contests);
  /// Sides that stay for the figures to come: small ones, which may live beside each other.
  Sides& sides() { return sides_; }

 private:
  SideCommand child_of(const std::string& text, int ranks) const;
  const std::vector<Contestant>& torches();
  Contest opposed(Contest contest) const;

  BenchOptions options_;
  std::vector<Contestant> torches_;  ///< each Python with the environment in which its torch is fastest
  std::map<std::string, Outcome> outcomes_;
  std::map<std::string, std::vector<Outcome>> outcomes_apart_;
  Sides sides_;
};

/// A figure as data.
struct Benchmark {
  /// An entry of its detail; without a value the last answer's own `key`.
  struct Reading {
    Reading(std::string of_key, Number of_value = {}) : key(std::move(of_key)), value(std::move(of_value)) {}
    Reading(const char* of_key) : Reading(std::string(of_key)) {}  // NOLINT: .detail = {"loss"}
    std::string key;
    Number value;
  };
  /// A matrix product that is timed.
  struct Product {
    const char* name;
    const char* kind;  ///< N stored as used, T stored transposed, for A and B
    int m, n, k;
    /// "NT {2048 384 384|32 16 16}": for a request.
    std::string sizes() const { return fmt::format("{} {{{} {} {}|32 16 16}}", kind, m, n, k); }
    double flops(bool smoke) const { return smoke ? 2.0 * 32 * 16 * 16 : 2.0 * m * n * k; }
  };
  std::string name, summary;
  Unit unit;
  Target target{};
  /// Asks the sides. What it throws becomes the note of a figure that could not be measured.
  std::function<Outcome(BenchRun& run)> outcome{};
  Number value{}, limit{};             ///< of each side that is ours or a peer; of the side that is the limit
  std::vector<Reading> detail{};       ///< of our side
  std::vector<Reading> peer_detail{};  ///< of the last peer that has answered, as "peer_KEY"
  /// What the fields above do not say, once they have been filled.
  std::function<void(Figure& figure, const Outcome& outcome, BenchRun& run)> more{};
};

/// The outcome of this contest alone, or with a key, in which texts are as in a ContestRow, of the one that all figures
/// of the key read.
std::function<Outcome(BenchRun&)> held(ContestRow row);
std::function<Outcome(BenchRun&)> held(std::string key, ContestRow row);

// The families, in sizes of a smoke run or full ones.
std::vector<Benchmark> step_benchmarks(bool smoke);     // steps.cpp
std::vector<Benchmark> ranks_benchmarks(bool smoke);    // ranks.cpp
std::vector<Benchmark> call_benchmarks(bool smoke);     // calls.cpp
std::vector<Benchmark> overlap_benchmarks(bool smoke);  // overlap.cpp
std::vector<Benchmark> units_benchmarks(bool smoke);    // units.cpp
std::vector<Benchmark> state_benchmarks(bool smoke);    // state.cpp
std::vector<Benchmark> gpu_benchmarks(bool smoke);      // gpu.cpp
std::vector<Benchmark> loss_benchmarks(bool smoke);     // loss.cpp

/// Absolute: `path` is a program, or a build's folder with bin/sherd in it. Error if neither.
std::string program_of_build(const std::string& path);
/// The Python of `tools/setup --python`, which may not be there: of SHERD_VENV, or build/venv of the source tree.
std::string python_of_venv();
/// tools/bench/NAME of the source tree above this program or above the working directory; Error if there is none.
std::filesystem::path source_file(std::string_view name);
/// A program that was built into this one's folder as a contestant, whose error names it if it was not built.
Contestant contestant_beside(std::string_view name, std::string request, const std::vector<std::string>& before = {});

}  // namespace sherd::bench
