#pragma once
// A trace of `sherd train --trace`, as far as it says what each call of rank 0 takes.
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace sherd::diagnose {

struct TraceFile {
  std::string path{};
  std::int64_t steps = 0;  ///< that it has
  /// Median seconds of a call by row and shapes, "linear f32[2,3] f32[4,3]", as Cluster::calls has them.
  std::map<std::string, double, std::less<>> calls{};
};

/// ExitError of usage that names the file and what is wrong with it: no trace, cut off, no call of rank 0 in it.
TraceFile read_trace(const std::string& path);

}  // namespace sherd::diagnose
