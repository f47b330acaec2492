#pragma once
// What `sherd bench` is made of. A family of figures is one file: rows of names and targets, and how one of them is
// measured. Our side of every comparison runs in a process of its own (child.h); the other sides are the programs in
// peers/ and the machine's limits.
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/contest.h"
#include "tools/bench/figure.h"

namespace sherd::bench {

struct BenchOptions {
  std::vector<std::string> pythons;  ///< whose torches are peers; targets are judged against the first that works
  std::string against;               ///< another build's program, the only peer; else empty
  bool smoke = false;                ///< tiny sizes, one round: shows that all sides run; figures mean nothing
};

/// A Python that has torch, and the environment in which that is fastest (peers/settings.py).
struct TorchPeer {
  std::string python, name;  ///< "torch 2.15.0"
  std::vector<std::string> environment;
  std::string settings;  ///< for people
  std::string error;     ///< why it cannot be used; else empty
};

/// One call of the program: its options, and what several figures share.
class BenchRun {
 public:
  explicit BenchRun(BenchOptions options) : options_(std::move(options)) {}
  BenchRun(const BenchRun&) = delete;
  BenchRun& operator=(const BenchRun&) = delete;

  bool smoke() const { return options_.smoke; }
  /// Whether the only peer is another build: no target holds then.
  bool is_against() const { return !options_.against.empty(); }
  /// What is asked for, or the least that works in a smoke run.
  template <class T>
  T sized(T full, T smoke) const {
    return options_.smoke ? smoke : full;
  }

  /// peers/SCRIPT WORDS under each torch. Torches are asked and their settings measured on first use.
  std::vector<Contestant> torch_contestants(std::string_view script, const std::vector<std::string>& words,
                                            const std::string& request, int threads = 1);
  /// The same for a script that computes on a GPU, where settings of the CPU's libraries are nothing to search for.
  std::vector<Contestant> gpu_torch_contestants(std::string_view script, const std::vector<std::string>& words,
                                                const std::string& request) const;

  /// contest.h, with the fastest of each team; and with the other build as the only peer, if there is one.
  Outcome hold(const Contest& contest) const;
  Outcome hold(const Contest& contest, Sides& sides) const;
  /// The same side by the other build; none without one, and for what is no child of this program.
  std::optional<Contestant> other_build(Contestant ours) const;

  /// The outcome under this key; the contest is held on first use, for figures that read different numbers of it.
  const Outcome& shared(const std::string& key, const std::function<Contest()>& contest);
  /// The same for several contests that are held apart (contest.h). No other side runs meanwhile.
  const std::vector<Outcome>& shared_apart(const std::string& key,
                                           const std::function<std::vector<Contest>()>& contests);
  /// Sides that stay for the figures to come: small ones, which may live beside each other.
  Sides& sides() { return sides_; }

 private:
  const std::vector<TorchPeer>& torches();
  Contest opposed(Contest contest) const;

  BenchOptions options_;
  std::vector<TorchPeer> torches_;
  std::map<std::string, Outcome> outcomes_;
  std::map<std::string, std::vector<Outcome>> outcomes_apart_;
  Sides sides_;
};

struct Benchmark {
  std::string name, summary;
  Unit unit;
  Target target{};
  /// Fills value, peers, limit, detail and note of a figure that has this row's name, unit and target. What it throws
  /// becomes the note of a figure that could not be measured.
  std::function<void(Figure& figure, BenchRun& run)> measure{};
};

std::vector<Benchmark> step_benchmarks();       // step.cpp
std::vector<Benchmark> recompute_benchmarks();  // recompute.cpp
std::vector<Benchmark> offload_benchmarks();    // offload.cpp
std::vector<Benchmark> save_benchmarks();       // save.cpp
std::vector<Benchmark> gemm_benchmarks();       // gemm.cpp
std::vector<Benchmark> dispatch_benchmarks();   // dispatch.cpp
std::vector<Benchmark> dtensor_benchmarks();    // dtensor.cpp
std::vector<Benchmark> shm_benchmarks();        // shm.cpp
std::vector<Benchmark> ranks_benchmarks();      // ranks.cpp
std::vector<Benchmark> overlap_benchmarks();    // overlap.cpp
std::vector<Benchmark> units_benchmarks();      // units.cpp
std::vector<Benchmark> ghost_benchmarks();      // ghost.cpp
std::vector<Benchmark> binding_benchmarks();    // binding.cpp
std::vector<Benchmark> program_benchmarks();    // program.cpp
std::vector<Benchmark> gpu_benchmarks();        // gpu.cpp
std::vector<Benchmark> loss_benchmarks();       // loss.cpp

/// Absolute: `path` is a program, or a build's folder with bin/sherd in it. Error if neither.
std::string program_of_build(const std::string& path);
/// The Python of `tools/setup --python`, which may not be there: of SHERD_VENV, or build/venv of the source tree.
std::string python_of_venv();
/// tools/bench/NAME of the source tree above this program or above the working directory; Error if there is none.
std::string source_file(std::string_view name);
/// A program that was built into this one's folder; Error naming it if it was not.
std::string program_beside(std::string_view name);

}  // namespace sherd::bench
