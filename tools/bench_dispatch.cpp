// What one op call costs: a 1-element f32 add through the user's function, plain and with recording. The figure is the
// median over many short windows: a window that the system interrupted is an outlier, not a share of the mean.
#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/ops.h"
#include "tools/bench.h"

namespace sherd {

namespace {

constexpr int kCalls = 2000;    // per window: some hundred microseconds, below a time slice
constexpr int kWindows = 1001;  // odd: the median is one of them

template <class Fn>
double median_nanoseconds(const Fn& fn) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < kCalls; ++i) fn();
  std::vector<double> windows;
  for (int w = 0; w < kWindows; ++w) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) fn();
    windows.push_back(std::chrono::duration<double, std::nano>(Clock::now() - start).count() / kCalls);
  }
  std::nth_element(windows.begin(), windows.begin() + kWindows / 2, windows.end());
  return windows[kWindows / 2];
}

void add_peer(Figure& figure, const BenchOptions& options) {
  if (options.peer_python.empty()) return;
  try {
    const auto printed = nlohmann::json::parse(run_peer(options.peer_python, "dispatch.py"));
    figure.peer = printed.at("peer").get<std::string>();
    figure.peer_value = printed.at(figure.name).get<double>();
  } catch (const std::exception& error) {  // the figure stands without its peer
    figure.note = fmt::format("no peer: {}", error.what());
  }
}

Figure finished(std::string_view name, double value, double target, const BenchOptions& options) {
  Figure figure;
  figure.name = name;
  figure.value = value;
  figure.unit = "ns";
  figure.target = target;
  figure.pass = value <= target;
  add_peer(figure, options);
  return figure;
}

Figure plain(std::string_view name, const BenchOptions& options) {
  const GradMode off(false);
  const Tensor a = ones({1}), b = ones({1});
  return finished(name, median_nanoseconds([&] { Tensor c = add(a, b); }), 150, options);
}

// One node per call, which dies with its result, so that the pool of nodes serves all of them.
Figure recording(std::string_view name, const BenchOptions& options) {
  const GradMode on(true);
  Slot slot("a", true);
  slot.set(ones({1}));
  const Tensor a = slot.value(), b = ones({1});
  return finished(name, median_nanoseconds([&] { Tensor c = add(a, b); }), 300, options);
}

}  // namespace

std::span<const Benchmark> dispatch_benchmarks() {
  static constexpr std::array kBenchmarks = {
      Benchmark{"dispatch.plain", "1-element f32 add, recording off", plain},
      Benchmark{"dispatch.recording", "1-element f32 add, recorded on the tape", recording},
  };
  return kBenchmarks;
}

}  // namespace sherd
