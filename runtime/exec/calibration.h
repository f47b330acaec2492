#pragma once
// This machine, measured by `sherd calibrate`: a device model, and the calls that it is made of. As JSON, which is read
// as strictly as models are (price_json.h):
//
//   {"build": "fc0a...", "ranks": 2, "threads": 1, "time": 1.76e9, "core_share": 0.9, "device": {...},
//    "calls": {"linear bf16": [[2e9, 3e7, 1.1e-3]]}}
//
// Numbers of a call are FLOPs, bytes and seconds; calls of a row come by bytes.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/exec/price.h"

namespace sherd {

/// One call, as it was measured.
struct CallPoint {
  double flops, bytes, seconds;
};

/// Measured calls of rows.
struct MeasuredCalls {
  std::map<std::string, std::vector<CallPoint>, std::less<>> rows{};  ///< by row and type, "linear bf16"; by bytes

  /// Seconds of a call of the row, without what each call costs beside its work; none if it was not measured in the
  /// type. Products and attention go at the rate of the three nearest by FLOPs and bytes, which are the same for M, N
  /// and K in any order; others by bytes, as between the two next to them.
  std::optional<double> seconds(std::string_view row, const CallWork& work) const;
  /// Whether measured calls lie around it.
  bool covers(std::string_view row, const CallWork& work) const;
};

struct Calibration {
  DeviceModel device{};  ///< its name is the machine's; rates are for rows that were not measured; links has "ranks"
  MeasuredCalls calls{};
  /// Part of the seconds of a collective in which the rank's own core works on it: where queues have no core of their
  /// own; else 0.
  double core_share = 0;
  std::string build{};         ///< of the library
  int ranks = 1, threads = 1;  ///< ranks that computed at the same time, threads of each
  double time = 0;             ///< seconds since 1970
};

/// `file` begins the message of an Error.
Calibration parse_calibration(std::string_view text, std::string_view file);
/// What the parser reads, to the bit.
std::string print(const Calibration& calibration);

}  // namespace sherd
