#pragma once
// JSON from files that nobody vouches for.
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace sherd {

/// Parses `text`. Throws Error, which the caller completes with the file's name, if it is not JSON, nests deeper than
/// 16 levels (printing and comparing recurse), or has a key twice in one object (parsers differ on which one counts).
nlohmann::json parse_bounded_json(std::string_view text);

}  // namespace sherd
