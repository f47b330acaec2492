// `--child dispatch`: a request is "plain WINDOWS" or "recording WINDOWS"; each sample is one call of a 1-element f32
// add, from a window short enough that most are not interrupted.
#include <chrono>
#include <sstream>

#include "runtime/autograd/autograd.h"
#include "runtime/autograd/slot.h"
#include "runtime/op/rows/ops.h"
#include "tools/bench/child.h"

namespace sherd::bench {

namespace {

constexpr int kCalls = 2000;  // some hundred microseconds

template <class Fn>
std::vector<double> seconds_per_call(int windows, const Fn& fn) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < kCalls; ++i) fn();
  std::vector<double> samples;
  for (int w = 0; w < windows; ++w) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCalls; ++i) fn();
    samples.push_back(std::chrono::duration<double>(Clock::now() - start).count() / kCalls);
  }
  return samples;
}

std::vector<double> plain(int windows) {
  const GradMode off(false);
  const Tensor a = ones({1}), b = ones({1});
  return seconds_per_call(windows, [&] { Tensor c = add(a, b); });
}

// One node per call, which dies with its result, so that the pool of nodes serves all of them.
std::vector<double> recording(int windows) {
  const GradMode on(true);
  Slot slot("a", true);
  slot.set(ones({1}));
  const Tensor a = slot.value(), b = ones({1});
  return seconds_per_call(windows, [&] { Tensor c = add(a, b); });
}

}  // namespace

int run_dispatch_child(std::span<const std::string_view> args) {
  check(args.empty(), "the child dispatch takes no flags");
  serve({{"peer", "sherd"}}, [](const std::string& request) -> nlohmann::json {
    std::istringstream words(request);
    std::string kind;
    int windows = 0;
    words >> kind >> windows;
    check((kind == "plain" || kind == "recording") && windows >= 1, "dispatch: \"{}\" is not plain|recording WINDOWS",
          request);
    return {{"seconds", kind == "plain" ? plain(windows) : recording(windows)}};
  });
  return 0;
}

}  // namespace sherd::bench
