#pragma once
// Where the time of a rank's thread goes in a training loop: seconds of each part of a step. All of its time is of one
// part or another, so parts add up to what has passed. Who begins a part says so: the loop, the step, and a replay for
// the nodes that it runs.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <utility>

#include "runtime/exec/context.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

enum class StepPart : std::uint8_t {
  data,         ///< the batch is drawn and brought to the device
  forward,      ///< as the host issues it, like the next two; with what they wait for
  backward,     ///< updates within it too
  optimizer,    ///< after backward: norms, clipping, the update
  update_wait,  ///< of that part, waiting for other ranks; and for the numbers of a step from its device
  evaluation,
  save,  ///< as far as the loop waits for it; and going back to one
  other,
};
inline constexpr std::size_t kNumStepParts = 8;
std::string_view name(StepPart part);

/// By part.
using PartSeconds = std::array<double, kNumStepParts>;

/// One per rank, on its thread. Entering a part reads the clock once.
class StepClock : NoCopy {
 public:
  /// The time until now is of the part that was entered last; from now on it is of `part`.
  void enter(StepPart part);
  /// The same within an update; outside of one, as in an evaluation, nothing.
  void enter(StepPhase phase);
  StepPart part() const { return part_; }
  /// Until now.
  const PartSeconds& seconds();
  /// Seconds that the rank has waited for others so far, or null: which of the optimizer's are update_wait.
  void count_waits_by(std::function<double()> waited) { waited_ = std::move(waited); }

  /// A part for a scope, within another.
  class Scope : NoCopy {
   public:
    Scope(StepClock& clock, StepPart part);
    ~Scope() { clock_.enter(before_); }

   private:
    StepClock& clock_;
    const StepPart before_;
  };

 private:
  void count();
  StepPart part_ = StepPart::other;
  std::int64_t since_ = 0;  // nanoseconds
  double waited_before_ = 0;
  std::function<double()> waited_;
  PartSeconds seconds_{};
};

/// The clock of the calling thread's rank.
StepClock& step_clock();

}  // namespace sherd
