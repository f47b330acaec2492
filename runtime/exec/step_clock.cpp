#include "runtime/exec/step_clock.h"

#include <algorithm>
#include <chrono>

namespace sherd {

namespace {

constexpr std::array<std::string_view, kNumStepParts> kNames{"data",        "forward",    "backward", "optimizer",
                                                             "update_wait", "evaluation", "save",     "other"};

std::int64_t now() { return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

StepPart part_of(StepPhase phase) {
  switch (phase) {
    case StepPhase::forward: return StepPart::forward;
    case StepPhase::backward: return StepPart::backward;
    case StepPhase::optimizer: return StepPart::optimizer;
  }
  return StepPart::other;
}

}  // namespace

std::string_view name(StepPart part) { return kNames[static_cast<std::size_t>(part)]; }

void StepClock::count() {
  const std::int64_t time = now();
  double passed = since_ == 0 ? 0 : static_cast<double>(time - since_) * 1e-9;
  since_ = time;
  const auto add = [this](StepPart part, double seconds) { seconds_[static_cast<std::size_t>(part)] += seconds; };
  if (part_ == StepPart::optimizer && waited_) {
    const double waited = waited_(), in_part = std::clamp(waited - waited_before_, 0.0, passed);
    waited_before_ = waited;
    add(StepPart::update_wait, in_part);
    passed -= in_part;
  }
  add(part_, passed);
}

void StepClock::enter(StepPart part) {
  if (part == part_) return;
  count();
  part_ = part;
  if (part_ == StepPart::optimizer && waited_) waited_before_ = waited_();
}

void StepClock::enter(StepPhase phase) {
  using enum StepPart;
  if (part_ == forward || part_ == backward || part_ == optimizer) enter(part_of(phase));
}

const PartSeconds& StepClock::seconds() {
  count();
  return seconds_;
}

StepClock::Scope::Scope(StepClock& clock, StepPart part) : clock_(clock), before_(clock.part()) { clock_.enter(part); }

StepClock& step_clock() { return RankContext::current().state<StepClock>(); }

}  // namespace sherd
