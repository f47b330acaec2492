#pragma once
// Prices from what runs have shown.
#include <span>
#include <string>
#include <vector>

#include "runtime/exec/calibration.h"
#include "tools/calibrate/traced_run.h"

namespace sherd::calibrate {

/// Means over the calls of equal shapes; of calls that have the CPUs to themselves without the slowest fifth, which
/// something else has disturbed. Of all ranks together. Collective.
MeasuredCalls measured_calls(std::span<const TracedRun> runs, bool shares_cpus, ProcessGroup& group);

/// Rates for rows that were not measured, and what a call costs beside its work.
DeviceModel device_of(std::span<const TracedRun> runs);

}  // namespace sherd::calibrate
