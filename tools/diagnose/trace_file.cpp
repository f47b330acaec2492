#include "tools/diagnose/trace_file.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/train/exit_status.h"

namespace sherd::diagnose {

using namespace train;

namespace {

using nlohmann::json;

constexpr std::int64_t kRank0 = 1;  // its process, as trace_json.cpp numbers them

struct Open {
  std::string call;  ///< empty: no call of a row
  bool waits = false;
  double since = 0;
  double waited = 0;  ///< within it, in microseconds as since is
};

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::int64_t whole(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

TraceFile read_trace(const std::string& path) {
  std::ifstream file(path);
  check_usage(file.good(), "--trace {}: it cannot be opened", path);
  const json trace = json::parse(file, nullptr, /*allow_exceptions=*/false);
  const auto events = trace.is_object() ? trace.find("traceEvents") : trace.end();
  check_usage(trace.is_object() && events != trace.end() && events->is_array(),
              "--trace {}: it is no trace of `sherd train --trace`, or is cut off", path);
  TraceFile result{.path = path};
  std::map<std::int64_t, std::vector<Open>> tracks;
  std::map<std::string, std::vector<double>> seconds;
  for (const json& event : *events) {
    const std::string phase = text_of(event, "ph");
    const auto time = event.is_object() ? event.find("ts") : event.end();
    if (whole(event, "pid") != kRank0 || time == event.end() || !time->is_number()) continue;
    std::vector<Open>& open = tracks[whole(event, "tid")];
    if (phase == "B") {
      const std::string category = text_of(event, "cat"), name = text_of(event, "name");
      if (category == "part" && name.starts_with("step ")) ++result.steps;
      const auto args = event.find("args");
      const std::string inputs = args == event.end() ? "" : text_of(*args, "inputs");
      open.push_back({.call = category == "op" ? name + (inputs.empty() ? "" : " " + inputs) : "",
                      .waits = category == "exposed communication",
                      .since = time->get<double>()});
    } else if (phase == "E" && !open.empty()) {
      const Open closed = open.back();
      open.pop_back();
      const double passed = time->get<double>() - closed.since;
      if (!open.empty()) open.back().waited += closed.waits ? passed : closed.waited;
      if (!closed.call.empty()) seconds[closed.call].push_back(1e-6 * (passed - closed.waited));
    }
  }
  check_usage(!seconds.empty(), "--trace {}: rank 0 has no call in it", path);
  for (auto& [call, times] : seconds) result.calls[call] = median(times);
  return result;
}

}  // namespace sherd::diagnose
