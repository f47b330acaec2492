#pragma once
// The step of a run as the simulator plays it, by prices that the run itself has shown: what another setting, or
// another link, would give.
#include <cstdint>
#include <optional>
#include <string>

#include "tools/diagnose/shares.h"
#include "tools/diagnose/trace_file.h"
#include "tools/plan/planner.h"

namespace sherd::diagnose {

class PricedRun {
 public:
  /// A ghost of rank 0 says what a step does. Its calls take what `trace` says, if there is one; others the seconds of
  /// `device_model`, a name or a file as sherd plan has them, or of a plain CPU where that is empty, times what makes
  /// all of them what the run's compute is. Links are as units have shown. ExitError of usage for a device that there
  /// is not.
  PricedRun(const RunFile& run, const Shares& shares, const TraceFile* trace, const std::string& device_model);

  /// Why nothing is simulated: the run's settings make no ghost here; else empty.
  const std::string& why_not() const { return now_.left_out; }
  /// Seconds that a step of as many tokens would take less with other settings, by which it has `tokens` times as many;
  /// nothing where they do not go together, or do not fit the memory of a rank.
  std::optional<double> gain(const plan::Changes& changes, double tokens = 1) const;
  /// The same of compute alone, whatever transfers do.
  std::optional<double> gain_of_compute(const plan::Changes& changes, double tokens) const;
  /// ... if transfers had this bandwidth.
  double gain_on_link(double bytes_per_second) const;
  /// Bandwidth of gathers as units have shown it; 0 without.
  double bytes_per_second() const { return bytes_per_second_; }
  /// How many times longer gathers take than on processes that share memory (LinkPrice); 0 without.
  double times_slower() const { return times_slower_; }
  /// Calls of rows in a step.
  std::int64_t calls() const { return static_cast<std::int64_t>(now_.forecast.step.calls.size()); }
  /// Seconds that the simulator makes of compute and transfers, and that the run has measured.
  double simulated_seconds() const { return now_.simulated ? now_.simulated->seconds : 0; }
  double measured_seconds() const { return measured_; }

 private:
  void price_links(const RunFile& run);
  double scale() const;
  /// What can be simulated and fits.
  std::optional<Simulation> simulated(const plan::Changes& changes) const;

  plan::PlannedFor planned_{};
  plan::Option now_{};
  double measured_ = 0, bytes_per_second_ = 0, times_slower_ = 0;
  std::int64_t memory_ = 0;  // of a rank
};

}  // namespace sherd::diagnose
