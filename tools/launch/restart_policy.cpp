#include "tools/launch/restart_policy.h"

#include <algorithm>
#include <numeric>

#include "runtime/tensor/error.h"

namespace sherd {

namespace {
constexpr std::chrono::milliseconds kMostPause{60'000};
}  // namespace

std::chrono::milliseconds RestartPolicy::Backoff::after(std::chrono::nanoseconds life) {
  if (life >= kAtOnce) next = first;
  const std::chrono::milliseconds pause = next;
  if (life < kAtOnce) next = std::min(2 * next, std::max(kMostPause, first));
  return pause;
}

void check_restarts(int ranks, const RestartOptions& options) {
  check(options.restarts >= 0, "there cannot be {} restarts", options.restarts);
  check(options.min_ranks >= 0 && options.min_ranks <= ranks, "at least {} of {} ranks cannot remain",
        options.min_ranks, ranks);
}

RestartPolicy::RestartPolicy(int ranks, const RestartOptions& options)
    : options_(options), slots_(static_cast<std::size_t>(ranks)), backoff_{options.backoff} {
  std::iota(slots_.begin(), slots_.end(), 0);
}

std::optional<NextStart> RestartPolicy::after(const StartFailure& failure, std::chrono::milliseconds life) {
  if (restarts_ == options_.restarts) return std::nullopt;
  ++restarts_;
  NextStart next{.pause = backoff_.after(life)};
  const std::vector<int> left_out = life < kAtOnce ? leave_out(failure.slots) : std::vector<int>();
  failed_before_ = failure.slots;
  next.text = fmt::format("with {} rank{}", slots_.size(), slots_.size() == 1 ? "" : "s");
  if (!left_out.empty())
    next.text += fmt::format("; left out, as {} failed again at once: {} of the first start",
                             left_out.size() == 1 ? "it" : "they",
                             fmt::format("rank{} {}", left_out.size() == 1 ? "" : "s", fmt::join(left_out, ", ")));
  return next;
}

/// Leaves out ranks that failed in the start before too, as many of them as may go.
std::vector<int> RestartPolicy::leave_out(const std::vector<int>& failed) {
  std::vector<int> left_out;
  if (options_.min_ranks == 0) return left_out;
  for (const int slot : failed) {
    if (std::cmp_less_equal(slots_.size(), options_.min_ranks)) break;
    if (std::ranges::find(failed_before_, slot) == failed_before_.end()) continue;
    left_out.push_back(slot);
    std::erase(slots_, slot);
  }
  return left_out;
}

}  // namespace sherd
