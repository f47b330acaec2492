#pragma once
// JSON of files that people write and others send: every value knows its line and column, so that whoever finds it
// wrong can say where. (The library that reads manifests, nlohmann/json, does not keep places.)
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/tensor/error.h"

namespace sherd {

struct JsonValue {
  enum class Kind : std::uint8_t { null, boolean, number, text, array, object };
  Kind kind = Kind::null;
  bool boolean = false;
  double number = 0;
  std::string text{};
  std::vector<JsonValue> items{};                            ///< of an array
  std::vector<std::pair<std::string, JsonValue>> members{};  ///< of an object, in the order of the text
  int line = 1, column = 1;

  /// Null if there is none of that name.
  const JsonValue* find(std::string_view name) const;
};

/// Texts of untrusted origin: Error beginning with `file`, line and column for what is not JSON, for names that come
/// twice in an object or are longer than 200 characters, numbers that are not finite or over 1e18 in size, nesting
/// beyond 16 levels, more than 200 members or 262,144 values, and texts over 4 MiB. Time and memory are linear in the
/// text.
JsonValue parse_strict_json(std::string_view text, std::string_view file);

/// Names a file while its values are read: errors say "file: line 3, column 7: ...".
class JsonFile {
 public:
  explicit JsonFile(std::string_view file) : file_(file) {}

  template <class... Args>
  [[noreturn]] void fail_at(const JsonValue& at, fmt::format_string<Args...> format, Args&&... args) const {
    throw_at(at, fmt::format(format, std::forward<Args>(args)...));
  }
  const JsonValue& object(const JsonValue& value, std::string_view what) const;
  const JsonValue& array(const JsonValue& value, std::string_view what) const;
  const std::string& text(const JsonValue& value, std::string_view what) const;
  bool boolean(const JsonValue& value, std::string_view what) const;
  /// A number of at least `least`; over it if `least_excluded`.
  double number(const JsonValue& value, std::string_view what, double least = 0, bool least_excluded = false) const;
  int count(const JsonValue& value, std::string_view what, int least) const;
  /// Error for a member that is none of `names`, with the nearest of them.
  void check_names(const JsonValue& object, const std::vector<std::string>& names) const;
  /// Error if it is missing.
  const JsonValue& required(const JsonValue& object, std::string_view name) const;

 private:
  [[noreturn]] void throw_at(const JsonValue& at, const std::string& message) const;
  std::string_view file_;
};

/// `text` as JSON.
std::string json_quoted(std::string_view text);

}  // namespace sherd
