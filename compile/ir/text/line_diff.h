#pragma once
// Two texts, line by line, for people.
#include <string>
#include <string_view>

namespace sherd::ir {

/// What leads from `before` to `after` as `diff -u` and `patch` write it, without the lines that name files: "@@ -4,7
/// +4,8 @@", then lines that begin with ' ', '-' or '+', with three that are in both around what is not. Empty if they
/// are equal. Lines that each text has once are what it goes by (a patience diff), so a block that has moved is taken
/// out and put in whole.
std::string line_diff(std::string_view before, std::string_view after);

}  // namespace sherd::ir
