#pragma once
// What `sherd bench` is made of: named figures, each measured by one function. A new benchmark is one file with a
// catalogue of its figures, named in bench.cpp.
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace sherd {

/// One measured number beside what it is compared with. Smaller is better for times, larger for rates; `pass` is set
/// by whoever knows.
struct Figure {
  std::string name;
  std::optional<double> value;  ///< none: could not be measured, `note` says why
  std::string unit;
  std::string peer;                  ///< "torch 2.4.1"; empty: none was measured in this run
  std::optional<double> peer_value;  ///< in the same unit
  std::optional<double> limit;       ///< what the machine allows, measured in this run
  std::optional<double> target;
  std::optional<bool> pass;  ///< none without a target
  std::string note;
};

struct BenchOptions {
  std::string peer_python;  ///< interpreter that has the peer; empty: no peer
};

struct Benchmark {
  std::string_view name, summary;
  Figure (*measure)(std::string_view name, const BenchOptions& options);
};

std::span<const Benchmark> dispatch_benchmarks();  // bench_dispatch.cpp

/// Runs tools/bench/peers/SCRIPT of this source tree with the given interpreter and returns what it prints. Throws
/// Error if the script is not found beside this build or fails.
std::string run_peer(const std::string& python, std::string_view script);

}  // namespace sherd
