#pragma once
// JSON from untrusted files, read in one pass: time and memory grow linearly with the text.
#include <functional>
#include <streambuf>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace sherd::ckpt {

/// An object or array of which the text decides how large it is. It is never held: its members are handed over one by
/// one, each at most 100'000 values large.
struct JsonMembers {
  enum class Kind { object, array };
  using Each = std::function<void(const std::string& name, nlohmann::json& value)>;

  std::string name = {};  ///< in the object around it; the outermost has none
  Kind kind = Kind::object;
  bool required = true;
  /// Called for each member that `large` does not name; members of arrays have no name. A name may come twice:
  /// whoever keeps the members refuses that. What it throws ends the reading.
  Each each = {};
  std::vector<JsonMembers> large = {};  ///< members of an object that are handed over in this way themselves
};

/// Reads `text`, whose outermost value is `outermost`. Throws Error, which the caller completes with the file's name,
/// if it is not JSON (a byte order mark and NUL are not), nests deeper than 16 levels, lacks what is required, has one
/// of `large` or a name within a member twice (parsers differ on which one counts), or a member or a string (2 MiB) is
/// too large.
void read_json(std::streambuf& text, const JsonMembers& outermost);
void read_json(std::string_view text, const JsonMembers& outermost);

/// A text in memory, which it borrows.
class TextBuffer : public std::streambuf {
 public:
  explicit TextBuffer(std::string_view text);
};

/// A text of at most 100'000 values as a whole. Throws Error as read_json() does.
nlohmann::json parse_bounded_json(std::string_view text);

/// The value as text for a message; a long one is truncated.
std::string shown(const nlohmann::json& value);

}  // namespace sherd::ckpt
