#include "tools/cli/progress.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "runtime/memory/accounting.h"

namespace sherd {

using namespace train;

namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr auto kPlainLine = std::chrono::seconds(5);
constexpr const char* kEraseLine = "\r\x1b[K";

/// "950", "35.2k", "1.20M".
std::string format_rate(double rate) {
  if (rate < 1e3) return fmt::format("{:.0f}", rate);
  if (rate < 1e6) return fmt::format("{:.1f}k", rate / 1e3);
  return fmt::format("{:.2f}M", rate / 1e6);
}

}  // namespace

std::string format_duration(double seconds) {
  if (!(seconds >= 0 && seconds < 1e9)) return "?";
  const long long s = std::llround(seconds);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string progress_line(const ProgressState& state) {
  const std::string total = fmt::format("{}", state.steps);
  std::string line =
      fmt::format("step {:>{}}/{}  loss {:.4f}  {} tokens/s  {} per rank", state.step, total.size(), total, state.loss,
                  format_rate(state.tokens_per_second), format_bytes(state.memory_bytes));
  if (state.seconds_left) line += "  ETA " + format_duration(*state.seconds_left);
  return line;
}

void Progress::show(ProgressState state, Clock::time_point now) {
  if (!start_) start_ = Mark{state.step, now};
  const std::int64_t timed_steps = state.step - start_->step;
  if (timed_steps > 0) {
    const double seconds = std::chrono::duration<double>(now - start_->time).count();
    state.seconds_left = seconds / static_cast<double>(timed_steps) * static_cast<double>(state.steps - state.step);
  }
  const bool last = state.step >= state.steps;
  const auto pause = is_terminal_ ? Clock::duration(kRedraw) : Clock::duration(kPlainLine);
  if (shown_ && !last && now - last_shown_ < pause) return;
  shown_ = true;
  last_shown_ = now;
  if (is_terminal_) fmt::print(out_, "{}{}", kEraseLine, progress_line(state));
  else fmt::print(out_, "{}\n", progress_line(state));
  line_is_open_ = is_terminal_;
  std::fflush(out_);
}

void Progress::message(const std::string& text) {
  if (line_is_open_) std::fputs(kEraseLine, out_);
  line_is_open_ = false;
  fmt::print(out_, "{}\n", text);
  std::fflush(out_);
}

Progress::~Progress() {
  if (line_is_open_) std::fputc('\n', out_);
  std::fflush(out_);
}

std::string CaptureNotice::of(const StepMetrics& metrics) {
  constexpr int kBeforeReplay = 3;  // one eager step, two that are recorded
  if (!metrics.captured || ++num_steps_ <= kBeforeReplay) return {};
  const std::string reason = metrics.captured->is_replay ? "" : metrics.captured->why;
  if (std::exchange(said_, reason) == reason || reason.empty()) return {};
  return fmt::format("step {} is not captured: {}", metrics.step, reason);
}

}  // namespace sherd
