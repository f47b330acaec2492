#pragma once
// Why some combinations move their inputs although local calls would suffice, and why some are refused: decisions, as
// data.
#include <string>
#include <string_view>

namespace sherd::testing {

/// Empty if no reason is given. `in` is the text of a combination along one axis.
std::string reason_for_missing(std::string_view op, std::string_view in);
std::string reason_for_refusal(std::string_view op, std::string_view message);

}  // namespace sherd::testing
