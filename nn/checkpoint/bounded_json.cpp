#include "nn/checkpoint/bounded_json.h"

#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/tensor/error.h"

namespace sherd {

nlohmann::json parse_bounded_json(std::string_view text) {
  using nlohmann::json;
  using Event = json::parse_event_t;
  constexpr std::size_t kMaxDepth = 16;
  std::vector<std::set<std::string>> open;  // keys seen in each enclosing object; arrays have an empty set
  const auto guard = [&](int, Event event, json& parsed) {
    if (event == Event::object_start || event == Event::array_start) {
      check(open.size() < kMaxDepth, "it nests deeper than {} levels", kMaxDepth);
      open.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      open.pop_back();
    } else if (event == Event::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      check(open.back().insert(key).second, "the name \"{}\" stands twice", key);
    }
    return true;
  };
  try {
    return json::parse(text, guard);
  } catch (const json::exception& error) { fail("it is not valid JSON: {}", error.what()); }
}

}  // namespace sherd
