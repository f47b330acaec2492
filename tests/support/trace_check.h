#pragma once
// Reads a trace file as a viewer does and refuses what a viewer would drop: spans that do not nest, arrows without both
// ends, events without a name. Knows the published format, not the code that writes it.
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace sherd::testing {

struct TraceSlice {
  std::string process, track, name, category;
  nlohmann::json args;
  double start = 0, end = 0;  ///< microseconds
  int parent = -1;            ///< index of the slice around it
};
struct TraceCount {
  std::string process, name;
  double time = 0;
  nlohmann::json args;
};
struct ReadTrace {
  nlohmann::json notes;                                    ///< "otherData"
  std::map<std::string, std::vector<std::string>> tracks;  ///< by process
  std::vector<TraceSlice> slices;                          ///< by track, in order of their starts
  std::vector<std::pair<int, int>> arrows;                 ///< slices they lead from and to
  std::vector<TraceCount> counts;

  /// "step 3 > forward > blocks.0": the slice and all around it.
  std::string path_of(const TraceSlice& slice) const;
  std::vector<const TraceSlice*> named(std::string_view name) const;
};

/// Throws std::runtime_error that says what is wrong.
ReadTrace read_trace(const std::string& text);

}  // namespace sherd::testing
